"""Files in the kernel store that are not what they seem: each is refused, none gives other numbers or hangs."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from pytest_regional.harness.kernel_store import VARIABLE, KernelFiles, kernels_kept, prepared

KEY, OTHER = (hashlib.sha256(name).hexdigest() for name in (b"one", b"other"))
RIGHT, WRONG = b"what the compiler made", b"what somebody else made"


class HungError(Exception):
    """No error of the operating system, which the store takes for a kernel that is not there."""


@pytest.fixture(autouse=True)
def no_hang():
    """Fail what waits for ever, as the opening of a pipe does."""

    def end(*_):
        raise HungError

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def store(tmp_path):
    """A store with two kernels."""
    files = KernelFiles(prepared(tmp_path / "above" / "store"))
    files.write(KEY, RIGHT)
    files.write(OTHER, WRONG)
    return files


def entry(files, key=KEY):
    return files.folder / key[:2] / key[2:]


def forged(files, key=KEY, content=WRONG):
    """Return an entry that is whole and says what an attacker wants: the digest is no secret."""
    elsewhere = KernelFiles(prepared(files.folder.parent.parent / "forged"))
    elsewhere.write(key, content)
    return entry(elsewhere, key)


def exchange(files):
    one, other = entry(files), entry(files, OTHER)
    aside = other.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def link(files, to=None):
    entry(files).unlink()
    entry(files).symlink_to(to or entry(files, OTHER))


def plant(files, mode=0o600, owner=None, folder_mode=0o700, folder_owner=None):
    path = entry(files)
    path.write_bytes(forged(files).read_bytes())
    path.chmod(mode)
    path.parent.chmod(folder_mode)
    for place, user in ((path, owner), (path.parent, folder_owner)):
        if user is not None:
            if os.geteuid():
                pytest.skip("only root can give files to another user")
            os.chown(place, user, user)


def link_folder(files):
    folder = entry(files).parent
    shutil.rmtree(folder)
    folder.symlink_to(forged(files).parent)


def exchange_above(files, what="store", mode=0o777):
    """Put another store in the place of this one, where others can write above it."""
    forged(files)
    place = files.folder if what == "store" else files.folder.parent
    above = place.parent
    elsewhere = above.parent / "aside"
    place.rename(elsewhere)
    if what == "store":
        shutil.copytree(above.parent / "forged", place)
    else:
        (place).mkdir()
        shutil.copytree(above / "forged", place / "store")
    above.chmod(mode)


def pipe(files):
    entry(files).unlink()
    os.mkfifo(entry(files))


READS = {
    "two entries exchanged": exchange,
    "a link to another entry": link,
    "a link to a forged entry": lambda files: link(files, to=forged(files)),
    "a forged entry that everybody can write to": lambda files: plant(files, mode=0o666),
    "a forged entry of another user": lambda files: plant(files, owner=54321),
    "a forged entry in a folder that everybody can write to": lambda files: plant(files, folder_mode=0o777),
    "a forged entry in a folder with the sticky bit": lambda files: plant(files, folder_mode=0o1777),
    "a forged entry in another user's folder": lambda files: plant(files, folder_owner=54321),
    "a folder that is a link to forged entries": link_folder,
    "another store in its place": exchange_above,
    "another folder above the store": lambda files: exchange_above(files, "above"),
    "an entry that is a pipe": pipe,
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("attack", READS.values(), ids=READS)
def test_no_other_kernel_is_read(store, attack, tmp_path):
    assert store.read(KEY) == RIGHT
    attack(store)
    assert store.read(KEY) in (None, RIGHT)
    assert store.read(OTHER) in (None, WRONG)
    assert not store.take(KEY, tmp_path / "taken.so") or (tmp_path / "taken.so").read_bytes() == RIGHT
    store.keep(KEY, RIGHT)  # nothing that was put there is in the way of the run
    assert store.read(KEY) in (None, RIGHT)


def outside(files, name):
    """A file that is nobody's but the user's, with a name like that of an entry."""
    folder = files.folder.parent / "documents"
    folder.mkdir()
    path = folder / name
    path.write_bytes(b"precious")
    return path


def named_folder(files, folder, name):
    (files.folder / folder).mkdir(exist_ok=True)
    path = files.folder / folder / name
    path.write_bytes(b"precious")
    return path


def named_by_a_link(files):
    path = outside(files, "document")
    (files.folder / "aa").mkdir()
    (files.folder / "aa" / KEY[2:]).symlink_to(path)
    return path


KEPT = {
    "another name in a folder of entries": lambda files: named_folder(files, KEY[:2], "document"),
    "a folder of two other letters": lambda files: named_folder(files, "my", KEY[2:]),
    "what a link names": named_by_a_link,
    "a file beside the folders": lambda files: named_folder(files, "", "document"),
}


@pytest.mark.parametrize("attack", KEPT.values(), ids=KEPT)
def test_only_what_is_ours_is_deleted(store, attack):
    path = attack(store)
    os.utime(path, (1, 1))
    store.prune(limit=0)
    assert path.read_bytes() == b"precious"
    assert not entry(store).exists(), "what is ours goes"


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return path


SCRIPT = '#!/bin/sh\nexec g++ -DVALUE="${STEERED:-1}" "$@"\n'
BELOW = """#!/bin/sh
for word; do case "$word" in *.s) sed -i "s/[$]1,/\\$${STEERED:-1},/" "$word";; esac; done
exec /usr/bin/as "$@"
"""
C_WRAPPER = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int n, char **words) {
    char value[64];
    snprintf(value, 64, "-DVALUE=%s", getenv("STEERED") ? getenv("STEERED") : "1");
    char **all = calloc(n + 2, sizeof(char *));
    all[0] = "g++"; all[1] = value;
    for (int i = 1; i < n; i++) all[i + 1] = words[i];
    execvp("g++", all);
}
"""


