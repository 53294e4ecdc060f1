"""The oracles of caches and of further runs are violated by faults of the reference backend."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from functorch.compile import make_boxed_func

from pytest_regional import BackendSpec, declared, report_region
from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional.backends.adapters import OUTER_CACHE, PRE_GRAD_PASSES, torch_regional, without
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import (
    OracleViolationError,
    caching,
    check,
)
from pytest_regional.reference.caching import outer
from pytest_regional.testing import regional
from tests.faults.of_backends.graphs import halve_unseen

from .backends import around_calls, faulty
from .programs import A, B, chain

TWO_REGIONS = chain(("sin", A), ("exp", ()), ("cos", B), ("tanh", A), training=True)


def checked_with(monkeypatch, patch, oracle, program=TWO_REGIONS):
    with regional("reference", "cpu", expects_regions=False) as harness, monkeypatch.context() as patched:
        patch(patched)
        with pytest.raises(AssertionError) as raised:
            check(harness, program, mode="interpret", oracles=[oracle])
    assert raised.value.oracle == oracle
    return raised.value


def counted_twice(patched, original=outer.count_outcome):
    def twice(*outcome):
        original(*outcome)
        original(*outcome)

    patched.setattr(outer, "count_outcome", twice)


def test_counters(monkeypatch):
    assert checked_with(monkeypatch, counted_twice, "counters").origin == "lookups of one graph"


def test_regions_that_another_compiler_compiles_are_not_counted_as_inductors():
    """They are reported; no cache of Inductor's has them after a restart."""

    def compile_graph(gm, inputs):
        report_region(gm)
        return make_boxed_func(gm.forward)

    def backend(gm, inputs):
        with preserve_node_meta():
            return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)(gm, inputs)

    capabilities = declared(**without((*PRE_GRAD_PASSES, *OUTER_CACHE, "inductor_code"), "it compiles by itself"))
    with regional(BackendSpec("own", lambda: backend, capabilities()), "cpu", expects_regions=False) as harness:
        check(harness, TWO_REGIONS, mode="native", oracles=["counters", "warm"])
        assert harness.counters.region_compiles == 2


def exponential_of(argument):
    return Program((argument,), (Step("exp", (0,), results=(1,), scope=A),), (1,), training=False)


def test_a_float64_without_dimensions_is_looked_up_twice_and_that_is_right(checked, monkeypatch):
    """Dynamo takes it for a Python number at first, and starts over."""
    number = exponential_of(TensorInput((), "float64"))
    assert checked(number, "counters", "warm").oracles == ("counters", "warm")
    monkeypatch.setattr(caching, "may_start_over", lambda example: False)
    with pytest.raises(OracleViolationError) as raised:
        checked(number, "counters")
    assert raised.value.origin == "lookups of one graph"


def test_so_is_a_row_of_a_float64(checked):
    """The row is an argument that has dtype and sizes from the one it is a part of."""
    arguments = (TensorInput((1,), "float64"), TensorInput((), alias_of=0, part="row"))
    program = Program(arguments, (Step("exp", (1,), results=(2,), scope=A),), (2,), training=False)
    assert checked(program, "counters", "warm").oracles == ("counters", "warm")


def test_inductor_does_not_save_what_has_a_backward_without_operators(monkeypatch):
    number = Program(
        (TensorInput((2,), requires_grad=True),),
        (Step("add_number", (0,), (("value", 0.5),), (1,)),),
        (1,),
        training=True,
    )
    with regional("inductor", "cpu", expects_regions=False) as harness:
        assert check(harness, number, mode="native", oracles=["counters"]).oracles == ("counters",)
        monkeypatch.setattr(caching, "is_never_saved", lambda example: False)
        with pytest.raises(OracleViolationError) as raised:
            check(harness, number, mode="native", oracles=["counters"])
    assert raised.value.origin == "saves of one graph"


@pytest.mark.parametrize("argument", [TensorInput((), "float32"), TensorInput((1,), "float64")])
def test_no_other_number_is_looked_up_twice(monkeypatch, argument):
    error = checked_with(monkeypatch, counted_twice, "counters", exponential_of(argument))
    assert error.origin == "lookups of one graph"


def test_warm(monkeypatch):
    error = checked_with(monkeypatch, lambda m: m.setattr(outer.OuterCache, "_find", lambda *given: None), "warm")
    assert (error.stage, error.origin) == ("restart", "no hit")


def constant_key(patched):
    patched.setattr(outer, "digest", lambda details: "0" * 64)


@pytest.mark.parametrize("oracle", ["annotations_in_key", "uuid_in_key"])
def test_keys(monkeypatch, oracle):
    error = checked_with(monkeypatch, constant_key, oracle)
    assert (error.stage, error.origin.split(":")[0]) == ("restart", "stale hit")


