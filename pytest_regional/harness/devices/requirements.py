"""What a test needs of its device: ``device_requires=("compute_capability>=8.9", "memory>=16GiB", "fp8")``.

Spelling is checked at collection, without torch; the device is asked when the test runs.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_regional._errors import RegionalValueError
from pytest_regional._text import unknown_name

if TYPE_CHECKING:
    from pytest_regional.harness.devices.device import DeviceUnderTest

MIB = 1 << 20


@dataclass(frozen=True)
class DeviceFacts:
    """A device, as requirements see it.

    Attributes:
        name: such as ``NVIDIA H200``.
        kind: as :attr:`DeviceUnderTest.kind`.
        compute_capability: ``(major, minor)``, or ``None`` for a CPU.
        memory: in bytes, what tensors may fill; an emulated GPU keeps its tensors in this machine's memory.
        devices: how many such devices there are.
    """

    name: str
    kind: str
    compute_capability: tuple[int, int] | None
    memory: int
    devices: int = 1

    @property
    def is_gpu(self) -> bool:
        """Whether GPU code is under test, emulated or not."""
        return self.compute_capability is not None


def facts_of(device: DeviceUnderTest) -> DeviceFacts:
    """Return what ``device`` has."""
    if device.kind == "cuda":
        return _cuda()
    if device.profile is not None:
        return _emulated(device)
    return DeviceFacts("the CPU", device.kind, None, _host_memory())


def _cuda() -> DeviceFacts:
    import torch

    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    count = torch.cuda.device_count()
    return DeviceFacts(found.name, "cuda", (found.major, found.minor), found.total_memory, count)


def _emulated(device: DeviceUnderTest) -> DeviceFacts:
    from pytest_regional.emulation.device import PROFILES

    profile = PROFILES[device.profile or ""]
    memory = min(profile.total_memory, _host_memory())
    return DeviceFacts(f"{profile.name} (emulated)", device.kind, (profile.major, profile.minor), memory)


def _host_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _from_capability(*least: int) -> Callable[[DeviceFacts], bool]:
    return lambda facts: facts.compute_capability is not None and facts.compute_capability >= least


def _on_cpu_or_from(*least: int) -> Callable[[DeviceFacts], bool]:
    return lambda facts: facts.compute_capability is None or facts.compute_capability >= least


FEATURES: dict[str, tuple[str, Callable[[DeviceFacts], bool]]] = {
    "cuda": ("GPU code is generated: on a GPU or for an emulated one", lambda facts: facts.is_gpu),
    "real_cuda": ("a real GPU, not an emulated one", lambda facts: facts.kind == "cuda"),
    "bf16": ("arithmetic in bfloat16", _on_cpu_or_from(8, 0)),
    "fp8": ("casts to and from torch.float8_e4m3fn in generated code", _on_cpu_or_from(8, 9)),
    "flex_attention_backward": ("the backward of flex_attention, which torch refuses on CPU", _from_capability(7, 0)),
    "tensor_descriptor": ("bulk copies through tensor descriptors (TMA)", _from_capability(9, 0)),
    "tf32": ("matrix products in TensorFloat-32", lambda facts: facts.kind == "cuda" and _from_capability(8, 0)(facts)),
    "cudagraphs": ("CUDA graphs", lambda facts: facts.kind == "cuda"),
    "streams": ("concurrent CUDA streams", lambda facts: facts.kind == "cuda"),
}
"""Names, what each says, and whether a device has it."""

QUANTITIES = ("compute_capability", "memory", "devices")
_EXAMPLES = {"compute_capability": "compute_capability>=8.9", "memory": "memory>=16GiB", "devices": "devices>=2"}
_COMPARISONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq, ">": operator.gt, "<": operator.lt}
_UNITS = {"MiB": 1 << 20, "GiB": 1 << 30, "MB": 10**6, "GB": 10**9}
_COMPARISON = re.compile(r"(\w+)\s*(>=|<=|==|>|<)\s*(\S+)")


@dataclass(frozen=True)
class DeviceRequirement:
    """One thing that a test needs of its device.

    Attributes:
        text: as it was written.
        quantity: what is compared, or the feature's name.
        comparison: ``">="`` and so on; empty for a feature.
        value: what is compared with: a version, bytes, or a count.
    """

    text: str
    quantity: str
    comparison: str = ""
    value: tuple[int, ...] = ()

    def unmet(self, facts: DeviceFacts) -> str:
        """Return why a device does not meet the requirement, or an empty string."""
        if not self.comparison:
            return "" if FEATURES[self.quantity][1](facts) else f"needs {self.text}, which {facts.name} has not"
        present = _present(self.quantity, facts)
        if present is None:
            return f"needs {self.text}, {facts.name} has no {self.quantity}"
        if _COMPARISONS[self.comparison](present, self.value):
            return ""
        return f"needs {self.text}, {facts.name} has {_shown(self.quantity, present)}"


def parse_requirement(text: str) -> DeviceRequirement:
    """Read one requirement.

    Raises:
        RegionalValueError: an unknown name, or a value that cannot be compared with that fact.
    """
    found = _COMPARISON.fullmatch(re.sub(r"\s+", "", text))
    if found is None:
        compared = next((quantity for quantity in QUANTITIES if text.strip().startswith(quantity)), "")
        if compared:
            signs = ", ".join(_COMPARISONS)
            raise RegionalValueError(
                f"device requirement {text!r}: {compared} is compared with {signs}: {_EXAMPLES[compared]}"
            )
        if text not in FEATURES:
            raise RegionalValueError(_unknown(text))
        return DeviceRequirement(text, text)
    quantity, comparison, value = found.groups()
    if quantity not in QUANTITIES:
        raise RegionalValueError(_unknown(quantity))
    return DeviceRequirement(text, quantity, comparison, _value(text, quantity, value))


def unmet_requirement(requirements: Iterable[str], facts: DeviceFacts) -> str:
    """Return the reason of the first requirement that a device does not meet, or an empty string."""
    return next((reason for text in requirements if (reason := parse_requirement(text).unmet(facts))), "")


def _unknown(name: str) -> str:
    return (
        f"{unknown_name('device requirement', name, (*FEATURES, *QUANTITIES))} {', '.join(QUANTITIES)} are compared: "
        f"{', '.join(_EXAMPLES.values())}."
    )


def _value(text: str, quantity: str, value: str) -> tuple[int, ...]:
    if quantity == "compute_capability" and (version := re.fullmatch(r"(\d+)\.(\d+)", value)):
        return int(version[1]), int(version[2])
    if quantity == "memory" and (size := re.fullmatch(rf"(\d+)\s*({'|'.join(_UNITS)})", value)):
        return (int(size[1]) * _UNITS[size[2]],)
    if quantity == "devices" and value.isdigit():
        return (int(value),)
    raise RegionalValueError(
        f"device requirement {text!r}: {value!r} is not a valid value for {quantity}, as in {_EXAMPLES[quantity]}"
    )


def _present(quantity: str, facts: DeviceFacts) -> tuple[int, ...] | None:
    if quantity == "compute_capability":
        return facts.compute_capability
    return (facts.memory,) if quantity == "memory" else (facts.devices,)


def _shown(quantity: str, value: tuple[int, ...]) -> str:
    if quantity == "memory":
        return f"{value[0] / _UNITS['GiB']:.1f} GiB"
    return ".".join(map(str, value))
