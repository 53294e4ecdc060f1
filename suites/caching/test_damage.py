"""Damaged files of a cache: compiled again or loaded completely, never wrong values, never an exception."""

from __future__ import annotations

import struct
import warnings

import pytest
import torch

from pytest_regional import region

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


CODE_IS_BELIEVED = pytest.mark.regional_known_failure(
    "inductor",
    reason="a code file is believed whatever is in it: docs/findings/emptied_code_file.py",
    torch=">=2.11",
)


@pytest.mark.quick
@pytest.mark.parametrize("damage", [pytest.param(flipped, marks=CODE_IS_BELIEVED), halved, emptied])
def test_every_file_is_damaged(regional, regional_cache_dir, damage):
    inputs = pair(regional)
    run(regional.compile(mlp), inputs)
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
    run(regional.compile(mlp), inputs)
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


def with_table(x, w):
    """A program most of whose entry is numbers, a bit of which may be flipped without anything being unreadable."""
    with region("r"):
        h = x @ w
    return h @ torch.tensor(TABLE, device=x.device)


TABLE = [[float(row * 64 + column) for column in range(64)] for row in range(8)]


@pytest.mark.regional_known_failure(
    "inductor",
    reason="an entry is believed whatever is in it: docs/findings/damaged_entry_stays.py",
    torch=">=2.11",
)
def test_one_bit_of_a_number_is_noticed(regional, regional_cache_dir):
    """Nothing but a checksum can tell."""
    inputs = pair(regional)
    run(regional.compile(with_table), inputs)
    files = [path for path in regional_cache_dir.rglob("*") if path.is_file() and path.parent.name != "regional_keys"]
    entry = max(files, key=lambda path: path.stat().st_size)
    data = entry.read_bytes()
    number = struct.pack("<f", TABLE[5][7])
    assert number in data, f"{entry.name} does not hold the table"
    entry.write_bytes(data.replace(number, struct.pack("<f", -TABLE[5][7])))

    regional.restart()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = run(regional.compile(with_table), inputs)

    torch.testing.assert_close(values, run(with_table, inputs))
