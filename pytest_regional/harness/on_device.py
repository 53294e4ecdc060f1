"""What the harness knows of the device under test, and what a test may ask of it."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING

from pytest_regional.backends.capabilities import Support, supported, unsupported

from .device_requirements import unmet_requirement

if TYPE_CHECKING:
    from .device import DeviceUnderTest
    from .device_facts import DeviceFacts


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
    from .device_facts import facts_of

    return unmet_requirement(requirements, facts_of(device)) if requirements else ""


class OnDevice:
    """The part of the harness that is about its device."""

    device_under_test: DeviceUnderTest

    @property
    def device_facts(self) -> DeviceFacts:
        """Name, compute capability and memory of the device under test; those of its profile where it is emulated."""
        from .device_facts import facts_of

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
