"""The compiler is asked once for one kernel, and no counter of a test can tell."""

from __future__ import annotations

import os
import sys

import pytest
import torch

from pytest_regional import region
from pytest_regional._torch import cpp
from pytest_regional.harness.counters import COUNTERS
from pytest_regional.harness.kernel_store import VARIABLE, KernelFiles, kernels_kept
from pytest_regional.testing import regional


def program(x):
    with region("store"):
        return torch.sin(x) * x.cos() + 1


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A store of this test's own."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.fixture
def compiles():
    """The command lines that reach a compiler."""
    lines = []

    def noting(original, line, folder):
        lines.append(line)
        original(line, folder)

    with cpp.compiling_with(noting):
        yield lines


def counted(**inductor_configs):
    """Compile and run it in caches of its own; return the counters."""
    with regional("reference", "cpu", inductor_configs=inductor_configs) as harness:
        harness.assert_parity(program, harness.randn(8, 8, requires_grad=True))
        return dict(harness.counters)


def kernels(lines):
    return [line for line in lines if "main.cpp" in line]


def test_a_kernel_is_compiled_once_and_every_counter_is_as_before(store, compiles):
    cold = counted()
    assert len(kernels(compiles)) == 2
    compiles.clear()
    warm = counted()
    assert kernels(compiles) == []
    assert warm == cold
    assert warm["region_compiles"] == 2
    assert set(warm) == set(COUNTERS)


@pytest.mark.slow(
    "compiles C++ with other flags, and the headers of torch with them",
    fast="tests/harness/kernel_store/test_commands.py::test_what_is_compiled_and_how_counts",
)
def test_other_flags_are_another_kernel(store, compiles):
    counted()
    compiles.clear()
    counted(**{"cpp.enable_unsafe_math_opt_flag": True})
    assert len(kernels(compiles)) == 2
    assert sys.float_info.min / 2 > 0, "what GCC 12 links to it is undone for the tests behind"


def test_what_another_process_makes_meanwhile_is_taken(store, compiles, monkeypatch):
    """Whoever waits for a claim looks into the store again."""
    counted()
    compiles.clear()
    take, asked = KernelFiles.take, []

    def as_if_not_there_yet(files, key, target):
        asked.append(key)
        return asked.count(key) > 1 and take(files, key, target)

    monkeypatch.setattr(KernelFiles, "take", as_if_not_there_yet)
    counted()
    assert asked
    assert kernels(compiles) == []


def test_off(monkeypatch, compiles):
    monkeypatch.setenv(VARIABLE, "off")
    for _ in range(2):
        compiles.clear()
        counted()
        assert len(kernels(compiles)) == 2


def test_a_damaged_kernel_is_compiled_again(store, compiles):
    counted()
    for path in store.glob("??/*"):
        path.write_bytes(path.read_bytes()[:-3])
    compiles.clear()
    counted()
    assert len(kernels(compiles)) == 2


def test_failed_compiles_are_not_stored(tmp_path):
    source = tmp_path / "wrong.cpp"
    source.write_text("this is not C++\n")
    from torch._inductor.cpp_builder import run_compile_cmd

    with kernels_kept(tmp_path / "store") as files:
        for _ in range(2):
            with pytest.raises(Exception, match="error"):
                run_compile_cmd(f"g++ {source} -o {tmp_path}/wrong.so", str(tmp_path))
    assert files.made == 0


@pytest.mark.slow(
    "starts two processes that compile C++",
    fast="tests/harness/kernel_store/test_commands.py::test_another_process_has_the_same_key",
)
def test_another_process_takes_it_too(store):
    for _ in range(2):
        with regional("reference", "cpu") as harness:
            _, counters = harness.in_new_process(compiled)
        assert (counters.region_compiles, counters.region_cache_hits) == (1, 0)
        kernel, *others = [path for path in store.glob("??/*") if path.read_bytes()[32:36] == b"\x7fELF"]
        assert not others
        assert kernel.stat().st_mtime != 1, "nobody used it"
        os.utime(kernel, (1, 1))


def compiled(regional):
    regional.run(program, regional.randn(8, 8))
