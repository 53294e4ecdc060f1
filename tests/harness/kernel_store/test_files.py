"""Kernels as files: whole or not there, checked, bounded, and nobody's but the user's."""

from __future__ import annotations

import fcntl
import hashlib
import multiprocessing
import os
import signal
import time

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.harness.kernel_store import KernelFiles, chosen_folder, prepared


def key_of(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


@pytest.fixture
def files(tmp_path):
    return KernelFiles(prepared(tmp_path / "store"))


def only_file(files):
    (path,) = files.folder.glob("??/*")
    return path


def test_stored_kernels_are_written_to_the_target(files, tmp_path):
    made, wanted = tmp_path / "made.so", tmp_path / "wanted.so"
    made.write_bytes(b"library")
    assert not files.take(key_of(1), wanted)
    assert not wanted.exists()
    files.put(key_of(1), made)
    assert files.take(key_of(1), wanted)
    assert wanted.read_bytes() == b"library"
    assert os.access(wanted, os.X_OK)
    assert (files.made, files.taken) == (1, 1)


def test_damage_to_what_was_taken_is_not_damage_to_the_store(files, tmp_path):
    files.write(key_of(1), b"library")
    files.take(key_of(1), tmp_path / "a.so")
    (tmp_path / "a.so").write_bytes(b"damaged")
    assert files.read(key_of(1)) == b"library"


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-1], lambda b: b"", lambda b: b[:10], lambda b: b[:-1] + b"x", lambda b: b"x" + b[1:]],
    ids=["shorter", "empty", "no content", "end changed", "digest changed"],
)
def test_a_damaged_kernel_is_none_and_goes(files, damage):
    files.write(key_of(1), b"library")
    path = only_file(files)
    path.write_bytes(damage(path.read_bytes()))
    assert files.read(key_of(1)) is None
    assert not path.exists()


def test_the_longest_unused_go_first(files):
    for number in range(4):
        files.write(key_of(number), bytes(1000))
        path = files.folder / key_of(number)[:2] / key_of(number)[2:]
        os.utime(path, (number, number))
    files.read(key_of(0))
    assert files.prune(limit=2200) == 2
    assert [files.read(key_of(number)) is not None for number in range(4)] == [True, False, False, True]
    assert files.prune(limit=2200) == 0


def test_files_of_a_killed_process_are_deleted_and_those_of_a_running_one_kept(files):
    files.write(key_of(1), b"library")
    folder = only_file(files).parent
    old, new = folder / "1.regional-tmp", folder / "2.regional-tmp"
    old.write_bytes(b"half")
    with new.open("wb") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        assert files.prune() == 1
    assert not old.exists()
    assert new.exists()


def test_precompiled_headers_count_and_go_too(files):
    """What is made of them; the file that names a header may be included by a compile under way."""
    folder = files.folder / "precompiled_headers"
    folder.mkdir()
    for name in ("one.h", "one.h.gch", f"two.h.{1:016x}.gch", "document"):
        (folder / name).write_bytes(bytes(1000))
        os.utime(folder / name, (1, 1))
    files.write(key_of(1), b"library")
    assert files.prune(limit=500) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["document", "one.h"]
    assert files.read(key_of(1)) == b"library"


def write_for_ever(folder):
    files = KernelFiles(folder)
    for number in range(10**9):
        files.write(key_of(number % 5), bytes([number % 5]) * 300_000)


def test_writers_that_are_killed_leave_whole_kernels_or_none(files):
    context = multiprocessing.get_context("fork")
    for _ in range(6):
        writers = [context.Process(target=write_for_ever, args=(files.folder,)) for _ in range(2)]
        for writer in writers:
            writer.start()
        time.sleep(0.05)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        for number in range(5):
            path = files.folder / key_of(number)[:2] / key_of(number)[2:]
            assert not path.exists() or files.read(key_of(number)) == bytes([number]) * 300_000


