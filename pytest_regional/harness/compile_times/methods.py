"""What a test calls: ``compile_times``, and ``assert_compile_time``, which limits a ratio of compile times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pytest_regional._errors import RegionalError, RegionalRuntimeError
from pytest_regional._text import plural
from pytest_regional._torch.compile_phases import PHASES, TOTAL, checked_phase
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.compile_times.measuring import Measured, checked_clock, measure_in_turns
from pytest_regional.harness.compile_times.record import CompileTimes
from pytest_regional.harness.compiling import refuse_keywords, refuse_no_program

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: How many graphs and regions a message names.
_NAMED = 3


class CompileTimeError(RegionalError, AssertionError):
    """A program compiles for too long; the message says in which phase, and by how much."""


@dataclass(frozen=True)
class CompileTimeCheck:
    """What :meth:`Regional.assert_compile_time` compared.

    Attributes:
        new: the times in the numerator.
        old: those in the denominator.
        phase: a phase, or ``"total"``.
        at_most: the largest ratio that is allowed.
    """

    new: CompileTimes
    old: CompileTimes
    phase: str
    at_most: float

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
        return CompileTimeError("\n".join([self._sentence(), *self._table(), *self._slowest()]))

    def _ratio(self, phase: str) -> float:
        return self.new.phase(phase).median / self.old.phase(phase).median

    def _sentence(self) -> str:
        new, old, phase = self.new, self.old, self.phase
        of = "compile time" if new.clock == "wall" else "CPU time of compiles"
        of = of if phase == TOTAL else f"{of} in phase {phase}"
        head = f"{of} of {new.program} on {new.backend}: {self.ratio:.2f} times that of {old.program} on {old.backend}"
        worst = self._worst() if phase == TOTAL else ""
        grew = f"; phase {worst} grew most" if worst else ""
        return f"{head}, at most {self.at_most:g} allowed{grew} (medians of {plural(len(new.compiles), 'compile')})"

    def _worst(self) -> str:
        """Return the phase that adds most to the difference."""
        grown = {name: time.median - self.old.phase(name).median for name, time in self.new.phases.items()}
        worst = max(grown, key=lambda name: grown[name])
        return worst if grown[worst] > 0 else ""

    def _table(self) -> Iterator[str]:
        yield f"  {'phase':<13} {'this':>20} {'against':>20}  ratio"
        for name in (TOTAL, *PHASES):
            if name in self.new.not_measured:
                yield f"  {name:<13} not measured with this torch"
                continue
            cells = [f"{one.median:.3f} s +- {one.noise:.0%}" for one in (self.new.phase(name), self.old.phase(name))]
            ratio = f"{self._ratio(name):.2f}" if self.old.phase(name).median > 0 else "-"
            yield f"  {name:<13} {cells[0]:>20} {cells[1]:>20}  {ratio}"

    def _slowest(self) -> Iterator[str]:
        parts = list(self.new.parts(self.phase).items())[:_NAMED]
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
        **unknown: Any,
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
            unknown: refused; the message says how to pass keyword arguments of the program.

        Raises:
            ValueError: ``repeat`` is below 1, or there is no such clock.
            TypeError: a keyword that ``compile_times`` does not have.
        """
        refuse_keywords(MeasuresCompiles.compile_times, unknown)
        refuse_no_program("compile_times", fn)
        _refuse_no_compile("compile_times", repeat)
        how = (kwargs or {}, backward, self._spec, warm, checked_clock(clock))
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
        **unknown: Any,
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
            unknown: refused; the message says how to pass keyword arguments of the program.

        Returns:
            The ratio, and both records.

        Raises:
            CompileTimeError: the ratio of the medians is above the limit.
            RegionalValueError: a name that is no phase.
            RegionalRuntimeError: this torch cannot measure the phase, or no time is spent in it.
            UnknownBackendError: there is no backend of that name.
            ValueError: ``at_most`` is not above 0, ``repeat`` is below 1, there is no such clock, or the record that
                is compared with has another.
            TypeError: a keyword that ``assert_compile_time`` does not have, or another type of ``against``.
        """
        refuse_keywords(MeasuresCompiles.assert_compile_time, unknown)
        refuse_no_program("assert_compile_time", fn)
        asked = checked_phase(phase)
        if not at_most > 0:
            raise ValueError(f"assert_compile_time: at_most={at_most!r}: expected a ratio above 0, such as 1.2")
        _refuse_no_compile("assert_compile_time", repeat)
        checked_clock(clock)
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