def test_another_cache_than_its_own_is_no_backends_fault(checked):
    with regional(faulty(), "cpu", expects_regions=False) as harness:
        result = check(harness, TWO_REGIONS, mode="interpret", oracles=["annotations_in_key"])
    assert "keeps no whole results" in result.skipped["annotations_in_key"]


def test_pytorchs_cache_is_checked_with_pytorchs_backend():
    with regional("torch", "cpu", expects_regions=False) as harness, pytest.raises(OracleViolationError) as raised:
        check(harness, TWO_REGIONS, mode="interpret", oracles=["annotations_in_key"])
    assert raised.value.origin.startswith("stale hit")


@pytest.mark.parametrize("claimed", [True, False])
def test_pytorchs_cache_is_checked_with_a_backend_that_claims_it(claimed):
    spec = BackendSpec("mine", torch_regional().factory, declared(outer_cache=False, pytorch_outer_cache=claimed)())
    expected = pytest.raises(OracleViolationError, match="answered with what was compiled before")
    with regional(spec, "cpu", expects_regions=False) as harness, expected if claimed else contextlib.nullcontext():
        result = check(harness, TWO_REGIONS, mode="interpret", oracles=["annotations_in_key"])
        assert "keeps no whole results" in result.skipped["annotations_in_key"]


def one_buffer():
    """Return an edit that has a region return the same memory from every call."""
    pool = {}

    def change(value):
        kept = pool.setdefault((value.shape, value.dtype), value)
        return kept if kept is value else kept.copy_(value)

    return around_calls(change)


def test_results_kept(checked, violation):
    program = chain(("sin", A))
    assert checked(program, "results_kept").oracles == ("results_kept",)
    error = violation(program, "results_kept", finish=one_buffer())
    assert (error.stage, error.origin) == ("run", "overwritten of output")


def test_results_kept_is_not_required_if_disclaimed():
    spec = replace(faulty(finish=one_buffer()), capabilities=declared(results_kept=False)())
    with regional(spec, "cpu", expects_regions=False) as harness:
        result = check(harness, chain(("sin", A)), mode="interpret", oracles=["results_kept"])
    assert result.oracles == ()
    assert "results_kept" in result.skipped["results_kept"]


def test_parity_alone_does_not_see_that_the_first_results_are_gone(violation):
    """What the oracle is for: each call is right when it returns."""
    with regional(faulty(finish=one_buffer()), "cpu", expects_regions=False) as harness:
        assert check(harness, chain(("sin", A)), mode="interpret", oracles=["parity"]).oracles == ("parity",)


def saved_overwritten(gm):
    """Have a backward write over what the forward saved."""
    saved = [
        node for node in gm.graph.find_nodes(op="placeholder") if not node.name.startswith(("primals", "tangents"))
    ]
    if any(node.name.startswith("tangents") for node in gm.graph.find_nodes(op="placeholder")):
        with gm.graph.inserting_before(gm.graph.output_node()):
            for node in saved:
                gm.graph.call_function(halve_unseen, (node,))
        gm.recompile()


SAVING = chain(("sin", ()), ("tanh", A), training=True)


def test_retained_backward(checked, violation):
    assert checked(SAVING, "retained_backward").oracles == ("retained_backward",)
    error = violation(SAVING, "retained_backward", edit=saved_overwritten)
    assert (error.stage, error.origin) == ("backward", "value of grad")


def test_a_graph_is_kept_although_a_backward_could_overwrite_what_was_saved(checked):
    # With dynamic sizes the backward compiles beside the forward, before anybody asks for its graph to be kept.
    program = replace(chain(("sin", ()), ("tanh", A), ("exp", A), training=True), dynamic=True)
    assert checked(program, "retained_backward").oracles == ("retained_backward",)
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        assert check(harness, program, oracles=["retained_backward"]).oracles == ("retained_backward",)


def test_equal_results_that_are_one_tensor_add_up_as_two_do():
    """AOTAutograd returns one tensor for both; parity reports that, and the gradients are right."""
    twice = tuple(Step("layer_norm_affine", (0, 0, 0), results=(result,)) for result in (1, 2))
    program = Program((TensorInput((4,), requires_grad=True),), twice, (1, 2))
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        assert check(harness, program, oracles=["retained_backward"]).oracles == ("retained_backward",)


def test_parity_runs_one_backward_alone(checked):
    with regional(faulty(edit=saved_overwritten), "cpu", expects_regions=False) as harness:
        assert check(harness, SAVING, mode="interpret", oracles=["parity"]).oracles == ("parity",)


def test_without_training_there_is_no_backward_to_retain(checked):
    assert "no backward" in checked(chain(("sin", A)), "retained_backward").skipped["retained_backward"]
