"""Files are written in one step."""

from __future__ import annotations

import os

import pytest

from pytest_regional._base.files import write_whole


def test_the_old_file_stays_where_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_whole(path, b"old")
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_that_waits_is_not_written_through(tmp_path):
    path, elsewhere = tmp_path / "file.json", tmp_path / "elsewhere"
    (tmp_path / f".file.json.{os.getpid()}").symlink_to(elsewhere)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert not elsewhere.exists()
