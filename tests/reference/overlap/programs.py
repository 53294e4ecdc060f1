"""Programs with collectives, and the pass as Inductor takes it."""

from __future__ import annotations

import contextlib

import torch.distributed as dist

from pytest_regional._torch.inductor import appended_passes, custom_graph_pass_base
from pytest_regional.reference import overlap_collectives
from tests.reference.overlap.graphs import C10D


def gathered(shard, group):
    return C10D.wait_tensor(C10D.all_gather_into_tensor(shard, dist.get_world_size(), group))


def scattered(whole, group):
    return C10D.wait_tensor(C10D.reduce_scatter_tensor(whole, "sum", dist.get_world_size(), group))


def reduced(value, group):
    return C10D.wait_tensor(C10D.all_reduce(value, "sum", group))


def gather_beside_product(x, w, shard):
    group = dist.group.WORLD.group_name
    whole = gathered(shard, group)
    return (x @ w) @ whole


def layers(x, *shards):
    """Gather, product, for each layer; the last product is scattered and reduced beside two more."""
    group = dist.group.WORLD.group_name
    for shard in shards:
        x = x @ gathered(shard, group)
    part, total = scattered(x, group), reduced(x, group)
    return part, (x @ x) @ x, total


@contextlib.contextmanager
def overlapping(**bounds):
    """Let Inductor run the pass last of its custom passes over the graphs; yields the list of plans."""
    plans = []

    class Overlap(custom_graph_pass_base()):
        def __call__(self, graph):
            plans.append(overlap_collectives(graph, **bounds))

        def uuid(self):
            return ("overlap", tuple(bounds.items()))

    with appended_passes(post_grad_custom_post_pass=Overlap()):
        yield plans
