"""Artifacts as files and the folders they may come from."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_regional._base import files
from pytest_regional._base.files import write_whole
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.container import (
    ArtifactError,
    ArtifactNotFoundError,
    read_artifact,
    require_private,
    write_artifact,
)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "made" / "below" / "model.artifact"
    write_artifact(path, b"payload", "region")
    return path


def test_a_file_comes_back_and_folders_are_made_for_their_owner(artifact: Path) -> None:
    assert read_artifact(artifact, "region") == b"payload"
    assert [path.stat().st_mode & 0o777 for path in (artifact.parents[1], artifact.parent, artifact)] == [
        0o700,
        0o700,
        0o600,
    ]


def test_a_relative_path_and_a_link_are_followed(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(artifact.parent)
    Path("link").symlink_to(artifact)
    assert read_artifact(Path("model.artifact"), "region") == read_artifact(Path("link"), "region") == b"payload"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactNotFoundError, match=r"none\.artifact does not exist. Save it first"):
        read_artifact(tmp_path / "none.artifact", "region")


def test_a_folder_or_a_pipe_is_no_artifact(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, what in ((tmp_path, "a directory"), (pipe, "not a regular file")):
        with pytest.raises(ArtifactError, match=what):
            read_artifact(path, "region")
        with pytest.raises(ArtifactError, match=what):
            write_artifact(path, b"", "region")


def test_a_file_where_a_folder_should_be_is_named(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a directory"):
        write_artifact(artifact / "below" / "a file", b"", "region")


def test_errors_of_the_envelope_name_the_file(artifact: Path) -> None:
    with pytest.raises(ArtifactError, match=f"{artifact} holds 'region'"):
        read_artifact(artifact, "whole result")
    artifact.write_bytes(artifact.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match=str(artifact)):
        read_artifact(artifact, "region")
    artifact.write_bytes(b"")
    with pytest.raises(ArtifactError, match=str(artifact)):
        read_artifact(artifact, "region")


def _refused(artifact: Path, message: str) -> None:
    """Reading and writing are refused alike, and the file stays."""
    before = artifact.read_bytes()
    for use in (lambda: read_artifact(artifact, "region"), lambda: write_artifact(artifact, b"new", "region")):
        with pytest.raises(ArtifactError, match=message):
            use()
    assert artifact.read_bytes() == before


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_folder_that_everybody_can_write_to_is_refused(artifact: Path, mode: int) -> None:
    artifact.parent.chmod(mode)
    _refused(artifact, f"{artifact.parent} can be written to by everybody.*pickles.*Run: chmod go-w {artifact.parent}")


def test_a_folder_above_in_which_everybody_can_exchange_it_is_refused(artifact: Path) -> None:
    above = artifact.parents[1]
    above.chmod(0o777)
    _refused(artifact, f"can be exchanged by everybody, who can write to {above}.*Run: chmod o-w {above}")
    above.chmod(0o1777)
    assert read_artifact(artifact, "region") == b"payload"


def test_a_directory_with_a_shared_group_is_refused(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact.parent.chmod(0o770)
    monkeypatch.setattr(grp, "getgrgid", lambda group: SimpleNamespace(gr_name="staff", gr_mem=["mallory"]))
    _refused(artifact, f"can be written to by its group.*Run: chmod g-w {artifact.parent}")


def test_a_directory_with_an_unknown_group_is_refused(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact.parent.chmod(0o770)
    monkeypatch.setattr(grp, "getgrgid", {}.__getitem__)
    _refused(artifact, "can be written to by its group")


def test_a_directory_with_the_users_own_group_is_not(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    user = pwd.getpwuid(os.geteuid())
    os.chown(artifact.parent, -1, user.pw_gid)
    artifact.parent.chmod(0o770)
    monkeypatch.setattr(grp, "getgrgid", lambda group: SimpleNamespace(gr_name=user.pw_name, gr_mem=[]))
    assert read_artifact(artifact, "region") == b"payload"


def test_another_users_directory_is_refused(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _give_away(artifact.parent, monkeypatch)
    _refused(artifact, rf"{artifact.parent} is owned by user \d+, and this is user \d+.*chown")


def test_a_file_of_another_user_is_refused(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "require_private", lambda folder: None)
    monkeypatch.setattr(container, "require_private", lambda folder: None)
    _give_away(artifact, monkeypatch)
    with pytest.raises(ArtifactError, match=rf"{artifact} is owned by user"):
        read_artifact(artifact, "region")


def test_a_file_that_everybody_can_write_to_is_refused(artifact: Path) -> None:
    artifact.chmod(0o666)
    with pytest.raises(ArtifactError, match=rf"{artifact} can be written to by everybody"):
        read_artifact(artifact, "region")


def _give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``path`` somebody else's: really, if that is allowed, else by being somebody else."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


def test_a_link_into_an_unsafe_folder_is_refused(artifact: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(artifact)
    artifact.parent.chmod(0o777)
    with pytest.raises(ArtifactError):
        read_artifact(link, "region")


def test_require_private_makes_what_is_missing(tmp_path: Path) -> None:
    require_private(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        write_artifact(artifact, b"new", "region")
    assert read_artifact(artifact, "region") == b"payload"
    assert list(artifact.parent.iterdir()) == [artifact]


def test_the_bytes_are_on_the_disk_before_they_have_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "file", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append((os.fstat(descriptor).st_size, path.exists())))
    write_whole(path, b"12345", sync=True)
    assert seen == [(5, False)]
    assert path.read_bytes() == b"12345"


def test_a_file_taken_for_abandoned_while_it_was_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one moment in which a living writer's file has no lock yet."""
    lock = files._lock
    taken: list[Path] = []

    def steal_once(descriptor: int, **options: bool) -> bool:
        if not taken:
            taken.extend(tmp_path.glob("*regional-tmp"))
            taken[0].unlink()
        return lock(descriptor, **options)

    monkeypatch.setattr(files, "_lock", steal_once)
    write_whole(tmp_path / "file", b"12345")
    assert (tmp_path / "file").read_bytes() == b"12345"
    assert len(taken) == 1
