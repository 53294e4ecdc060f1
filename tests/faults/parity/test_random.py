"""The backend's own random numbers, judged by dtype, state, determinism and distribution."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from pytest_regional import BackendSpec, ParityError
from pytest_regional.harness.parity.random_code import RUNS, probability, statistics
from pytest_regional.testing import regional


def dropped(x):
    return torch.nn.functional.dropout(x, 0.3)


def noise(x):
    return torch.rand_like(x), torch.rand_like(x)


def own(change):
    """A backend that draws as eager does with ``fallback_random``, and otherwise what ``change`` makes of it."""

    def backend(gm, example_inputs):
        if torch._inductor.config.fallback_random:
            return gm.forward
        return lambda *inputs: change(gm, inputs)

    return BackendSpec("faulty", lambda: backend)


def judged(backend, program=noise, *shape, **options):
    with regional(backend, expects_regions=False) as r:
        return r.assert_parity(program, r.randn(*(shape or (32, 32)), **options))


def found(change, program=noise, *shape, **options):
    with pytest.raises(ParityError) as caught:
        judged(own(change), program, *shape, **options)
    assert all(m.where.startswith("with the backend's own random numbers: ") for m in caught.value.report.mismatches)
    return {(m.where.partition(": ")[2], m.kind) for m in caught.value.report.mismatches}


def dropped_and_noise(x):
    return dropped(x), torch.rand_like(x)


@pytest.mark.parametrize(
    ("backend", "program"), [("aot_eager", dropped), ("aot_eager", noise), ("inductor", dropped_and_noise)]
)
def test_right_backends(backend, program):
    report = judged(backend, program, requires_grad=program is not noise)
    assert report.random_runs == RUNS


def test_a_program_that_draws_nothing_is_compiled_once():
    compiled = []

    def backend(gm, example_inputs):
        compiled.append(gm)
        return gm.forward

    report = judged(BackendSpec("counting", lambda: backend), torch.sin)
    assert (report.random_runs, len(compiled)) == (0, 1)
    judged(BackendSpec("counting", lambda: backend), noise)
    assert len(compiled) == 3


def test_counters_are_those_of_one_compile():
    with regional("aot_eager", expects_regions=False) as r, r.expect(graphs=1, recompiles=0):
        r.assert_parity(dropped, r.randn(8, 8))


def test_what_a_backend_disclaims_is_not_judged():
    from pytest_regional import declared

    spec = own(lambda gm, inputs: tuple(one * 0 for one in gm(*inputs)))
    disclaiming = BackendSpec(spec.name, spec.factory, declared(rng=False)())
    assert judged(disclaiming).random_runs == 0


def test_another_dtype():
    wrong = lambda gm, inputs: tuple(one.double() for one in gm(*inputs))  # noqa: E731
    assert found(wrong) == {("output[0]", "dtype"), ("output[1]", "dtype")}


def test_the_same_numbers_with_each_seed():
    def change(gm, inputs):
        state = torch.get_rng_state()
        torch.manual_seed(0)
        result = gm(*inputs)
        torch.set_rng_state(state)
        torch.rand(1)
        return result

    assert {kind for _, kind in found(change)} >= {"draws"}


def test_a_generator_that_stays():
    def change(gm, inputs):
        state = torch.get_rng_state()
        result = gm(*inputs)
        torch.set_rng_state(state)
        return result

    assert ("random state", "draws") in found(change)


def test_draws_that_no_result_needs_may_be_left_out():
    def program(x):
        torch.rand(3)
        return x * 2

    assert judged(own(lambda gm, inputs: (inputs[0] * 2,)), program).random_runs == RUNS


def test_numbers_that_one_seed_does_not_give_again():
    calls = []

    def change(gm, inputs):
        calls.append(gm)
        torch.manual_seed(torch.initial_seed() + len(calls))
        return gm(*inputs)

    assert {kind for _, kind in found(change)} == {"draws"}


def test_values_that_no_draw_reaches():
    def program(x):
        return torch.rand_like(x), x * 2

    def change(gm, inputs):
        drawn, other = gm(*inputs)
        return drawn, other + 1

    assert found(change, program) == {("output[1]", "value")}


@pytest.mark.parametrize(
    "change",
    [
        lambda one: one * 0.9,
        lambda one: one * 2 - 0.5,
        lambda one: torch.where(one < 0.1, 0.0, one),
        lambda one: one.sort().values,
        lambda one: one[:1].expand_as(one).contiguous(),
        lambda one: torch.full_like(one, 0.5) + (one - 0.5) * 0.1,
    ],
    ids=["scaled", "wider", "zeros", "sorted", "rows repeated", "narrow"],
)
def test_another_distribution(change):
    kinds = {kind for _, kind in found(lambda gm, inputs: tuple(change(one) for one in gm(*inputs)))}
    assert kinds == {"distribution"}


def test_one_draw_used_twice():
    def change(gm, inputs):
        first, _ = gm(*inputs)
        return first, first.clone()

    assert found(change) == {("output[0] and output[1]", "distribution")}


def test_another_mask_in_the_backward():
    class Forgetful(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.nn.functional.dropout(x, 0.3)

        @staticmethod
        def backward(ctx, gradient):
            return torch.nn.functional.dropout(gradient, 0.3)

    wheres = found(lambda gm, inputs: (Forgetful.apply(inputs[0]),), dropped, requires_grad=True)
    assert wheres == {("output and grad of input 0", "distribution")}


def test_the_bound_of_the_test_of_two_samples():
    low, high = [float(value) for value in range(RUNS)], [float(value + 100) for value in range(RUNS)]
    assert probability(low, high) < 1e-13
    assert probability(low, low) == 1
    assert probability(low, high, near=200.0) == 1
    # Known values: n = 4, all apart: 2 / C(8, 4); n = 3, apart by 2 of 3: 12 / 20.
    assert probability([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert probability([1, 2, 5], [3, 4, 6]) == pytest.approx(12 / 20)


def test_statistics_of_what_holds_no_number():
    assert statistics({"output": torch.empty(0)}, ["output"]) == {}
    found = statistics({"output": torch.tensor([float("nan"), 1.0, -1.0])}, ["output"])
    assert all(abs(one.value) <= 1 for one in found.values())


def test_a_state_that_one_seed_does_not_leave_again():
    calls = []

    def change(gm, inputs):
        calls.append(gm)
        result = gm(*inputs)
        torch.rand(len(calls))
        return result

    with pytest.raises(ParityError, match="one seed, set twice, leaves two states of the random generator 'cpu'"):
        judged(own(change))


def reseeds(gm, example_inputs):
    def call(*inputs):
        result = gm(*inputs)
        torch.manual_seed(0)
        return result

    return call


def draws_once_more(gm, example_inputs):
    def call(*inputs):
        result = gm(*inputs)
        torch.rand(1)
        return result

    return call


def draws_from_python(gm, example_inputs):
    def call(*inputs):
        random.random()
        return gm(*inputs)

    return call


def draws_from_numpy(gm, example_inputs):
    def call(*inputs):
        numpy.random.rand()
        return gm(*inputs)

    return call


@pytest.mark.parametrize(
    ("backend", "generator"),
    [(reseeds, "cpu"), (draws_once_more, "cpu"), (draws_from_python, "Python"), (draws_from_numpy, "numpy")],
)
@pytest.mark.parametrize("program", [torch.sin, dropped])
def test_a_generator_in_another_state_than_eager_leaves_it_in(backend, generator, program):
    with pytest.raises(ParityError, match=f"leaves the random generator '{generator}' in another state") as caught:
        judged(BackendSpec("faulty", lambda: backend), program)
    assert {m.kind for m in caught.value.report.mismatches} == {"draws"}
    assert caught.value.report.mismatches[0].where == "random state"


def test_numbers_drawn_from_python_are_the_same_in_every_run():
    state = random.getstate()
    with regional("aot_eager", expects_regions=False) as r:
        assert r.assert_parity(lambda x: x * random.random(), r.randn(4), compiled=lambda program: program).ok
    assert random.getstate() == state
