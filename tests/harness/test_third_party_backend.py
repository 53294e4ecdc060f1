"""Counters come from PyTorch's own seams: right for backends that the harness has never seen."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec, FallbackError, VacuousTestError
from pytest_regional._torch import symbol
from pytest_regional.testing import regional
from suites.regions import test_nested_compile_region

from .programs import pair, product, two_products, unannotated


def runs_the_graph(gm, example_inputs):
    """A backend that compiles nothing and does not even use AOTAutograd."""
    return gm.forward


def standalone_whole_graph(gm, example_inputs):
    """A backend without AOTAutograd of its own: Dynamo's graph goes to Inductor as one piece."""
    return torch._inductor.standalone_compile(gm, example_inputs, dynamic_shapes="from_example_inputs")


def aot_with_inner_compile(gm, example_inputs):
    """A backend in the style of torchtitan: AOTAutograd outside, Inductor's inner compile on the whole ATen graph."""
    inner = symbol("torch._inductor.compile_fx", "compile_fx_inner")
    aot = symbol("torch._dynamo.backends.common", "aot_autograd")
    decompositions = symbol("torch._inductor.decomposition", "select_decomp_table")()
    return aot(fw_compiler=inner, bw_compiler=inner, decompositions=decompositions)(gm, example_inputs)


def spec(backend):
    return BackendSpec(name=backend.__name__, factory=lambda: backend)


def test_a_backend_without_aot_autograd_still_has_graphs_and_regions():
    with regional(spec(runs_the_graph), expects_regions=False) as r:
        with r.expect(graphs=1, regions=2, region_compiles=0):
            record = r.run(two_products, *pair(r))
    assert [(region.name, region.partitions) for region in record.regions] == [("first", 0), ("second", 0)]


def test_a_backend_that_compiles_nothing_is_vacuous():
    with (
        pytest.raises(VacuousTestError, match="no region was compiled or loaded with backend 'runs_the_graph'"),
        regional(spec(runs_the_graph)) as r,
    ):
        r.compile(product)(*pair(r))


def test_standalone_compile_of_a_dynamo_graph():
    with regional(spec(standalone_whole_graph)) as r:
        x = pair(r)
        with r.expect(graphs=1, region_compiles=1, cache_misses=0, region_cache_misses=1):
            record = r.run(product, *x)
        torch.testing.assert_close(record.output, product(*x))
        assert "extern_kernels.mm" in record.code
        r.restart()
        with r.expect(graphs=1, region_compiles=0, region_cache_hits=1):
            r.compile(product)(*x)


def test_inner_compile_of_whole_aten_graphs():
    with regional(spec(aot_with_inner_compile)) as r:
        with r.expect(graphs=2, region_compiles=2, region_cache_misses=2, cache_misses=0):
            record = r.run(lambda x, w: x @ w, *pair(r, requires_grad=True))
        assert [graph.kind for graph in record.graphs] == ["forward", "backward"]


def test_a_backend_given_by_name_to_torch_compile_directly():
    with regional("torch") as r:
        from pytest_regional._torch.dynamo import regional_inductor_backend

        with r.expect(graphs=1, regions=1, region_compiles=1):
            torch.compile(product, backend=regional_inductor_backend())(*pair(r))


def test_a_frame_given_up_at_the_recompile_limit_is_a_fallback():
    with pytest.raises(FallbackError, match="recompile_limit"):
        with regional("aot_eager", dynamic=False, fullgraph=False) as r:
            compiled = r.compile(unannotated)
            with torch._dynamo.config.patch(recompile_limit=2):
                for n in range(2, 7):
                    compiled(*pair(r, n))


def test_annotations_that_get_lost_are_vacuous():
    with pytest.raises(VacuousTestError), regional("torch") as r:
        r.compile(unannotated)(*pair(r))


def test_expects_regions_false_accepts_them():
    with regional("torch", expects_regions=False) as r:
        r.compile(unannotated)(*pair(r))


def test_an_exception_in_the_block_is_not_replaced_by_vacuity():
    with pytest.raises(KeyError, match="mine"), regional("torch"):
        raise KeyError("mine")


def test_a_loaded_region_is_not_vacuous(tmp_path):
    for _ in range(2):
        with regional("torch", cache_dir=tmp_path / "kept") as r:
            r.compile(product)(*pair(r))
    assert r.counters.region_compiles == 0
    assert r.counters.region_cache_hits == 1


def test_a_region_given_up_to_eager_is_a_fallback(monkeypatch):
    from pytest_regional.reference import regional as reference

    def lenient(gm, example_inputs):
        return reference(gm, example_inputs, on_region_error="eager")

    def refuse(*arguments, **keywords):
        raise NotImplementedError("no code for this region")

    monkeypatch.setattr(torch._inductor, "standalone_compile", refuse)
    with pytest.warns(UserWarning, match="no code for this region"), pytest.raises(FallbackError, match="runs eager"):
        with regional(spec(lenient)) as r:
            r.compile(product)(*pair(r))


def test_a_region_shared_with_an_earlier_test_is_not_vacuous(tmp_path, monkeypatch):
    """Without isolation the second compile is handed what the first one compiled: nothing is compiled or loaded."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    kept = []
    for after in (torch.sin, torch.cos):
        with regional("reference", isolate=False) as r:
            kept.append(r.compile(lambda x, w, after=after: after(product(x, w))))
            kept[-1](*pair(r))
            compiles = r.counters.region_compiles
    assert compiles == 0
    torch._dynamo.reset()


def asks_for_nested_options(gm, example_inputs):
    """A backend that lets bodies of ``nested_compile_region`` be compiled by the compilers in their options."""
    aot = symbol("torch._dynamo.backends.common", "aot_autograd")
    compiler = symbol("torch.fx.passes.regional_inductor_invoke_subgraph", "regional_inductor_invoke_subgraph")
    with torch.fx.traceback.preserve_node_meta():
        return aot(fw_compiler=compiler, bw_compiler=compiler)(gm, example_inputs)


def test_the_case_of_nested_options_tells_backends_apart():
    with regional(spec(asks_for_nested_options)) as r:
        test_nested_compile_region.test_a_body_with_compilers_of_its_own(r)
    with regional("reference", expects_regions=False) as r, pytest.raises(AssertionError):
        test_nested_compile_region.test_a_body_with_compilers_of_its_own(r)
