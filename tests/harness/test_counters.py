"""Counters: names, bounds, messages, and that each moves when it should."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CounterExpectationError, Counters, UnknownCounterError, at_least, at_most, torch_matches
from pytest_regional.harness.counters import COUNTERS, CounterLog
from pytest_regional.testing import pre_grad_pass, regional

from .programs import pair, product, two_products, unannotated


def test_an_unknown_counter_is_an_error_that_lists_the_live_ones():
    with regional("aot_eager", expects_regions=False) as r:
        with (
            pytest.raises(
                UnknownCounterError, match=r"unknown counter 'region_compile'. Did you mean 'region_compiles'"
            ),
            r.expect(region_compile=1),
        ):
            pytest.fail("the block ran although its expectation makes no sense")
        with pytest.raises(UnknownCounterError, match="cache_hits"):
            r.counters["hits"]
        with pytest.raises(UnknownCounterError):
            r.counters.hits  # noqa: B018


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_an_expectation_that_is_no_count_is_a_type_error(value):
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(TypeError, match="at_most"):
        with r.expect(graphs=value):
            pass


def test_a_negative_expectation_is_refused():
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(ValueError, match="negative"):
        with r.expect(graphs=-1):
            pass


def test_an_empty_expectation_is_refused():
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(TypeError, match="at least one counter"):
        with r.expect():
            pass


def test_a_failed_expectation_prints_what_moved_and_its_causes():
    with regional("torch") as r, pytest.raises(CounterExpectationError) as caught, r.expect(region_compiles=2):
        r.compile(product)(*pair(r))
    message = str(caught.value)
    assert "region_compiles: expected 2, got 1" in message
    assert "region_compiles = 1\n      1. " in message
    assert "= 0" not in message


def test_a_failed_expectation_of_nothing_says_none():
    with regional("torch", expects_regions=False) as r, pytest.raises(CounterExpectationError, match="block:\n  none"):
        with r.expect(region_compiles=2):
            pass


def test_expect_counts_only_its_block():
    with regional("torch") as r:
        r.compile(product)(*pair(r))
        with r.expect(region_compiles=0, graphs=0):
            r.compile(product)(*pair(r))


def test_an_exception_in_the_block_is_not_hidden_by_the_expectation():
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(ZeroDivisionError), r.expect(graphs=7):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("bound", "holds"), [(at_most(1), True), (at_most(0), False), (at_least(1), True), (at_least(2), False)]
)
def test_bounds(bound, holds):
    with regional("torch") as r:

        def compile_once():
            with r.expect(region_compiles=bound):
                r.compile(product)(*pair(r))

        if holds:
            compile_once()
        else:
            with pytest.raises(CounterExpectationError, match="region_compiles: expected"):
                compile_once()


def test_counters_are_a_mapping_and_subtract():
    log = CounterLog()
    log.count("graphs", "one")
    before = log.counters()
    log.count("graphs", "two")
    log.count("cache_hits", "a hit")

    moved = log.counters() - before

    assert (moved.graphs, moved["cache_hits"], moved.recompiles) == (1, 1, 0)
    assert set(moved) == set(COUNTERS) == set(Counters({}))
    assert "graphs=1" in repr(moved)


def test_forward_and_backward_of_two_regions():
    with regional("torch") as r:
        # Two regions; the backward of each is a region of the backward graph.
        with r.expect(graphs=2, regions=4, region_compiles=4, region_cache_misses=4):
            r.compile(two_products)(*pair(r, requires_grad=True)).sum().backward()


def test_recompiles_are_counted_with_the_failed_guard():
    with regional("torch", dynamic=False) as r:
        compiled = r.compile(product)
        compiled(*pair(r, 4))
        with r.expect(recompiles=1, region_compiles=1):
            compiled(*pair(r, 5))
        assert "size mismatch" in next(e.cause for e in r.observer.log.since() if e.counter == "recompiles")


def test_another_backend_object_for_the_same_function_is_no_recompile():
    with regional("torch") as r:
        r.compile(product)(*pair(r))
        with r.expect(recompiles=0):
            r.compile(product, inductor_configs={"epilogue_fusion": False})(*pair(r))


def test_the_same_options_give_dynamo_the_same_backend():
    with regional("torch") as r:
        r.compile(product)(*pair(r))
        with r.expect(graphs=0):
            r.compile(product)(*pair(r))


def test_whole_graph_cache_lookups_are_counted_apart_from_region_lookups():
    with regional("inductor") as r:
        x = pair(r)
        with r.expect(cache_misses=1, cache_hits=0, cache_saves=1, region_cache_misses=1, region_compiles=1):
            r.compile(unannotated)(*x)
        r.restart()
        with r.expect(cache_misses=0, cache_hits=1, region_cache_hits=1, region_compiles=0, graphs=0):
            r.compile(unannotated)(*x)


def test_regional_lookups_are_counted_as_regions_only():
    with regional("torch") as r:
        x = pair(r)
        with r.expect(cache_misses=0, cache_hits=0, region_cache_misses=1, region_cache_saves=1):
            r.compile(product)(*x)
        r.restart()
        with r.expect(cache_hits=0, region_cache_hits=1, region_cache_misses=0, region_compiles=0, graphs=1):
            r.compile(product)(*x)


def test_a_bypass_is_counted_with_its_reason():
    with regional("inductor", inductor_configs={"freezing": True}) as r, torch.no_grad():
        with r.expect(cache_bypasses=1, cache_hits=0, cache_misses=0):
            r.compile(unannotated)(*pair(r))
        cause = next(e.cause for e in r.observer.log.since() if e.counter == "cache_bypasses")
        assert "freezing" in cause.lower()


@pytest.mark.skipif(not torch_matches(">=2.13"), reason="torch 2.11 runs pre-grad passes before the lookup, always")
def test_pre_grad_calls_of_whole_graph_inductor():
    counting = pre_grad_pass(uuid="v1")
    with regional("inductor") as r:
        x = pair(r)
        with r.expect(pre_grad_calls=1, region_pre_grad_calls=0):
            r.compile(unannotated, pre_grad_pass=counting)(*x)
        assert counting.calls == 1
        r.restart()
        with r.expect(pre_grad_calls=0, cache_hits=1):
            r.compile(unannotated, pre_grad_pass=counting)(*x)
        assert counting.calls == 1


def test_pre_grad_calls_of_pytorchs_regions_are_counted_apart():
    counting = pre_grad_pass(uuid="v1")
    with regional("torch") as r, r.expect(pre_grad_calls=0, region_pre_grad_calls=2):
        r.compile(two_products, pre_grad_pass=counting)(*pair(r))
    assert counting.calls == 2


def test_a_pass_that_somebody_else_configures_is_counted_too():
    from pytest_regional._torch.inductor import custom_graph_pass_base

    class Plain(custom_graph_pass_base()):
        def __call__(self, graph):
            graph.lint()

        def uuid(self):
            return "plain"

    with regional("inductor") as r, torch._inductor.config.patch(pre_grad_custom_pass=Plain()):
        with r.expect(pre_grad_calls=1):
            r.compile(unannotated)(*pair(r))


def test_the_reference_runs_a_pass_once_for_all_regions():
    counting = pre_grad_pass(uuid="v1")
    with regional("reference") as r, r.expect(pre_grad_calls=1, region_pre_grad_calls=0):
        r.compile(two_products, pre_grad_pass=counting)(*pair(r))
    assert counting.calls == 1
