"""``regional_inductor`` in place of PyTorch's: calling convention, caches, missing context, errors."""

import contextlib
import weakref

import pytest
import torch
import torch._functorch.config
import torch._inductor
from torch._guards import TracingContext, tracing
from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler
from torch.fx.experimental.proxy_tensor import make_fx

import pytest_regional.reference
from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._torch import torch_version
from pytest_regional.reference import RegionConfigError, RegionFallbackWarning, regional_inductor
from tests.reference.graphs import InterpretedCompiler, annotate_node, chain


def is_boxed(gm, x):
    inputs = [x]
    gm(inputs)
    return inputs == []


@pytest.mark.parametrize("word", ["uTu", "uuu"])
def test_result_is_boxed_with_and_without_annotations(word):
    x = torch.randn(3)
    gm = regional_inductor(chain(word), x, compiler=InterpretedCompiler())
    assert is_boxed(gm, x)
    torch.testing.assert_close(gm([x])[0], x.sin().sin().sin())


def test_package_offers_the_function_under_its_modules_name():
    assert pytest_regional.reference.regional_inductor is regional_inductor


def test_inputs_are_freed_after_their_last_use():
    alive = []

    def compiler(request):
        return lambda x: (x.sin(),)

    gm = regional_inductor(chain("Tu"), torch.randn(3), compiler=compiler)
    (last,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    inputs = [torch.randn(3)]
    reference = weakref.ref(inputs[0])
    last.target = lambda value: alive.append(reference() is not None) or value
    gm.recompile()
    gm(inputs)
    assert alive == [False]


def test_values_of_the_trace_survive():
    gm = make_fx(lambda x: x.sin().cos(), tracing_mode="fake")(torch.randn(3))
    annotate_node(
        gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)[0], {"inductor_region": "a"}
    )
    gm = regional_inductor(gm, compiler=InterpretedCompiler())
    assert all("val" in node.meta for node in gm.graph.nodes if node.op == "call_function")
    assert "compiled_region_a_0(x_1)" in gm.code


def test_without_context_values_or_inputs_it_says_what_is_missing():
    with pytest.raises(RegionalRuntimeError, match="0 example inputs for 1 placeholders"):
        regional_inductor(chain("T"))


@pytest.mark.parametrize("context", ["none", "the graph's own", "fresh"])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_graphs_of_make_fx_with_and_without_tracing_context(mode, context):
    """Real tensors leave each node a value of another fake mode; symbols belong to one shape environment."""
    x = torch.randn(4, 4)
    gm = make_fx(lambda x: (x * 2).sin() @ x, tracing_mode=mode)(x)
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default):
        annotate_node(node, 0)
    own = next(iter(gm.graph.nodes)).meta["val"].fake_mode
    fake_mode = FakeTensorMode() if context == "fresh" and mode != "symbolic" else own
    with contextlib.nullcontext() if context == "none" else tracing(TracingContext(fake_mode)):
        compiled = regional_inductor(gm)
    torch.testing.assert_close(compiled([x]), (x * 2).sin() @ x)


def test_unknown_config_has_pytorchs_phrase():
    gm = chain("T")
    annotate_node(list(gm.graph.nodes)[1], {"inductor_configs": {"max_autotun": True}})
    with pytest.raises(RegionConfigError, match="Invalid inductor config key 'max_autotun'"):
        regional_inductor(gm, torch.randn(3))


def test_each_region_compiles_under_its_own_configuration(monkeypatch):
    gm = chain("ab")
    for node, size in zip(list(gm.graph.nodes)[1:3], (7, 9), strict=True):
        annotate_node(node, {"inductor_region": "r", "inductor_configs": {"max_fusion_size": size}})
    seen = []
    original = torch._inductor.standalone_compile

    def spy(*args, **kwargs):
        seen.append((torch._inductor.config.max_fusion_size, kwargs["dynamic_shapes"], kwargs["aot"]))
        return original(*args, **kwargs)

    monkeypatch.setattr(torch._inductor, "standalone_compile", spy)
    before = torch._inductor.config.max_fusion_size
    x = torch.randn(3)
    torch.testing.assert_close(regional_inductor(gm, x)([x])[0], x.sin().sin())
    assert seen == [(7, "from_tracing_context", True), (9, "from_tracing_context", True)]
    assert torch._inductor.config.max_fusion_size == before


def test_forced_autograd_cache_yields_what_caches_can_save():
    x = torch.randn(3)
    gm = make_fx(lambda x: (x.sin().cos(),), tracing_mode="fake")(x)
    annotate_node(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)[0], 0)
    with torch._functorch.config.patch(force_autograd_cache=True):
        code = regional_inductor(gm)
    torch.testing.assert_close(code([x])[0], x.sin().cos())
    code.prepare_for_serialization()
    fake_mode = FakeTensorMode()
    with tracing(TracingContext(fake_mode)):
        code.post_compile([fake_mode.from_tensor(x)], None, None)
    torch.testing.assert_close(code([x])[0], x.sin().cos())


def test_graph_pickler_round_trip_keeps_the_artifact():
    x = torch.randn(3)
    gm = regional_inductor(chain("uT"), x)
    fake_mode = FakeTensorMode()
    with tracing(TracingContext(fake_mode)):
        loaded = GraphPickler.loads(GraphPickler.dumps(gm), fake_mode)
    loaded.recompile()
    torch.testing.assert_close(loaded([x])[0], x.sin().sin())


@pytest.mark.skipif(torch_version() < (2, 13), reason="torch 2.11 has no eager kernel of control_deps")
@pytest.mark.parametrize("marked", [("add", "mm", "mul"), ("mm",), ("add", "mul")])
def test_ordered_ops_may_stand_in_a_region(marked):
    """The body of ``control_deps`` is an unannotated attribute: it travels with its op (PyTorch 2.13 fails here)."""

    def fn(x, w):
        return x + 1, x @ w, x * 2

    inputs = torch.randn(4, 4), torch.randn(4, 4)
    gm = make_fx(fn, tracing_mode="fake")(*inputs)
    nodes = {node.name: node for node in gm.graph.nodes}
    for name in marked:
        annotate_node(nodes[name], 0)
    preserve_node_ordering(gm.graph, {nodes["mm"]: {nodes["add"]}, nodes["mul"]: {nodes["mm"]}})
    compiler = InterpretedCompiler()
    gm = regional_inductor(gm, compiler=compiler)
    torch.testing.assert_close(tuple(gm(list(inputs))), fn(*inputs))
    assert len(compiler.requests) == (2 if "mm" not in marked else 1)


def test_nodes_of_a_compiled_graph():
    def fails_on_b(request):
        if request.key.label == "b":
            raise NotImplementedError
        return lambda value: (value.sin(),)

    x = torch.randn(3)
    with pytest.warns(RegionFallbackWarning):
        gm = regional_inductor(chain("uab"), x, compiler=fails_on_b, on_region_error="eager", share_identical=False)
    assert {node.op for node in gm.graph.nodes} == {"placeholder", "call_function", "call_module", "output"}
    torch.testing.assert_close(gm([x])[0], x.sin().sin().sin())
