"""While Inductor generates or loads code, PyTorch believes in a GPU that is only described."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

from pytest_regional._torch import emulated_device as places
from pytest_regional.emulation.device import DeviceProfile


def _returning(value: Any) -> Callable[[Any], Any]:
    """Return a replacement that answers ``value`` whatever it is asked."""
    return lambda original: lambda *args, **kwargs: value


def _first_choice(original: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing can be timed, so that one kernel has to do: what generated code computes does not depend on which."""

    def choose(cache: Any, name: str, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        return original(cache, name, places.without_timing(choices), *args, **kwargs)

    return choose


class Pretence:
    """The pretence of one described device; holds for the whole process, as long as anybody holds it.

    Args:
        profile: the device.
        allocate: ``allocate(size, stride, dtype)`` makes the buffers of generated code.
        compile_kernel: ``compile_kernel(name, source)`` makes a kernel that can be launched.
    """

    def __init__(
        self, profile: DeviceProfile, allocate: Callable[..., Any], compile_kernel: Callable[[str, str], Any]
    ) -> None:
        self._profile = profile
        self._allocate = allocate
        self._compile_kernel = compile_kernel
        self._lock = threading.RLock()
        self._holders = 0
        self._stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Pretend while the context lasts; threads may hold at once."""
        with self._lock:
            if not self._holders:
                self._begin()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if not self._holders:
                    self._stack.close()

    def _begin(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(places.forget_device_answers)
            stack.enter_context(places.cuda_device_guard())
            stack.enter_context(places.wrapper_code_for_cpu_tensors())
            stack.enter_context(places.replaced(places.DEVICE_PLACES, self._replacements()))
            places.forget_device_answers()
            self._stack = stack.pop_all()

    def _replacements(self) -> dict[str, Callable[[Any], Any]]:
        profile = self._profile
        stream = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0, device_type=1)
        nothing = _returning(None)
        return {
            "is_available": _returning(True),
            "device_count": _returning(1),
            "current_device": _returning(0),
            "properties": _returning(profile),
            "capability": _returning(profile.compute_capability),
            "device_context": lambda original: _no_context,
            "rng_state": lambda original: _no_generator_state,
            "set_rng_state": nothing,
            "current_stream": _returning(stream),
            "synchronize": nothing,
            "capturing": _returning(False),
            "interface_properties": _returning(profile),
            "worker_properties": _returning(profile),
            "interface_capability": _returning(profile.major * 10 + profile.minor),
            "gpu_context": nothing,
            "empty_strided": lambda original: self._allocate,
            "constants": lambda original: lambda graph, name, device: original(graph, name, None),
            "compile_kernel": lambda original: self._compile,
            "process_pool": _returning(False),
            "wake_pool": nothing,
            "choices": _first_choice,
            "triton_driver": nothing,
        }

    def _compile(self, name: str, source: str, *args: Any, **kwargs: Any) -> Any:
        return self._compile_kernel(name, source)

    @property
    def settings(self) -> AbstractContextManager[Any]:
        """Inductor's settings to generate code with."""
        return places.inductor_settings(places.settings_for_emulation())


@contextlib.contextmanager
def _no_context(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _no_generator_state(*args: Any, **kwargs: Any) -> Any:
    import torch

    return torch.zeros(16, dtype=torch.uint8)
