"""Programs with collectives, and the process groups in which they run: fake ones, in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

#: What is compiled where there are process groups, by name, and what of them its graph depends on.
COLLECTIVES = ("all reduce", "all gather", "gather on mesh", "reads rank")

#: Shapes of device meshes of four ranks, by name.
MESHES = {"2x2": (2, 2), "4x1": (4, 1)}

#: Process groups of all ranks: the one that there is from the start, and a second one.
GROUPS = ("world", "other")


@dataclass(frozen=True)
class CollectiveProgram:
    """A program of two ops in a region, and a collective or the rank between them.

    Attributes:
        kind: one of ``COLLECTIVES``.
        region: the id of the region; None leaves its ops unannotated.
        configs: of the region.
        rows: the size of the input's first dimension.
        group: name of the process group.
        size: of the process group.
        ranks: who the own rank is, in words; Dynamo compiles anew where they differ, as a process is never another
            rank, and Dynamo guards none.
    """

    kind: str
    region: str | None
    configs: tuple[tuple[str, Any], ...]
    rows: int
    group: str
    size: int
    ranks: str
    training: bool = False

    def inputs(self, device: str, seed: int) -> tuple[torch.Tensor, ...]:
        """Return the input, drawn from ``seed``."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(self.rows, 4, generator=generator).to(device),)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        """Run it."""
        import torch
        import torch.distributed as dist

        from pytest_regional._base.region import region

        collectives = torch.ops._c10d_functional
        if not self.ranks:
            raise ValueError("a collective needs ranks")
        marked = contextlib.nullcontext() if self.region is None else region(self.region, configs=dict(self.configs))
        with marked:
            y = (x * x).sin()
        if self.kind == "all reduce":
            y = collectives.wait_tensor(collectives.all_reduce(y, "sum", self.group))
        elif self.kind == "reads rank":
            y = y * (dist.get_rank() + 1)
        else:
            y = y.cos() if self.kind == "gather on mesh" else y  # the names of its groups are those of others
            y = collectives.wait_tensor(collectives.all_gather_into_tensor(y, self.size, self.group))
        return (y + 1,)


@contextlib.contextmanager
def process_group(world: int, rank: int, mesh: str, group: str) -> Iterator[tuple[str, int]]:
    """Be a rank of a fake world while the context lasts; yields name and size of the group that programs use.

    Args:
        world: how many ranks there are; 0 for no process group.
        rank: the own one.
        mesh: name of a mesh, whose first dimension is the group; empty for none.
        group: one of ``GROUPS``, where there is no mesh.
    """
    if not world:
        yield "", 1
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from pytest_regional._torch.distributed import group_name
    from pytest_regional.harness.distributed import fake_process_group

    with fake_process_group(world, rank) as everybody:
        if mesh:
            chosen = init_device_mesh("cpu", MESHES[mesh], mesh_dim_names=("rows", "columns")).get_group("rows")
        else:
            chosen = dist.new_group(list(range(world))) if group == "other" else everybody
        yield group_name(chosen), chosen.size()


def equal_groups(rank: int, mesh: str) -> int:
    """Return a number that is the same for ranks whose groups of a mesh's first dimension have one name."""
    return rank % MESHES[mesh][1]


__all__ = ["COLLECTIVES", "GROUPS", "MESHES", "CollectiveProgram", "equal_groups", "process_group"]
