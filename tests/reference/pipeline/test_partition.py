"""Partition: forward and backward, without compiling them, and without touching the joint graph."""

import pytest
import torch

from pytest_regional.reference import pipeline
from tests.reference.pipeline.models import assert_same_bits, model_and_inputs, step


@pytest.fixture
def joint():
    return pipeline.capture(*model_and_inputs("Block"))


def ops(gm):
    return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def test_min_cut_saves_less_and_computes_more():
    joint = pipeline.capture(lambda x: x.sin().exp().cos(), (torch.randn(3, requires_grad=True),))
    before = ops(joint.graph_module)
    kept, cut = pipeline.partition(joint), pipeline.partition(joint, "min_cut")

    forward, backward = kept
    assert (forward, backward) == (kept.forward, kept.backward)
    returned = [len(graphs.forward.graph.output_node().args[0]) for graphs in (kept, cut)]
    assert returned[0] == 4  # the result, and what each of three derivatives needs
    assert returned[1] < returned[0]
    assert len(ops(cut.backward)) > len(ops(kept.backward))
    assert ops(joint.graph_module) == before


def test_a_partitioner_of_the_users_is_asked(joint):
    asked = []

    def mine(gm, inputs, **keywords):
        asked.append(keywords["num_fwd_outputs"])
        return torch._functorch.partitioners.default_partition(gm, inputs, **keywords)

    assert ops(pipeline.partition(joint, mine).forward) == ops(pipeline.partition(joint).forward)
    assert asked == [7]


def test_changed_graphs_are_what_is_compiled(joint):
    graphs = pipeline.partition(joint)
    for node in graphs.forward.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
        node.target = torch.ops.aten.tan.default

    model, inputs = model_and_inputs("Block")
    changed = step(pipeline.compile(graphs), inputs)
    plain = step(pipeline.compile(joint), inputs)
    assert not torch.equal(changed[0], plain[0])
    assert torch.equal(changed[0], model.norm((inputs[0] @ model.weight).tan() * 2))


@pytest.mark.parametrize("name", ["Repeating", "Branching", "Dropping"])
def test_bodies_are_partitioned_too(name):
    model, inputs = model_and_inputs(name)
    twin, _ = model_and_inputs(name)
    graphs = pipeline.partition(pipeline.capture(model, inputs))

    assert_same_bits(step(pipeline.compile(graphs), inputs), step(twin, inputs))


@pytest.mark.parametrize(
    ("partitioner", "message"),
    [
        ("mincut", "there is no partitioner 'mincut': give default or min_cut"),
        (lambda gm, inputs, **keywords: gm, r"returned inner_f, not \(forward, backward\) graph modules"),
    ],
)
def test_graphs_that_cannot_be_partitioned_are_an_error(joint, partitioner, message):
    with pytest.raises(pipeline.PipelineError, match=message):
        pipeline.partition(joint, partitioner)
    with pytest.raises(pipeline.PipelineError, match=message):
        pipeline.compile(joint, partitioner=partitioner)


def test_an_inference_graph_is_not_partitioned():
    with pytest.raises(pipeline.PipelineError, match="no backward to split off"):
        pipeline.partition(pipeline.capture(torch.sin, (torch.randn(3),)))


def test_a_partitioned_graph_takes_no_joint_passes(joint):
    @pipeline.graph_pass(name="early", graphs="joint")
    def early(gm, example_inputs):
        raise AssertionError("never reached")

    with pytest.raises(pipeline.PassOrderError, match="'early' run on joint graphs, and this one is partitioned"):
        pipeline.compile(pipeline.partition(joint), passes=[early])
