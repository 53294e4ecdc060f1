"""What a kernel depends on: each thing that changes it changes its key, and names of files do not."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from pytest_regional.harness.kernel_store import Command, processor
from tests.warm_process import run_script

FLAGS = "-O3 -march=native -I/somewhere"


@pytest.fixture
def line(tmp_path):
    """A compile of ``kernel.cpp`` in a folder of its own."""

    def write(folder="a", name="kernel", content="int f() { return 1; }\n", flags=FLAGS, compiler="g++", suffix=".so"):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        (place / f"{name}.cpp").write_text(content)
        return f"{compiler} {place}/{name}.cpp {flags} -o {place}/{name}.main{suffix} -lgomp"

    return write


def key(line):
    return Command.of(line).key()


def test_names_of_files_do_not_count(line):
    assert key(line("a", "one")) == key(line("b", "two"))


@pytest.mark.parametrize(
    "change",
    [
        {"content": "int f() { return 2; }\n"},
        {"flags": "-O2 -march=native -I/somewhere"},
        {"flags": "-O3 -march=native -I/elsewhere"},
        {"suffix": ".o"},
    ],
    ids=str,
)
def test_what_is_compiled_and_how_counts(line, change):
    assert key(line()) != key(line(**change))


def test_another_process_has_the_same_key(line, tmp_path):
    """Its hashes of texts are others."""
    script = tmp_path / "script.py"
    script.write_text(
        f"from pytest_regional.harness.kernel_store import Command\nprint(Command.of({line()!r}).key())\n"
    )
    there = run_script(script, {**os.environ, "PYTHONPATH": os.getcwd()}, timeout=120)
    assert there.stdout.strip() == key(line()), there.stderr


@pytest.mark.parametrize("name", ["CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH"])
def test_variables_read_by_the_compiler_are_in_the_key(line, monkeypatch, name):
    before = key(line())
    monkeypatch.setenv(name, "1")
    assert key(line()) != before


def test_another_compiler_counts_and_the_same_after_an_upgrade(line, tmp_path):
    compiler = tmp_path / "compiler"
    shutil.copy(shutil.which("g++"), compiler)
    first = key(line(compiler=compiler))
    assert first != key(line())
    assert first == key(line(compiler=compiler))
    os.utime(compiler, (1, 1))
    assert first != key(line(compiler=compiler))


@pytest.fixture
def torch_in(tmp_path, monkeypatch):
    """Install a torch of one header, with or without a record, which no process has looked at, in an environment."""

    def install(environment, *, record="torch/include/a.h,sha256=1,2\n", content="1"):
        packages = tmp_path / environment
        header = packages / "torch" / "include" / "a.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(content)
        if record:
            (packages / "torch-2.13.0.dist-info").mkdir(exist_ok=True)
            (packages / "torch-2.13.0.dist-info" / "RECORD").write_text(record)
        monkeypatch.setattr("pytest_regional._torch.cpp.torch_headers", lambda: header.parent)
        return header

    return install


def test_the_same_wheel_in_another_environment_is_the_same(line, torch_in):
    header = torch_in("one")
    first = key(line(flags=f"-I{header.parent}"))
    header = torch_in("two")
    assert key(line(flags=f"-I{header.parent}")) == first


def test_another_wheel_is_another(line, torch_in):
    torch_in("one")
    first = key(line())
    torch_in("two", record="torch/include/a.h,sha256=3,2\n")
    assert key(line()) != first


def test_a_header_that_was_changed_after_its_installation_counts(line, torch_in):
    header = torch_in("one")
    first = key(line())
    os.utime(header, (time.time() + 60, time.time() + 60))
    assert key(line()) == first, "they are looked at once in a process"
    header = torch_in("two")
    os.utime(header, (time.time() + 60, time.time() + 60))
    assert key(line()) != first


def test_headers_of_a_source_tree_count_by_size_and_time(line, torch_in):
    torch_in("one", record="")
    first = key(line())
    os.utime(torch_in("two", record=""), (1, 1))
    second = key(line())
    os.utime(torch_in("three", record="", content="12"), (1, 1))
    assert len({first, second, key(line())}) == 3


def test_the_processor_counts(line, monkeypatch):
    before = key(line())
    monkeypatch.setattr("pytest_regional.harness.kernel_store.commands.processor", lambda: "another")
    assert key(line()) != before


def test_the_processor_is_described_by_what_decides_code():
    described = processor()
    assert "MHz" not in described
    instructions = {"avx2", "asimd", "vx"}  # x86, ARM, s390x
    assert instructions & set(described.split())


@pytest.mark.parametrize(
    "line",
    [
        "no-such-compiler {cpp} -o /a.so",
        "g++ --version",
        "g++ /missing.cpp -o /a.so",
        "g++ {cpp} @arguments -o /a.so",
        "g++ {cpp} -o",
        "g++ {cpp} -o {cpp}.h.pch",
        "g++ {including} -o /a.so",
        "g++ {cpp} -o a.so",
        "g++ {cpp} beside.o -o /a.so",
        "env g++ {cpp} -o /a.so",
    ],
)
def test_what_is_not_understood_is_not_kept(tmp_path, line):
    source, including = tmp_path / "a.cpp", tmp_path / "b.cpp"
    source.write_text("")
    including.write_text('#include "/somewhere/header.h"\n')
    assert Command.of(line.format(cpp=source, including=including)) is None
    assert Command.of(f"g++ {source} -D NAME -o /a.so") is not None
