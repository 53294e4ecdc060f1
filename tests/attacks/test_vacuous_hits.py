"""A cache that answers shows nothing by itself: results without a region are kept, and found, like any other.

A new shape is a function below and its name in ``SHAPES``; a new backend, its name or specification in ``BACKENDS``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_regional import BackendSpec, GraphCapabilities, VacuousTestError
from pytest_regional._torch import symbol
from pytest_regional.harness.vacuity import compiled_something
from pytest_regional.testing import regional
from tests.harness.programs import in_region, pair


def marked(annotated: bool) -> Any:
    return in_region("attacked") if annotated else contextlib.nullcontext()


# Shapes: the program, annotated or not, and how it is compiled


def function(annotated):
    def program(x, w):
        with marked(annotated):
            h = x @ w
        return torch.sin(h)

    return program


def module(annotated):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x, w):
            with marked(annotated):
                h = self.linear(x)
            return torch.sin(h) @ w

    return Layer()


def graph_break(annotated):
    def program(x, w):
        with marked(annotated):
            h = x @ w
        torch._dynamo.graph_break()
        return torch.sin(h)

    return program


def nested(annotated):
    def program(x, w):
        def body(x):
            with marked(annotated):
                return x @ w

        return torch.cond(x.sum() > 0, body, lambda x: torch.cos(x @ w), (x,))

    return program


SHAPES: dict[str, tuple[Callable[[bool], Any], dict[str, Any], dict[str, Any]]] = {
    "function": (function, {}, {}),
    "module": (module, {}, {}),
    "training": (function, {}, {"requires_grad": True}),
    "dynamic": (function, {"dynamic": True}, {}),
    "graph break": (graph_break, {}, {}),
    "nested": (nested, {}, {}),
}


# Backends of somebody else's


class OwnCache:
    """A backend that keeps what it compiled, in bytes, and says so where PyTorch counts its own hits."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def __call__(self, gm, example_inputs):
        key = f"{self.annotated(gm)} {gm.code}"
        outcome = "hit" if key in self.kept else "miss"
        symbol("torch._dynamo.utils", "counters")["aot_autograd"][f"autograd_cache_{outcome}"] += 1
        if outcome == "miss":
            self.kept[key] = self.compiled(gm, example_inputs)
        return self.loaded(gm, self.kept[key])

    def annotated(self, gm):
        graphs = (part.graph for part in gm.modules() if isinstance(part, torch.fx.GraphModule))
        return any("compile_with_inductor" in node.meta.get("custom", {}) for graph in graphs for node in graph.nodes)

    def compiled(self, gm, example_inputs):
        if not self.annotated(gm):
            return None
        artifact = torch._inductor.standalone_compile(
            gm, example_inputs, dynamic_shapes="from_example_inputs", aot=True
        )
        return artifact.serialize()

    def loaded(self, gm, kept):
        if kept is None:
            return gm.forward
        return symbol("torch._inductor.standalone_compile", "AOTCompiledArtifact").deserialize(kept)


def somebodys(**options: Any) -> BackendSpec:
    backend = OwnCache()
    return BackendSpec("somebodys", lambda: backend, **options)


def torch_with_whole_results() -> BackendSpec:
    """PyTorch's regional_inductor whose whole results AOTAutograd's cache keeps (``force_autograd_cache``)."""
    compiler = symbol("torch.fx.passes.regional_inductor", "regional_inductor")
    kept = symbol("torch._functorch.aot_autograd", "SerializableAOTDispatchCompiler")
    code = symbol("torch._inductor.output_code", "RegionalOutputCode")
    aot = symbol("torch._dynamo.backends.common", "aot_autograd")

    def compiles_regions(gm, example_inputs):
        with torch.fx.traceback.preserve_node_meta(enable=True):
            return aot(fw_compiler=kept(code, compiler), bw_compiler=kept(code, compiler))(gm, example_inputs)

    return BackendSpec("whole", lambda: compiles_regions)


def whole_results_are_kept() -> contextlib.AbstractContextManager[None]:
    return torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True)


