"""Devices under test: names, checked without torch, and what stands behind them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name

try:
    from pytest_regional.emulation.device import DEFAULT_PROFILE, PROFILES
except ModuleNotFoundError:  # emulation is an optional part
    DEFAULT_PROFILE, PROFILES = "", {}

if TYPE_CHECKING:
    import torch

__all__ = ["DEFAULT_PROFILE", "PROFILES"]

EMULATED = "cuda-emulated"
KINDS = ("cpu", "cuda", EMULATED)
DEVICES = ("auto", *KINDS, *(f"{EMULATED}:{profile}" for profile in PROFILES))

#: What people call a device elsewhere. The spelling of "gpu" is next to that of "cpu", its meaning is not.
ALIASES = {
    "gpu": "cuda",
    "cuda:0": "cuda",
    "nvidia": "cuda",
    "host": "cpu",
    "emulated": EMULATED,
    "gpu-emulated": EMULATED,
    "emulated-cuda": EMULATED,
    **{profile: f"{EMULATED}:{profile}" for profile in PROFILES},
}


@dataclass(frozen=True)
class DeviceUnderTest:
    """What a device name stands for on this machine."""

    name: str  # as it was asked for, ``auto`` settled
    kind: str  # ``"cpu"``, ``"cuda"`` or ``"cuda-emulated"``
    profile: str | None = None  # the GPU that is emulated, else ``None``

    @property
    def is_emulated(self) -> bool:
        """Whether GPU code is generated for a described GPU and interpreted on CPU tensors."""
        return self.kind == EMULATED

    @property
    def torch_device(self) -> torch.device:
        """Where tensors of a test live, as they name it themselves: an emulated GPU's are CPU tensors."""
        import torch

        return torch.device("cuda", 0) if self.kind == "cuda" else torch.device("cpu")


def check_device_name(name: str) -> str:
    """Return ``name`` when it is one of :data:`DEVICES`, else raise :class:`RegionalValueError`."""
    if name not in DEVICES:
        raise RegionalValueError(unknown_name("device", name, DEVICES, ALIASES))
    return name


def kind_of_device(name: str) -> str:
    """Return the one of :data:`KINDS` that a device's name stands for; PyTorch is asked for ``auto`` alone."""
    kind = name.partition(":")[0]
    return device_under_test(name).kind if kind == "auto" else kind


def device_under_test(name: str) -> DeviceUnderTest:
    """Return the device to test on; ``auto`` is CUDA where it is usable, else the CPU."""
    kind, _, profile = check_device_name(name).partition(":")
    if kind == EMULATED:
        if not PROFILES:
            raise RegionalValueError(f"device {name!r} needs the package pytest_regional.emulation, which is not here")
        return DeviceUnderTest(name, kind, profile or DEFAULT_PROFILE)
    import torch

    usable = torch.cuda.is_available()
    if kind == "cuda" and not usable:
        raise RegionalValueError(
            f"device 'cuda' was asked for, but torch {torch.__version__} finds no usable GPU here; "
            f"{EMULATED!r} runs GPU code without one"
        )
    if kind == "auto":
        kind = "cuda" if usable else "cpu"
    return DeviceUnderTest(kind, kind)


@dataclass(frozen=True)
class DeviceFacts:
    """A device, as requirements see it."""

    name: str  # such as ``NVIDIA H200``
    kind: str  # as :attr:`DeviceUnderTest.kind`
    compute_capability: tuple[int, int] | None  # ``(major, minor)``, or ``None`` for a CPU
    memory: int  # in bytes, what tensors may fill; an emulated GPU keeps its tensors in this machine's memory
    devices: int = 1  # how many such devices there are

    @property
    def is_gpu(self) -> bool:
        """Whether GPU code is under test, emulated or not."""
        return self.compute_capability is not None


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


@dataclass(frozen=True)
class DeviceRequirement:
    """One thing that a test needs of its device, with the ``text`` of it: a feature, or a quantity and its comparison.

    ``value`` is what the quantity is compared with: a version, bytes, or a count.
    """

    text: str
    quantity: str
    comparison: str = ""
    value: tuple[int, ...] = ()

    def unmet(self, facts: DeviceFacts) -> str:
        """Return why a device does not meet the requirement, or an empty string."""
        if not self.comparison:
            return "" if FEATURES[self.quantity][1](facts) else f"needs {self.text}, which {facts.name} has not"
        present: tuple[int, ...] | None = facts.compute_capability
        if self.quantity != "compute_capability":
            present = (facts.memory if self.quantity == "memory" else facts.devices,)
        if present is None:
            return f"needs {self.text}, {facts.name} has no {self.quantity}"
        if _COMPARISONS[self.comparison](present, self.value):
            return ""
        shown = f"{present[0] / _UNITS['GiB']:.1f} GiB" if self.quantity == "memory" else ".".join(map(str, present))
        return f"needs {self.text}, {facts.name} has {shown}"


def parse_requirement(text: str) -> DeviceRequirement:
    """Read one requirement."""
    found = re.fullmatch(r"(\w+)(>=|<=|==|>|<)(\S+)", re.sub(r"\s+", "", text))
    quantity, comparison, value = found.groups() if found else (text, "", "")
    compared = next((quantity for quantity in QUANTITIES if text.strip().startswith(quantity)), "")
    if compared and not comparison:
        signs = ", ".join(_COMPARISONS)
        raise RegionalValueError(
            f"device requirement {text!r}: {compared} is compared with {signs}: {_EXAMPLES[compared]}"
        )
    if quantity not in (QUANTITIES if comparison else FEATURES):
        raise RegionalValueError(
            f"{unknown_name('device requirement', quantity, (*FEATURES, *QUANTITIES))} {', '.join(QUANTITIES)} are "
            f"compared: {', '.join(_EXAMPLES.values())}."
        )
    return DeviceRequirement(text, quantity, comparison, _value(text, quantity, value) if comparison else ())


def unmet_requirement(requirements: Iterable[str], facts: DeviceFacts) -> str:
    """Return the reason of the first requirement that a device does not meet, or an empty string."""
    return next((reason for text in requirements if (reason := parse_requirement(text).unmet(facts))), "")


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
