"""The compiling process: what takes it down takes nothing else down, and is laid at the right door."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from pytest_regional.emulation import EmulationError
from pytest_regional.emulation import compile_check as compile_check
from pytest_regional.emulation.compile_check import (
    CompiledKernel,
    FailedKernel,
    KernelSource,
    Worker,
    amd_resources,
    compile_kernels,
    nvidia_resources,
)
from pytest_regional.harness.devices.on_device import KernelCompileError, OnDevice
from pytest_regional.harness.record import GeneratedCode, GeneratedSource

FAKE = Path(__file__).with_name("fake_compiler.py")


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(compile_check, "_KNOWN", {})
    worker = Worker((sys.executable, str(FAKE)))
    yield worker
    worker.close()


def compiled(worker, *sources, timeout=300.0):
    kernels = [KernelSource(f"kernel{number}", source) for number, source in enumerate(sources)]
    return compile_kernels(kernels, ["sm_90"], worker=worker, timeout=timeout)


def test_one_process_compiles_all(worker):
    first, second = compiled(worker, "fine", "fine too")
    assert isinstance(first, CompiledKernel)
    assert first.config == second.config


def test_an_abort_is_laid_at_its_kernel_and_the_others_are_compiled(worker):
    before, failed, after = compiled(worker, "fine", "aborts", "fine too")
    assert failed == FailedKernel(
        "kernel1",
        "sm_90",
        "",
        "the compiler ended its process (exit status -6)\nLLVM ERROR: cannot select: intrinsic %llvm.nvvm",
        crashed=True,
    )
    assert isinstance(before, CompiledKernel)
    assert isinstance(after, CompiledKernel)
    assert before.config != after.config, "another process"


def test_a_hang_is_ended(worker):
    failed, after = compiled(worker, "hangs", "fine", timeout=0.5)
    assert failed.message == "the compiler did not finish within 0.5 s and was ended"
    assert (failed.timed_out, failed.crashed) == (True, False)
    assert isinstance(after, CompiledKernel)


def test_timeouts_are_tried_again(worker):
    assert compiled(worker, "hangs", timeout=0.5)[0].timed_out
    assert compiled(worker, "hangs", timeout=0.6)[0].message.startswith("the compiler did not finish within 0.6 s")


def test_ending_a_compiler_ends_what_it_has_started(worker, tmp_path):
    """Triton starts ptxas, which may take minutes: it must not go on alone."""
    marker = tmp_path / "child"
    assert compiled(worker, f"starts a child {marker}", timeout=1.5)[0].timed_out
    child = int(marker.read_text())
    for _ in range(50):
        if not _is_running(child):
            break
        time.sleep(0.1)
    assert not _is_running(child)


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_assertion_that_takes_too_long_says_what_to_do(worker, monkeypatch):
    monkeypatch.setattr(compile_check, "shared_worker", lambda: worker)
    text = "k = async_compile.triton('k', 'hangs')\ndef call(args):\n    return args"
    code = GeneratedCode((GeneratedSource("inference", (), text, loaded=False),))
    with pytest.raises(KernelCompileError, match=r"did not finish within 0.5 s and was ended\nLarge blocks.*timeout="):
        OnDevice.assert_kernels_compile(code, "sm_90", timeout=0.5)


def test_a_process_that_does_not_start_is_an_error():
    worker = Worker((sys.executable, str(FAKE), "refuses-to-start"))
    with pytest.raises(EmulationError, match=r"did not start .*it printed:\nno module named triton"):
        list(worker.compile(KernelSource("k", ""), "sm_90", ("cuda", 90, 32), False, 1.0))


def test_a_crash_fails_the_assertion(worker, monkeypatch):
    monkeypatch.setattr(compile_check, "shared_worker", lambda: worker)
    text = "k = async_compile.triton('k', 'aborts')\ndef call(args):\n    return args"
    with pytest.raises(
        KernelCompileError, match=r"k for sm_90:\n    the compiler ended its process.*\n(.*\n)*A compiler"
    ):
        OnDevice.assert_kernels_compile(GeneratedCode((GeneratedSource("inference", (), text, loaded=False),)), "sm_90")


def test_closing_twice_is_closing(worker):
    compiled(worker, "fine")
    worker.close()
    worker.close()
    assert isinstance(compiled(worker, "fine too")[0], CompiledKernel)


def test_what_ptxas_says():
    log = (
        "ptxas info    : Function properties for k\n"
        "    24 bytes stack frame, 20 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 392 bytes cmem[0]\n"
    )
    assert nvidia_resources(log) == {"registers": 255, "stack": 24, "spill_stores": 20, "spill_loads": 16}
    with pytest.raises(ValueError, match="did not say"):
        nvidia_resources("")


def test_what_amds_assembly_says():
    lines = (".vgpr_count: 5", ".sgpr_count: 9", ".vgpr_spill_count: 2", ".sgpr_spill_count: 1")
    assembly = "\n".join(f"    {line}" for line in (*lines, ".private_segment_fixed_size: 8"))
    assert amd_resources(assembly) == {"registers": 5, "stack": 8, "spill_stores": 3, "spill_loads": 0}
