"""Backends that compute in a coarser precision than the program: held to what that precision costs eager."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_regional import BackendSpec, GraphCapabilities, ParityError, TrainingParityError
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.precision import PRECISIONS, RoundsOperands
from pytest_regional.testing import regional

F32 = torch.float32


class Computes(torch.fx.Interpreter):
    """Runs a graph with tensors in another dtype, as a library of kernels for inference does."""

    def __init__(self, gm, dtype, fault=0.0):
        super().__init__(gm)
        self.dtype, self.fault = dtype, fault

    def run_node(self, n):
        result = super().run_node(n)
        if isinstance(result, torch.Tensor) and result.dtype == F32:
            result = result.to(self.dtype).to(F32)
            if n.op == "call_function" and self.fault:
                result = result * (1 + self.fault)
        return result


def spec(dtype, *, says, fault=0.0):
    def backend(gm, example_inputs):
        return Computes(gm, dtype, fault).run

    return BackendSpec("coarse", lambda: backend, GraphCapabilities(), precision=says)


def mlp(x, w, v):
    return torch.softmax(torch.tanh(x @ w) @ v, -1), (x @ v).sum()


def rows(r):
    return r.randn(16, 32), r.randn(32, 32), r.randn(32, 32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_a_word_its_rounding_is_a_failure(dtype):
    with regional(spec(dtype, says=None)) as r, pytest.raises(ParityError):
        r.assert_parity(mlp, *rows(r), backward=False)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("says", ["bfloat16", torch.bfloat16, lambda: "bfloat16"], ids=["name", "dtype", "function"])
def test_said_it_is_allowed(says, seed):
    with regional(spec(torch.bfloat16, says=says), seed=seed) as r:
        report = r.assert_parity(mlp, *rows(r), backward=False)
        assert report.anchored
        assert "in the backend's bfloat16" in report.summary()


@pytest.mark.parametrize(("dtype", "fault"), [(torch.bfloat16, 0.2), (torch.float16, 0.02)])
def test_a_fault_beyond_its_precision_is_found(dtype, fault):
    with regional(spec(dtype, says=dtype, fault=fault)) as r, pytest.raises(ParityError):
        r.assert_parity(mlp, *rows(r), backward=False)


def test_what_it_says_is_not_taken_for_less():
    """A backend that computes in bfloat16 and says float16."""
    with regional(spec(torch.bfloat16, says="float16")) as r, pytest.raises(ParityError):
        r.assert_parity(mlp, *rows(r), backward=False)


def test_programs_in_a_coarser_dtype_are_judged_as_ever():
    def doubled(gm, example_inputs):
        return lambda *inputs: tuple(value * (1 + 2**-5) for value in gm.forward(*inputs))

    for precision in (None, "float16"):
        wrong = BackendSpec("wrong", lambda: doubled, GraphCapabilities(), precision=precision)
        with regional(wrong) as r, pytest.raises(ParityError):
            r.assert_parity(lambda x: x.sin(), r.randn(64, dtype=torch.bfloat16), backward=False)


def test_choices_that_the_precision_decides_are_not_judged():
    def positive(x, w):
        return x @ w, (x @ w) > 1e-3, torch.argmax(x @ w, -1)

    for says, passes in ((torch.bfloat16, True), (None, False)):
        with regional(spec(torch.bfloat16, says=says)) as r:
            x, w = r.randn(64, 64), r.randn(64, 64)
            if passes:
                r.assert_parity(positive, x, w)
            else:
                with pytest.raises(ParityError):
                    r.assert_parity(positive, x, w)


def test_choices_that_it_does_not_decide_are():
    def flipped(gm, example_inputs):
        return lambda *inputs: tuple(~value for value in gm.forward(*inputs))

    wrong = BackendSpec("wrong", lambda: flipped, GraphCapabilities(), precision="bfloat16")
    with regional(wrong) as r, pytest.raises(ParityError):
        r.assert_parity(lambda x: x > 0, torch.arange(-8.0, 8.0))


def test_without_a_float64_run_its_usual_tolerance_holds():
    def float32_alone(x):
        if x.dtype != F32:
            raise NotImplementedError
        return x * 3

    with regional(spec(torch.bfloat16, says="bfloat16")) as r:
        assert not r.assert_parity(float32_alone, r.randn(64), backward=False).anchored
    with regional(spec(torch.bfloat16, says="float16")) as r, pytest.raises(ParityError):
        r.assert_parity(float32_alone, r.randn(64), backward=False)


@pytest.mark.parametrize("level", ["dtype", "bitwise"])
def test_levels(level):
    with regional(spec(torch.bfloat16, says="bfloat16")) as r:
        x = r.randn(64)
        if level == "dtype":
            r.assert_parity(lambda x: x * 3, x, level=level)
        else:
            with pytest.raises(ParityError):
                r.assert_parity(lambda x: x * 3, x, level=level)


def test_tolerances_that_the_test_gives_are_the_tests():
    with regional(spec(torch.bfloat16, says="bfloat16")) as r, pytest.raises(ParityError):
        r.assert_parity(lambda x: x * 3, r.randn(64), rtol=1e-6, atol=1e-6)


def test_float32_for_programs_in_float64():
    def backend(gm, example_inputs):
        return lambda *inputs: tuple(value.double() for value in gm.forward(*(value.float() for value in inputs)))

    for says in (None, "float32"):
        with regional(BackendSpec("narrow", lambda: backend, GraphCapabilities(), precision=says)) as r:
            run = functools.partial(r.assert_parity, lambda x: x @ x, r.randn(64, 64, dtype=torch.float64))
            if says:
                run()
            else:
                with pytest.raises(ParityError):
                    run()


@pytest.mark.parametrize("name", PRECISIONS)
def test_numbers_of_a_precision(name):
    precision = PRECISIONS[name]
    magnitudes = torch.rand(2, 1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    values = torch.cat([magnitudes[0] * 1e-6, magnitudes[1], -magnitudes[1] * 1e3])
    rounded = precision.round(values)
    assert torch.equal(precision.round(rounded), rounded)
    scaled = (rounded - values).abs() / values.abs()
    assert precision.eps / 8 < scaled[1000:].max() <= precision.eps / 2
    assert precision.round(torch.tensor([float("nan"), float("inf"), -0.0])).isfinite().tolist() == [False, False, True]


def test_tf32_is_rounded_to_nearest_even():
    half = 2.0**-11
    given = torch.tensor([1 + half, 1 + 3 * half, 1 + half + 2**-20, -1 - half])
    assert PRECISIONS["tf32"].round(given).tolist() == [1.0, 1 + 4 * half, 1 + 2 * half, -1.0]


def test_the_rounded_run_leaves_everything_as_it_was():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.randn(4, 8, requires_grad=True)
    kept = x.detach().clone()
    run = execute(module, (x,), precision=PRECISIONS["bfloat16"])
    plain = execute(module, (x,))
    assert run.exception is None
    assert torch.equal(x, kept)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert run.mutated == plain.mutated
    for name in run.mutated:
        torch.testing.assert_close(
            run.buffers_after[name].value, plain.buffers_after[name].value, rtol=2**-6, atol=2**-6, msg=name
        )
    assert run.grads.keys() == plain.grads.keys()
    assert not torch.equal(run.grads["grad of input 0"].value, plain.grads["grad of input 0"].value)


def test_writes_are_rounded():
    x = torch.full((4,), 1 + 2.0**-12)
    with RoundsOperands(PRECISIONS["bfloat16"]):
        y = torch.zeros(4)
        y.add_(x)
        y[1:].mul_(x[1:])
        total = torch.cat([y, y.expand(2, 4).reshape(-1)]).sum()
    assert y.tolist() == [1.0] * 4
    assert total == 12


def test_a_precision_that_is_none():
    with pytest.raises(ValueError, match=r"unknown precision 'bfloat61'\. Did you mean 'bfloat16'"):
        spec(torch.bfloat16, says="bfloat61")
    with pytest.raises(ValueError, match=r"unknown precision 'int8'"):
        spec(torch.bfloat16, says=lambda: torch.int8).computes_in()


def test_specifications_of_the_same_names():
    with pytest.raises(ValueError, match=f"Known: {', '.join(sorted(PRECISIONS))}\\."):
        spec(torch.bfloat16, says="none")


def trains_in(dtype, fault=0.0):
    """A backend for training whose forward and backward compute in ``dtype``."""
    from pytest_regional._torch import symbol

    def compile_graph(gm, example_inputs):
        return symbol("torch._functorch._aot_autograd.utils", "make_boxed_func")(Computes(gm, dtype, fault).run)

    aot = symbol("torch._dynamo.backends.common", "aot_autograd")
    return aot(fw_compiler=compile_graph, bw_compiler=compile_graph)


@pytest.mark.parametrize(
    ("says", "fault", "passes"), [("bfloat16", 0.0, True), (None, 0.0, False), ("bfloat16", 0.3, False)]
)
def test_training(says, fault, passes):
    coarse = BackendSpec("coarse", lambda: trains_in(torch.bfloat16, fault), GraphCapabilities(), precision=says)
    with regional(coarse) as r:
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4))
        batches = [(r.randn(8, 16), r.randn(8, 4)) for _ in range(3)]
        train = functools.partial(
            r.assert_training_parity, model, batches, loss=lambda out, target: (out - target).square().mean()
        )
        if passes:
            assert train().anchored
        else:
            with pytest.raises(TrainingParityError):
                train()


@pytest.mark.parametrize("says", ["bfloat16", None])
def test_gradients(says):
    coarse = BackendSpec("coarse", lambda: trains_in(torch.bfloat16), GraphCapabilities(), precision=says)
    with regional(coarse) as r:
        x, w, v = (tensor.requires_grad_() for tensor in rows(r))
        if says:
            assert r.assert_parity(mlp, x, w, v).compared == 10
        else:
            with pytest.raises(ParityError):
                r.assert_parity(mlp, x, w, v)


def test_an_operator_of_higher_order_is_one_operator():
    """Eager asks Dynamo to trace flex_attention, which does not work in a mode, nor ever again in that process."""
    from torch.nn.attention.flex_attention import flex_attention

    coarse = BackendSpec("coarse", lambda: "aot_eager", GraphCapabilities(), precision="bfloat16")
    with regional(coarse) as r:
        report = r.assert_parity(lambda q: flex_attention(q, q, q), r.randn(1, 2, 16, 8))
        assert report.anchored
        (errors,) = {report.errors["output"].allowed}
        assert 1e-3 < errors < 0.2
