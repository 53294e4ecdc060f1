"""What inputs look like is part of the key: sizes, strides, dtypes, devices, whether gradients are wanted."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region

from .lookups import NEEDS, check, cold_and_warm, look_up, run
from .programs import annotated, mlp, pair

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False)
symbolic = pytest.mark.regional_compile(requires=(*NEEDS, "dynamic_shapes"), dynamic=True)


@pytest.mark.quick
def test_another_size_misses(regional):
    for n in (8, 6):
        cold_and_warm(regional, mlp, pair(regional, n))
    check(regional, "hit", mlp, pair(regional, 8))


def test_other_strides_miss(regional):
    x, w = pair(regional)
    cold_and_warm(regional, mlp, (x, w))
    cold_and_warm(regional, mlp, (x, w.t()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_another_dtype_misses(regional, dtype):
    products = annotated(first={"name": "a"})  # no sum, whose fusion would round otherwise
    look_up(regional, "miss", products, pair(regional))
    inputs = pair(regional, dtype=dtype)
    for outcome in ("miss", "hit"):
        assert [value.dtype for value in check(regional, outcome, products, inputs)] == [dtype]


def test_another_device_misses(regional):
    if not torch.cuda.is_available():
        pytest.skip("needs a second device: torch.cuda.is_available() is False")
    inputs = pair(regional)
    for device in ("cpu", "cuda"):
        cold_and_warm(regional, mlp, tuple(value.to(device) for value in inputs))


def test_one_tensor_twice_is_another_program(regional):
    x, w = pair(regional)
    cold_and_warm(regional, mlp, (x, w))
    cold_and_warm(regional, mlp, (x, x))


@pytest.mark.regional_compile(requires=(*NEEDS, "backward"))
def test_inference_and_training_are_two_entries(regional):
    inputs = pair(regional, training=True)
    for training in (False, True):
        cold_and_warm(regional, mlp, inputs, training=training)


@pytest.mark.regional_compile(requires=(*NEEDS, "backward"))
def test_grad_mode_alone_is_part_of_the_key(regional):
    """Inputs that need gradients, but none is recorded: nothing of a training compile is taken."""
    inputs = pair(regional, training=True)
    check(regional, "miss", mlp, inputs, training=True)
    (output,) = check(regional, "miss", mlp, inputs)
    assert not output.requires_grad


# Symbolic sizes


@symbolic
def test_a_size_within_the_guards_hits(regional):
    check(regional, "miss", mlp, pair(regional, 8))
    for n in (6, 30):
        check(regional, "hit", mlp, pair(regional, n))


@pytest.mark.regional_compile(requires=(*NEEDS, "dynamic_shapes", "backward"), dynamic=True)
def test_training_at_another_size_hits(regional):
    check(regional, "miss", mlp, pair(regional, 8, training=True), training=True)
    check(regional, "hit", mlp, pair(regional, 6, training=True), training=True)


def guarded(x, w):
    """A program that is two: which one depends on a size."""
    if x.shape[0] > 5:
        return mlp(x, w)
    with region("small"):
        return w @ x


@symbolic
def test_a_size_outside_the_guards_misses_and_both_entries_live(regional):
    for n in (4, 8):
        check(regional, "miss", guarded, pair(regional, n))
    for n in (3, 9, 4, 8):
        check(regional, "hit", guarded, pair(regional, n))


def first_five(x, w):
    """One graph, whatever the size is; what it means depends on whether there are more than five rows."""
    with region("r"):
        h = x @ w
    g = h[:5]
    with region("s"):
        return g.reshape(-1) @ g.reshape(-1)


@pytest.mark.quick
@symbolic
def test_two_entries_of_one_graph_are_distinguished_by_their_guards(regional):
    for n in (4, 8):
        check(regional, "miss", first_five, pair(regional, n))
    for n in (3, 9, 4, 8):
        check(regional, "hit", first_five, pair(regional, n))


def made_constant(x, w):
    """As many rows as may be, until the trace finds that there are five."""
    with region("r"):
        return x.reshape(5, -1) @ w


@pytest.mark.regional_compile(requires=(*NEEDS, "dynamic_shapes"), dynamic=None)
@pytest.mark.parametrize("marked", [(True, False), (False, True)], ids=["then without", "then with"])
def test_a_mark_that_the_trace_made_nothing_of_is_not_in_the_key(regional, marked):
    for outcome, mark in zip(("miss", "hit"), marked, strict=True):
        x, w = regional.randn(5, 4), regional.randn(4, 3)
        if mark:
            torch._dynamo.maybe_mark_dynamic(x, 0)
        check(regional, outcome, made_constant, (x, w))


@pytest.mark.regional_compile(requires=(*NEEDS, "dynamic_shapes"), dynamic=None)
def test_sizes_that_become_symbolic_are_found_again(regional):
    """The second size of a process makes the dimension symbolic: two entries, and none for the third size."""
    for counts in ({"cache_misses": 2}, {"cache_hits": 2}):
        regional.restart()
        compiled = regional.compile(mlp)
        with regional.expect(**counts):
            for n in (8, 6, 7):
                inputs = pair(regional, n)
                torch.testing.assert_close(run(compiled, inputs), run(mlp, inputs))


@symbolic
def test_the_guards_of_a_hit_hold_for_later_calls(regional):
    """What was loaded for one size is not called for a size that its guards exclude."""
    look_up(regional, "miss", guarded, pair(regional, 4))
    regional.restart()
    compiled = regional.compile(guarded)
    with regional.expect(cache_hits=1, cache_misses=1):
        for n in (3, 9, 4):
            inputs = pair(regional, n)
            torch.testing.assert_close(run(compiled, inputs), run(guarded, inputs))


@symbolic
def test_static_and_symbolic_sizes_are_two_entries(regional):
    inputs = pair(regional)
    for dynamic in (False, True):
        cold_and_warm(regional, mlp, inputs, dynamic=dynamic)


def scaled(x, factor):
    with region("r"):
        return (x * factor).sin() + factor


def run_scaled(regional):
    compiled, x = regional.compile(scaled), regional.rand(4)
    for factor in (1.5, 2.5, 3.5):
        torch.testing.assert_close(compiled(x, factor), scaled(x, factor))


@pytest.mark.regional_compile(requires=(*NEEDS, "dynamic_shapes"), dynamic=None)
def test_a_float_that_changes(regional):
    """Dynamo makes it an input at its second value; what one process compiled, the next one loads."""
    regional.in_new_process(run_scaled)
    with regional.expect(cache_misses=0, graphs=0, region_compiles=0):
        run_scaled(regional)
    _, warm = regional.in_new_process(run_scaled)
    assert (warm.cache_misses, warm.graphs, warm.region_compiles) == (0, 0, 0)


@symbolic
def test_a_number_among_the_inputs(regional):
    def scaled(x, w, factor):
        return mlp(x, w) * factor

    x, w = pair(regional)
    for outcome in ("miss", "hit"):
        torch.testing.assert_close(look_up(regional, outcome, scaled, (x, w, 3)), [scaled(x, w, 3)])
    # torch 2.15 keys on the number itself: another one is a miss there, and a hit before.
    regional.restart()
    torch.testing.assert_close(run(regional.compile(scaled), (x, w, 7)), [scaled(x, w, 7)])
