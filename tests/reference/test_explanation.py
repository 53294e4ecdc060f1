"""The region plan, told to people."""

import operator
import subprocess
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_regional import region
from pytest_regional._torch.config import backward_lowered_at_once
from pytest_regional.reference import explain, explain_program, regional
from tests.reference.graphs import annotate_node, chain, diamond
from tests.reference.user_backends import counted_compiles


def with_values(gm):
    for node in gm.graph.nodes:
        node.meta["val"] = 0
    return gm


def test_plan_names_regions_splits_and_sharing(capsys):
    gm = with_values(diamond(["a1 a x", "u u a1", "a2 a u", "b1 b a2"]))
    before = str(gm.graph)
    explanation = explain(gm)
    assert str(gm.graph) == before
    assert explanation.regions == ("a", "b")
    assert [p.split_by for p in explanation.partitions] == [None, "u", None]
    assert [p.shared_with for p in explanation.partitions] == [None, "compiled_region_a_0", "compiled_region_a_0"]
    printed = capsys.readouterr().out
    assert "region 'a': 2 partition(s)" in printed
    assert "compiled_region_a_1: aten.sin.default  (split by u; shares compiled_region_a_0)" in printed


def test_the_users_line_of_the_node_in_between_is_shown(capsys):
    gm = with_values(chain("aua"))
    middle = list(gm.graph.nodes)[2]
    middle.meta["stack_trace"] = '  File "model.py", line 12, in forward\n    y = x.sin()\n'
    explain(gm)
    assert f"split by {middle.name} at model.py:12: y = x.sin()" in capsys.readouterr().out
    (_, later) = explain(gm, show=False).partitions
    assert later.split_at == "model.py:12: y = x.sin()"


def test_a_region_on_the_path_is_named():
    gm = with_values(chain("aba"))
    assert [p.split_by for p in explain(gm, show=False).partitions][2] == "region 'b' (compiled_region_b_0)"


def test_a_region_that_as_a_whole_stands_between_is_named():
    """No path leads from a1 to a2, but b2 waits for a1, and a2 waits for b1."""
    gm = with_values(diamond(["a1 a x", "b1 b x", "b2 b a1", "a2 a b1"]))
    splits = [p.split_by for p in explain(gm, show=False).partitions]
    assert splits.count(None) == 2
    (split,) = [split for split in splits if split]
    assert split in ("region 'a' (compiled_region_a_0)", "region 'b' (compiled_region_b_0)")


def test_two_configs_of_one_id_are_two_regions(capsys):
    gm = with_values(chain("aa"))
    annotate_node(list(gm.graph.nodes)[1], {"inductor_region": "a", "inductor_configs": {"max_autotune": True}})
    explain(gm)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "region 'a' {'max_autotune': True}: 1 partition(s)"
    assert printed[2] == "region 'a': 1 partition(s)"


def test_no_regions(capsys):
    assert explain(with_values(chain("uu"))).partitions == ()
    assert capsys.readouterr().out == "no regions\n"


def test_picking_an_element_is_no_op():
    graph = torch.fx.Graph()
    split = annotate_node(graph.call_function(torch.ops.aten.split.Tensor, (graph.placeholder("x"), 2)), 0)
    first = graph.call_function(operator.getitem, (split, 0))
    graph.output(graph.call_function(torch.ops.aten.sin.default, (first,)))
    (partition,) = explain(with_values(torch.fx.GraphModule({}, graph)), show=False).partitions
    assert partition.ops == ("aten.split.Tensor",)


def product(x, w):
    with region("mlp"):
        h = x @ w
    h = h.sin()
    with region("mlp"):
        return h @ w


def leaves():
    return [torch.randn(4, 4, requires_grad=True) for _ in range(2)]


def test_program_of_a_compiled_function_is_explained_without_compiling(capsys):
    compiled = torch.compile(product, backend=regional, fullgraph=True)
    with counted_compiles() as calls:
        forward, backward = explain_program(compiled, *leaves())
    assert calls == []
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert [p.name for p in forward.partitions] == ["compiled_region_mlp_0", "compiled_region_mlp_1"]
    assert forward.partitions[1].split_by == "sin"
    assert forward.partitions[1].split_at.endswith("h = h.sin()")
    assert forward.partitions[1].shared_with == "compiled_region_mlp_0"
    assert set(backward.regions) == {"mlp"}
    printed = capsys.readouterr().out
    assert printed.startswith("forward graph\nregion 'mlp': 2 partition(s)\n")
    assert "\nbackward graph\nregion 'mlp'" in printed


def test_partitions_shared_by_backward_and_forward_are_named():
    """The checkpoint recomputes what the forward computed."""

    def body(x, w):
        with region("r"):
            h = x @ w
        return h.sin().sin()

    def fn(x, w):
        return checkpoint(body, x, w, use_reentrant=False)

    _, backward = explain_program(fn, torch.randn(4, 4, requires_grad=True), torch.randn(4, 4), show=False)
    recomputed = backward.partitions[0]
    assert recomputed.name == "compiled_region_r_0"
    assert recomputed.shared_with == "forward.compiled_region_r_0"


def test_explaining_again_and_again_leaves_dynamos_cache_alone():
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, recompile_limit=2):
        for _ in range(4):
            assert len(explain_program(product, *leaves(), show=False)) == 2


def test_program_of_a_module_with_graph_break():
    class Model(torch.nn.Module):
        def forward(self, x):
            x = product(x, x)
            torch._dynamo.graph_break()
            return product(x, x)

    graphs = explain_program(Model(), torch.randn(4, 4), show=False)
    assert [graph.kind for graph in graphs] == ["inference", "inference"]


def test_regions_in_branches_carry_the_path_of_the_branch():
    def fn(x):
        def positive(a):
            with region("yes"):
                return a @ a

        return torch.cond(x.sum() > 0, positive, torch.sin, (x,))

    (graph,) = explain_program(fn, torch.randn(4, 4), show=False)
    (partition,) = graph.partitions
    assert partition.name.endswith(".compiled_region_yes_0")
    assert partition.name != "compiled_region_yes_0"


@pytest.mark.parametrize("training", [False, True])
def test_names_are_those_of_the_compiled_graph(training):
    from torch._dynamo.backends.common import aot_autograd

    from pytest_regional.reference import regional_inductor

    printed = []

    def compile_graph(gm, example_inputs):
        compiled = regional_inductor(gm, *example_inputs)
        printed.append((compiled.code, compiled.print_readable(print_output=False)))
        return compiled

    backend = aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)
    inputs = [value.requires_grad_(training) for value in leaves()]
    with backward_lowered_at_once():
        torch.compile(product, backend=backend, fullgraph=True)(*inputs)
    graphs = explain_program(product, *inputs, show=False)
    assert len(graphs) == len(printed) == (2 if training else 1)
    for graph, texts in zip(graphs, printed, strict=True):
        for text in texts:
            assert all(f"{partition.name}(" in text for partition in graph.partitions)


@pytest.mark.slow("starts an interpreter that imports torch", fast="test_no_regions")
def test_in_a_process_that_has_compiled_nothing():
    """Private modules of PyTorch are imported on demand; nothing else may have imported them."""
    program = (
        "import torch; from pytest_regional.reference import explain_program; explain_program(torch.sin, torch.ones(1))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("inference graph\nno regions\n", 0), done.stderr
