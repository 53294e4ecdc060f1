"""What caches save: ``RegionalOutputCode`` and the bundled wrappers, around graphs compiled by ours."""

import pickle

import pytest
import torch
import torch._functorch.config
from torch._functorch._aot_autograd.aot_autograd_result import BundledCompiledForward
from torch._guards import TracingContext, tracing
from torch._inductor.output_code import RegionalOutputCode
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import annotate, preserve_node_meta
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_regional.reference import regional_inductor
from pytest_regional.reference.caching.program import dump_program
from tests.reference.user_backends import counted_compiles


def annotated(x, w):
    h = x.sin()
    with annotate({"compile_with_inductor": {"inductor_region": "r"}}):
        h = h @ w
    return (h.cos(),)


def plain(x, w):
    return ((x.sin() @ w).cos(),)


def inputs():
    return [torch.randn(4, 4), torch.randn(4, 4)]


def traced(fn):
    with preserve_node_meta():
        return make_fx(fn, tracing_mode="fake")(*inputs())


def output_code(fn):
    gm = traced(fn)
    with torch._functorch.config.patch(force_autograd_cache=True):
        return regional_inductor(gm, *inputs())


def post_compile(code):
    fake_mode = FakeTensorMode()
    with tracing(TracingContext(fake_mode)):
        code.post_compile([fake_mode.from_tensor(value) for value in inputs()], None, None)


def check(code, fn):
    values = inputs()
    boxed = list(values)
    torch.testing.assert_close(code(boxed), fn(*values))
    assert boxed == []


@pytest.mark.parametrize("fn", [annotated, plain], ids=lambda fn: fn.__name__)
def test_serialization_round_trip(fn):
    code = output_code(fn)
    assert isinstance(code, RegionalOutputCode)
    check(code, fn)
    code.prepare_for_serialization()
    assert code._graph_module is None
    assert isinstance(code._serialized_graph_module, bytes)
    with pytest.raises(RuntimeError, match="no graph module"):
        code(inputs())
    restored = pickle.loads(pickle.dumps(code))
    with counted_compiles() as calls:
        post_compile(restored)
        check(restored, fn)
    assert calls == []
    assert isinstance(restored._graph_module, torch.fx.GraphModule)
    assert any("compiled_region_r" in str(node) for node in restored.graph.nodes) == (fn is annotated)


def test_constants_are_serialized_outside_of_the_fake_mode(monkeypatch):
    """AOTAutograd saves in it, and torch 2.11 then refuses to pickle a tensor of a GPU, or crashes."""
    graph = torch.fx.Graph()
    graph.output((graph.get_attr("table"),))
    gm = torch.fx.GraphModule({"table": torch.ones(3)}, graph)
    modes = []
    original = torch.storage.TypedStorage.__reduce__

    def reduce(storage):
        modes.append(tuple(_get_current_dispatch_mode_stack()))
        return original(storage)

    monkeypatch.setattr(torch.storage.TypedStorage, "__reduce__", reduce)
    with FakeTensorMode():
        dump_program(gm)
    assert modes == [()]


def test_a_restored_graph_still_runs_on_fake_tensors():
    code = output_code(plain)
    code.prepare_for_serialization()
    post_compile(code)
    with FakeTensorMode() as fake_mode:
        (output,) = code([fake_mode.from_tensor(value) for value in inputs()])
    assert output.shape == (4, 4)


@pytest.mark.parametrize("fn", [annotated, plain], ids=lambda fn: fn.__name__)
def test_bundled_forward_stays_lazy_until_it_is_needed(fn):
    wrapper = BundledCompiledForward(result=output_code(fn))
    original = wrapper.result
    wrapper.pre_save()
    check(original, fn)  # what this process runs is not what it saves
    assert wrapper.result._graph_module is None
    assert wrapper.result._serialized_graph_module is not None
    loaded = wrapper.load(inputs())
    assert loaded._graph_module is None
    fake_mode = FakeTensorMode()
    with tracing(TracingContext(fake_mode)):
        wrapper.example_inputs = [fake_mode.from_tensor(value) for value in inputs()]
        ready = wrapper.post_compile(loaded, {})
    assert isinstance(ready._graph_module, torch.fx.GraphModule)
    check(ready, fn)


@pytest.mark.parametrize("fn", [annotated, plain], ids=lambda fn: fn.__name__)
def test_graph_pickler_keeps_metadata_and_the_artifact(fn):
    gm = regional_inductor(traced(fn), *inputs())
    fake_mode = FakeTensorMode()
    with tracing(TracingContext(fake_mode)):
        loaded = GraphPickler.loads(GraphPickler.dumps(gm), fake_mode)
    loaded.recompile()
    with counted_compiles() as calls:
        check(loaded, fn)
    assert calls == []
    named = {node.name: node.meta["val"].shape for node in loaded.graph.nodes if node.name in ("sin", "mm", "cos")}
    assert named == dict.fromkeys(("sin", "mm", "cos"), (4, 4))
