"""Every kind of difference that parity promises to see, planted once; and what it must not take for one."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.harness.parity.execution import execute
from tests.faults.parity.compared import kinds, parity_of


def program(x, w):
    return torch.nn.functional.silu(x @ w) * 2 + x


def _inputs(dtype=torch.float32, size=32, grad=False):
    generator = torch.Generator().manual_seed(7)
    return tuple(torch.randn(size, size, generator=generator).to(dtype).requires_grad_(grad) for _ in range(2))


def _one_element(y):
    y[3, 5] += 2
    return y


def _tile(y):
    y[4:8, 8:12] = y[8:12, 4:8].clone()
    return y


def _swapped_rows(y):
    y[[1, 2]] = y[[2, 1]]
    return y


def _zero_row(y):
    y[-1] = 0
    return y


@pytest.mark.parametrize("fault", [_one_element, _tile, _swapped_rows, _zero_row])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("level", ["close", "dtype", "bitwise"])
def test_wrong_values_are_seen(fault, dtype, level):
    report = parity_of(program, lambda x, w: fault(program(x, w)), *_inputs(dtype), level=level)
    assert kinds(report) == {("output", "value")}
    assert report.worst_ratio > 1


def test_an_equal_program_has_no_mismatch():
    report = parity_of(program, lambda x, w: program(x, w), *_inputs(grad=True))
    assert report.ok
    assert report.anchored
    assert report.compared == 3
    assert report.worst_ratio <= 0.5


def test_dropped_op():
    report = parity_of(program, lambda x, w: torch.nn.functional.silu(x @ w) * 2, *_inputs(grad=True))
    assert ("output", "value") in kinds(report)
    assert ("grad of input 0", "value") in kinds(report)


def test_wrong_gradient_alone():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 1.01

    report = parity_of(program, lambda x, w: program(x, Doubled.apply(w)), *_inputs(grad=True))
    assert kinds(report) == {("grad of input 1", "value")}


def test_wrong_dtype():
    report = parity_of(program, lambda x, w: program(x, w).double(), *_inputs())
    assert ("output", "dtype") in kinds(report)


def test_wrong_shape():
    report = parity_of(program, lambda x, w: program(x, w)[:-1], *_inputs())
    assert ("output", "shape") in kinds(report)


def test_lost_requires_grad_and_gradient():
    report = parity_of(program, lambda x, w: program(x, w).detach(), *_inputs(grad=True))
    assert ("output", "requires_grad") in kinds(report)
    assert ("grad of input 1", "missing-grad") in kinds(report)


def test_one_gradient_none():
    report = parity_of(program, lambda x, w: program(x, w.detach()), *_inputs(grad=True))
    assert ("grad of input 1", "missing-grad") in kinds(report)


def test_changed_stride():
    report = parity_of(program, lambda x, w: program(x, w).t().contiguous().t(), *_inputs())
    assert kinds(report) == {("output", "stride")}


def test_strides_of_size_one_dimensions_are_free():
    def candidate(x):
        return torch.empty_strided((1, 4), (77, 1)).copy_(x + 1)

    assert parity_of(lambda x: x + 1, candidate, torch.randn(1, 4)).ok


def test_lost_alias():
    report = parity_of(lambda x: x.view(-1), lambda x: x.view(-1).clone(), torch.randn(4, 4))
    assert kinds(report) == {("output", "alias")}
    assert "shares memory with input 0" in report.mismatches[0].detail


def test_gained_alias_between_outputs():
    def candidate(x):
        y = x + 1
        return y, y

    report = parity_of(lambda x: (x + 1, x + 1), candidate, torch.randn(4))
    assert kinds(report) == {("output[1]", "alias")}


@pytest.mark.parametrize("parts", [lambda y: y.chunk(2), lambda y: (y[::2], y[1::2]), lambda y: (y[:, 0], y[:, 1])])
def test_separate_parts_of_one_storage_are_no_alias(parts):
    def together(x):
        return tuple(parts(x + 1))

    def apart(x):
        return tuple(part.clone(memory_format=torch.preserve_format) for part in parts(x + 1))

    def strided_apart(x):
        return tuple(part.new_empty_strided(part.shape, part.stride()).copy_(part) for part in apart(x))

    x = torch.randn(4, 4)
    for one, other in ((together, strided_apart), (strided_apart, together)):
        report = parity_of(one, other, x)
        assert "alias" not in {kind for _, kind in kinds(report)}


def test_parts_that_have_an_element_in_common_are_an_alias():
    report = parity_of(lambda x: (x[:3] + 0, x[2:] + 0), lambda x: ((x + 0)[:3], (x + 0)[2:]), torch.randn(4))
    assert report.ok

    def overlapping(x):
        y = x + 0
        return y[:3], y[2:]

    report = parity_of(lambda x: (x[:3] + 0, x[2:] + 0), overlapping, torch.randn(4))
    assert kinds(report) == {("output[1]", "alias")}


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (lambda b: b[:2], lambda b: b[2:], False),
        (lambda b: b[:2], lambda b: b[1:], True),
        (lambda b: b[:, 0], lambda b: b[:, 1], False),
        (lambda b: b[:, 0], lambda b: b[:, ::2], True),
        (lambda b: b, lambda b: b.expand(3, 4, 4), True),
        (lambda b: b.view(torch.int64)[0], lambda b: b[0, :2], True),
        (lambda b: b.view(torch.int64)[0, :1], lambda b: b[0, 2:], False),
        (lambda b: b[0:0], lambda b: b, False),
        (lambda b: b.unfold(0, 2, 1), lambda b: b[3], True),
    ],
)
def test_which_tensors_overlap(one, other, expected):
    for pair in ((one, other), (other, one)):
        aliases = execute(lambda base: [view(base) for view in pair], (torch.zeros(4, 4),)).aliases  # noqa: B023
        assert ("output[0]" in aliases["output[1]"].shares) == expected


def test_view_of_an_input_instead_of_the_input_itself():
    report = parity_of(lambda x: x, lambda x: x.view_as(x), torch.randn(4))
    assert kinds(report) == {("output", "alias")}


def test_lost_mutation():
    report = parity_of(lambda x: x.add_(1).sum(), lambda x: (x + 1).sum(), torch.randn(4, 4))
    assert kinds(report) == {("input 0 (mutated in place)", "value")}
    assert "left it unchanged" in report.mismatches[0].detail


def test_gained_mutation():
    report = parity_of(lambda x: (x + 1).sum(), lambda x: x.add_(1).sum(), torch.randn(4, 4))
    assert [m.kind for m in report.mismatches] == ["value"]
    assert "by the compiled program only" in report.mismatches[0].where


def test_mutation_through_one_of_two_aliasing_inputs():
    base = torch.randn(4, 4)
    report = parity_of(lambda x, v: v.mul_(2).sum(), lambda x, v: (v * 2).sum(), base, base[1])
    assert {where for where, _ in kinds(report)} == {"input 0 (mutated in place)", "input 1 (mutated in place)"}


def test_mutation_of_a_buffer():
    norm = torch.nn.BatchNorm1d(4)

    def candidate(x):
        return torch.nn.functional.batch_norm(x, None, None, norm.weight, norm.bias, training=True)

    report = parity_of(norm, candidate, torch.randn(8, 4), state_of=norm)
    assert {where for where, _ in kinds(report)} == {
        f"buffer {name} (mutated in place)" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_wrong_gradient_of_a_parameter():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))

    def candidate(x):
        return torch.nn.functional.linear(model[0](x), model[1].weight.detach(), model[1].bias)

    report = parity_of(model, candidate, torch.randn(8, 4), state_of=model)
    assert kinds(report) == {("grad of parameter 1.weight", "missing-grad")}


def test_nan_moved():
    def candidate(x):
        y = x.log()
        return torch.where(y.isnan(), 0.0, y)

    report = parity_of(torch.log, candidate, torch.tensor([1.0, -1.0, 2.0]))
    assert kinds(report) == {("output", "nan")}
    assert report.mismatches[0].evidence.index == (1,)


def test_nan_and_infinity_in_place_are_equal():
    assert parity_of(lambda x: x.log() * 2, lambda x: 2 * x.log(), torch.tensor([1.0, -1.0, 0.0])).ok


def test_sign_of_infinity():
    report = parity_of(lambda x: x / 0, lambda x: x.abs() / 0, torch.tensor([1.0, -1.0]))
    assert kinds(report) == {("output", "nan")}


def test_exception_only_in_the_candidate():
    def candidate(x):
        raise RuntimeError("no kernel")

    report = parity_of(torch.sin, candidate, torch.randn(2))
    assert kinds(report) == {("forward", "exception")}
    assert "no kernel" in report.mismatches[0].detail


def test_exception_only_in_eager_and_of_another_type():
    def raises(error):
        def program(x):
            raise error("here")

        return program

    assert kinds(parity_of(raises(ValueError), torch.sin, torch.randn(2))) == {("forward", "exception")}
    assert kinds(parity_of(raises(ValueError), raises(KeyError), torch.randn(2))) == {("forward", "exception")}
    assert parity_of(raises(LookupError), raises(KeyError), torch.randn(2)).ok


def test_exception_in_the_backward():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("lost")

    report = parity_of(torch.sin, lambda x: Broken.apply(x).sin(), torch.randn(2, requires_grad=True))
    assert kinds(report) == {("backward", "exception")}


def test_structure():
    report = parity_of(lambda x: {"h": x + 1}, lambda x: [x + 1], torch.randn(2))
    assert ("output", "structure") in kinds(report)
    assert ("output", "structure") in kinds(parity_of(lambda x: (x + 1,), lambda x: [x + 1], torch.randn(2)))


def test_python_leaves():
    assert ("output[0]", "value") in kinds(parity_of(lambda x: (3, x + 1), lambda x: (4, x + 1), torch.randn(2)))
    assert ("output", "value") in kinds(parity_of(lambda x: 0.5, lambda x: 0.51, torch.randn(2)))
    assert ("output", "structure") in kinds(parity_of(lambda x: 1, lambda x: True, torch.randn(2)))
    assert parity_of(lambda x: x.sum().item(), lambda x: x.flip(0).sum().item(), torch.randn(64)).ok


def test_integer_outputs_are_exact():
    report = parity_of(lambda x: x * 1000, lambda x: x * 1000 + (x == 3), torch.arange(8))
    assert report.mismatches[0].evidence.index == (3,)


def test_all_mismatches_are_in_one_report():
    def candidate(x, w):
        return {"a": program(x, w).double(), "b": _one_element((x - w).detach().clone())}

    report = parity_of(lambda x, w: {"a": program(x, w), "b": x - w}, candidate, *_inputs(grad=True))
    assert {("output['a']", "dtype"), ("output['b']", "value"), ("output['b']", "requires_grad")} <= kinds(report)


@pytest.mark.parametrize("bits", [(0.0, -0.0), (float("nan"), -float("nan"))])
def test_only_bitwise_sees_the_sign_of_zero_and_nan_payloads(bits):
    first, second = (torch.tensor([value]) for value in bits)
    assert parity_of(lambda x: first + 0, lambda x: second.clone(), torch.randn(1)).ok
    report = parity_of(lambda x: first.clone(), lambda x: second.clone(), torch.randn(1), level="bitwise")
    assert kinds(report) == {("output", "value")}


def test_the_order_of_one_sum_is_no_mismatch():
    for seed in range(100):
        x = torch.randn(4096, generator=torch.Generator().manual_seed(seed))
        assert parity_of(torch.mean, lambda t: t.reshape(64, 64).t().flatten().cumsum(0)[-1] / 4096, x).ok


def test_one_ulp_is_nothing_to_close_and_everything_to_bitwise():
    x = torch.randn(16)
    nudged = lambda t: torch.nextafter(t * 2, torch.tensor(9.0))  # noqa: E731
    assert parity_of(lambda t: t * 2, nudged, x).ok
    assert not parity_of(lambda t: t * 2, nudged, x, level="bitwise").ok


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(20))
def test_fused_numerics_are_no_mismatch(dtype, seed):
    torch.manual_seed(seed)
    inputs = [torch.randn(64, 64).to(dtype).requires_grad_() for _ in range(2)]

    def chain(x, w):
        h = torch.nn.functional.silu(x @ w) * x
        return torch.softmax(h * 0.3, -1) + h.tanh() * x

    def fused(x, w):
        return chain(x.float(), w.float()).to(dtype)

    report = parity_of(chain, fused, *inputs)
    assert report.ok, report.describe()
    assert report.anchored
