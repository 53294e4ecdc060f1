"""Devices under test: names, checked without torch, and what stands behind them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_regional._errors import RegionalError, RegionalRuntimeError
from pytest_regional._text import unknown_name
from pytest_regional.emulation.device import DEFAULT_PROFILE, PROFILES

if TYPE_CHECKING:
    import torch

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


class DeviceError(RegionalError, ValueError):
    """A device that does not exist, or that cannot be used here; the message says which and why."""


@dataclass(frozen=True)
class DeviceUnderTest:
    """What a device name stands for on this machine.

    Attributes:
        name: as it was asked for, ``auto`` settled.
        kind: ``"cpu"``, ``"cuda"`` or ``"cuda-emulated"``.
        profile: the GPU that is emulated, else ``None``.
    """

    name: str
    kind: str
    profile: str | None = None

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
    """Return ``name`` when it is one of :data:`DEVICES`, else raise :class:`DeviceError`."""
    if name not in DEVICES:
        raise DeviceError(unknown_name("device", name, DEVICES, ALIASES))
    return name


def kind_of_device(name: str) -> str:
    """Return the one of :data:`KINDS` that a device's name stands for; PyTorch is asked for ``auto`` alone."""
    kind = name.partition(":")[0]
    return device_under_test(name).kind if kind == "auto" else kind


def device_under_test(name: str) -> DeviceUnderTest:
    """Return the device to test on; ``auto`` is CUDA where it is usable, else the CPU.

    Raises:
        DeviceError: an unknown name, or CUDA where there is none.
    """
    kind, _, profile = check_device_name(name).partition(":")
    if kind == EMULATED:
        return DeviceUnderTest(name, kind, profile or DEFAULT_PROFILE)
    import torch

    usable = torch.cuda.is_available()
    if kind == "cuda" and not usable:
        raise DeviceError(
            f"device 'cuda' was asked for, but torch {torch.__version__} finds no usable GPU here; "
            f"{EMULATED!r} runs GPU code without one"
        )
    if kind == "auto":
        kind = "cuda" if usable else "cpu"
    return DeviceUnderTest(kind, kind)


def usable_device(name: str) -> torch.device:
    """Return where tensors of a test on device ``name`` live.

    Raises:
        DeviceError: as :func:`device_under_test`.
    """
    return device_under_test(name).torch_device


@dataclass
class _Loss:
    """Why the GPU is lost to this process; empty while it is not. A lost context never comes back."""

    reason: str = ""


_loss = _Loss()


def lost() -> str:
    """Return why the GPU is lost to this process, or an empty string."""
    return _loss.reason


@contextlib.contextmanager
def gpu_isolated() -> Iterator[None]:
    """Give what runs inside the GPU as it is, and put back what it leaves: nothing where no GPU has been used.

    At the end all of its work is waited for: what goes wrong on the GPU goes wrong here and not in a later test.
    Inside, cuDNN computes float32 in float32 (:func:`_float32_in_cudnn`).

    Raises:
        RegionalRuntimeError: an error such as a failed ``device_assert`` ended the GPU context of this process.
    """
    import torch

    before = _state() if torch.cuda.is_initialized() else None
    try:
        with _float32_in_cudnn() if torch.cuda.is_available() else contextlib.nullcontext():
            yield
    finally:
        if torch.cuda.is_initialized():
            _finish(before)


@contextlib.contextmanager
def _float32_in_cudnn() -> Iterator[None]:
    """Switch off ``torch.backends.cudnn.allow_tf32``, which is on by default, as PyTorch does for its tests.

    With it, cuDNN chooses between float32 and TF32 for each convolution, by its size and layout: eager may get one and
    the compiled program the other, a thousand times as far from the truth.
    """
    import torch

    flags = torch.backends.cudnn
    try:
        before = flags.allow_tf32
    except RuntimeError:  # convolutions and recurrent layers differ: somebody chose
        yield
        return
    flags.allow_tf32 = False
    try:
        yield
    finally:
        flags.allow_tf32 = before


def _finish(before: _State | None) -> None:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        culprit = os.environ.get("PYTEST_CURRENT_TEST", "this process").partition(" (")[0]
        _loss.reason = _loss.reason or f"{culprit} left the GPU with an error: {first}"
        raise RegionalRuntimeError(
            f"{_loss.reason}. The context does not recover: tests on the GPU fail in this process from here on. Run "
            f"the test alone, with CUDA_LAUNCH_BLOCKING=1 to see where"
        ) from error
    if before is not None:
        before.restore()
    torch.cuda.empty_cache()


@dataclass(frozen=True)
class _State:
    """The GPU's part of the state that a test may leave changed."""

    device: int
    streams: tuple[Any, ...]
    generators: tuple[Any, ...]

    def restore(self) -> None:
        import torch

        for stream in self.streams:
            torch.cuda.set_stream(stream)
        torch.cuda.set_device(self.device)
        torch.cuda.set_rng_state_all(self.generators)


def _state() -> _State:
    import torch

    streams = tuple(torch.cuda.current_stream(index) for index in range(torch.cuda.device_count()))
    return _State(torch.cuda.current_device(), streams, tuple(torch.cuda.get_rng_state_all()))
