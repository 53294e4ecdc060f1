"""While Inductor generates or loads code, PyTorch believes in a GPU that is only described."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from pytest_regional._torch import inductor, triton
from pytest_regional._torch.dynamo import guards_untimed
from pytest_regional._torch.patching import patched
from pytest_regional.emulation.device import DeviceProfile, UnsupportedByEmulationError
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
        return triton.gpu_target("cuda", self._profile.major * 10 + self._profile.minor, 32)

    def get_active_torch_device(self) -> Any:
        """Return the device that Triton takes tensors from."""
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        """Return the number of the only device."""
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        """Return the default stream."""
        return 0

    def get_device_interface(self) -> Any:
        """Return the module that stands for the device."""
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
            parameters = inspect.signature(function.fn).parameters
            known = {name: value for name, value in kwargs.items() if name in parameters}
            arguments = {**dict(zip(function.arg_names, args, strict=False)), **known}
            for name, parameter in parameters.items():
                if parameter.default is not inspect.Parameter.empty:
                    arguments.setdefault(name, parameter.default)
            with emulation.noting_unsupported():
                emulation.note(launch_kernel(function, grid, arguments, memory=emulation.memory))
            return None

        return interpreted

    with (
        triton.active_driver(DescribedDriver(emulation.profile)),
        patched(triton.LAUNCHES, {"jitted": run, "autotuned": lambda original: _first_configuration}),
    ):
        yield


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


def _returning(value: Any) -> Callable[[Any], Any]:
    """Return a replacement that answers ``value`` whatever it is asked."""
    return lambda original: lambda *args, **kwargs: value


def _first_choice(original: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing can be timed, so that one kernel has to do: what generated code computes does not depend on which."""

    def choose(cache: Any, name: str, choices: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        return original(cache, name, inductor.without_timing(choices), *args, **kwargs)

    return choose


class DeviceMock:
    """The mock of one described device, for the whole process, as long as one thread or more hold it.

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
        """Mock the device while the context lasts; several threads may hold it at once."""
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
            stack.callback(triton.clear_device_answers)
            stack.enter_context(triton.cuda_device_guard())
            stack.enter_context(triton.wrapper_code_for_cpu_tensors())
            replacements = self._replacements()
            makers = {name: replacements[name] for name in triton.DEVICE_POINTS}
            stack.enter_context(patched(triton.DEVICE_POINTS, makers))
            triton.clear_device_answers()
            self._stack = stack.pop_all()

    def _replacements(self) -> dict[str, Callable[[Any], Any]]:
        profile = self._profile
        stream = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0, device_type=1)
        nothing = _returning(None)
        return {
            "is_available": _returning(True),
            "device_count": _returning(1),
            "current_device": _returning(0),
            "accelerator_index": _returning(0),
            "properties": _returning(profile),
            "capability": _returning(profile.compute_capability),
            "device_context": _returning(contextlib.nullcontext()),
            "rng_state": lambda original: _generator_state,
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
            "compile_kernel": lambda original: (
                lambda _, name, source, *args, **kwargs: self._compile_kernel(name, source)
            ),
            "process_pool": _returning(False),
            "wake_pool": nothing,
            "choices": _first_choice,
            "triton_driver": nothing,
        }


def _generator_state(*args: Any, **kwargs: Any) -> Any:
    """Return a state of the CPU's generator, which draws for an emulated GPU: graphs that keep one assert its size."""
    return torch.zeros(torch.default_generator.get_state().numel(), dtype=torch.uint8)


REFUSED_BY_FRONT_END = {
    "For combine_mode='pointwise', all input tensors need to be on CUDA or XPU": (
        "associative_scan(combine_mode='pointwise'): before torch 2.15 its Python front end refuses CPU tensors, which "
        "those of an emulated GPU are"
    )
}
"""What PyTorch says when it refuses a program before there is a graph, and what that means under emulation."""


@contextlib.contextmanager
def programs_on_gpu(emulation: Emulation) -> Iterator[None]:
    """Let programs train flex attention, and call kernels of their own on CPU tensors, eager and compiled."""
    replacements = {
        "has_triton": _returning(True),
        "flex_device": _returning(None),
        "flex_options": _options_of_gpu,
    }
    with patched(triton.PROGRAM_POINTS, replacements), guards_untimed(), user_kernels_interpreted(emulation):
        yield


def _options_of_gpu(original: Callable[..., Any]) -> Callable[..., Any]:
    # Dynamo traces this function: it must stay plain.
    def options_of_gpu(
        query: Any, key: Any, value: Any, return_lse: bool, kernel_options: Any, return_aux: Any = None
    ) -> Any:
        options = original(query, key, value, return_lse, kernel_options, return_aux)
        if not options["OUTPUT_LOGSUMEXP"]:
            # PyTorch leaves it out on a CPU, where flex attention does not train.
            options["OUTPUT_LOGSUMEXP"] = torch.is_grad_enabled()
        return options

    return options_of_gpu
