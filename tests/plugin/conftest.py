"""A small downstream repository for every test: one program, with and without its annotation."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import textwrap
from types import ModuleType

import pytest

from tests.warm_process import ran

PROGRAM = """
import torch
from torch.fx.traceback import annotate

def block(x, w):
    # A matrix product alone is an extern call: Inductor generates code and no C++ compiler runs.
    with annotate({"compile_with_inductor": {"inductor_region": "mlp"}}):
        h = x @ w
    return torch.sin(h)

def plain(x, w):
    return torch.sin(x @ w)

def pair(regional, n=4):
    return regional.randn(n, 8), regional.randn(8, 8)
"""

HEADER = "import pytest, torch\nfrom program import block, plain, pair\n"


class KeepInstalledModules:
    """Keep what a nested run imported from site-packages: torch cannot be imported twice in one process."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}

    def pytest_unconfigure(self) -> None:
        installed = ("site-packages", sys.base_prefix)
        for name, module in list(sys.modules.items()):
            if any(place in str(getattr(module, "__file__", None) or "") for place in installed):
                self.modules[name] = module

    def put_back(self) -> None:
        for name, module in self.modules.items():
            sys.modules.setdefault(name, module)


def in_a_process(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run pytest as ``pytester.runpytest_subprocess`` does, where torch is imported already."""
    basetemp = pytester.path / "basetemp"
    basetemp.mkdir(exist_ok=True)
    return ran("pytest", [f"--basetemp={basetemp}", *options], pytester.path, os.environ)


@pytest.fixture
def repository(pytester):
    """Return a function that writes ``test_it.py`` beside ``program.py``."""
    pytester.makepyfile(program=PROGRAM)
    pytester.syspathinsert()
    return lambda source: pytester.makepyfile(test_it=HEADER + textwrap.dedent(source))


@pytest.fixture
def downstream(repository, pytester):
    """Return a function that writes ``test_it.py`` beside ``program.py`` and runs pytest in this process."""

    def run(source: str, *arguments: str, subprocess: bool = False):
        repository(source)
        options = ("-p", "no:randomly", "-p", "no:cacheprovider", "-rsxfE", *arguments)
        if subprocess:
            return in_a_process(pytester, *options)
        keep = KeepInstalledModules()
        result = pytester.runpytest_inprocess(*options, plugins=[keep])
        keep.put_back()
        return result

    return run


@pytest.fixture(scope="package", autouse=True)
def _torch_stays_imported():
    """Compile once with each kind of backend, so that nested runs find torch's modules imported, and the package's.

    A module that a nested run imports is gone after it, but stays an attribute of its package: the next run would have
    two classes of one name, of which an ``except`` catches one.
    """
    import torch

    import pytest_regional

    for module in pkgutil.walk_packages(pytest_regional.__path__, "pytest_regional."):
        if not module.name.endswith(".__main__"):
            with contextlib.suppress(ModuleNotFoundError):  # of an optional part, which tools/core deletes
                importlib.import_module(module.name)
    from pytest_regional.backends.registry import names
    from pytest_regional.testing import regional

    for backend in names():
        with regional(backend, expects_regions=False) as r:
            r.assert_parity(torch.matmul, r.randn(2, 2, requires_grad=True), r.randn(2, 2))
    if importlib.util.find_spec("pytest_regional.emulation"):
        with regional("inductor", "cuda-emulated", expects_regions=False) as r:
            r.run(torch.sin, r.randn(2, 2))
