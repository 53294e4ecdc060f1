"""Compiles a program again and again, as if for the first time, and measures each compile."""

from __future__ import annotations

import contextlib
import gc
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_regional._errors import RegionalValueError
from pytest_regional._text import unknown_name
from pytest_regional._torch.compile_phases import CLOCK_NAMES, PhaseClock, unmeasured
from pytest_regional.harness import isolation
from pytest_regional.harness.blame.experiments import Change
from pytest_regional.harness.compile_times.record import CompileTimes
from pytest_regional.harness.compiling import annotation_errors_alone, backpropagate
from pytest_regional.harness.kernel_store import nothing_read
from pytest_regional.harness.observe.listeners import CompileListener
from pytest_regional.harness.parity.inputs import copy_inputs

if TYPE_CHECKING:
    from pytest_regional.backends.spec import BackendSpec
    from pytest_regional.harness.observe.observer import Observer
    from pytest_regional.harness.regional import Regional


def _cpu_seconds() -> float:
    """Return the CPU time of this process, all its threads, and the processes that ended in it: compilers."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


#: What reads each of :data:`CLOCK_NAMES`, in seconds.
CLOCKS: dict[str, Callable[[], float]] = dict(zip(CLOCK_NAMES, (time.perf_counter, _cpu_seconds), strict=True))


def checked_clock(name: str) -> str:
    """Return ``name``.

    Raises:
        RegionalValueError: it is not among :data:`CLOCKS`.
    """
    if name not in CLOCKS:
        raise RegionalValueError(unknown_name("clock", name, CLOCKS))
    return name


class PhaseListener(CompileListener):
    """Says to a clock which graph or region compiles, while it is among ``Observer.listeners``.

    Attributes:
        clock: which has to run. It counts nothing while the observer does not.
    """

    def __init__(self, observer: Observer, now: Callable[[], float] = time.perf_counter) -> None:
        self.clock = PhaseClock(now, lambda: self in observer.listeners)
        self._observer = observer

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Count what the backend's compiler does with a graph as its own, up to the steps that PyTorch logs."""
        with self.clock.inside("other", f"the {kind} graph"):
            yield _ignore

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Count what Inductor does with a region as that region's."""
        with self.clock.inside("inductor", str(self._observer.innermost())):
            yield _ignore


def _ignore(result: Any) -> None:
    """Do nothing with what a compile returned."""


@dataclass
class Measured:
    """One program with one backend, which is compiled as often as needed.

    Attributes:
        regional: the harness, inside of its context. Its counters and records stay as they are.
        fn: the program.
        inputs: its arguments; each compile gets copies.
        kwargs: its keyword arguments.
        backward: as :meth:`Regional.run`.
        spec: the backend.
        warm: whether caches on disk keep what the compile before made.
        clock: what is measured, see :data:`CLOCKS`.
        kernels_kept: whether kernels may come from the store of the machine, in place of the C++ or Triton compiler.
        compiles: what was measured.
    """

    regional: Regional
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backward: Any
    spec: BackendSpec
    warm: bool = False
    clock: str = "cpu"
    kernels_kept: bool = False
    compiles: list[Mapping[tuple[str, str], float]] = field(default_factory=list)
    _made: int = 0

    @property
    def times(self) -> CompileTimes:
        """What was measured so far."""
        named = getattr(self.fn, "__qualname__", "") or type(self.fn).__qualname__
        return CompileTimes(self.spec.name, named, tuple(self.compiles), tuple(sorted(unmeasured())), self.clock)

    def warm_up(self) -> None:
        """Compile once without measuring: the first of a process imports modules, the first of all fills caches."""
        self._compile()

    def measure(self) -> None:
        """Compile once, and add what each phase took."""
        self.compiles.append(dict(self._compile()))

    def call(self) -> None:
        """Compile and call it as :meth:`Regional.run` does, with counters and records."""
        copied = copy_inputs(self.inputs, kwargs=self.kwargs)
        compiled = self.regional.compile(self.fn)
        with annotation_errors_alone():
            output = compiled(*copied.arguments, **copied.keywords)
        backpropagate(output, self.backward, seed=self.regional.seed)

    def _compile(self) -> Mapping[tuple[str, str], float]:
        regional = self.regional
        listener = PhaseListener(regional._observer, CLOCKS[self.clock])
        with (
            self._folder(),
            isolation.random_state_kept(),
            regional._observer.from_zero(listener),
            regional._changed(Change("compile again", instead=self.spec)),
            contextlib.nullcontext() if self.kernels_kept else nothing_read(),
        ):
            regional.restart()
            # What earlier compiles left behind is not this one's to collect.
            gc.collect()
            with listener.clock.running():
                self.call()
        return listener.clock.seconds

    @contextlib.contextmanager
    def _folder(self) -> Iterator[None]:
        """Have an empty cache directory, or that of the compile before."""
        self._made += 0 if self.warm else 1
        folder = self.regional.folder / "compile-times" / f"{id(self)}-{self._made}"
        with isolation.cache_folder(folder):
            yield
        if not self.warm:
            shutil.rmtree(folder, ignore_errors=True)


def measure_in_turns(sides: Sequence[Measured], repeat: int) -> None:
    """Compile each ``repeat`` times; who is first changes, so that neither has the cooler processor."""
    for side in sides:
        side.warm_up()
    for number in range(repeat):
        for side in reversed(sides) if number % 2 else sides:
            side.measure()
