"""The pass itself: what it is to a pipeline, what it returns, and that forward and backward share one code path."""

import warnings
from unittest import mock

import pytest
import torch
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.reference import FullInductor, NumericsWarning, full_inductor
from pytest_regional.reference.full_inductor import FullInductorError, MissingValueError
from pytest_regional.testing import kernels_not_built
from tests.reference.full_inductor.backend import Backend, custom_op, ops, run, traced
from tests.reference.kernels import kernels_do_nothing

functional = torch.nn.functional


def code_of(compile_it):
    """Return the wrapper that Inductor writes, without building its kernels."""
    written = []
    spy = mock.patch.object(GraphLowering, "save_output_code", staticmethod(written.append))
    with kernels_not_built(), spy:
        compile_it()
    return written[-1][written[-1].index("def call") :]


def test_what_it_is_to_a_pipeline():
    custom = FullInductor()
    assert (custom.name, custom.terminal) == ("full_inductor", True)
    assert "graphs" not in dir(custom)  # the default: forward, backward and inference


def test_uuid_is_made_of_settings_and_version():
    plain, again = FullInductor(), FullInductor(configs={})
    tuned = FullInductor(configs={"max_autotune": True, "epilogue_fusion": False})
    same = FullInductor(configs={"epilogue_fusion": False, "max_autotune": True})
    assert plain.uuid() == again.uuid()
    assert tuned.uuid() == same.uuid() != plain.uuid()
    assert torch.__version__ in plain.uuid()
    assert hash(tuned.uuid()) == hash(same.uuid())
    assert FullInductor(decompositions={torch.ops.aten.silu.default: None}).uuid() is None


def test_settings_are_checked_at_once():
    with pytest.raises(RegionalValueError, match=r"max_autotune"):
        FullInductor(configs={"max_autotunee": True})
    with pytest.raises(RegionalValueError, match="bool"):
        FullInductor(configs={"max_autotune": "yes"})


def test_settings_hold_while_it_compiles_and_no_longer():
    before = torch._inductor.config.max_fusion_size
    seen = []
    table = {torch.ops.aten.sin.default: lambda x: seen.append(torch._inductor.config.max_fusion_size) or x.cos()}
    gm = traced(torch.sin, torch.randn(4))
    with kernels_not_built():
        FullInductor(configs={"max_fusion_size": 7}, decompositions=table)(gm)
    assert seen == [7]
    assert torch._inductor.config.max_fusion_size == before


def test_the_result_is_boxed_and_the_graph_stays():
    x = torch.randn(4, 8)
    gm = traced(lambda x: (functional.gelu(x), x), x)
    text = str(gm.graph)
    compiled = full_inductor(gm)
    assert isinstance(compiled, CompiledFxGraph)
    assert compiled._boxed_call
    torch.testing.assert_close(tuple(run(compiled, x)), gm(x))
    assert str(gm.graph) == text
    assert "val" in next(iter(gm.graph.nodes)).meta


def test_a_graph_that_returns_one_value():
    x = torch.randn(4, 4)
    gm = traced(lambda x: x @ x, x)
    torch.testing.assert_close(run(full_inductor(gm), x), gm(x))


def test_a_graph_without_values_needs_its_inputs():
    x = torch.randn(4, 8)
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.gelu.default, (graph.placeholder("x"),)),))
    gm = torch.fx.GraphModule({}, graph)
    with pytest.raises(MissingValueError, match="example inputs"):
        full_inductor(gm)
    torch.testing.assert_close(run(full_inductor(gm, (x,)), x), [functional.gelu(x)])


def test_a_graph_without_ops():
    x = torch.randn(4)
    assert run(full_inductor(traced(lambda x: (x,), x)), x)[0] is x


def test_decompositions_are_part_of_it():
    """A graph captured without them is fused to one kernel; without the step Inductor does not even compile."""
    gm = traced(lambda x: functional.gelu(functional.silu(x)), torch.randn(4, 8))
    assert set(ops(gm)) == {"aten.gelu.default", "aten.silu.default"}
    code = code_of(lambda: full_inductor(gm))
    assert code.count("cpp_fused") == 1
    assert "torch.ops.aten" not in code
    with pytest.raises(FullInductorError, match=r"at node 'silu' \(aten.silu.default\)") as caught:
        FullInductor(decompositions={torch.ops.aten.silu.default: None})(gm)
    assert (caught.value.graph, caught.value.node) == ("inference", "silu")
    assert caught.value.__cause__ is not None


def test_a_failing_backward_is_named_as_such():
    x = torch.randn(4, requires_grad=True)
    table = {torch.ops.aten.silu_backward.default: None}
    compiled = torch.compile(functional.silu, backend=Backend(FullInductor(decompositions=table)), fullgraph=True)
    failure = r"the backward graph did not compile, at node 'silu_backward'"
    with kernels_do_nothing(), pytest.raises(Exception, match=failure):
        compiled(x).sum().backward()


