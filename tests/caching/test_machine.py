"""What an artifact depends on: every field counts, and asking costs nothing twice."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pytest_regional.reference.caching import container
from pytest_regional.reference.caching.container import TargetFingerprint, this_machine
from tests.warm_process import ROOT, run_script

NAMES = [field.name for field in dataclasses.fields(TargetFingerprint)]


@pytest.mark.parametrize("name", NAMES)
def test_every_field_is_in_the_digest(name: str) -> None:
    here = this_machine()
    assert dataclasses.replace(here, **{name: "other"}).digest() != here.digest()


def test_a_new_field_is_in_the_digest() -> None:
    more = dataclasses.make_dataclass("More", [("linker", str, "")], bases=(TargetFingerprint,), frozen=True)
    assert more(*NAMES, linker="mold").digest() != more(*NAMES, linker="lld").digest()
    assert more(*NAMES, linker="mold").digest() != TargetFingerprint(*NAMES).digest()


def test_this_machine_is_described() -> None:
    here = this_machine()
    assert here.python == f"CPython {sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"
    assert here.torch.startswith(torch.__version__)
    assert str(torch.version.git_version) in here.torch
    assert here.cpu.startswith(f"{sys.platform} {os.uname().machine}")


def test_vector_instructions_are_those_that_pytorch_finds() -> None:
    capability = torch.backends.cpu.get_cpu_capability().lower()
    if capability not in ("avx2", "avx512"):
        pytest.skip(f"knows what x86 says; this is {capability}")
    assert capability in this_machine().cpu


def test_an_override_of_the_processor_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "")
    before = this_machine()
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert this_machine() != before


def test_processors_with_other_instructions_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are compiled with -march=native, so what vector set they use does not say where they run."""

    def cpuinfo(flags: str) -> Callable[..., str]:
        return lambda *_, **__: f"processor: 0\nflags\t\t: {flags}\n\nprocessor: 1\nflags\t\t: {flags}\n"

    monkeypatch.setattr(Path, "read_text", cpuinfo("sse4 avx2"))
    first = container._cpu_features()
    monkeypatch.setattr(Path, "read_text", cpuinfo("avx2 sse4"))
    assert container._cpu_features() == first
    monkeypatch.setattr(Path, "read_text", cpuinfo("avx2 sse4 amx"))
    assert container._cpu_features() != first


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Target: x_gcc version 12.2.0 (Debian 12.2.0-14) _", "g++: gcc version 12.2.0 (Debian 12.2.0-14)"),
        ("Apple clang version 15.0.0 (x)_Target: arm64", "g++: Apple clang version 15.0.0 (x)"),
    ],
)
def test_compilers_are_named_by_their_version(text: str, name: str) -> None:
    assert container._compiler("/usr/bin/g++", text) == name


def test_a_compiler_without_a_version_is_identified_by_its_output() -> None:
    assert container._compiler("cc", "strange 1") != container._compiler("cc", "strange 2")


def test_no_compiler_is_an_empty_name() -> None:
    assert container._compiler("", "") == ""


def test_without_a_gpu_none_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: pytest.fail("a GPU was asked for"))
    assert container._gpu() == ""


def test_gpus_are_named_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(name="H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "NVRM version: NVIDIA x86_64  570.86.15  Release\n")
    assert container._gpu() == "H200 sm_90; cuda 12.8; driver 570.86.15"


def test_the_compiler_is_asked_once_a_process(tmp_path: Path) -> None:
    """Once for whether it works and once for its version, which is PyTorch's own way; the second time not at all."""
    log = tmp_path / "log"
    compiler = tmp_path / "my-g++"
    compiler.write_text(f'#!/bin/sh\necho "$@" >>{log}\necho gcc version 1.2.3\n')
    compiler.chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text(f"""
import os
import torch._inductor.config
torch._inductor.config.cpp.cxx = (None, {str(compiler)!r})
os.environ["TORCHINDUCTOR_CACHE_DIR"] = {str(tmp_path / "cache")!r}
from pytest_regional.reference.caching.container import this_machine
assert this_machine() is this_machine()
assert not torch.cuda.is_initialized() or torch.cuda.is_available()
print(this_machine().compiler)
""")
    said = run_script(script, {**os.environ, "PYTHONPATH": str(ROOT)})
    assert said.stdout.strip() == "my-g++: gcc version 1.2.3", said.stderr
    assert log.read_text().split() == ["--version", "-v"]
