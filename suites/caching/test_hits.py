"""A hit compiles nothing and gives bitwise what the miss gave that made it."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint

from pytest_regional import region

from .lookups import NEEDS, check, cold_and_warm, look_up, run, whole_results_cached
from .programs import Model, mlp, pair

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False)

trains = pytest.mark.regional_compile(requires=(*NEEDS, "backward"))


@pytest.mark.quick
def test_inference(regional):
    cold_and_warm(regional, mlp, pair(regional))


@pytest.mark.quick
@trains
def test_training(regional):
    cold_and_warm(regional, mlp, pair(regional, training=True), training=True)


@trains
def test_gradients_of_some_inputs_alone(regional):
    """Which inputs need gradients decides what is compiled."""
    x, w = pair(regional)
    alone = [(x.clone().requires_grad_(), w), (x, w.clone().requires_grad_())]
    for inputs in alone:
        cold_and_warm(regional, mlp, inputs, training=True)
    check(regional, "hit", mlp, alone[0], training=True)


@pytest.mark.quick
@pytest.mark.regional_compile(requires=(*NEEDS, "backward", "outer_cache_of_training"))
def test_training_is_saved_before_any_backward_ran(regional):
    inputs = pair(regional, training=True)
    with regional.expect(cache_misses=1, cache_saves=1, cache_hits=0):
        regional.compile(mlp)(*inputs)
    # Nor does the process that loads it compile anything for the backward.
    check(regional, "hit", mlp, inputs, training=True)


def test_nothing_is_compiled_for_later_calls(regional):
    look_up(regional, "miss", mlp, pair(regional))
    regional.restart()
    compiled, first, second = regional.compile(mlp), pair(regional), pair(regional)
    run(compiled, first)
    with regional.no_compile():
        torch.testing.assert_close(run(compiled, second), run(mlp, second))


# Values that differ between two processes


def test_other_values_of_inputs_hit(regional):
    check(regional, "miss", mlp, pair(regional))
    check(regional, "hit", mlp, pair(regional))


@pytest.mark.parametrize("training", [False, pytest.param(True, marks=trains)], ids=["inference", "training"])
def test_other_weights_hit_and_are_used(regional, training):
    x = regional.randn(8, 8)
    first, second = Model().to(regional.device), Model().to(regional.device)
    look_up(regional, "miss", first, (x,), training=training)
    with torch.no_grad():
        second.scale.mul_(3)
    actual = look_up(regional, "hit", second, (x,), training=training)
    torch.testing.assert_close(actual, run(second, (x,), training))
    # Nothing of the first model is in the entry.
    assert not torch.equal(actual[0], run(first, (x,))[0])


@trains
def test_weights_that_an_optimizer_steps_are_used(regional):
    x, model = regional.randn(8, 8), Model().to(regional.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    look_up(regional, "miss", model, (x,), training=True)
    regional.restart()
    compiled = regional.compile(model)
    for _ in range(2):
        compiled(x).square().mean().backward()
        optimizer.step()
        torch.testing.assert_close(run(compiled, (x,), training=True), run(model, (x,), training=True))


def with_constant(x, w):
    with region("r"):
        return x @ torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=x.device) @ w


@pytest.mark.quick
@pytest.mark.regional_known_failure(
    "torch",
    reason="what it holds besides inputs is lost, or does not compile: docs/findings/constant_in_stored_region.py",
    torch=">=2.11",
)
@pytest.mark.regional_compile(requires=("regions",))
def test_a_constant_in_a_region_with_pytorchs_cache(regional):
    """With AOTAutograd's cache of whole results switched on, for a backend that has none of its own."""
    inputs = pair(regional, n=2)
    with whole_results_cached(regional):
        for _ in range(2):
            regional.restart()
            torch.testing.assert_close(run(regional.compile(with_constant), inputs), run(with_constant, inputs))


def test_a_constant_in_a_region(regional):
    cold_and_warm(regional, with_constant, pair(regional, n=2))


@pytest.mark.quick
def test_a_constant_and_a_number_outside_of_regions(regional):
    """What the eager part of a graph holds comes back to the last bit: 0.1 is no number of float16."""

    def program(x, w):
        with region("r"):
            h = x @ w
        return h @ torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=x.device) * 0.1 + 1e-5

    cold_and_warm(regional, program, pair(regional, n=2))


@pytest.mark.quick
@pytest.mark.parametrize("training", [False, pytest.param(True, marks=trains)], ids=["inference", "training"])
@pytest.mark.regional_compile(requires=(*NEEDS, "region_ids"), dynamic=False)
def test_two_regions_of_one_shape(regional, training):
    """Each is called for what it computes, and none for the other."""

    def program(x, w):
        with region("one"):
            h = x @ w
        g = h.tanh()
        with region("two"):
            return (g @ w.t()) @ w

    cold_and_warm(regional, program, pair(regional, training=training), training=training)


