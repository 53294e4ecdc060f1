"""What a test calls: ``compile_times``, and ``assert_compile_time``, which limits a ratio of compile times."""

from __future__ import annotations

import contextlib
import gc
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, cast

from pytest_regional._base.errors import RegionalError, RegionalRuntimeError, RegionalValueError
from pytest_regional._base.processes import cpu_seconds
from pytest_regional._base.text import plural, unknown_name
from pytest_regional._torch.compile_phases import CLOCK_NAMES, PHASES, TOTAL, PhaseClock, checked_phase, unmeasured
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness import isolation
from pytest_regional.harness.blame.culprit import Change
from pytest_regional.harness.compiling import annotation_errors_alone, backpropagate, refuse_no_program
from pytest_regional.harness.kernel_store import nothing_read
from pytest_regional.harness.observe.listeners import CompileListener
from pytest_regional.harness.parity.inputs import copy_inputs

if TYPE_CHECKING:
    from pytest_regional.harness.observe.observer import Observer
    from pytest_regional.harness.regional import Regional


#: What reads each of :data:`CLOCK_NAMES`, in seconds.
CLOCKS: dict[str, Callable[[], float]] = dict(zip(CLOCK_NAMES, (time.perf_counter, cpu_seconds), strict=True))


class PhaseListener(CompileListener):
    """Says to a running clock which graph or region compiles; it counts nothing while the observer does not."""

    def __init__(self, observer: Observer, now: Callable[[], float] = time.perf_counter) -> None:
        self.clock = PhaseClock(now, lambda: self in observer.listeners)
        self.observer = observer

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Count what the backend's compiler does with a graph as its own, up to the steps that PyTorch logs."""
        with self.clock.inside("other", f"the {kind} graph"):
            yield lambda result: None

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Count what Inductor does with a region as that region's."""
        with self.clock.inside("inductor", str(self.observer.innermost())):
            yield lambda result: None


@dataclass
class Measured:
    """One program with one backend, which is compiled as often as needed. Counters and records stay as they are."""

    regional: Regional
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backward: Any
    spec: BackendSpec
    warm: bool = False  # whether caches on disk keep what the compile before made
    clock: str = "cpu"  # what is measured, see :data:`CLOCKS`
    #: whether kernels may come from the store of the machine, in place of the C++ or Triton compiler
    kernels_kept: bool = False
    compiles: list[Mapping[tuple[str, str], float]] = field(default_factory=list)  # what was measured
    _made: int = 0

    def __post_init__(self) -> None:
        """Refuse a clock that there is not."""
        if self.clock not in CLOCKS:
            raise RegionalValueError(unknown_name("clock", self.clock, CLOCKS))

    @property
    def times(self) -> CompileTimes:
        """What was measured so far."""
        named = getattr(self.fn, "__qualname__", "") or type(self.fn).__qualname__
        return CompileTimes(self.spec.name, named, tuple(self.compiles), tuple(sorted(unmeasured())), self.clock)

    def measure(self, *, kept: bool = True) -> None:
        """Compile once, and add what each phase took, if it is ``kept``."""
        regional = self.regional
        listener = PhaseListener(regional.observer, CLOCKS[self.clock])
        self._made += 0 if self.warm else 1
        folder = regional.folder / "compile-times" / f"{id(self)}-{self._made}"
        with (
            isolation.cache_folder(folder),
            isolation.random_state_kept(),
            regional.observer.from_zero(listener),
            regional._changed(Change("compile again", instead=self.spec)),
            contextlib.nullcontext() if self.kernels_kept else nothing_read(),
        ):
            regional.restart()
            # What earlier compiles left behind is not this one's to collect.
            gc.collect()
            with listener.clock.running():
                self.call()
        if not self.warm:
            shutil.rmtree(folder, ignore_errors=True)
        if kept:
            self.compiles.append(dict(listener.clock.seconds))

    def call(self) -> None:
        """Compile and call it as :meth:`Regional.run` does, with counters and records."""
        copied = copy_inputs(self.inputs, kwargs=self.kwargs)
        compiled = self.regional.compile(self.fn)
        with annotation_errors_alone():
            output = compiled(*copied.arguments, **copied.keywords)
        backpropagate(output, self.backward, seed=self.regional.seed)


def measure_in_turns(sides: Sequence[Measured], repeat: int) -> None:
    """Compile each ``repeat`` times; who is first changes, so that neither has the cooler processor."""
    for side in sides:  # the first of a process imports modules, the first of all fills caches
        side.measure(kept=False)
    for number in range(repeat):
        for side in reversed(sides) if number % 2 else sides:
            side.measure()


