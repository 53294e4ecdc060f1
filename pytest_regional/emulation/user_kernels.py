"""Triton kernels that the user wrote, called from eager code on CPU tensors."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_regional._torch import triton_runtime
from pytest_regional.emulation.device import DeviceProfile
from pytest_regional.emulation.errors import UnsupportedByEmulationError
from pytest_regional.emulation.launch import launch_kernel

if TYPE_CHECKING:
    from pytest_regional.emulation.backend import Emulation


class DescribedDriver:
    """Stands in for Triton's driver: knows the target, and can neither load nor time a kernel."""

    binary_ext = "cubin"

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile

    def get_current_target(self) -> Any:
        """Return the target to compile for."""
        return triton_runtime.cuda_target(self._profile.major * 10 + self._profile.minor)

    def get_active_torch_device(self) -> Any:
        """Return the device that Triton takes tensors from."""
        import torch

        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        """Return the number of the only device."""
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        """Return the default stream."""
        return 0

    def get_device_interface(self) -> Any:
        """Return the module that stands for the device."""
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Any:
        """Refuse: nothing can be timed."""
        raise UnsupportedByEmulationError("timing a kernel: there is no GPU to run it on")


@contextlib.contextmanager
def user_kernels_interpreted(emulation: Emulation) -> Iterator[None]:
    """Interpret kernels that are started inside; of an autotuned kernel its first configuration is taken."""

    def run(original: Callable[..., Any]) -> Callable[..., Any]:
        def interpreted(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup:
                return original(function, *args, grid=grid, warmup=warmup, **kwargs)
            with emulation.noting_unsupported():
                emulation.note(_launched(emulation, function, args, grid, kwargs))
            return None

        return interpreted

    with (
        triton_runtime.active_driver(DescribedDriver(emulation.profile)),
        triton_runtime.replaced_method(triton_runtime.jit_function(), "run", run),
        triton_runtime.replaced_method(triton_runtime.autotuner(), "run", lambda original: _first_configuration),
    ):
        yield


def _launched(emulation: Emulation, function: Any, args: Any, grid: Any, kwargs: Any) -> Any:
    parameters = inspect.signature(function.fn).parameters
    known = {name: value for name, value in kwargs.items() if name in parameters}
    arguments = {**dict(zip(function.arg_names, args, strict=False)), **known}
    for name, parameter in parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            arguments.setdefault(name, parameter.default)
    size = grid(arguments) if callable(grid) else grid
    return launch_kernel(function, size, arguments, memory=emulation.memory)


def _first_configuration(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    """Start an autotuned kernel with its first configuration that fits; nothing can be timed."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    configurations = tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs
    chosen = configurations[0]
    settings = chosen.all_kwargs()
    if chosen.pre_hook is not None:
        chosen.pre_hook({**tuner.nargs, **kwargs, **settings})
    result = tuner.fn.run(*args, **kwargs, **settings)
    tuner.nargs = None
    return result
