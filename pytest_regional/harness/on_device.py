"""What the harness knows of the device under test, and what a test may ask of it."""

from __future__ import annotations

import unittest
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_regional.backends.capabilities import Support, supported, unsupported
from pytest_regional.emulation.compile_check.targets import DEFAULT_ARCHITECTURES
from pytest_regional.harness.device_requirements import unmet_requirement

if TYPE_CHECKING:
    from pytest_regional.emulation import Emulation
    from pytest_regional.harness.device import DeviceUnderTest
    from pytest_regional.harness.device_facts import DeviceFacts
    from pytest_regional.harness.kernel_check import KernelReport
    from pytest_regional.harness.record import CompileRecord


def device_limit(device: DeviceUnderTest, capability: str) -> Support:
    """Return whether ``device`` lets a backend have ``capability``: most do not depend on the device."""
    if capability != "flex_attention_backward" or device.kind != "cpu":
        return supported()
    return unsupported("torch refuses the backward of flex_attention on CPU in its Python front end")


def missing_on(device: DeviceUnderTest, requirements: tuple[str, ...]) -> str:
    """Return why ``device`` does not do for a test that needs ``requirements``, or an empty string.

    Raises:
        DeviceRequirementError: one that says nothing.
    """
    from pytest_regional.harness.device_facts import facts_of

    return unmet_requirement(requirements, facts_of(device)) if requirements else ""


class OnDevice:
    """The part of the harness that is about its device.

    Attributes:
        device_under_test: the device by name; of an emulated GPU, its profile.
        emulation: what emulation has seen so far; ``None`` where nothing is emulated.
    """

    device_under_test: DeviceUnderTest
    emulation: Emulation | None = None

    @property
    def device_facts(self) -> DeviceFacts:
        """Name, compute capability and memory of the device under test; those of its profile where it is emulated."""
        from pytest_regional.harness.device_facts import facts_of

        return facts_of(self.device_under_test)

    def require_device(self, *requirements: str) -> None:
        """Skip the test unless the device has what ``requirements`` say: ``compute_capability>=8.9``, ``fp8``.

        Raises:
            unittest.SkipTest: pytest's skip, too; the reason says what is needed and what there is.
            DeviceRequirementError: a requirement that says nothing.
        """
        reason = missing_on(self.device_under_test, requirements)
        if reason:
            raise unittest.SkipTest(reason)

    def assert_kernels_compile(
        self,
        record: CompileRecord,
        arch: Sequence[str] | str = DEFAULT_ARCHITECTURES,
        *,
        configs: str = "first",
        timeout: float = 300.0,
    ) -> KernelReport:
        """Compile the Triton kernels of ``record``; no GPU is needed; see ``docs/kernel-compile-check.md``.

        Arguments and errors are those of :func:`pytest_regional.harness.kernel_check.assert_kernels_compile`.
        """
        from pytest_regional.harness.kernel_check import assert_kernels_compile

        __tracebackhide__ = True
        return assert_kernels_compile(record, arch, configs=configs, timeout=timeout)

    def assert_no_spills(
        self, record: CompileRecord, arch: Sequence[str] | str = DEFAULT_ARCHITECTURES
    ) -> KernelReport:
        """Assert that the kernels of ``record`` compile, and that all find registers enough."""
        __tracebackhide__ = True
        return self.assert_kernels_compile(record, arch).assert_no_spills()

    def assert_shared_memory(
        self, record: CompileRecord, *, at_most: int, arch: Sequence[str] | str = DEFAULT_ARCHITECTURES
    ) -> KernelReport:
        """Assert that the kernels of ``record`` compile, to programs that share at most so many bytes of memory."""
        __tracebackhide__ = True
        return self.assert_kernels_compile(record, arch).assert_shared_memory(at_most=at_most)