#: What makes the median absolute deviation of a normal distribution its standard deviation.
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True)
class MeasuredTime:
    """How long one thing took in each of several compiles, in the order in which they were made."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return median(self.seconds)

    @property
    def noise(self) -> float:
        """How far times are from the median, relative to it: the median absolute deviation, as a standard deviation."""
        middle = self.median
        return _MAD_TO_DEVIATION * median(abs(one - middle) for one in self.seconds) / middle if middle else 0.0

    def __str__(self) -> str:
        return f"{self.median:.3f} s (noise {self.noise:.0%})"


@dataclass(frozen=True)
class CompileTimes:
    """What :meth:`Regional.compile_times` measured; ``str()`` of it is a table."""

    backend: str  # the name of the backend that compiled
    program: str  # what was compiled, as messages call it
    #: of each compile, the seconds by phase and by what is compiled (``"region mlp of the forward graph"``, ``"the
    #: forward graph"``; empty for what comes before a graph)
    compiles: tuple[Mapping[tuple[str, str], float], ...]
    not_measured: tuple[str, ...] = ()  # phases that the installed torch does not tell from others
    clock: str = "cpu"  # ``"wall"`` or ``"cpu"``

    @property
    def total(self) -> MeasuredTime:
        """All phases together, without what the compiled program itself takes."""
        return self._sums(TOTAL)

    @property
    def phases(self) -> dict[str, MeasuredTime]:
        """The phases that can be measured, by name. They add up to the total."""
        return {name: self.phase(name) for name in PHASES if name not in self.not_measured}

    def phase(self, name: str | None = None) -> MeasuredTime:
        """Return the time of one phase; of all for ``None`` or ``"total"``.

        Raises:
            RegionalValueError: a name that is no phase.
        """
        return self._sums(checked_phase(name))

    def parts(self, name: str | None = None) -> dict[str, MeasuredTime]:
        """Return the time of each graph and region in one phase, or in all of them, the slowest first.

        Where a backend compiles a graph as a whole, Inductor for example, its regions cannot be told apart.
        """
        asked = checked_phase(name)
        names = dict.fromkeys(what for times in self.compiles for _, what in times if what)
        found = {one: self._sums(asked, one) for one in names}
        return dict(sorted(found.items(), key=lambda item: -item[1].median))

    def _sums(self, asked: str, part: str | None = None) -> MeasuredTime:
        sums = []
        for times in self.compiles:
            keys = [(phase, what) for phase, what in times if asked in (TOTAL, phase) and part in (None, what)]
            sums.append(sum(times[key] for key in keys))
        return MeasuredTime(tuple(sums))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.program} on {self.backend}, {plural(len(self.compiles), 'compile')}, {self.clock} time"
        for name, measured in {TOTAL: self.total, **self.phases}.items():
            yield f"  {name:<13} {measured}"
        for name in self.not_measured:
            yield f"  {name:<13} not measured with this torch"
        for what, measured in self.parts().items():
            yield f"  {measured}  {what}"


#: How many graphs and regions a message names.
_NAMED = 3


class CompileTimeError(RegionalError, AssertionError):
    """A program compiles for too long; the message says in which phase, and by how much."""


@dataclass(frozen=True)
class CompileTimeCheck:
    """What :meth:`Regional.assert_compile_time` compared."""

    new: CompileTimes  # the times in the numerator
    old: CompileTimes  # those in the denominator
    phase: str  # a phase, or ``"total"``
    at_most: float  # the largest ratio that is allowed

    @property
    def ratio(self) -> float:
        """The ratio of the medians.

        Raises:
            RegionalRuntimeError: the phase is not measured, or one side spends no time in it.
        """
        for one in (self.new, self.old):
            if self.phase in one.not_measured:
                raise RegionalRuntimeError(
                    f"this torch does not tell phase {self.phase} from others, so it has no time"
                )
            if not one.compiles or one.phase(self.phase).median <= 0:
                raise RegionalRuntimeError(
                    f"{one.program} on {one.backend} spends no time in phase {self.phase}: no ratio"
                )
        return self._ratio(self.phase)

    def error(self) -> CompileTimeError:
        """Return the error that says that the ratio is above its limit."""
        return CompileTimeError("\n".join(self._lines()))

    def _ratio(self, phase: str) -> float:
        return self.new.phase(phase).median / self.old.phase(phase).median

    def _lines(self) -> Iterator[str]:
        new, old, phase = self.new, self.old, self.phase
        of = "compile time" if new.clock == "wall" else "CPU time of compiles"
        of = of if phase == TOTAL else f"{of} in phase {phase}"
        head = f"{of} of {new.program} on {new.backend}: {self.ratio:.2f} times that of {old.program} on {old.backend}"
        grew = ""
        if phase == TOTAL:
            grown = {name: time.median - old.phase(name).median for name, time in new.phases.items()}
            worst = max(grown, key=lambda name: grown[name])
            grew = f"; phase {worst} grew most" if grown[worst] > 0 else ""
        yield f"{head}, at most {self.at_most:g} allowed{grew} (medians of {plural(len(new.compiles), 'compile')})"
        yield f"  {'phase':<13} {'this':>20} {'against':>20}  ratio"
        for name in (TOTAL, *PHASES):
            if name in new.not_measured:
                yield f"  {name:<13} not measured with this torch"
                continue
            cells = [f"{one.median:.3f} s +- {one.noise:.0%}" for one in (new.phase(name), old.phase(name))]
            ratio = f"{self._ratio(name):.2f}" if old.phase(name).median > 0 else "-"
            yield f"  {name:<13} {cells[0]:>20} {cells[1]:>20}  {ratio}"
        parts = list(new.parts(phase).items())[:_NAMED]
        if parts:
            yield "slowest: " + ", ".join(f"{what} {time.median:.3f} s" for what, time in parts)


class MeasuresCompiles:
    """The part of :class:`Regional` that measures how long compiles take."""

    _spec: BackendSpec

    def compile_times(
        self,
        fn: Any,
        *inputs: Any,
        repeat: int = 5,
        warm: bool = False,
        clock: str = "cpu",
        backward: Any = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> CompileTimes:
        """Compile a program several times and return how long each phase takes; see ``docs/compile-time.md``.

        It is compiled once with counters and records, and then ``repeat`` times without, each time with empty caches
        and without the kernel store. What was compiled before has to be compiled again.

        Args:
            fn: a function or module.
            inputs: its arguments, which are copied.
            repeat: how many compiles are measured.
            warm: measure compiles that find the result of an earlier one in the caches on disk.
            clock: ``"cpu"`` measures the CPU time of the process and its compilers, which other load of the machine
                changes less, and which does not see waiting; ``"wall"`` the time that passes.
            backward: as :meth:`run`.
            kwargs: the program's keyword arguments, by name.

        Raises:
            ValueError: ``repeat`` is below 1, or there is no such clock.
        """
        refuse_no_program("compile_times", fn)
        _refuse_no_compile("compile_times", repeat)
        how = (kwargs or {}, backward, self._spec, warm, clock)
        measured = Measured(cast("Regional", self), fn, inputs, *how)
        measured.call()
        measure_in_turns([measured], repeat)
        return measured.times

    def assert_compile_time(
        self,
        fn: Any,
        *inputs: Any,
        against: Any,
        at_most: float = 1.2,
        phase: str | None = None,
        repeat: int = 5,
        clock: str = "cpu",
        backward: Any = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> CompileTimeCheck:
        """Assert that a program does not compile for longer than another, as a ratio; see ``docs/compile-time.md``.

        Both are compiled in turns with empty caches, ``repeat`` times each, and the medians are compared.

        Args:
            fn: a function or module.
            inputs: its arguments, which are copied, and those of ``against``.
            against: another program; the name or specification of a backend, for the same program; or what
                :meth:`compile_times` returned in this process.
            at_most: the ratio that is allowed, above 1 for a slower program.
            phase: the phase that counts: ``"dynamo"``, ``"aot_autograd"``, ``"passes"``, ``"inductor"``,
                ``"compiler"``, ``"cache"`` or ``"other"``; ``None`` for all together. With any but ``"compiler"``,
                kernels come from the kernel store.
            repeat: how many compiles of each are measured.
            clock: ``"cpu"`` measures the CPU time of the process and its compilers, which other load of the machine
                changes less, and which does not see waiting; ``"wall"`` the time that passes.
            backward: as :meth:`run`.
            kwargs: the program's keyword arguments, by name.

        Returns:
            The ratio, and both records.

        Raises:
            CompileTimeError: the ratio of the medians is above the limit.
            RegionalValueError: a name that is no phase.
            RegionalRuntimeError: this torch cannot measure the phase, or no time is spent in it.
            UnknownBackendError: there is no backend of that name.
            ValueError: ``at_most`` is not above 0, ``repeat`` is below 1, there is no such clock, or the record that
                is compared with has another.
            TypeError: another type of ``against``.
        """
        refuse_no_program("assert_compile_time", fn)
        asked = checked_phase(phase)
        if not at_most > 0:
            raise ValueError(f"assert_compile_time: at_most={at_most!r}: expected a ratio above 0, such as 1.2")
        _refuse_no_compile("assert_compile_time", repeat)
        kept = phase not in (None, "total", "compiler")

        def measured(program: Any, spec: BackendSpec) -> Measured:
            regional = cast("Regional", self)
            return Measured(regional, program, inputs, kwargs or {}, backward, spec, clock=clock, kernels_kept=kept)

        new = measured(fn, self._spec)
        old: Measured | CompileTimes
        if isinstance(against, CompileTimes):
            if against.clock != clock:
                raise ValueError(
                    f"against= was measured with clock={against.clock!r}: give that to assert_compile_time"
                )
            old = against
        elif isinstance(against, str | BackendSpec):
            old = measured(fn, registry.resolve(against) if isinstance(against, str) else against)
        elif callable(against):
            old = measured(against, self._spec)
        else:
            raise TypeError(
                f"against= is of type {type(against).__name__}: give another program, the name of a backend, a "
                f"BackendSpec, or what compile_times returned"
            )
        new.call()
        measure_in_turns([new, old] if isinstance(old, Measured) else [new], repeat)
        found = CompileTimeCheck(new.times, old.times if isinstance(old, Measured) else old, asked, at_most)
        if found.ratio > at_most:
            raise found.error()
        return found


def _refuse_no_compile(method: str, repeat: int) -> None:
    if repeat < 1:
        raise ValueError(f"{method}: repeat={repeat}: expected 1 or more compiles")
