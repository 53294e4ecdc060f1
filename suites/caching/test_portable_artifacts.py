"""What ``torch.compiler.save_cache_artifacts`` returns is a hit where it was loaded, and not elsewhere."""

from __future__ import annotations

import shutil

import pytest
import torch

from .lookups import NEEDS, check, look_up
from .programs import mlp, pair

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False)


def leave(folder):
    """Empty the folder of caches, as another machine has it."""
    for entry in folder.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def carried(folder):
    """Return the portable artifacts of what was compiled, and leave for a machine that has nothing."""
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None, "there are no portable artifacts"
    leave(folder)
    return saved


CASES = [
    pytest.param(False, False, id="inference"),
    pytest.param(
        True, False, id="training", marks=pytest.mark.regional_compile(requires=(*NEEDS, "backward"), dynamic=False)
    ),
    pytest.param(
        False,
        True,
        id="symbolic sizes",
        marks=pytest.mark.regional_compile(requires=(*NEEDS, "dynamic_shapes"), dynamic=True),
    ),
]


@pytest.mark.parametrize(("training", "dynamic"), CASES)
def test_loaded_entries_are_hits(regional, regional_cache_dir, training, dynamic):
    inputs = pair(regional, training=training)
    cold = check(regional, "miss", mlp, inputs, training=training, dynamic=dynamic)
    content, info = carried(regional_cache_dir)
    assert info.artifacts
    torch.compiler.load_cache_artifacts(content)
    warm = check(regional, "hit", mlp, inputs, training=training, dynamic=dynamic)
    assert all(map(torch.equal, cold, warm))


def test_without_loading_it_is_a_miss(regional, regional_cache_dir):
    inputs = pair(regional)
    for _ in range(2):
        check(regional, "miss", mlp, inputs)
        carried(regional_cache_dir)


def test_a_hit_can_be_carried_on(regional, regional_cache_dir):
    inputs = pair(regional)
    look_up(regional, "miss", mlp, inputs)
    for _ in range(2):
        content, _ = carried(regional_cache_dir)
        torch.compiler.load_cache_artifacts(content)
        look_up(regional, "hit", mlp, inputs)


def test_bytes_that_changed_on_the_way_are_a_miss(regional, regional_cache_dir):
    inputs = pair(regional)
    look_up(regional, "miss", mlp, inputs)
    content, _ = carried(regional_cache_dir)
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    for damaged in (changed, content[:middle]):
        assert torch.compiler.load_cache_artifacts(damaged) is None
    check(regional, "miss", mlp, inputs)
