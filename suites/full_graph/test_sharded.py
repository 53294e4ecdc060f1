"""Sharded data parallelism: structure and order on a fake group of eight, values on a real group of one.

Collectives of the fake group leave their results as they were allocated, so nothing is said of values there.
"""

from __future__ import annotations

import contextlib

import pytest
import torch.distributed as dist

from pytest_regional import CodeAssertionError
from pytest_regional.testing import kernels_not_built

from .sharded import GATHER, LAYERS, SCATTER, SIZE, WAIT, WORLD, Sharded, batches

pytestmark = pytest.mark.regional_compile(requires=("full_graph", "backward"), expects_regions=False)

# What full_inductor says of itself; tests of the pass hold it to that.
quietly = pytest.mark.filterwarnings("ignore:full_inductor compiles whole graphs")


@pytest.fixture
def _eight_ranks(fake_pg):
    fake_pg(world_size=WORLD)


@pytest.fixture
def _one_rank(regional):
    backend = "nccl" if regional.device.type == "cuda" else "gloo"
    with contextlib.ExitStack() as stack:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        stack.callback(dist.destroy_process_group)
        yield


def collectives_and_products(gm):
    """Return what the graph calls, in order, of collectives and matrix products."""
    names = [str(node.target).removesuffix(".default") for node in gm.graph.nodes if node.op == "call_function"]
    return [name for name in names if name in (GATHER, SCATTER, WAIT, "aten.mm")]


@pytest.mark.usefixtures("_eight_ranks")
def test_every_layer_gathers_and_every_gradient_is_scattered(regional):
    pipeline = regional.pipeline
    graphs = pipeline.partition(pipeline.capture(Sharded().to(regional.device), batches(regional, 1)[0]))

    assert collectives_and_products(graphs.forward) == LAYERS * [GATHER, WAIT, "aten.mm"]
    # From the last layer to the first, one product for the weight and one for the rows; the first needs none of these.
    both = ["aten.mm", "aten.mm", SCATTER, WAIT]
    assert collectives_and_products(graphs.backward) == [*both, *both, "aten.mm", SCATTER, WAIT]
    whole = {str(node.meta["val"].shape) for node in graphs.forward.graph.nodes if GATHER in str(node.target)}
    parts = {str(node.meta["val"].shape) for node in graphs.backward.graph.nodes if SCATTER in str(node.target)}
    assert whole == {f"torch.Size([{SIZE}, {SIZE}])"}
    assert parts == {f"torch.Size([{SIZE // WORLD}, {SIZE}])"}


@pytest.mark.usefixtures("_eight_ranks")
def test_gradients_have_the_shape_of_their_shards(regional):
    model, (batch,) = Sharded().to(regional.device), batches(regional, 1)
    regional.pipeline.compile(model, batch)(*batch).backward()
    assert [shard.grad.shape for shard in model.shards] == LAYERS * [(SIZE // WORLD, SIZE)]


def code_of_whole_graphs(regional, *passes):
    """Return the code that Inductor generates for forward and backward behind ``passes``; nothing is built or run."""

    def compiled(*batch):
        regional.pipeline.ending_with("inductor").compile(Sharded().to(regional.device), batch, passes=passes)

    with kernels_not_built():
        return regional.run(compiled, *batches(regional, 1)[0], backward=False, as_is=True).code


@pytest.mark.quick
@quietly
@pytest.mark.usefixtures("_eight_ranks")
def test_overlapped_collectives_in_the_code_of_both_graphs(regional):
    code = code_of_whole_graphs(regional, regional.pipeline.passes.OverlapCollectives())

    # The next weight is asked for before the first one is there, and waited for where it is needed.
    code.assert_order(f"{GATHER}#1", f"{GATHER}#2", f"{WAIT}#1", "aten.mm#1", f"{WAIT}#2", "aten.mm#2", graph="forward")
    # A gradient is on its way while those of the layer before are computed.
    code.assert_order(f"{SCATTER}#1", "aten.mm#2", f"{SCATTER}#2", "aten.mm#4", f"{WAIT}#1", graph="backward")


@quietly
@pytest.mark.usefixtures("_eight_ranks")
def test_without_the_pass_they_are_waited_for_at_once(regional):
    code = code_of_whole_graphs(regional)
    # torch 2.15 launches the second gather before the first product, of its own accord, but after the first wait.
    code.assert_order(f"{GATHER}#1", f"{WAIT}#1", f"{GATHER}#2", f"{WAIT}#2", "aten.mm#2", graph="forward")
    with pytest.raises(CodeAssertionError):
        code.assert_order(f"{GATHER}#2", f"{WAIT}#1", graph="forward")


@pytest.mark.usefixtures("_one_rank")
def test_five_steps_on_a_real_group(regional):
    model, steps = Sharded(world=1).to(regional.device), batches(regional)

    def compiled(model):
        return regional.pipeline.compile(model, steps[0], passes=[regional.pipeline.passes.OverlapCollectives()])

    assert regional.assert_training_parity(model, steps, compiled=compiled).anchored
