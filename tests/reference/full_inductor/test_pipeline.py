"""As the last pass of a pipeline: no second knob, the same list of passes with another end."""

import pytest
import torch

from pytest_regional.reference import FullInductor, add_control_deps, full_inductor, pipeline
from pytest_regional.reference.pipeline import PassFailedError, PassOrderError, PassPipeline, graph_pass, load

functional = torch.nn.functional


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(8, 8, bias=False)

    def forward(self, x):
        return functional.gelu(self.linear(x))


def trained(model, module, steps=2):
    """Train, and return parameters and losses."""
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = module(torch.linspace(-1, 1, 32).view(4, 8) + step).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


def test_a_list_of_passes_ends_with_it(tmp_path):
    """A pass before it sees ops that are whole: pattern matching runs before decompositions."""
    seen = []

    @graph_pass
    def look(gm):
        seen.append([str(node.target) for node in gm.graph.nodes if node.op == "call_function"])

    model, plain = Model(), Model()
    compiled = pipeline.compile(model, (torch.randn(4, 8),), passes=[full_inductor, look])
    assert any("aten.gelu.default" in ops for ops in seen)
    assert [row.name for row in compiled.report if row.graph == "forward"] == ["look", "full_inductor"]
    compiled.save(tmp_path / "whole")
    torch.testing.assert_close(trained(model, compiled), trained(plain, plain), atol=1e-5, rtol=1e-4)

    again = Model()
    loaded = load(tmp_path / "whole", again)
    torch.testing.assert_close(trained(again, loaded), trained(model := Model(), model), atol=1e-5, rtol=1e-4)


def test_nothing_runs_after_it():
    @graph_pass(after="full_inductor")
    def late(gm):
        raise AssertionError

    with pytest.raises(PassOrderError, match="full_inductor"):
        PassPipeline([full_inductor, late])


def test_its_uuid_is_part_of_the_pipelines():
    first, second = PassPipeline([full_inductor]), PassPipeline([FullInductor(configs={"max_autotune": True})])
    assert first.uuid() == PassPipeline([FullInductor()]).uuid() != second.uuid()
    assert None not in (first.uuid(), second.uuid())


def test_a_failure_names_pass_graph_and_node():
    def broken(*_, **__):
        raise ZeroDivisionError("of the user")

    custom = FullInductor(decompositions={torch.ops.aten.gelu_backward.default: broken})
    with pytest.raises(PassFailedError, match=r"full_inductor.*backward.*ZeroDivisionError"):
        pipeline.compile(Model(), (torch.randn(4, 8),), passes=[custom])


def test_order_of_an_earlier_pass_holds():
    from pytest_regional.testing import kernels_not_built
    from tests.reference.full_inductor.test_pass import code_of

    @graph_pass(graphs="inference")
    def first_gelu(gm):
        by_target = {str(node.target): node for node in gm.graph.nodes}
        add_control_deps(gm.graph, {by_target["aten.mm.default"]: [by_target["aten.gelu.default"]]})
        gm.recompile()

    def fn(x, w):
        return w @ w, functional.gelu(x)

    inputs = torch.randn(4, 4), torch.randn(4, 4)
    with kernels_not_built():
        code = code_of(lambda: pipeline.compile(fn, inputs, passes=[first_gelu, full_inductor]))
        assert code.index("cpp_fused_gelu") < code.index("extern_kernels.mm")
        code = code_of(lambda: pipeline.compile(fn, inputs, passes=[full_inductor]))
        assert code.index("cpp_fused_gelu") > code.index("extern_kernels.mm")
