"""Run a test on an emulated GPU; skip it when it needs an unsupported feature."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import platform
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pytest_regional._base.cache_keys import own_code
from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import private_module
from pytest_regional._torch.triton import code_keys
from pytest_regional.harness.isolation import isolated
from pytest_regional.harness.kernel_store.files import KernelFiles, chosen_folder
from pytest_regional.harness.raised import causes

if TYPE_CHECKING:
    from pytest_regional.harness.devices.device import DeviceUnderTest
    from pytest_regional.harness.regional import Regional
    from pytest_regional.verify import Verified


class KernelRefutedError(RegionalError, AssertionError):
    """Kernels with a property that does not hold; for each the sizes, and the programs or indices that show it."""


def missing_solver() -> str:
    """Return what to do where z3, or Triton, without which no kernel is verified, is not installed; else empty."""
    for module, command in (("z3", "pip install 'pytest-regional[verify]'"), ("triton", "pip install triton")):
        if importlib.util.find_spec(module) is None:
            return f"needs {module}: {command}"
    return ""


def check_refuted(kernels: Sequence[Verified]) -> None:
    """Raise if a property of a kernel was refuted."""
    lines = []
    for kernel in kernels:
        sizes = ", ".join(f"{name}={value}" for name, value in kernel.config.items())
        title = f"{kernel.kernel} ({sizes})" if sizes else kernel.kernel
        lines += [
            f"{title}: {outcome.property}, with {outcome.counterexample or 'any sizes'}: {outcome.reason}"
            for outcome in kernel.outcomes
            if outcome.verdict == "refuted"
        ]
    if lines:
        raise KernelRefutedError("\n".join(lines))


def check_emulation(device: DeviceUnderTest) -> None:
    """Make sure that the GPU under test can be emulated, if it is to be; before anything is isolated or watched."""
    if device.profile is None:
        return
    with warnings.catch_warnings():
        # Importing torch's compilers warns of torch's own doings, which -W error would make a failure of the test.
        warnings.simplefilter("ignore")
        problem = _problem_of_self_test(device.profile)
    if problem is not None:
        raise problem


@contextlib.contextmanager
def emulating(regional: Regional) -> Iterator[None]:
    """Emulate the GPU under test while the context lasts; any other device needs no emulation.

    Where kernels are to be verified, what is found out about each is kept in the kernel store, for all processes.
    """
    profile = regional.device_under_test.profile
    if profile is None:
        yield
        return
    from pytest_regional.emulation import emulated

    with emulated(profile) as regional.emulation, contextlib.ExitStack() as stack:
        if regional._settings.verify is not None:
            from pytest_regional.verify import verifying

            store = KernelFiles(folder) if (folder := chosen_folder()) else None
            verified = verifying(regional.emulation, regional._settings.verify, store)
            regional.verification = stack.enter_context(verified)
        yield


_PASSED = b"the self-test of the emulated GPU passed"

SELF_TESTED = "PYTEST_REGIONAL_SELF_TESTED"
"""Environment variable that tells child processes for which GPU, torch and triton the self-test has passed."""


@functools.cache
def _problem_of_self_test(profile: str) -> Exception | None:
    """Run the self-test, once for this machine where there is a kernel store, else for this process and its children.

    Isolated as a test is, so that nothing of it is left: neither caches nor what Dynamo compiled.
    """
    identity = f"{profile} {torch.__version__} {private_module('triton').__version__}"
    if os.environ.get(SELF_TESTED) == identity:
        return None
    from pytest_regional.emulation import EmulationError, selftest

    parts = [profile, platform.platform(), platform.python_version(), version("numpy"), *code_keys()]
    key = hashlib.sha256("\0".join(["self-test", *parts, own_code("emulation")]).encode()).hexdigest()
    store = KernelFiles(folder) if (folder := chosen_folder()) else None
    if store is None or store.read(key) != _PASSED:
        try:
            with (
                tempfile.TemporaryDirectory(prefix="pytest-regional-self-test-") as scratch,
                isolated(Path(scratch), seed=1),
            ):
                selftest.run_self_test(profile)
        except EmulationError as error:
            return error
        if store is not None:
            store.keep(key, _PASSED)
    os.environ[SELF_TESTED] = identity
    return None


def unsupported_reason(regional: Regional, error: BaseException | None) -> str:
    """Return why a test is neither a pass nor a failure under emulation; empty where it is one of them.

    A test that failed counts as unsupported only when a refusal is among the causes of its failure, or named in its
    text; one that passed, as soon as anything was refused: it did not run what it says.
    """
    if regional.emulation is None:
        return ""
    refused = regional.emulation.unsupported
    if error is None:
        return refused[0] if refused else ""
    from pytest_regional.emulation.device_mock import REFUSED_BY_FRONT_END

    text = "\n".join(str(cause) for cause in causes(error))
    reasons = {reason: reason for reason in refused} | REFUSED_BY_FRONT_END
    return next((reason for fragment, reason in reasons.items() if fragment in text), "")


@contextlib.contextmanager
def skipping_unsupported(regional: Regional, skip: Callable[[str], object]) -> Iterator[None]:
    """Call ``skip`` with the reason, named, when the test inside asked the emulated GPU for what it cannot do."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        if not unsupported_reason(regional, error):
            raise
        failure = error
    reason = unsupported_reason(regional, failure)
    if reason:
        skip(f"{regional.device_under_test.name} cannot run it: {reason}")
