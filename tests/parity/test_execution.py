"""Executions run on faithful copies, leave the world as they found it, and say when float64 is no reference."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.inputs import copy_inputs, fresh_inputs, widen


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("total", torch.zeros(3))
        self.calls = 0
        self.cache = None

    def forward(self, x):
        self.calls += 1
        self.cache = x
        self.total = self.total + x.sum(0).detach()
        return self.linear(x)

    def method(self, x):
        return self.linear(x)


def test_module_state_is_restored_and_what_happened_is_kept():
    model, x = Counting(), torch.randn(2, 3)
    weight, total = model.linear.weight, model.total
    weight.grad = torch.ones_like(weight)
    before = weight.detach().clone()
    first, second = execute(model, (x,)), execute(model, (x,))
    assert (model.calls, model.cache) == (0, None)
    assert model.total is total
    assert torch.equal(model.total, torch.zeros(3))
    assert torch.equal(weight, before)
    assert torch.equal(weight.grad, torch.ones_like(weight))
    assert {name: (change.before, str(change.after)) for name, change in first.changes.items()} == {
        "calls": (0, "1"),
        "cache": (None, "a tensor"),
    }
    grads = [run.grads["grad of parameter linear.weight"].value for run in (first, second)]
    assert torch.equal(*grads)
    assert not torch.equal(grads[0], torch.ones_like(weight))


def test_the_float64_run_leaves_parameters_as_they_were():
    model = Counting()
    parameter, pointer = model.linear.weight, model.linear.weight.data_ptr()
    fp64 = execute(model.method, (torch.randn(2, 3),), fp64=True)
    assert fp64.outputs[0][1].dtype == torch.float64
    assert fp64.grads["grad of parameter linear.weight"].dtype == torch.float64
    assert model.linear.weight is parameter
    assert (parameter.dtype, parameter.data_ptr()) == (torch.float32, pointer)
    assert torch.get_default_dtype() == torch.float32


def test_state_is_found_through_closures_partials_methods_and_objects():
    model = torch.nn.Linear(3, 3)
    captured = torch.randn(3, requires_grad=True)

    def closing_over(x):
        return model(x) * captured

    class Program:
        def __init__(self):
            self.inner = model

        def __call__(self, x):
            return self.inner(x)

    x = torch.randn(2, 3)
    assert set(execute(closing_over, (x,)).grads) == {
        "grad of captured tensor captured",
        "grad of parameter model.weight",
        "grad of parameter model.bias",
    }
    assert "grad of parameter inner.weight" in execute(Program(), (x,)).grads
    assert "grad of parameter weight" in execute(functools.partial(model.forward), (x,)).grads
    assert "grad of parameter weight" in execute(lambda x: model(x), (x,), state_of=model).grads
    assert model.weight.grad is None


def test_inputs_are_not_touched_and_mutation_is_seen():
    x = torch.zeros(3)
    run = execute(lambda t: t.add_(1), (x,))
    assert torch.equal(x, torch.zeros(3))
    assert run.mutated == {"input 0"}
    assert torch.equal(run.inputs_after["input 0"].value, torch.ones(3))
    assert execute(lambda t: t + 1, (x,)).mutated == frozenset()


def narrowed_and_written(x):
    narrow = x.to(torch.bfloat16)
    narrow[..., 0] = 1.5
    return narrow, x * 2


def widened_and_written(x):
    narrow = (x * 2).bfloat16().sin()
    wide = narrow.float()
    wide.add_(1)
    return narrow, wide


def same_and_written(x):
    same = (x * 2).to(torch.float32)
    again = same.float()
    again.add_(1)
    return same, again


@pytest.mark.parametrize("program", [narrowed_and_written, widened_and_written, same_and_written])
def test_a_cast_copies_in_float64_where_it_copies_in_eager(program):
    x = torch.linspace(-2, 2, 8, requires_grad=True)
    run, fp64 = execute(program, (x,)), execute(program, (x,), fp64=True)

    assert fp64.fp64_unavailable_reason is None
    for (_, found), (_, wide) in zip(run.outputs, fp64.outputs, strict=True):
        torch.testing.assert_close(found.value.double(), wide.value, rtol=2e-2, atol=2e-2)


def test_a_non_leaf_input_may_be_mutated_and_has_its_gradient():
    leaf = torch.randn(3, requires_grad=True)
    run = execute(lambda t: t.mul_(2), (leaf * 1,))
    assert run.exception is None
    assert run.grads["grad of input 0"] is not None
    assert leaf.grad is None


def test_copies_keep_layout_and_aliasing():
    base = torch.randn(6, 8)
    inputs = (base, {"v": base[1:, ::2]}, base, base.t(), torch.randn(1, 4).expand(3, 4), 3, None)
    for copied in (
        copy_inputs(inputs).arguments,
        copy_inputs(inputs, transform=widen).arguments,
        fresh_inputs(inputs, 0),
    ):
        first, view, again, turned, expanded = copied[0], copied[1]["v"], copied[2], copied[3], copied[4]
        assert again is first
        assert view.untyped_storage() is first.untyped_storage() is turned.untyped_storage()
        assert first.untyped_storage() is not base.untyped_storage()
        assert (view.stride(), view.storage_offset()) == ((8, 2), 8)
        assert (turned.stride(), expanded.stride()) == ((1, 8), (0, 1))
        assert copied[5:] == (3, None)


def test_complex_conjugates_and_parameters_are_copied_as_such():
    z = torch.randn(3, dtype=torch.complex64).conj()
    parameter = torch.nn.Parameter(torch.randn(3))
    copied_z, copied_parameter = copy_inputs((z, parameter)).arguments
    assert torch.equal(copied_z, z)
    assert copied_z.is_conj()
    assert isinstance(copied_parameter, torch.nn.Parameter)
    assert copy_inputs((z,), transform=widen).arguments[0].dtype == torch.complex128


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-100, 100, width=32) | st.sampled_from([float("nan"), float("inf")]), min_size=1),
    seed=st.integers(0, 9),
)
def test_fresh_floats_stay_in_range_with_nan_and_infinity_in_place(values, seed):
    old = torch.tensor(values)
    (new,) = fresh_inputs((old,), seed)
    assert torch.equal(new.isnan(), old.isnan())
    assert torch.equal(new.isinf(), old.isinf())
    finite = old[old.isfinite()]
    if finite.numel():
        fresh = new[new.isfinite()]
        assert fresh.abs().max() <= finite.abs().max()
        assert bool((fresh >= 0).all()) or bool((finite < 0).any())


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(0, 50), min_size=1), seed=st.integers(0, 9))
def test_fresh_integers_are_the_same_integers_and_sorted_ones_stay(values, seed):
    old = torch.tensor(values)
    (new,) = fresh_inputs((old,), seed)
    assert sorted(new.tolist()) == sorted(values)
    assert torch.equal(fresh_inputs((old.sort().values,), seed)[0], old.sort().values)


def test_fresh_inputs_are_other_inputs_but_reproducible():
    inputs = (torch.randn(8, 8), torch.ones(4), torch.randperm(20), torch.arange(8) < 3)
    for new, old in zip(fresh_inputs(inputs, 1), inputs, strict=True):
        assert not torch.equal(new, old)
    assert all(map(torch.equal, fresh_inputs(inputs, 1), fresh_inputs(inputs, 1)))


def test_rng_is_seeded_watched_and_restored():
    state = torch.get_rng_state()
    recorded = [execute(lambda x: x + torch.rand(3), (torch.zeros(3),), seed=s) for s in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    values = [run.outputs[0][1].value for run in recorded]
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])
    assert recorded[0].rng_consumed == {"cpu"}
    assert execute(torch.sin, (torch.zeros(3),)).rng_consumed == frozenset()


def test_cotangents_are_the_same_in_every_run_and_precision():
    x = torch.randn(4, 4, dtype=torch.bfloat16, requires_grad=True)
    run, fp64 = execute(lambda t: t * 1, (x,)), execute(lambda t: t * 1, (x,), fp64=True)
    grad = run.grads["grad of input 0"].value
    assert torch.equal(grad.double(), fp64.grads["grad of input 0"].value)
    assert grad.unique().numel() > 4
    assert 0 not in grad


def test_ways_to_go_backward():
    x = torch.randn(3, requires_grad=True)
    double = lambda t: t * 2  # noqa: E731
    assert execute(double, (x,), backward=False).grads == {}
    assert execute(double, (x,), backward=lambda out: out.sum()).grads["grad of input 0"].value.tolist() == [2, 2, 2]
    given_one = execute(double, (x,), backward=torch.tensor([1.0, 2.0, 3.0]))
    assert given_one.grads["grad of input 0"].value.tolist() == [2, 4, 6]
    with pytest.raises(RegionalValueError, match="one cotangent of equal shape"):
        execute(double, (x,), backward=[torch.ones(4)])


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        # Of positive numbers it draws none.
        (lambda x: torch.nn.functional.rrelu(-x.abs() - 1, training=True), "random numbers"),
        (lambda x: x.view(torch.int32).view(3), "raised RuntimeError"),
    ],
)
def test_a_float64_reference_that_cannot_be(program, reason):
    assert reason in execute(program, (torch.randn(3),), fp64=True).fp64_unavailable_reason


DRAWING = {
    "out of nothing": lambda x: x * torch.rand(3) + torch.randn(3, dtype=torch.float16),
    "like a tensor": lambda x: x * torch.rand_like(x) + torch.randint_like(x, 5),
    "into a tensor": lambda x: x * torch.empty_like(x, requires_grad=False).uniform_(),
    "a mask": lambda x: torch.nn.functional.dropout(x, 0.5) * 2,
    "an order": lambda x: x[torch.randperm(3)],
    "in a checkpoint": lambda x: checkpoint(
        lambda y: torch.nn.functional.dropout(y.sin(), 0.5), x, use_reentrant=False
    ),
}


@pytest.mark.parametrize("program", DRAWING.values(), ids=DRAWING)
def test_the_float64_run_draws_what_the_program_draws(program):
    """In float64 a generator gives other numbers; they are float16's, and all that is computed of them is not."""
    x = torch.tensor([0.3, -1.7, 2.9], dtype=torch.float16, requires_grad=True)
    eager, fp64 = execute(program, (x,)), execute(program, (x,), fp64=True)
    assert fp64.fp64_unavailable_reason is None
    for (_, low), (_, wide) in zip(eager.outputs, fp64.outputs, strict=True):
        assert wide.dtype == torch.float64
        torch.testing.assert_close(low.value.double(), wide.value, rtol=5e-3, atol=5e-3)
    torch.testing.assert_close(eager.grads["grad of input 0"].value, fp64.grads["grad of input 0"].value.half())


