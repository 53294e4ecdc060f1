"""Process groups and their collectives, with a fake process group."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from pytest_regional._torch import private_module, symbol, torch_version
from pytest_regional._torch.fx_graphs import is_graph_module

NAMESPACE = "_c10d_functional"
"""Namespace of the functional collectives that AOTAutograd leaves in a graph (2.11 to 2.15)."""


def group_name(group: Any) -> str:
    """Return the name of a collective's process group, given by name or as a ``ProcessGroup`` (2.11 to 2.15)."""
    return str(getattr(group, "group_name", group))


def has_distributed() -> bool:
    """Return whether this torch was built with ``torch.distributed``."""
    return bool(dist.is_available())


def functionalize_collectives(gm: Any) -> bool:
    """Rewrite ``c10d.allreduce_`` to its functional form, in place; return whether this torch can (2.13, 2.15)."""
    if torch_version() < (2, 13):
        return False
    module = private_module("torch._inductor._functionalize_collectives")
    module._functionalize_inplace_collectives(gm)
    module._unbox_process_group_torchbinds(gm)
    return True


def process_groups() -> tuple[Any, ...]:
    """Return the process groups of ``torch.distributed``."""
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return ()
    return tuple(symbol("torch.distributed.distributed_c10d", "_world").pg_map)


def destroy_process_groups(but: tuple[Any, ...]) -> None:
    """Destroy all process groups except for ``but``."""
    if not but:
        dist.destroy_process_group()
        return
    for group in process_groups():
        if group not in but:
            dist.destroy_process_group(group)


def groups_named_in(gm: Any) -> dict[str, str]:
    """Return, by name, how many ranks each process group has that collectives in ``gm`` name (2.11 to 2.15).

    Not which ranks they are, and not the own one: code is generated from neither, and group and rank are looked up when
    it runs.
    """
    if "torch.distributed.distributed_c10d" not in sys.modules:
        return {}
    names = {group_name(group): group for group in process_groups()}
    found: dict[str, str] = {}
    for module in gm.modules():
        for node in module.graph.nodes if is_graph_module(module) else ():
            if "c10d" in str(node.target):
                given = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, str)]
                found |= {name: f"{names[name].size()} ranks" for name in given if name in names}
    return found


@contextlib.contextmanager
def fake_process_group(world_size: int = 8, rank: int = 0) -> Iterator[Any]:
    """Initialise ``torch.distributed`` with the fake backend; yields the default group, destroyed at the end.

    Collectives return at once with meaningless values: the shapes and the order are what can be tested.

    Raises:
        ValueError: a rank that is not in the world.
        RuntimeError: a process group exists already, or this torch was built without distributed.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1} for world_size={world_size}, not {rank}")
    if not dist.is_available():
        raise RuntimeError("this torch was built without torch.distributed")
    if dist.is_initialized():
        raise RuntimeError("a process group is initialised already: destroy it before a fake one starts")
    # Importing its module registers the backend (2.11 to 2.15).
    store = symbol("torch.testing._internal.distributed.fake_pg", "FakeStore")()
    dist.init_process_group(backend="fake", store=store, rank=rank, world_size=world_size)
    try:
        yield dist.group.WORLD
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
