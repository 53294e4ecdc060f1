"""``region("comm", after=["mlp"])``: order of whole regions."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_regional import region
from pytest_regional.reference import (
    OrderingCycleError,
    RegionAnnotationError,
    RegionOrderWarning,
    cache_key,
    explain,
    explain_program,
    regional_inductor,
    split_regions,
)
from tests.reference.backends import Structure
from tests.reference.graphs import InterpretedCompiler, annotate_node, diamond


def asking(lines, outputs=None, **after):
    """Build a graph as ``diamond`` does, in which regions ask to run after others."""
    gm = diamond(lines, outputs)
    for node in gm.graph.nodes:
        mark = node.meta.get("custom", {}).get("compile_with_inductor")
        if mark and mark["inductor_region"] in after:
            annotate_node(node, {**mark, "inductor_after": after[mark["inductor_region"]]})
    return gm


def calls(gm):
    return [str(node.target).removeprefix("compiled_region_") for node in gm.graph.find_nodes(op="call_module")]


def test_the_region_runs_after_the_other():
    lines = ["p comm x", "q mlp x", "r mlp q"]
    assert calls(split_regions(asking(lines))) == ["comm_0", "mlp_0"]
    assert calls(split_regions(asking(lines, comm=["mlp"]))) == ["mlp_0", "comm_0"]


def test_eager_ops_follow_the_values_alone():
    gm = split_regions(asking(["p comm x", "e u p", "q mlp x", "f u q"], comm=["mlp"]))
    names = [node.name for node in gm.graph.nodes if node.op in ("call_module", "call_function")]
    assert names.index("compiled_region_mlp_0") < names.index("compiled_region_comm_0") < names.index("e")


def test_two_regions_that_ask_for_each_other_are_refused():
    with pytest.raises(OrderingCycleError, match="region 'a' after 'b'"):
        split_regions(asking(["p a x", "q b x"], a=["b"], b=["a"]))


def test_the_number_of_edges_grows_with_nodes_not_pairs():
    wide = [f"m{i} mlp x" for i in range(2000)] + [f"c{i} comm x" for i in range(2000)]
    assert calls(split_regions(asking(wide, comm=["mlp"]))) == ["mlp_0", "comm_0"]


@pytest.mark.parametrize(
    ("after", "message"),
    [("mlp", "not a list of region ids"), ([1.5], "not a list of region ids"), (["comm"], "is to run after itself")],
)
def test_what_is_refused(after, message):
    with pytest.raises(RegionAnnotationError, match=message):
        split_regions(asking(["p comm x"], comm=after))


def compiled(gm):
    return regional_inductor(gm, torch.randn(3), compiler=InterpretedCompiler())


def test_a_region_that_is_not_there_is_warned_of_with_the_nearest():
    with pytest.warns(RegionOrderWarning, match=r"'comm' is to run after 'mpl'.*did you mean 'mlp'"):
        compiled(asking(["p comm x", "q mlp x"], comm=["mpl"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(asking(["p comm x", "q mlp x"], comm=["mlp"]))


class Overlapping(torch.nn.Module):
    def forward(self, x, w):
        with region("comm", after=["mlp"]):
            c = (x * 3).sin()
        with region("mlp"):
            m = (x @ w).cos()
        return c + m


def test_recomputed_ops_keep_the_order_of_the_forward():
    structure = Structure("min_cut")
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    program = Overlapping()

    def checkpointed(x, w):
        return checkpoint(program, x, w, use_reentrant=False)

    expected = torch.autograd.grad(program(x, w).sum(), (x, w))
    found = torch.autograd.grad(structure.compile(checkpointed)(x, w).sum(), (x, w))
    torch.testing.assert_close(found, expected)
    assert structure.labels[:2] == ["mlp", "comm"]
    assert structure.labels[2:] == ["mlp", "comm", "mlp"]


def test_a_branch_that_holds_the_region_waits_as_a_whole():
    def program(x):
        def positive(x):
            with region("comm", after=["mlp"]):
                return x.sin()

        def negative(x):
            return x.cos()

        c = torch.cond(x.sum() > 0, positive, negative, (x,))
        with region("mlp"):
            m = x.exp()
        return c, m

    structure = Structure()
    x = torch.randn(4).abs()
    torch.testing.assert_close(structure.compile(program)(x), program(x))
    (explained,) = explain_program(program, x, show=False)
    assert [p.region for p in explained.partitions] == ["mlp", "comm"]


def test_the_key_of_the_outer_cache_tells_orders_apart():
    def program(after):
        def marked(x):
            with region("comm", after=after):
                c = x.sin()
            with region("mlp"):
                return c, x.cos()

        return marked

    x = torch.randn(3)
    assert cache_key(program(["mlp"]), x) == cache_key(program(["mlp"]), x) != cache_key(program(None), x)


def test_a_split_by_asked_order_says_so():
    gm = asking(["p r x", "q mlp p", "c comm x", "s r c"], comm=["mlp"])
    for node in gm.graph.nodes:
        node.meta["val"] = torch.empty(3, device="meta")
    by_region = {(e.region, e.split_by) for e in explain(gm, show=False).partitions}
    assert ("r", "region 'mlp' (compiled_region_mlp_0), by requested order") in by_region
