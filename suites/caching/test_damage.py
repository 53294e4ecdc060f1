"""Damaged files of a cache: compiled anew or loaded whole, never wrong values, never an exception."""

from __future__ import annotations

import warnings

import pytest
import torch

from .lookups import NEEDS, run
from .programs import mlp, pair

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False)


def flipped(data):
    """One bit in the middle is another."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :] if data else b"x"


def halved(data):
    """The second half is lost, as when a disk is full."""
    return data[: len(data) // 2]


def emptied(data):
    """Everything is lost, as when a machine goes down before it writes."""
    return b""


@pytest.mark.parametrize("damage", [flipped, halved, emptied])
def test_every_file_is_damaged(regional, regional_cache_dir, damage):
    inputs = pair(regional)
    regional.compile(mlp)(*inputs)
    regional.restart()
    files = [path for path in regional_cache_dir.rglob("*") if path.is_file()]
    for path in files:
        path.write_bytes(damage(path.read_bytes()))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cache may tell what it met
        values = run(regional.compile(mlp), inputs)

    assert files
    torch.testing.assert_close(values, run(mlp, inputs))
    assert regional.counters.cache_hits == 0  # nothing of it can be believed


def test_a_cache_works_again_after_the_damage(regional, regional_cache_dir):
    inputs = pair(regional)
    regional.compile(mlp)(*inputs)
    for path in [path for path in regional_cache_dir.rglob("*") if path.is_file()]:
        path.write_bytes(halved(path.read_bytes()))
    regional.restart()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(regional.compile(mlp), inputs)
    regional.restart()

    with regional.expect(cache_hits=1, cache_misses=0, region_compiles=0):
        values = run(regional.compile(mlp), inputs)
    torch.testing.assert_close(values, run(mlp, inputs))