def script(folder, monkeypatch):
    return str(executable(folder / "g++", SCRIPT.replace("exec g++", f"exec {shutil.which('g++')}")))


def program(folder, monkeypatch):
    (folder / "wrapper.c").write_text(C_WRAPPER)
    subprocess.run(["gcc", folder / "wrapper.c", "-o", folder / "c++"], check=True)
    return str(folder / "c++")


def script_that_reads_a_file(folder, monkeypatch):
    return str(executable(folder / "g++", f'#!/bin/sh\nexec {shutil.which("g++")} $(cat {folder}/value) "$@"\n'))


def script_for_assembler(folder, monkeypatch, variable="PATH"):
    executable(folder / "as", BELOW)
    rest = os.pathsep + os.environ["PATH"] if variable == "PATH" else "/"
    monkeypatch.setenv(variable, f"{folder}{rest}")
    return shutil.which("g++")


def folder_of_programs(folder, monkeypatch):
    executable(folder / "as", BELOW)
    return f"{shutil.which('g++')} -B{folder}"


def program_in_front(folder, monkeypatch):
    steered = 'case "$1" in *cc1plus) set -- "$@" -DVALUE=${STEERED:-1};; esac'
    executable(folder / "front", f'#!/bin/sh\n{steered}\nexec "$@"\n')
    return f"{shutil.which('g++')} -wrapper {folder}/front"


COMPILERS = {
    "a script steered by a variable": script,
    "a program steered by a variable": program,
    "a script that reads a file": script_that_reads_a_file,
    "a script for the assembler along PATH": script_for_assembler,
    "a script for the assembler in COMPILER_PATH": lambda *arguments: script_for_assembler(*arguments, "COMPILER_PATH"),
    "a folder of programs on the command line": folder_of_programs,
    "a program in front of the compiler's own": program_in_front,
}


@pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
def test_a_wrapped_compiler_is_asked_each_time(tmp_path, monkeypatch, compiler):
    from torch._inductor.cpp_builder import run_compile_cmd

    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    line = compiler(bin_folder, monkeypatch)
    source = tmp_path / "value.cpp"
    source.write_text('#ifndef VALUE\n#define VALUE 1\n#endif\nextern "C" int value() { return VALUE; }\n')
    values = []
    for value in ("1", "2"):
        monkeypatch.setenv("STEERED", value)
        (bin_folder / "value").write_text(f"-DVALUE={value}")
        target = tmp_path / f"{value}.so"
        with kernels_kept(prepared(tmp_path / "store")):
            run_compile_cmd(f"{line} {source} -O1 -shared -fPIC -o {target}", str(tmp_path))
        values.append(ctypes.CDLL(str(target)).value())
    assert values == [1, 2]


def test_a_compiler_is_not_asked_twice(tmp_path):
    """The twin of the attacks: what is no wrapper is kept."""
    from torch._inductor.cpp_builder import run_compile_cmd

    (tmp_path / "value.cpp").write_text('extern "C" int value() { return 1; }\n')
    with kernels_kept(prepared(tmp_path / "store")) as files:
        for _ in range(2):
            run_compile_cmd(f"g++ {tmp_path}/value.cpp -shared -o {tmp_path}/value.so", str(tmp_path))
    assert (files.made, files.taken) == (1, 1)


def test_a_launcher_of_a_wrapped_c_compiler_is_made_each_time(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    from triton.runtime.cache import get_cache_manager

    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    monkeypatch.delenv("TRITON_CACHE_MANAGER", raising=False)
    monkeypatch.setenv("CC", str(executable(tmp_path / "cc", '#!/bin/sh\nexec gcc "$@"\n')))
    with kernels_kept():
        for folder in ("one", "two"):
            monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / folder))
            manager = get_cache_manager("00ff")
            assert manager.get_file("launcher.so") is None
            manager.put(b"library", "launcher.so")


def test_what_is_stored_under_one_key_is_not_believed_of_another(tmp_path):
    """That the self-test of one GPU has passed, for one."""
    files = KernelFiles(prepared(tmp_path / "store"))
    one, other = "ab" + "0" * 62, "cd" + "0" * 62
    files.keep(one, b"passed")
    files.keep(other, b"something else")
    shutil.copy(files.folder / one[:2] / one[2:], files.folder / other[:2] / other[2:])
    assert files.read(one) == b"passed"
    assert files.read(other) is None


def test_a_header_is_translated_whole_or_not_at_all(tmp_path):
    """A compiler that is killed leaves no half of a precompiled header, with which every later compile would fail."""
    from torch._inductor.cpp_builder import run_compile_cmd

    target = tmp_path / "one.h.gch"
    (tmp_path / "one.h").write_text("int one();\n")
    killed = executable(
        tmp_path / "killed", f"#!{sys.executable}\nimport sys\nopen(sys.argv[-1], 'w').write('half')\nexit(1)\n"
    )
    with kernels_kept(prepared(tmp_path / "store")):
        with pytest.raises(Exception, match="compile error"):
            run_compile_cmd(f"{killed} -x c++-header {tmp_path}/one.h -o {target}", str(tmp_path))
        assert not target.exists()
        run_compile_cmd(f"g++ -x c++-header {tmp_path}/one.h -o {target}", str(tmp_path))
    assert stat.S_ISREG(target.stat().st_mode)
    assert sorted(path.name for path in tmp_path.glob("one*")) == ["one.h", "one.h.gch"]
