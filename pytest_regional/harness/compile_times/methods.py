"""What a test calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pytest_regional._torch.compile_phases import checked_phase
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.compile_times.checking import LEAST_REPEATS, CompileTimeCheck, check
from pytest_regional.harness.compile_times.measuring import Measured, checked_clock
from pytest_regional.harness.compile_times.record import CompileTimes
from pytest_regional.harness.compiling import refuse_keywords, refuse_no_program

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional


class MeasuresCompiles:
    """The part of :class:`Regional` that measures how long compiles take."""

    _spec: BackendSpec

    def compile_times(
        self,
        fn: Any,
        *inputs: Any,
        repeat: int = 5,
        warm: bool = False,
        clock: str = "wall",
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
            clock: ``"wall"`` measures the time that passes; ``"cpu"`` the CPU time of the process and its compilers,
                which other load of the machine changes less, and which does not see waiting.
            backward: as :meth:`run`.
            kwargs: the program's keyword arguments, by name.
            unknown: refused; the message says how to pass keyword arguments of the program.

        Raises:
            ValueError: ``repeat`` is below 1, or there is no such clock.
            TypeError: a keyword that ``compile_times`` does not have.
        """
        refuse_keywords(MeasuresCompiles.compile_times, unknown)
        refuse_no_program("compile_times", fn)
        if repeat < 1:
            raise ValueError(f"compile_times: repeat={repeat}: expected 1 or more compiles")
        how = (kwargs or {}, backward, self._spec, warm, checked_clock(clock))
        measured = Measured(cast("Regional", self), fn, inputs, *how)
        measured.call()
        measured.warm_up()
        for _ in range(repeat):
            measured.measure()
        return measured.times

    def assert_compile_time(
        self,
        fn: Any,
        *inputs: Any,
        against: Any,
        at_most: float = 1.2,
        phase: str | None = None,
        repeat: int = 5,
        clock: str = "wall",
        backward: Any = None,
        kwargs: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> CompileTimeCheck:
        """Assert that a program does not compile for longer than another, as a ratio; see ``docs/compile-time.md``.

        Both are compiled in turns with empty caches, ``repeat`` times each, and up to four times as often while the
        interval of the ratio contains the limit.

        Args:
            fn: a function or module.
            inputs: its arguments, which are copied, and those of ``against``.
            against: another program; the name or specification of a backend, for the same program; or what
                :meth:`compile_times` returned in this process.
            at_most: the ratio that is allowed, above 1 for a slower program.
            phase: the phase that counts: ``"dynamo"``, ``"aot_autograd"``, ``"passes"``, ``"inductor"``,
                ``"compiler"``, ``"cache"`` or ``"other"``; ``None`` for all together. With any but ``"compiler"``,
                kernels come from the kernel store.
            repeat: compiles of each before the first look, at least 5.
            clock: ``"wall"`` measures the time that passes; ``"cpu"`` the CPU time of the process and its compilers,
                which other load of the machine changes less, and which does not see waiting.
            backward: as :meth:`run`.
            kwargs: the program's keyword arguments, by name.
            unknown: refused; the message says how to pass keyword arguments of the program.

        Returns:
            The ratio with its interval, and both records.

        Raises:
            CompileTimeError: the interval of the ratio lies above the limit.
            UndecidedCompileTimeError: it still contains the limit after ``4 * repeat`` compiles of each.
            RegionalValueError: a name that is no phase.
            RegionalRuntimeError: this torch cannot measure the phase, or no time is spent in it.
            UnknownBackendError: there is no backend of that name.
            ValueError: ``at_most`` is not above 0, ``repeat`` is below 5, there is no such clock, or the record that
                is compared with has another.
            TypeError: a keyword that ``assert_compile_time`` does not have, or another type of ``against``.
        """
        refuse_keywords(MeasuresCompiles.assert_compile_time, unknown)
        refuse_no_program("assert_compile_time", fn)
        asked = checked_phase(phase)
        if not at_most > 0:
            raise ValueError(f"assert_compile_time: at_most={at_most!r}: expected a ratio above 0, such as 1.2")
        if repeat < LEAST_REPEATS:
            raise ValueError(
                f"assert_compile_time: repeat={repeat}: {LEAST_REPEATS} or more compiles are needed for an interval"
            )
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
        found = check(new, old, asked, at_most, repeat)
        if found.outcome != "within":
            raise found.error()
        return found
