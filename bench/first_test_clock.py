"""A plugin of pytest that prints each step of a run when it is over: ``-p bench.first_test_clock``."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from typing import Any

import pytest

#: Steps that run the compiler, by what is part of its command; the first that fits.
COMPILES = {
    "/processor/": "compiler: check of the vector instructions",
    "c++-header": "compiler: precompile PyTorch's headers",
    "main.cpp": "compiler: the kernel",
    "": "compiler: look at the headers",
}
OWN = "Dynamo, AOTAutograd, Inductor, comparison"


#: Standard error as it is before pytest captures it.
_SHOWN = os.fdopen(os.dup(2), "w")


class Clock:
    """Times steps that follow each other, the first from when the process was started."""

    def __init__(self) -> None:
        self._last = float(os.environ["FIRST_TEST_BEGAN"])
        self.over("start Python and pytest")

    def over(self, step: str) -> None:
        """Print how long ``step`` took, which ends now."""
        now = time.time()
        print(f"step {now - self._last:.3f} {step}", file=_SHOWN, flush=True)
        self._last = now

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Print that all plugins are ready."""
        self.over("import torch, read options")

    def pytest_collection_finish(self) -> None:
        """Print that the test was imported."""
        self.over("collect")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        """Import what the plugin would import, and watch the compiler from below its store."""
        from pytest_regional._torch import cpp
        from pytest_regional._torch.inductor import import_compilers

        import_compilers()
        self._watches = cpp.compiling_with(self._timed)
        self._watches.__enter__()  # until the process ends
        result = yield
        self.over("import the compilers")
        return result

    def _timed(self, original: Any, line: str, directory: str) -> None:
        self.over(OWN)
        original(line, directory)
        self.over(next(step for part, step in COMPILES.items() if part in line))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """Print that the test is over."""
        result = yield
        self.over(OWN)
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Print that the run is over."""
        self.over("end the run")


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin, before anything of ours is imported."""
    early_config.pluginmanager.register(Clock(), "first-test-clock")
