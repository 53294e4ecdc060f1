"""Five Adam steps through the pipeline: nothing compiled, the backend under test at its end, Inductor at its end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pytest_regional import TrainingParityError

from . import moe
from .llama import DEBUG, QUICK, TINY, Llama, flex, token_batches

pytestmark = [
    pytest.mark.regional_compile(requires=("full_graph", "backward"), expects_regions=False),
    pytest.mark.filterwarnings("ignore:full_inductor compiles whole graphs"),
]

MODELS = {
    "llama": lambda regional: (Llama(QUICK).to(regional.device), token_batches(regional, QUICK)),
    "experts": lambda regional: (moe.MixtureBlock(TINY).to(regional.device), moe.batches(regional, TINY)),
}


def through(pipeline, example, **options):
    """Return what compiles a copy of the model with ``pipeline``."""
    return lambda model: pipeline.compile(model, example, **options)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
def test_without_a_compiler_every_bit_is_that_of_eager(regional, name, partitioner):
    model, steps = MODELS[name](regional)
    compiled = through(regional.pipeline.ending_with("aot_eager"), steps[0], partitioner=partitioner)
    report = regional.assert_training_parity(model, steps, compiled=compiled, level="bitwise")
    assert len(report.steps) == 5


@pytest.mark.parametrize("name", MODELS)
def test_with_the_backend_at_its_end(regional, name):
    model, steps = MODELS[name](regional)
    report = regional.assert_training_parity(model, steps, compiled=through(regional.pipeline, steps[0]))
    assert report.anchored
    # Of two layers the regions are one program, and there is one region in the block of experts: in each graph once.
    if regional.supports("share_identical"):
        assert regional.counters["region_compiles"] == 2


def test_with_inductor_at_its_end(regional):
    sizes = replace(QUICK, layers=1)  # each would be compiled for itself
    model, steps = Llama(sizes).to(regional.device), token_batches(regional, sizes)
    compiled = through(regional.pipeline.ending_with("inductor"), steps[0])
    report = regional.assert_training_parity(model, steps, compiled=compiled)
    assert report.anchored


@pytest.mark.regional_compile(requires=("full_graph", "backward", "regions"), expects_regions=False)
def test_ops_outside_of_regions_keep_every_bit(regional):
    """Regions alone may differ from eager: the same model whose attention is not annotated does not."""
    model, steps = MODELS["llama"](regional)

    def compiled(model):
        graph = regional.pipeline.capture(model, steps[0])
        for node in graph.graph_module.graph.nodes:
            node.meta.get("custom", {}).pop("compile_with_inductor", None)
        return regional.pipeline.compile(graph)

    regional.assert_training_parity(model, steps, compiled=compiled, level="bitwise")


@pytest.mark.regional_compile(requires=("full_graph", "flex_attention"), expects_regions=False)
@pytest.mark.regional_known_failure(
    "inductor",
    reason="wrong values on CPU when flex attention is compiled with the rotary embedding before it: "
    "docs/findings/flex_attention_whole_graph_cpu.py",
    torch=">=2.13",
)
@pytest.mark.regional_known_failure(
    "torch",
    reason="the mask's blocks are constants, which in a region do not compile: "
    "docs/findings/slice_assignment_in_region.py",
    torch="<2.15",
)
def test_inference_with_flex_attention(regional):
    model = Llama(TINY, flex(TINY, regional.device)).to(regional.device)
    batch = token_batches(regional, TINY, 1)[0]
    with torch.no_grad():
        found, expected = regional.pipeline.compile(model, batch)(*batch), model(*batch)
    torch.testing.assert_close(found, expected)


@pytest.mark.regional_compile(requires=("full_graph", "flex_attention", "flex_attention_backward"))
def test_five_steps_with_flex_attention(regional):
    model, steps = Llama(QUICK, flex(QUICK, regional.device)).to(regional.device), token_batches(regional, QUICK)
    regional.assert_training_parity(model, steps, compiled=through(regional.pipeline, steps[0]))


def test_the_debug_model_keeps_every_bit_without_a_compiler(regional):
    """All six layers at full length, two steps."""
    model, steps = Llama(DEBUG).to(regional.device), token_batches(regional, DEBUG, 2)
    compiled = through(regional.pipeline.ending_with("aot_eager"), steps[0])
    regional.assert_training_parity(model, steps, compiled=compiled, level="bitwise")


def test_a_wrong_pass_is_noticed(regional):
    """That the cases above can fail: a pass that halves the slope of one activation in the backward."""

    @regional.pipeline.graph_pass(graphs="backward")
    def halve_a_slope(gm, inputs):
        node = next(iter(gm.graph.find_nodes(op="call_function", target=torch.ops.aten.silu_backward.default)))
        with gm.graph.inserting_after(node):
            half = gm.graph.call_function(torch.ops.aten.mul.Tensor, (node, 0.5))
        node.replace_all_uses_with(half, delete_user_cb=lambda user: user is not half)

    model, steps = MODELS["llama"](regional)
    pipeline = regional.pipeline.ending_with("aot_eager")
    wrong = through(pipeline, steps[0], passes=[halve_a_slope])
    with pytest.raises(TrainingParityError, match="first at step 1") as caught:
        regional.assert_training_parity(model, steps[:2], compiled=wrong)
    first = caught.value.report.steps[0]
    # Losses of one starting point agree; what lies below that activation has a wrong gradient, what lies above has not.
    wheres = {mismatch.where for mismatch in first.mismatches}
    assert first.loss == first.loss_eager
    assert "gradient of blocks.1.feed_forward.gate" in wheres
    assert "gradient of blocks.1.feed_forward.down" not in wheres

    right = through(pipeline, steps[0], passes=[halve_a_slope], disable=("halve_a_slope",))
    regional.assert_training_parity(model, steps[:2], compiled=right, level="bitwise")
