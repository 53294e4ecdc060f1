"""What GCC makes of a header is kept like a kernel, and used as what it made."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from pytest_regional._torch import cpp
from pytest_regional.harness.kernel_store import kernels_kept

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def test_instructions_that_worked_once_are_not_tried_by_the_next_process(tmp_path, monkeypatch):
    """Inductor starts an interpreter for each kind of vector instructions."""
    from torch._inductor import cpu_vec_isa

    isa = cpu_vec_isa.pick_vec_isa()
    if not isa or not hasattr(isa, "_probe_load"):
        pytest.skip("no vector instructions, or a torch without _probe_load; it is in 2.13")
    started = []
    monkeypatch.setattr(type(isa), "_probe_load", lambda isa, path: started.append(path) or True)
    tried = []
    for processor, marker in (("a", None), ("a", None), ("a b", None), ("a b", b"\xff"), ("", None)):
        for file in tmp_path.glob("*.loaded") if marker else ():
            file.write_bytes(marker)
        said = (f"flags: {processor}",) if processor else ()
        monkeypatch.setattr(cpp, "described_processor", lambda said=said: said)
        with cpp.processor_checked_in(tmp_path):
            assert isa.check_build(cpu_vec_isa.VecISA._avx_code)
        tried.append(len(started))
    assert tried == [1, 1, 2, 3, 4]


@pytest.fixture
def precompiled(tmp_path):
    """Ask Inductor for a precompiled header, in a directory of PyTorch's that is new; return it, and the compiles."""
    from torch._inductor import codecache, cpu_vec_isa

    lines = []

    def noting(original, line, folder):
        lines.append(line)
        original(line, folder)

    def ask(directory, store, flags="g++ -O1", header="climits"):
        lines.clear()
        settings = {"device_type": "cpu", "vec_isa": cpu_vec_isa.invalid_vec_isa}
        with cpp.compiling_with(noting), kernels_kept(store), cpp.headers_kept_in(tmp_path / directory):
            path = codecache._precompile_header(header, flags, **settings)
        return path, [line for line in lines if "c++-header" in line]

    return ask


def content(path):
    with open(f"{path}.gch", "rb") as file:
        return file.read()


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir(mode=0o700)
    return tmp_path / "store"


def test_it_is_made_once_for_all_directories(precompiled, store):
    one, made = precompiled("one", store)
    other, made_again = precompiled("other", store)
    assert (len(made), len(made_again)) == (1, 0)
    assert one != other
    assert content(one) == content(other)


def test_the_compiler_uses_it(precompiled, store, tmp_path):
    _, made = precompiled("one", store)
    other, _ = precompiled("other", store)
    words = shlex.split(made[0])
    (tmp_path / "source.cpp").write_text("int most = INT_MAX;\n")
    (place,) = [number for number, word in enumerate(words) if word.endswith(".h")]
    words[words.index("-x") + 1], words[place] = "c++", str(tmp_path / "source.cpp")
    words[words.index("-o") + 1] = str(tmp_path / "source.o")
    command = [*words, "-c", "-Winvalid-pch", "-H", "-include", other]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"! {other}.gch" in done.stderr, done.stderr
    assert done.returncode == 0


def test_other_flags_and_headers_are_others(precompiled, store):
    assert len(precompiled("one", store)[1]) == 1
    assert len(precompiled("two", store, flags="g++ -O2")[1]) == 1
    assert len(precompiled("three", store, header="cstddef")[1]) == 1
    assert len(precompiled("four", store)[1]) == 0


def test_a_damaged_one_is_made_again(precompiled, store):
    precompiled("one", store)
    for path in store.glob("??/*"):
        path.write_bytes(path.read_bytes()[:-3])
    assert [len(precompiled(name, store)[1]) for name in ("two", "three")] == [1, 0]


def test_without_a_store_each_directory_has_its_own(precompiled, monkeypatch):
    monkeypatch.setenv("PYTEST_REGIONAL_KERNEL_STORE", "off")
    assert [len(precompiled(name, None)[1]) for name in ("one", "two")] == [1, 1]


def test_no_memory_is_no_store(precompiled, store, monkeypatch):
    def fails(*arguments):
        raise MemoryError

    precompiled("one", store)
    monkeypatch.setattr("zlib.decompress", fails)
    assert len(precompiled("two", store)[1]) == 1
    monkeypatch.setattr("zlib.compress", fails)
    assert len(precompiled("three", store, flags="g++ -O2")[1]) == 1


def test_it_is_small_in_the_store(precompiled, store):
    path, _ = precompiled("one", store)
    assert sum(file.stat().st_size for file in store.glob("??/*")) < len(content(path)) / 2
