"""Processes that die, disks that are full, writers at the same time."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_regional._base.files import remove_abandoned
from pytest_regional.reference import CacheWarning
from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.store import LocalStore
from tests.faults.caching import trials, writer

KILLS = 40
ROUNDS = 60


@pytest.fixture(autouse=True)
def machine_of_the_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "this_machine", lambda: writer.MACHINE)


def test_a_killed_save_leaves_each_entry_whole_or_absent(tmp_path: Path) -> None:
    kills = trials.kill_while_saving(tmp_path / "store", KILLS, hits=4)
    assert (kills.broken, kills.next_save_failed) == (0, 0)
    # The kills did hit saves (a quarter of them, on a machine at leisure) and entries were there to be broken.
    assert kills.in_the_middle >= 4
    assert kills.whole >= 3 * KILLS


def test_the_kill_trial_notices_a_save_in_place(tmp_path: Path) -> None:
    assert trials.kill_while_saving(tmp_path / "store", 8, hits=1, manner="in-place").broken > 0


def test_a_writer_does_not_import_torch() -> None:
    """One that does starts when the other has ended, so that the trials below would see nothing."""
    code = "import sys, tests.faults.caching.writer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=trials.ROOT, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("way", ["save_and_load", "save_and_load_file"])
def test_two_processes_at_the_same_artifact_lose_nothing(tmp_path: Path, way: str) -> None:
    both = [trials.start(way, tmp_path, first, ROUNDS) for first in (0, 1000)]
    trials.begin(*both)
    assert trials.finish(*both) == [f"done {ROUNDS}"] * 2
    assert not list(tmp_path.glob("**/*regional-tmp"))


@pytest.mark.parametrize("way", ["save_and_load", "save_and_load_file"])
def test_the_concurrency_trial_notices_writing_in_place(tmp_path: Path, way: str) -> None:
    both = [trials.start(way, tmp_path, first, ROUNDS, manner="in-place") for first in (0, 0)]
    trials.begin(*both)
    with pytest.raises(AssertionError, match=r"is truncated|is empty|is corrupted|was lost"):
        trials.finish(*both)
    for process in both:
        process.kill()


def test_a_limit_for_the_size_of_files_is_a_failed_save(tmp_path: Path) -> None:
    process = trials.start("save_limited", tmp_path / "store", 100_000)
    trials.begin(process)
    assert trials.finish(process) == ["done 2"]
    assert len(list(LocalStore(tmp_path / "store").candidates(writer.KEYS[0]))) == 1
    assert not list((tmp_path / "store" / "tmp").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    mount = tmp_path / "disk"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"needs a small file system, and mount says: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_one_warning_and_no_entry(small_disk: Path) -> None:
    store = LocalStore(small_disk / "store")
    assert store.save("a0", writer.payload(0, 300_000))
    with pytest.warns(CacheWarning, match=r"No space left") as said:
        assert [store.save("b1", writer.payload(number, 2_000_000)) for number in range(3)] == [False] * 3
    assert len(said) == 1
    assert [list(map(writer.is_whole, store.candidates(key))) for key in ("a0", "b1")] == [[True], []]
    assert store.save("b1", writer.payload(9, 100_000)), "the failed saves left something on the disk"


def test_a_read_only_disk_is_one_warning_and_still_read(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    assert store.save("a0", b"kept")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.warns(CacheWarning, match=r"Read-only file system") as said:
        assert [store.save(key, b"new") for key in ("a0", "b1")] == [False, False]
    assert len(said) == 1
    assert list(store.candidates("a0")) == [b"kept"]


def test_a_broken_entry_on_a_read_only_disk_is_one_warning(small_disk: Path) -> None:
    store = LocalStore(small_disk)
    assert store.save("a0", b"kept")
    next((small_disk / "a0").iterdir()).write_bytes(b"")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.warns(CacheWarning, match=r"cannot be removed.*Read-only.*is empty") as said:
        assert [list(store.candidates("a0")) for _ in range(2)] == [[], []]
    assert len(said) == 1


def test_only_dead_writers_lose_their_temporary_files(tmp_path: Path) -> None:
    """A living one keeps its file, whoever looks; the same file is removed once it is dead."""
    process = trials.start("save_for_ever", tmp_path, 30_000_000)
    trials.begin(process)
    try:
        held = _stopped_in_the_middle(process, tmp_path / "tmp")
        assert remove_abandoned(tmp_path / "tmp") == 0
    finally:
        process.kill()
        process.communicate()
    assert remove_abandoned(tmp_path / "tmp") == held == 1


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _stopped_in_the_middle(process: subprocess.Popen[str], scratch: Path) -> int:
    """Stop ``process`` when it holds a temporary file, and return how many.

    Between making a file and locking it there is a moment in which it is anybody's.
    """
    while process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        if held := sum(map(_is_held, scratch.glob("*"))):
            return held
        process.send_signal(signal.SIGCONT)
        time.sleep(0.002)
    raise AssertionError(process.communicate())
