"""Passes of torchtitan's graph trainer that need no GPU: on a traced training step, in compiles, before a compiler."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from pytest_regional import region

pytest.importorskip("torchtitan.experiments.graph_trainer.memory_policy", exc_type=ImportError)
pytest.importorskip("torchtitan.experiments.graph_trainer.fsdp_passes", exc_type=ImportError)

from torchtitan.experiments.graph_trainer import common_utils, fsdp_passes, inductor_passes, memory_policy
from torchtitan.experiments.graph_trainer.make_fx_tracer import minimal_fx_tracer, run_traced
from torchtitan.experiments.graph_trainer.remove_noop_passes import canonicalize_graph_pass, eliminate_dead_code_pass
from torchtitan.experiments.graph_trainer.selective_activation_remat import selective_activation_remat_pass
from torchtitan.experiments.graph_trainer.simple_fsdp import data_parallel

SIZE, LAYERS, WORLD = 16, 2, 4
SHAPE = 2, 12, SIZE

CLEANUP = [eliminate_dead_code_pass, canonicalize_graph_pass]
RECOMPUTE = [
    functools.partial(memory_policy.tag_sac_policy, policy_fn=memory_policy._make_full_memory_policy()),
    selective_activation_remat_pass,
]

pytestmark = pytest.mark.regional_compile(requires=("backward",))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.RMSNorm(SIZE),
            nn.Linear(SIZE, 2 * SIZE, bias=False),
            nn.Linear(2 * SIZE, SIZE, bias=False),
        )

    def forward(self, x):
        # Gathered before the region: bucketing takes gathers out of regions.
        hidden, up, down = self.norm(x), self.up.weight, self.down.weight
        with region("feed_forward"):
            hidden = torch.tanh(hidden @ up.t()) @ down.t()
        return x + hidden


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.lm_head = nn.Linear(SIZE, SIZE)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(x)


@pytest.fixture
def model(regional):
    made = Decoder().to(regional.device)
    common_utils.annotate_module_fqns(made)
    return made


@pytest.fixture
def batch(regional):
    return regional.randn(*SHAPE), regional.randn(*SHAPE)


def step_of(model):
    def step(x, target):
        loss = (model(x) - target).square().mean()
        return loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))

    return step


def run_on_step(regional, passes, model, batch):
    """Run passes on the graph of a training step: forward, loss and backward in one."""
    traced = minimal_fx_tracer(step_of(model), module=model)(*batch)
    # Without gradients: the graph holds the backward, and has no detach any more.
    return regional.run_pass(passes, traced.gm, *(value.detach() for value in model.parameters()), *batch)


def test_cleanup(regional, model, batch):
    result = run_on_step(regional, CLEANUP, model, batch)
    result.assert_replaced(before=["aten.view", "aten._unsafe_view"], after="aten.reshape")
    result.assert_count("aten.detach", 0)
    result.assert_same_numerics()
    result.assert_idempotent()


def test_activations_are_recomputed(regional, model, batch):
    result = run_on_step(regional, [*CLEANUP, *RECOMPUTE], model, batch)
    # Once in the forward, once before the backward of its layer.
    result.assert_count("aten.tanh", 2 * LAYERS)
    result.assert_same_numerics()


@pytest.mark.parametrize("stage", ["joint", "post_grad"])
def test_cleanup_in_a_compile(regional, stage, model, batch):
    result = regional.run_pass(CLEANUP, model, batch[0].requires_grad_(), stage=stage)
    result.assert_same_numerics()
    result.assert_idempotent()


def by_graph_trainer(regional, model, compiler):
    """Compile a step as the graph trainer does: trace, passes, and ``compiler`` in the end."""

    def compiled(step):
        kept = []

        def run(*batch):
            if not kept:
                traced = minimal_fx_tracer(step, module=model)(*batch)
                passes = regional.pipeline.PassPipeline([*CLEANUP, *RECOMPUTE, compiler])
                traced.gm = passes.run(traced.gm, list(traced.example_inputs), graph="inference")
                common_utils.set_graph_module_boxed_codegen(traced.gm, boxed=False)
                kept.append(traced)
            return run_traced(kept[0], module=model)(*batch)

        return run

    return compiled


@pytest.mark.regional_compile(requires=("backward", "full_graph", "regions"))
def test_a_step_with_the_pass_of_the_backend(regional, model, batch):
    regional.assert_parity(
        step_of(model), *batch, compiled=by_graph_trainer(regional, model, regional.pipeline.terminal)
    )
    # A forward and a backward of each layer; equal ones are apart by the names that the trainer annotates.
    assert regional.counters.region_compiles == 2 * LAYERS


@pytest.mark.parametrize("name", ["regional_inductor_pass", "full_inductor_compilation_pass"])
def test_a_step_with_the_pass_of_torchtitan(regional, name, model, batch):
    if regional.backend != "torch":
        pytest.skip("these passes call PyTorch's regional_inductor")
    compiled = by_graph_trainer(regional, model, getattr(inductor_passes, name))
    # As the passes set it and leave it.
    with torch._inductor.config.patch({"eager_numerics.division_rounding": True}):
        regional.assert_parity(step_of(model), *batch, compiled=compiled)


def test_buckets_of_collectives(regional, model, batch, fake_pg, monkeypatch):
    """Structure alone: collectives of the fake group have no values."""
    # The schedule asks Triton for the GPU's bandwidth. Names of process groups are kept for the process.
    monkeypatch.setattr(pytest.importorskip("triton.testing"), "get_dram_gbps", lambda: 1000)
    monkeypatch.setattr(fsdp_passes, "_EXTRA_FSDP_PG_REGISTRY", {})
    fake_pg(world_size=WORLD)
    mesh = torch.distributed.device_mesh.init_device_mesh(regional.device.type, (WORLD,), mesh_dim_names=("fsdp",))
    sharded = data_parallel(model, device_mesh=mesh, mode="fully_shard")
    traced = minimal_fx_tracer(step_of(sharded), module=sharded)(*batch)
    bucketing = functools.partial(
        fsdp_passes.joint_transformer_block_bucketing_reordering_pass,
        module_bucket_plans=[["layers.0"], ["layers.1"], ["lm_head"]],
        fsdp_param_module_order=fsdp_passes.get_fsdp_param_module_order(traced.state_fqns),
    )
    gathers = [fsdp_passes.deduplicate_fsdp_unshard_chains_pass, fsdp_passes.reassign_collective_pgs_pass, bucketing]
    result = regional.run_pass([*CLEANUP, *gathers], traced.gm)
    result.assert_count("_c10d_functional.all_gather_into_tensor", 0)
    result.assert_count("_c10d_functional.all_gather_into_tensor_out", LAYERS + 1)
    result.assert_count("_c10d_functional.reduce_scatter_tensor", LAYERS + 1)
