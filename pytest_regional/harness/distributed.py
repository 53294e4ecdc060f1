"""``torch.distributed`` without other processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pytest_regional._torch.distributed import fake_store


@contextlib.contextmanager
def fake_process_group(world_size: int = 8, rank: int = 0) -> Iterator[Any]:
    """Initialise ``torch.distributed`` with the fake backend; yields the default group, destroyed at the end.

    Collectives return at once with meaningless values: the shapes and the order are what can be tested.

    Raises:
        ValueError: a rank that is not in the world.
        RuntimeError: a process group exists already, or this torch was built without distributed.
    """
    import torch.distributed as dist

    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1} for world_size={world_size}, not {rank}")
    if not dist.is_available():
        raise RuntimeError("this torch was built without torch.distributed")
    if dist.is_initialized():
        raise RuntimeError("a process group is initialised already: destroy it before fake_pg starts its own")
    dist.init_process_group(backend="fake", store=fake_store(), rank=rank, world_size=world_size)
    try:
        yield dist.group.WORLD
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