def build(folder, started, built):
    """Make a kernel as a worker does: take it, or claim it, and take it then, or make it."""
    files = KernelFiles(folder)
    started.wait()
    with files.claimed(key_of(1)):
        if files.read(key_of(1)) is None:
            time.sleep(0.3)
            files.write(key_of(1), b"library")
            built.put(os.getpid())


def test_two_that_claim_one_kernel_make_it_once(files):
    context = multiprocessing.get_context("fork")
    started, built = context.Barrier(3), context.Queue()
    workers = [context.Process(target=build, args=(files.folder, started, built)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    makers = [built.get(timeout=10)]
    assert built.empty(), makers
    assert files.read(key_of(1)) == b"library"


def test_a_claim_inside_of_another_does_not_wait(files):
    """As where a test uses the harness inside of a marked test: the inner compile ends in the outer one."""
    started = time.monotonic()
    with files.claimed(key_of(1)), KernelFiles(files.folder).claimed(key_of(1)):
        assert time.monotonic() - started < 30
    context = multiprocessing.get_context("fork")
    holds = context.Event()
    other = context.Process(target=hold, args=(files.folder, holds))
    other.start()
    assert holds.wait(30), "it is free again"
    other.kill()
    other.join()


def hold(folder, holds):
    with KernelFiles(folder).claimed(key_of(1)):
        holds.set()
        time.sleep(600)


def test_the_claim_of_a_killed_process_ends(files):
    context = multiprocessing.get_context("fork")
    holds = context.Event()
    holder = context.Process(target=hold, args=(files.folder, holds))
    holder.start()
    assert holds.wait(30)
    os.kill(holder.pid, signal.SIGKILL)
    started = time.monotonic()
    with files.claimed(key_of(1)):
        assert time.monotonic() - started < 30
    holder.join()


def test_one_that_holds_a_claim_for_long_is_not_waited_for(files, monkeypatch):
    monkeypatch.setattr("pytest_regional.harness.kernel_store.files.CLAIM_SECONDS", 0.2)
    context = multiprocessing.get_context("fork")
    holds = context.Event()
    holder = context.Process(target=hold, args=(files.folder, holds))
    holder.start()
    assert holds.wait(30)
    reached = []
    with files.claimed(key_of(1)):
        reached.append(holder.is_alive())
    holder.kill()
    holder.join()
    assert reached == [True]


def test_a_store_that_cannot_be_written_to_has_no_claims(files):
    (files.folder / "claims").write_text("a file")
    with files.claimed(key_of(1)):
        files.write(key_of(1), b"library")
    assert files.read(key_of(1)) == b"library"


def test_a_full_disk_costs_the_keeping_alone(files, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_regional.harness.kernel_store.files.write_whole", full)
    (tmp_path / "made.so").write_bytes(b"library")
    files.put(key_of(1), tmp_path / "made.so")
    assert files.made == 0
    assert files.read(key_of(1)) is None


def test_a_compiler_that_made_nothing_leaves_nothing(files, tmp_path):
    files.put(key_of(1), tmp_path / "nothing.so")
    assert files.made == 0


def test_the_folder_is_the_users_alone(tmp_path):
    folder = prepared(tmp_path / "new" / "store")
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o772)
    with pytest.raises(
        RegionalValueError, match=r"written to by everybody, and its contents are executed\. Run: chmod go-w"
    ):
        prepared(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(RegionalValueError, match="cannot be made"):
        prepared(tmp_path / "file" / "store")


def test_where_it_is_unless_something_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("PYTEST_REGIONAL_KERNEL_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert chosen_folder() == tmp_path / "pytest-regional" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert chosen_folder() == tmp_path / "home" / ".cache" / "pytest-regional" / "kernels"


def test_a_home_that_cannot_be_written_means_no_store(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("PYTEST_REGIONAL_KERNEL_STORE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert chosen_folder() is None
    monkeypatch.setenv("PYTEST_REGIONAL_KERNEL_STORE", str(tmp_path / "file" / "store"))
    with pytest.raises(RegionalValueError):
        chosen_folder()
