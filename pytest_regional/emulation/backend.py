"""Every graph that Inductor compiles or loads, moved to the described GPU and run with interpreted kernels.

Emulation stands below all backends: it replaces the function through which every graph goes that Inductor compiles
(``_compile_fx_inner``), after AOTAutograd, whose C++ engine would ask for a real device.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional._torch import MissingTorchSymbolError, caches, config, triton
from pytest_regional._torch.aot_autograd import donated_inputs
from pytest_regional._torch.patching import Wrapper, wrapped
from pytest_regional.emulation.device import (
    DEFAULT_PROFILE,
    DeviceProfile,
    EmulationError,
    UnsupportedByEmulationError,
    profile_named,
)
from pytest_regional.emulation.device_mock import DeviceMock, programs_on_gpu
from pytest_regional.emulation.device_rewrite import OperatorsOnCpu, holds_undefined_values, retarget
from pytest_regional.emulation.launch import Launch, LaunchPlan, launch_inductor_kernel
from pytest_regional.emulation.memory import Memory


@dataclass(frozen=True)
class EmulatedKernel:
    """One kernel that generated code has loaded.

    Attributes:
        name: its name in the generated code.
        source: the Python module that Inductor wrote for it.
        tuner: Inductor's ``CachingAutotuner``, which holds the Triton function and its configurations.
    """

    name: str
    source: str
    tuner: Any


@dataclass(frozen=True)
class GeneratedGraph:
    """One graph for which code was generated or loaded.

    Attributes:
        call: the generated function that allocates buffers and launches kernels; it takes a list of inputs.
        inputs: the inputs that the graph was compiled with: fake tensors, and symbolic sizes with what guards say of
            them.
        donated: positions of inputs whose memory the code may use for other buffers.
        undefined: whether the graph itself has values that are not defined, as of ``torch.empty``.
        module: the graph, as it was before Inductor changed it.
    """

    call: Callable[[list[Any]], Any]
    inputs: Sequence[Any]
    donated: tuple[int, ...] = ()
    undefined: bool = False
    module: torch.fx.GraphModule | None = None


class Emulation:
    """What one :func:`emulated` context has seen.

    Attributes:
        profile: the described GPU.
        plan: how kernels are launched.
        memory: the buffers of generated code.
        unsupported: reasons for which something was refused, in order.
        observers: called with each :class:`GeneratedGraph` once its code is there.
    """

    def __init__(self, profile: DeviceProfile, plan: LaunchPlan) -> None:
        self.profile = profile
        self.plan = plan
        self.memory = Memory()
        self.unsupported: list[str] = []
        self.observers: list[Callable[[GeneratedGraph], object]] = []
        self.device_mock = DeviceMock(profile, self.memory.allocate, self._kernel)
        self._kernels: list[EmulatedKernel] = []
        self._launches: list[Launch] = []
        self._compiling = threading.local()

    @property
    def kernels(self) -> tuple[EmulatedKernel, ...]:
        """Kernels that were generated or loaded so far."""
        return tuple(self._kernels)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Launches so far."""
        return tuple(self._launches)

    def note(self, launch: Launch) -> None:
        """Remember a launch."""
        self._launches.append(launch)

    @contextlib.contextmanager
    def noting_unsupported(self) -> Iterator[None]:
        """Remember why something is refused inside, on its way out."""
        try:
            yield
        except UnsupportedByEmulationError as error:
            if str(error) not in self.unsupported:
                self.unsupported.append(str(error))
            raise

    def _kernel(self, name: str, source: str) -> Any:
        tuner = caches.load_source(source, name)
        self._kernels.append(EmulatedKernel(name, source, tuner))
        # On the instance: what was compiled under emulation must not look for a GPU when the context is gone.
        tuner.run = functools.partial(self._launch, tuner)
        return tuner

    def _launch(self, tuner: Any, *args: Any, stream: Any = None, benchmark_run: bool = False, **kwargs: Any) -> None:
        with self.noting_unsupported():
            self.note(launch_inductor_kernel(tuner, args, kwargs, memory=self.memory, plan=self.plan))

    # Seams

    def compile(
        self, original: Callable[..., Any], gm: Any, example_inputs: Sequence[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Stand in for ``_compile_fx_inner``."""
        with (
            self.noting_unsupported(),
            self.device_mock.held(),
            config.settings_for_emulation(),
            warnings.catch_warnings(),
        ):
            # They are about the described GPU and its compiler: under ``-W error`` they would fail the compile.
            warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
            warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION is unset")
            for setting, reason in REFUSED_SETTINGS.items():
                if kwargs.get(setting.rpartition(".")[2]) or getattr(config.inductor_config(), setting):
                    raise UnsupportedByEmulationError(reason.format(setting))
            undefined = holds_undefined_values(gm)
            given, (gm, example_inputs) = gm, retarget(gm, example_inputs)
            with self._compiling_graph(undefined):
                compiled = original(gm, example_inputs, *args, **kwargs)
                generated = getattr(self._compiling, "generated", None)
            if "async_compile.cpp" in getattr(compiled, "source_code", ""):
                # What would run as C++ says nothing about GPU code.
                raise UnsupportedByEmulationError(
                    "a graph of which Inductor compiled a part for the CPU: the emulation could not move it to the GPU"
                )
            if generated is not None:
                seen = GeneratedGraph(generated, example_inputs, donated_inputs(), undefined, given)
                for observer in self.observers:
                    observer(seen)
            return compiled

    @contextlib.contextmanager
    def _compiling_graph(self, undefined: bool) -> Iterator[None]:
        before = vars(self._compiling).copy()
        self._compiling.undefined = undefined
        try:
            yield
        finally:
            vars(self._compiling).clear()
            vars(self._compiling).update(before)

    def load(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Stand in for ``CompiledFxGraph.after_deserialization``."""
        with self.noting_unsupported(), self.device_mock.held():
            return original(*args, **kwargs)

    def finish(self, original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand in for ``CompiledFxGraph.post_compile``."""
        if "cuda" in graph.device_types:
            # Of a graph that a cache of whole results kept it is not known.
            undefined = getattr(self._compiling, "undefined", True)
            generated = self._compiling.generated = graph.current_callable

            def run(inputs: list[Any]) -> Any:
                with OperatorsOnCpu(self.memory, self.device_mock), self.memory.undefined_allowed(undefined):
                    return generated(inputs)

            run._boxed_call = True  # type: ignore[attr-defined]  # as on the function in place of which it stands
            graph.current_callable = run
        return original(graph, *args, **kwargs)


REFUSED_SETTINGS = {
    "triton.cudagraphs": "CUDA graphs ({}): nothing is recorded or replayed without a GPU",
    "triton.multi_kernel": "kernels timed against each other when they run ({}): nothing can be timed without a GPU",
    "benchmark_fusion": "fusions timed against each other ({}): nothing can be timed without a GPU",
    "benchmark_combo_kernel": "combined kernels timed against single ones ({}): nothing can be timed without a GPU",
    "cpp_wrapper": "wrappers in C++ ({}): they launch compiled kernels, and no driver is there to load them",
}


_active: list[Emulation] = []


def active() -> Emulation | None:
    """Return the emulation that is in force in this process."""
    return _active[-1] if _active else None


@contextlib.contextmanager
def emulated(profile: str | DeviceProfile = DEFAULT_PROFILE, plan: LaunchPlan | None = None) -> Iterator[Emulation]:
    """Compile what is compiled inside for a described GPU, and interpret its kernels; for the whole process.

    Tensors stay on the CPU. What was compiled inside keeps working afterwards. Inside another such context for the same
    GPU it is that context.

    Args:
        profile: the GPU, or its name: ``h100``, ``h200``, ``a100``, ``rtx4090``.
        plan: how kernels are launched.

    Raises:
        RegionalValueError: there is no such GPU.
        EmulationError: another GPU is being emulated.
        MissingTorchSymbolError: the installed torch or triton cannot be emulated; names what is missing.
    """
    described = profile_named(profile) if isinstance(profile, str) else profile
    current = active()
    if current is not None:
        if current.profile != described or plan not in (None, current.plan):
            raise EmulationError(
                f"{current.profile.name} is being emulated in this process, so {described.name} cannot be; leave the "
                f"one context before entering the other"
            )
        yield current
        return
    missing = triton.missing_points()
    if missing:
        raise MissingTorchSymbolError(
            f"a GPU cannot be emulated with torch {torch.__version__}, which has no {', '.join(missing)}; "
            f"pytest-regional emulates with torch 2.11 to 2.15"
        )
    emulation = Emulation(described, plan or LaunchPlan())
    wrappers: dict[str, Wrapper] = {"compile": emulation.compile, "load": emulation.load, "finish": emulation.finish}
    with contextlib.ExitStack() as stack:
        triton.clear_device_answers()
        stack.callback(triton.clear_device_answers)
        stack.enter_context(config.cache_tagged(f"pytest-regional-emulated-{described.key}"))
        stack.enter_context(programs_on_gpu(emulation))
        stack.enter_context(wrapped(triton.OUTPUT_POINTS, wrappers))
        _active.append(emulation)
        stack.callback(_active.remove, emulation)
        yield emulation