def test_another_value_of_a_constant_misses(regional):
    def scaled(factor, table):
        def program(x, w):
            with region("r"):
                x = x @ w
            return x * factor @ torch.tensor(table, device=x.device)

        return program

    inputs, one, two = pair(regional, n=2), [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]
    for factor, table in [(2, one), (3, one), (2.5, one), (2, two)]:
        check(regional, "miss", scaled(factor, table), inputs)
    check(regional, "hit", scaled(3, one), inputs)


# Structure of programs


@pytest.mark.regional_compile(requires=NEEDS, fullgraph=False)
def test_a_graph_break_makes_two_entries(regional):
    def broken(x, w):
        x = mlp(x, w)
        torch._dynamo.graph_break()
        return mlp(x.relu(), w)

    cold_and_warm(regional, broken, pair(regional), lookups=2)


def test_two_functions_of_one_graph_share_an_entry(regional):
    def same(x, w):
        return mlp(x, w)

    inputs = pair(regional)
    check(regional, "miss", mlp, inputs)
    check(regional, "hit", same, inputs)


@pytest.mark.quick
@pytest.mark.regional_compile(requires=(*NEEDS, "mutation"))
def test_mutation_and_aliases(regional):
    def mutating(x, w):
        with region("r"):
            x.add_(w @ w)
        return x.view(-1), x, w.t()

    x, w = pair(regional)
    expected_x = x.clone()
    expected = mutating(expected_x, w)
    for outcome in ("miss", "hit"):
        actual_x = x.clone()
        actual = look_up(regional, outcome, mutating, (actual_x, w))
        torch.testing.assert_close([*actual, actual_x], [*expected, expected_x])
        assert actual[1] is actual_x
        assert [out.data_ptr() for out in actual] == [actual_x.data_ptr(), actual_x.data_ptr(), w.data_ptr()]


@pytest.mark.regional_compile(requires=(*NEEDS, "mutation"))
def test_a_buffer_that_counts(regional):
    class Counting(Model):
        def forward(self, x):
            self.scale.mul_(2)
            return super().forward(x)

    x = regional.randn(8, 8)
    for outcome in ("miss", "hit"):
        model = Counting().to(regional.device)
        look_up(regional, outcome, model, (x,))
        torch.testing.assert_close(model.scale, 2 * torch.eye(8, device=regional.device))


@trains
def test_a_recomputed_region(regional):
    def recomputed(x, w):
        return torch.utils.checkpoint.checkpoint(mlp, x, w, use_reentrant=False) @ w

    cold_and_warm(regional, recomputed, pair(regional, training=True), training=True)


@trains
def test_a_nested_compile_region(regional):
    body = torch.compiler.nested_compile_region(mlp)

    def nested(x, w):
        return body(body(x, w), w)

    cold_and_warm(regional, nested, pair(regional, training=True), training=True)


def test_outputs_that_are_no_tensors(regional):
    def mixed(x, w):
        return {"value": mlp(x, w), "none": None, "number": 3}

    inputs = pair(regional)
    values = []
    for hits in (0, 1):
        regional.restart()
        with regional.expect(cache_hits=hits, cache_misses=1 - hits):
            values.append(regional.compile(mixed)(*inputs))
    assert torch.equal(values[0].pop("value"), values[1].pop("value"))
    assert values == [{"none": None, "number": 3}] * 2


# Random numbers


def dropped(x, w):
    with region("r"):
        return torch.nn.functional.dropout(x @ w, 0.5)


def seeded(regional, outcome, seed, training):
    torch.manual_seed(seed)
    values = look_up(regional, outcome, dropped, pair_of_ones(regional, training), training=training)
    return [values, regional.rand(2)]


def pair_of_ones(regional, training):
    ones = [torch.ones(8, 8, device=regional.device) for _ in range(2)]
    return tuple(value.requires_grad_(training) for value in ones)


@pytest.mark.regional_compile(requires=(*NEEDS, "rng"), inductor_configs={"fallback_random": True})
@pytest.mark.parametrize(
    "training",
    [False, pytest.param(True, marks=pytest.mark.regional_compile(requires=(*NEEDS, "rng", "backward")))],
    ids=["inference", "training"],
)
def test_dropout_draws_what_eager_draws(regional, training):
    """The seed is not in the entry: a hit draws with the generator of its own process, and leaves it as eager does."""
    for outcome, seed in [("miss", 1), ("hit", 1), ("hit", 2)]:
        actual = seeded(regional, outcome, seed, training)
        torch.manual_seed(seed)
        expected = [run(dropped, pair_of_ones(regional, training), training), regional.rand(2)]
        torch.testing.assert_close(actual, expected)


def test_random_state_is_not_in_the_entry(regional):
    """Without ``fallback_random`` Inductor draws otherwise than eager, but from the same generator."""
    draws = [seeded(regional, outcome, seed, False) for outcome, seed in [("miss", 1), ("hit", 1), ("hit", 2)]]
    assert torch.equal(draws[0][0][0], draws[1][0][0])
    assert not torch.equal(draws[1][0][0], draws[2][0][0])