def test_a_loop_that_dynamo_traces_runs_again_behind_a_float64_reference_that_draws():
    def twice(x):
        start = torch.zeros((), dtype=torch.int64)
        body = lambda i, y: (i + 1, y.sin())  # noqa: E731
        return torch._higher_order_ops.while_loop(lambda i, y: i < 2, body, (start, x))[1] * torch.rand_like(x)

    x = torch.randn(3)
    assert execute(twice, (x,), fp64=True).fp64_unavailable_reason is None
    assert execute(twice, (x,)).exception is None


def test_a_condition_in_float16_has_a_float64_reference():
    def program(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.rand(3).half()
    fp64 = execute(program, (x,), fp64=True)
    assert fp64.fp64_unavailable_reason is None
    assert torch.equal(fp64.outputs[0][1].value, torch.sin(x.double()))


def test_a_module_is_left_as_it_was_by_a_float64_reference_that_draws():
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = torch.randn(4, 3)
    eager, fp64 = (execute(norm, (x,), fp64=fp64) for fp64 in (False, True))
    assert fp64.fp64_unavailable_reason is None
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    found, expected = fp64.buffers_after, eager.buffers_after
    assert all(torch.allclose(found[name].value.to(expected[name].value), expected[name].value) for name in expected)


def test_float64_programs_have_no_float64_reference():
    run = execute(torch.sin, (torch.randn(3, dtype=torch.float64),), fp64=True)
    assert "below float64" in run.fp64_unavailable_reason


def test_the_float64_run_does_not_narrow_where_the_program_does():
    def norm(x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True))).to(torch.float32).type_as(x) + torch.zeros(3)

    x = torch.randn(2, 3)
    exact = x.double() * torch.rsqrt(x.double().pow(2).mean(-1, keepdim=True))
    ((_, found),) = execute(norm, (x,), fp64=True).outputs
    assert found.dtype == torch.float64
    assert torch.equal(found.value, exact)


def test_the_float64_run_runs_without_autocast():
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ x

    x = torch.randn(3, 3)
    assert execute(program, (x,)).outputs[0][1].dtype == torch.bfloat16
    assert torch.equal(execute(program, (x,), fp64=True).outputs[0][1].value, x.double() @ x.double())
