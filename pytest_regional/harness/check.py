"""The flow of ``assert_parity``: eager, float64 anchor, compiled, compiled again on fresh inputs, and the blame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import isolation
from .execution import Execution, execute, fresh_inputs
from .parity import ParityError, ParityReport, check_program, compare

if TYPE_CHECKING:
    from .regional import Regional


class VacuousParityError(AssertionError):
    """``assert_parity`` had nothing to compare, so it could not have failed."""


@dataclass(frozen=True)
class _Case:
    """One set of inputs with what eager and float64 make of it."""

    inputs: tuple[Any, ...]
    eager: Execution
    anchor: Execution | None
    label: str


@dataclass
class ParityCheck:
    """One call of ``assert_parity``."""

    regional: Regional
    fn: Any
    inputs: tuple[Any, ...]
    backward: Any
    level: str
    rtol: float | None
    atol: float | None

    def run(self) -> ParityReport:
        """Return the report, or raise :class:`ParityError` with the region to blame."""
        __tracebackhide__ = True
        first = self._case(self.inputs, "")
        second = self._case(fresh_inputs(self.inputs, self.regional.seed + 1), "second call, on fresh inputs: ")
        compiled = self._compile()
        candidate = self._execute(compiled, first.inputs)
        report = self._judge(first, candidate)
        if candidate.exception is None:
            report = _merged(report, self._compare_again(second, compiled), second.label)
        if not report.ok:
            raise ParityError(report, blame=self._blame(first, second)) from candidate.exception
        if report.compared == 0:
            raise VacuousParityError(
                "assert_parity compared nothing: the program returns no tensor, mutates none and has no gradient"
            )
        return report

    def _case(self, inputs: tuple[Any, ...], label: str) -> _Case:
        # Eager code may compile as well (flex_attention does, with Dynamo's eager backend): not the backend's doing.
        with Unobserved(self.regional):
            eager = self._execute(self.fn, inputs)
            check_program(eager)
            anchor = self._execute(self.fn, inputs, anchor=True) if self.level == "close" else None
        return _Case(inputs, eager, anchor, label)

    def _execute(self, fn: Any, inputs: tuple[Any, ...], *, anchor: bool = False) -> Execution:
        return execute(fn, inputs, backward=self.backward, seed=self.regional.seed, state_of=self.fn, anchor=anchor)

    def _compile(self, eager_regions: frozenset[str] = frozenset()) -> Any:
        options = replace(self.regional.options, fallback_random=True)
        return self.regional.compile_with(self.fn, options, eager_regions)

    def _judge(self, case: _Case, candidate: Execution) -> ParityReport:
        return compare(case.eager, candidate, case.anchor, level=self.level, rtol=self.rtol, atol=self.atol)

    def _compare_again(self, case: _Case, compiled: Any) -> ParityReport:
        """Call the compiled program a second time: catches constants baked in from the first call."""
        with self.regional.no_compile():
            return self._judge(case, self._execute(compiled, case.inputs))

    # Blame

    def blame_for(self, second: tuple[Any, ...]) -> str:
        """Say which region makes a difference on the inputs, or on a ``second`` set of them, that others found."""
        return self._blame(self._case(self.inputs, ""), self._case(second, ""))

    def _blame(self, first: _Case, second: _Case) -> str:
        """Say which region makes the difference, found by leaving regions eager in turn."""
        names = list(dict.fromkeys(r.name for g in self.regional.observer.graph_records() for r in g.regions))
        if not names or not self.regional.spec.capabilities.get("regions"):
            return "the whole graph is compiled as one, so no region can be singled out"
        # The recompiles below are ours, not the test's: they must not show in its counters.
        with Unobserved(self.regional):
            return self._blame_among(names, first, second)

    def _blame_among(self, names: list[str], first: _Case, second: _Case) -> str:
        if not self._agrees(first, second, frozenset(names)):
            return "no region: the difference remains with every region left eager, so it arises outside the regions"
        alone = [name for name in names if self._agrees(first, second, frozenset({name}))]
        if alone:
            return _regions(alone) + ": with it left eager the program agrees with eager"
        guilty = [name for name in names if not self._agrees(first, second, frozenset(names) - {name})]
        if guilty:
            return _regions(guilty) + ": each differs even when it is the only one compiled"
        return f"a combination of {_regions(names)}: every region alone agrees with eager"

    def _agrees(self, first: _Case, second: _Case, eager_regions: frozenset[str]) -> bool:
        self.regional.restart()
        # Its own folder: what the backend cached for the failing compile must not answer for this one.
        folder = self.regional.folder / "blame" / "-".join(sorted(eager_regions))
        with isolation.cache_folder(folder):
            compiled = self._compile(eager_regions)
            return all(self._judge(case, self._execute(compiled, case.inputs)).ok for case in (first, second))


@dataclass
class GivenParity(ParityCheck):
    """Parity of what a callable of the user's makes of the program: a pipeline, for one."""

    compiled: Callable[[Any], Any]

    def _compile(self, eager_regions: frozenset[str] = frozenset()) -> Any:
        options = replace(self.regional.options, fallback_random=True)
        with options.scope(self.regional.spec.compile_options):
            return self.compiled(self.fn)

    def _blame(self, first: _Case, second: _Case) -> str:
        return "not searched for: the program was compiled by what was given as compiled="


def _merged(first: ParityReport, second: ParityReport, label: str) -> ParityReport:
    """Return one report of both calls; what the second found says so."""
    worst = max((first, second), key=lambda report: report.worst_ratio)
    return replace(
        first,
        mismatches=(*first.mismatches, *(replace(m, where=label + m.where) for m in second.mismatches)),
        compared=first.compared + second.compared,
        anchored=first.anchored and second.anchored,
        anchor_unavailable_reason=first.anchor_unavailable_reason or second.anchor_unavailable_reason,
        worst_ratio=worst.worst_ratio,
        worst_where=worst.worst_where,
    )


def _regions(names: list[str]) -> str:
    return ("region " if len(names) == 1 else "regions ") + ", ".join(repr(name) for name in names)


class Unobserved:
    """Keep what happens inside out of the test's counters, graphs and code."""

    def __init__(self, regional: Regional) -> None:
        self.observer = regional.observer

    def __enter__(self) -> None:
        self.marks = self.observer.log.mark(), len(self.observer.graphs), len(self.observer.sources)

    def __exit__(self, *exception: object) -> None:
        del self.observer.log.events[self.marks[0] :]
        del self.observer.graphs[self.marks[1] :]
        del self.observer.sources[self.marks[2] :]
