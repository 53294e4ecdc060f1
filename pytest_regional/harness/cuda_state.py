"""What a test may disturb on a GPU: generators, current device and stream, memory, and the GPU's context itself."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


class LostGpuError(RuntimeError):
    """The GPU context of this process is gone; nothing on the GPU can run in it any more."""


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

    Raises:
        LostGpuError: an error such as a failed ``device_assert`` ended the GPU context of this process.
    """
    import torch

    before = _state() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        if torch.cuda.is_initialized():
            _finish(before)


def _finish(before: _State | None) -> None:
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        culprit = os.environ.get("PYTEST_CURRENT_TEST", "this process").partition(" (")[0]
        _loss.reason = _loss.reason or f"{culprit} left the GPU with an error: {first}"
        raise LostGpuError(
            f"{_loss.reason}. The context does not recover: tests on the GPU fail in this process from here on. Run "
            f"the test alone, with CUDA_LAUNCH_BLOCKING=1 to see where"
        ) from error
    if before is not None:
        before.put_back()
    torch.cuda.empty_cache()


@dataclass(frozen=True)
class _State:
    """The GPU's part of the state that a test may leave changed."""

    device: int
    streams: tuple[Any, ...]
    generators: tuple[Any, ...]

    def put_back(self) -> None:
        import torch

        for stream in self.streams:
            torch.cuda.set_stream(stream)
        torch.cuda.set_device(self.device)
        torch.cuda.set_rng_state_all(self.generators)


def _state() -> _State:
    import torch

    streams = tuple(torch.cuda.current_stream(index) for index in range(torch.cuda.device_count()))
    return _State(torch.cuda.current_device(), streams, tuple(torch.cuda.get_rng_state_all()))
