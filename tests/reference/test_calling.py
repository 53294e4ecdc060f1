"""Compiled regions are called without AOTAutograd's layers where those would do nothing, and with them elsewhere."""

import pytest
import torch
import torch._inductor
from torch._inductor.standalone_compile import AOTCompiledArtifact
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta

from pytest_regional import region
from pytest_regional._torch.fx_graphs import called_attributes
from pytest_regional._torch.inductor import inductor_callable
from pytest_regional.reference import plan_partitions, regional, regional_inductor
from pytest_regional.reference.compile_regions import makes_plain_values
from pytest_regional.reference.extract import RegionInput, extract_partitions


@region("r")
def product(x):
    return x @ x


@region("r")
def view(x):
    return x.t()


@region("r")
def two_views_of_one_value(x):
    h = x @ x
    return h, h.t()


@region("r")
def write(x):
    return x.add_(1)


@region("r")
def draw(x):
    return torch.nn.functional.dropout(x, 0.5)


def extracted(fn, *inputs):
    with preserve_node_meta():
        gm = make_fx(fn, tracing_mode="fake")(*inputs)
    return extract_partitions(gm, plan_partitions(gm.graph))


@pytest.mark.parametrize(
    ("fn", "plain"),
    [(product, True), (draw, True), (view, False), (two_views_of_one_value, False), (write, False)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_which_regions_make_plain_values(fn, plain):
    (extraction,) = extracted(fn, torch.randn(4, 4))
    assert makes_plain_values(extraction) is plain


@pytest.mark.parametrize(("value", "plain"), [(3, True), (2.5, False), (True, False), (None, False)])
def test_which_numbers_may_enter(value, plain):
    (extraction,) = extracted(product, torch.randn(4, 4))
    extraction.borders.append(RegionInput("n", None, {"val": value}))
    assert makes_plain_values(extraction) is plain


@pytest.fixture
def layered_calls(monkeypatch):
    """Count the calls that go through AOTAutograd's layers."""
    calls = []
    original = AOTCompiledArtifact.__call__
    monkeypatch.setattr(AOTCompiledArtifact, "__call__", lambda self, *args: calls.append(1) or original(self, *args))
    return calls


def test_plain_regions_are_called_directly_from_the_second_call_on(layered_calls):
    compiled = torch.compile(product, backend=regional, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 4)
        torch.testing.assert_close(compiled(x), product(x))
    assert len(layered_calls) == 1


def test_other_regions_keep_their_layers(layered_calls):
    compiled = torch.compile(two_views_of_one_value, backend=regional, fullgraph=True)
    for _ in range(3):
        h, transposed = compiled(torch.eye(4))
        assert h.data_ptr() == transposed.data_ptr()
    assert len(layered_calls) == 3


def test_a_profile_names_the_region_that_it_sees(layered_calls):
    compiled = torch.compile(product, backend=regional, fullgraph=True)
    x = torch.randn(4, 4)
    compiled(x)
    with torch.profiler.profile() as profile:
        compiled(x)
    assert len(layered_calls) == 2
    assert any("CompiledFxGraph" in event.key for event in profile.key_averages())


def test_a_graph_outside_autograd_may_be_called_with_gradients_on(layered_calls):
    with preserve_node_meta():
        gm = regional_inductor(make_fx(product, tracing_mode="fake")(torch.randn(4, 4)))
    x = torch.randn(4, 4, requires_grad=True)
    for _ in range(2):
        torch.testing.assert_close(gm([x]), product(x).detach())
    assert len(layered_calls) == 2


def test_a_body_inside_of_a_plain_module_calls_its_regions(layered_calls):
    """``recompile`` of a graph recompiles the graph modules right below it, and none inside of a plain module."""

    def program(x):
        return torch.cond(x.sum() > 0, product, torch.sin, (x,))

    x = torch.ones(4, 4)
    with preserve_node_meta():
        gm = make_fx(program, tracing_mode="fake")(x)
        path, body = next(iter(called_attributes(gm).items()))
        body(x)
        gm.inner = torch.nn.Module()
        gm.inner.body = body
        delattr(gm, path)
        (node,) = gm.graph.find_nodes(op="get_attr", target=path)
        node.target = "inner.body"
        compiled = regional_inductor(gm)
    torch.testing.assert_close(compiled([x]), product(x))
    assert len(layered_calls) == 1


def test_installed_torch_tells_what_inductor_generated():
    artifacts = []

    def compile_and_note(gm, inputs):
        original = torch._inductor.standalone_compile
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                torch._inductor,
                "standalone_compile",
                lambda *a, **k: artifacts.append(original(*a, **k)) or artifacts[-1],
            )
            return regional(gm, inputs)

    x = torch.randn(4, 4)
    torch.compile(product, backend=compile_and_note)(x)
    arguments = [x]
    torch.testing.assert_close(inductor_callable(artifacts[0])(arguments)[0], x @ x)
    assert arguments == []
