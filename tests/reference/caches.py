"""What the tests of the outer cache share: how programs are compiled, and what PyTorch's counters say of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
import torch._dynamo
import torch._inductor.standalone_compile
from torch._dynamo.utils import counters

from pytest_regional.reference.caching.store import default_folder


def compiled(fn, **options):
    """Compile with the reference backend, one graph, as a process that has compiled nothing yet would."""
    torch._dynamo.reset()
    return torch.compile(fn, backend="regional", fullgraph=True, **options)


class Outcomes(dict):
    """How often the outer cache hit, missed, was bypassed and saved; ``reasons`` of the bypasses."""

    reasons: tuple[str, ...] = ()


@contextlib.contextmanager
def outcomes() -> Iterator[Outcomes]:
    """Count what happens inside: lookups of the outer cache by outcome, and ``regions`` handed to Inductor."""
    names = ("hit", "miss", "bypass", "saved")
    before = {name: _outer(name) for name in names}
    reasons = counters["regional_cache_bypass"].copy()
    seen = Outcomes()
    with regions_handed_to_inductor() as regions:
        yield seen
    seen.update({name: _outer(name) - before[name] for name in names})
    seen["regions"] = regions["calls"]
    # Every region makes a lookup and a save of its own, which PyTorch counts in the same place.
    seen["miss"] -= regions["miss"]
    seen["hit"] -= regions["hit"]
    seen["saved"] -= regions["saved"]
    seen["bypass"] -= regions["bypass"]
    seen.reasons = tuple((counters["regional_cache_bypass"] - reasons).elements())


def _outer(name: str) -> int:
    return counters["aot_autograd"][f"autograd_cache_{name}"]


@contextlib.contextmanager
def regions_handed_to_inductor() -> Iterator[dict[str, int]]:
    """Count calls of ``standalone_compile`` and what PyTorch's own cache did inside of them."""
    module = torch._inductor
    original = module.standalone_compile
    seen = {"calls": 0, "hit": 0, "miss": 0, "bypass": 0, "saved": 0}

    def counting(*args, **kwargs):
        before = {name: _outer(name) for name in seen if name != "calls"}
        seen["calls"] += 1
        try:
            return original(*args, **kwargs)
        finally:
            for name, value in before.items():
                seen[name] += _outer(name) - value

    module.standalone_compile = counting
    try:
        yield seen
    finally:
        module.standalone_compile = original


def entries() -> list[Path]:
    """Return the files that the outer cache keeps."""
    folder = default_folder()
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