BACKENDS = {
    "reference": (lambda: "reference", contextlib.nullcontext),
    "torch": (lambda: "torch", contextlib.nullcontext),
    "torch, whole results": (torch_with_whole_results, whole_results_are_kept),
    "somebody's": (somebodys, contextlib.nullcontext),
}


def looked_up(r: Any, shape: str, annotated: bool) -> None:
    """Compile a program and run it."""
    make, options, inputs = SHAPES[shape]
    torch.manual_seed(0)
    result = r.compile(make(annotated), **options)(*pair(r, **inputs))
    if inputs:
        result.sum().backward()


#: Other ways to keep whole results differ in where a graph comes from, which these show.
OF_OTHERS = ("function", "training", "graph break")
CASES = [
    (backend, shape) for backend in BACKENDS for shape in (SHAPES if backend in ("reference", "torch") else OF_OTHERS)
]

#: Backends and shapes where the whole result is not kept, so that nothing is looked up twice.
NOT_KEPT = {
    ("reference", "nested"),
    *(("torch", shape) for shape in SHAPES),
}

#: Where PyTorch does not compile a region in the body of ``cond``.
NO_REGION = {("torch", "nested")}


@pytest.mark.parametrize(("backend", "shape"), CASES)
def test_a_program_without_regions_that_is_looked_up_twice(backend, shape):
    make, configured = BACKENDS[backend]
    with configured(), regional(make(), expects_regions=False, fullgraph=False) as r:
        for _ in range(2):
            looked_up(r, shape, annotated=False)
            assert not compiled_something(r)
            r.restart()
    assert (r.counters.cache_hits > 0) == ((backend, shape) not in NOT_KEPT)


@pytest.mark.parametrize(("backend", "shape"), [case for case in CASES if case not in NO_REGION])
def test_with_regions_one_that_is_loaded_is_enough(backend, shape, tmp_path):
    make, configured = BACKENDS[backend]
    spec = make()
    with configured():
        for _ in range(2):
            with regional(spec, fullgraph=False, cache_dir=tmp_path) as r:
                looked_up(r, shape, annotated=True)
    assert r.counters.region_compiles == 0


def there(regional, shape, annotated):
    looked_up(regional, shape, annotated)


@pytest.mark.usefixtures("warm_process")
@pytest.mark.parametrize("annotated", [False, True])
def test_in_new_processes(annotated):
    with regional(expects_regions=False) as r:
        r.in_new_process(there, "function", annotated)
        before = compiled_something(r)
        assert r.in_new_process(there, "function", annotated).counters.cache_hits == 1
        assert before == compiled_something(r) == annotated


def test_what_is_said():
    with pytest.raises(VacuousTestError, match=r"1 result came from a cache, with no code of Inductor's in it"):
        with regional() as r:
            for _ in range(2):
                looked_up(r, "function", annotated=False)
                r.restart()


@pytest.mark.parametrize("shape", ["function", "training"])
def test_of_whole_graphs_a_loaded_one_is_enough(shape, tmp_path):
    for _ in range(2):
        with regional("inductor", cache_dir=tmp_path) as r:
            looked_up(r, shape, annotated=False)
    assert (r.counters.cache_hits, r.counters.region_compiles) == (1, 0)


def test_of_whole_graphs_of_somebody_elses_a_hit_is_enough():
    spec = somebodys(capabilities=GraphCapabilities())
    for _ in range(2):
        with regional(spec) as r:
            looked_up(r, "function", annotated=False)
    assert r.counters.cache_hits == 1


def test_code_that_another_backend_loads_is_not_the_tested_ones(tmp_path):
    with regional("inductor", cache_dir=tmp_path, expects_regions=False) as r:
        looked_up(r, "function", annotated=False)
    with regional("reference", cache_dir=tmp_path, expects_regions=False) as r:
        torch.compile(function(annotated=False), backend="inductor")(*pair(r))
        assert r.counters.cache_hits == 1
        assert not compiled_something(r)


def test_what_is_loaded_where_blame_is_looked_for_is_not_the_tests():
    with regional(expects_regions=False) as r:
        with r.observer.paused():
            for _ in range(2):
                looked_up(r, "function", annotated=True)
                r.restart()
        assert not compiled_something(r)
