"""A whole run among files of another user of the machine: none is run, and none changes a number."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_regional.harness.kernel_store.files import KernelFiles, prepared

from .another_user import ATTACKER, as_attacker, common_folder, copy, needs_root

pytestmark = needs_root


@pytest.fixture
def common():
    with common_folder() as folder:
        yield folder


SOURCE = """
import torch
from torch.fx.traceback import annotate
import pytest

def program(x):
    with annotate({"compile_with_inductor": {"inductor_region": "sine"}}):
        return torch.sin(x) * 3 + x.softmax(-1)

@pytest.mark.regional_compile
def test_it(regional):
    x = regional.randn(16, 16)
    regional.assert_parity(program, x)
    print("SUM", regional.compile(program)(x).double().sum().item())
"""
CONFTEST = """
from pytest_regional._torch import cpp

def note(original, line, folder):
    with open("commands", "a") as file:
        file.write(line + "\\n")
    original(line, folder)

noting = cpp.compiling_with(note)

def pytest_configure():
    noting.__enter__()
"""
RAN = """
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void planted_NUMBER(void) {
    int file = open("MARK", O_WRONLY | O_CREAT, 0666);
    if (file >= 0) close(file);
}
"""


class Sandbox:
    """A machine in small: a common folder, and in it root's home and project, closed to others."""

    def __init__(self, common):
        self.common = common
        self.home, self.project, self.marks = common / "home", common / "project", common / "marks"
        for folder in (self.home, self.project, self.marks):
            folder.mkdir(mode=0o755)
        self.marks.chmod(0o777)
        (self.project / "test_one.py").write_text(SOURCE)
        (self.project / "conftest.py").write_text(CONFTEST)
        self.pytorch, self.store = common / "torchinductor_root", self.home / ".cache" / "pytest-regional" / "kernels"
        self.planted = 0

    def run(self):
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TORCHINDUCTOR_", "TRITON_"))
        }
        environment |= {"HOME": str(self.home), "TMPDIR": str(self.common), "USER": "root", "LOGNAME": "root"}
        environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment.pop("XDG_CACHE_HOME", None)
        command = [sys.executable, "-m", "pytest", "-n0", "-q", "-s", "-p", "no:cacheprovider"]
        command += ["--regional-backend=torch", "--regional-device=cpu", "test_one.py"]
        done = subprocess.run(command, cwd=self.project, env=environment, capture_output=True, text=True, timeout=900)
        numbers = [line for line in done.stdout.splitlines() if "SUM" in line]
        return done.returncode, numbers, done.stdout + done.stderr

    def code(self):
        """Return C++ code that leaves a mark of its own in each process that loads what is made of it."""
        self.planted += 1
        return RAN.replace("NUMBER", str(self.planted)).replace("MARK", str(self.marks / str(self.planted)))

    def library(self):
        source = self.common / "planted.cpp"
        source.write_text(self.code())
        made = source.with_suffix(".so")
        subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        return made.read_bytes()

    def entry(self, key):
        """Return an entry of the store that holds a library of the other user's."""
        files = KernelFiles(prepared(self.common.parent / f"{self.common.name}-forged"))
        files.write(key, self.library())
        path = files.folder / key[:2] / key[2:]
        content = path.read_bytes()
        shutil.rmtree(files.folder)
        return content


@pytest.mark.slow
@pytest.mark.parametrize("owner", ["his folder", "an open folder"])
@pytest.mark.parametrize("header", ["source", "translated", "genuine"])
def test_a_run_among_planted_files(common, owner, header):
    """Each file that a run leaves where another user can be first, or could have been, is that user's before the next.

    Printed at the end: how many were planted, and how many ran.
    """
    sandbox = Sandbox(common)
    clean = sandbox.run()
    assert clean[0] == 0, clean[2]
    names = [path.relative_to(sandbox.pytorch) for path in sandbox.pytorch.rglob("*") if path.is_file()]
    keys = [f"{path.parent.name}{path.name}" for path in sandbox.store.glob("??/*")]
    kernels = [key for key in keys if b"\x7fELF" in (sandbox.store / key[:2] / key[2:]).read_bytes()[:40]]
    translating = [line for line in (sandbox.project / "commands").read_text().splitlines() if ".gch" in line]
    genuine = {name: (sandbox.pytorch / name).read_bytes() for name in names if name.suffix == ".h"}
    shutil.rmtree(sandbox.pytorch)
    sandbox.pytorch.mkdir(mode=0o777)
    sandbox.pytorch.chmod(0o777)
    if owner == "his folder":
        os.chown(sandbox.pytorch, ATTACKER, ATTACKER)
    for name in names:
        if name.suffix == ".so":
            assert as_attacker(copy, sandbox.library(), sandbox.pytorch / name)
        elif name.suffix == ".h" and header == "source":
            content = genuine[name] + sandbox.code().encode()
            assert as_attacker(copy, content, sandbox.pytorch / name)
        elif name.suffix == ".h" and header == "translated":
            plant_translation(sandbox, name, genuine[name], translating)
    for folder in (sandbox.store, *sandbox.store.parents[:2]):
        folder.chmod(0o755)  # as what copies or restores a store may leave it
    for key in kernels:
        folder = sandbox.store / key[:2]
        folder.chmod(0o777)
        (folder / key[2:]).unlink()
        if header == "genuine":  # else kernels are compiled, with the header
            assert as_attacker(copy, sandbox.entry(key), folder / key[2:])
    status, numbers, printed = sandbox.run()
    ran = sorted(int(path.name) for path in sandbox.marks.iterdir())
    print(f"{len(ran)} of {sandbox.planted} planted files ran; {numbers} for {clean[1]}")
    assert ran == []
    assert (status, numbers) == (0, clean[1]), printed


def plant_translation(sandbox, name, genuine, commands):
    """Plant the header as it is, and in its translation something else."""
    path = sandbox.pytorch / name
    (command,) = [line for line in commands if name.name in line]
    elsewhere = sandbox.common / "elsewhere.h"
    elsewhere.write_bytes(genuine + sandbox.code().encode())
    words = command.split()
    words[words.index("c++-header") + 1] = str(elsewhere)
    words[words.index("-o") + 1] = str(elsewhere) + ".gch"
    subprocess.run([*words, "-w"], check=True, cwd=sandbox.common)
    assert as_attacker(copy, genuine, path)
    assert as_attacker(copy, Path(f"{elsewhere}.gch").read_bytes(), path.with_name(f"{name.name}.gch"))
