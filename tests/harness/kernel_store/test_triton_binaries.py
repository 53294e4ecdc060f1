"""Triton's files of one key, over two folders of two tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_regional.harness.kernel_store import VARIABLE, kernels_kept

pytest.importorskip("triton")


@pytest.fixture
def manager(tmp_path, monkeypatch):
    """Give Triton's manager for a key in the cache folder of a test, with one store behind all of them."""
    from triton.runtime.cache import get_cache_manager

    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    monkeypatch.delenv("TRITON_CACHE_MANAGER", raising=False)

    def of(folder, key="00ff"):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / folder))
        return get_cache_manager(key)

    with kernels_kept():
        yield of


def compiled(manager):
    """Leave what Triton's compiler leaves."""
    group = {"k.ptx": manager.put("// ptx", "k.ptx"), "k.cubin": manager.put(b"\0binary", "k.cubin")}
    group["k.json"] = manager.put('{"name": "k"}', "k.json", binary=False)
    manager.put_group("k.json", group)
    return group


def test_another_test_finds_all_files_in_its_own_folder(manager, tmp_path):
    first = compiled(manager("one"))
    group = manager("two").get_group("k.json")
    assert set(group) == set(first)
    for name, path in group.items():
        assert path.startswith(str(tmp_path / "two"))
        assert Path(path).read_bytes() == Path(first[name]).read_bytes()
    assert manager("two").get_group("k.json") == group, "from its own folder now"


def test_a_single_file_such_as_a_launcher(manager):
    manager("one").put(b"library", "launcher.so")
    path = manager("two").get_file("launcher.so")
    assert Path(path).read_bytes() == b"library"


def test_another_key_is_another_kernel(manager):
    compiled(manager("one"))
    assert manager("two", key="00fe").get_group("k.json") is None
    assert manager("two", key="00fe").get_file("k.ptx") is None


def test_a_group_of_which_a_file_is_gone_is_none(manager, tmp_path):
    compiled(manager("one"))
    for path in (tmp_path / "store").glob("??/*"):
        if path.read_bytes().endswith(b"\0binary"):
            path.unlink()
    assert manager("two").get_group("k.json") is None


def test_a_manager_that_the_user_named_stays(manager, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "triton.runtime.cache:FileCacheManager")
    with kernels_kept():
        assert type(manager("one")).__name__ == "FileCacheManager"
    monkeypatch.delenv("TRITON_CACHE_MANAGER")
    with kernels_kept():
        assert type(manager("one")).__name__ == "StoredBinaries"
    assert "TRITON_CACHE_MANAGER" not in os.environ