def test_a_decomposition_that_raises_is_chained():
    def broken(x):
        raise ZeroDivisionError("of the user")

    gm = traced(torch.sin, torch.randn(4))
    with pytest.raises(FullInductorError, match="ZeroDivisionError: of the user"):
        FullInductor(decompositions={torch.ops.aten.sin.default: broken})(gm)


def test_an_unknown_kind_of_graph():
    gm = traced(torch.sin, torch.randn(4))
    with pytest.raises(FullInductorError, match=r"'backwards'.*Did you mean 'backward'"):
        full_inductor(gm, graph="backwards")


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(4, 8, 3)
        self.second = torch.nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return self.second(functional.relu(self.first(x)))


def test_saved_values_may_have_any_layout_and_the_backward_gets_it():
    """Inductor chooses channels-last inside; the user's output keeps its strides."""
    backend = Backend(FullInductor(configs={"force_layout_optimization": True}))
    told = []
    compiler = backend.compiler

    def spy(gm, inputs):
        names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        told.append((names, inputs, [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]))
        return compiler(gm, inputs)

    backend.compiler = spy
    model, x = Layers(), torch.randn(1, 4, 8, 8, requires_grad=True)
    with kernels_do_nothing():
        output = torch.compile(model, backend=backend, fullgraph=True)(x)
        output.sum().backward()  # the code refuses inputs of other strides than it was compiled for
    assert output.stride() == model(x).stride()
    names, inputs, values = told[1]
    moved = [name for name, a, b in zip(names, inputs, values, strict=True) if a.stride() != b.stride()]
    assert "relu" in moved


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_outputs_that_inductor_finds_equal_stay_apart(kind):
    """They may be saved values, which the backward is free to overwrite."""

    def fn(x):
        y = x.sin()
        return y, y * torch.ones(4), y.detach(), x * torch.ones(4), x

    x = torch.randn(4)
    results = run(full_inductor(traced(fn, x), graph=kind), x)
    torch.testing.assert_close(tuple(results), fn(x))
    value, same, detached, copy, given = (result.data_ptr() for result in results)
    assert len({value, same, copy, given}) == 4
    assert detached == value
    assert given == x.data_ptr()


def test_what_compile_fx_does_around_it():
    """Parameters count as fixed, the backward as a backward, and its buffers as donated."""
    calls = []

    def compile_nothing(gm, inputs, **options):
        metadata = torch._guards.TracingContext.get().fw_metadata
        visible = gm.graph.output_node().meta["user_visible_output_idxs"]
        calls.append((options, visible, metadata.bw_donated_idxs, metadata.static_input_indices))
        return make_boxed_func(gm.forward)

    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4)), torch.randn(2, 4)
    with mock.patch("torch._inductor.compile_fx.compile_fx_inner", compile_nothing):
        torch.compile(model, backend=Backend(FullInductor()), fullgraph=True)(x).sum().backward()
    (forward, users, _, fixed), (backward, _, donated, _) = calls
    assert users == [0]
    assert forward["is_inference"] is False
    assert len(fixed) == 4  # the parameters
    assert forward["static_input_idxs"] == fixed
    assert backward["is_backward"] is True
    assert len(backward["static_input_idxs"]) > 1
    assert donated
    assert forward["boxed_forward_device_index"] is backward["boxed_forward_device_index"]
    assert forward["cudagraphs"] is backward["cudagraphs"]
    assert forward["graph_id"] == backward["graph_id"]


def test_a_warning_about_numerics_for_each_program_once():
    compiled = [torch.compile(functional.gelu, backend=Backend(FullInductor()), fullgraph=True) for _ in range(2)]
    x = torch.randn(4, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught, kernels_not_built(), without_running():
        warnings.simplefilter("always")
        compiled[0](x).sum().backward()
        assert [w.category for w in caught if w.category is NumericsWarning] == [NumericsWarning]
        torch._dynamo.reset()
        compiled[1](x).sum().backward()
    found = [w for w in caught if w.category is NumericsWarning]
    assert len(found) == 2
    assert "assert_parity" in str(found[0].message)
    assert all("pytest_regional/" not in w.filename and "torch/" not in w.filename for w in found)


def without_running():
    """Compile forward and backward, and run the graphs as they are."""
    return mock.patch(
        "torch._inductor.compile_fx.compile_fx_inner", lambda gm, inputs, **_: make_boxed_func(gm.forward)
    )


def test_a_bare_call_warns_too():
    with pytest.warns(NumericsWarning), kernels_not_built():
        full_inductor(traced(torch.sin, torch.randn(4)))


def test_opaque_callables_are_called_unchanged():
    op = custom_op("opaque")
    code = code_of(lambda: full_inductor(traced(lambda x: op(functional.gelu(x)), torch.randn(4))))
    assert "full_inductor_tests.opaque" in code
