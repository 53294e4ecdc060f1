"""The flow of ``assert_parity``: eager, float64 reference, compiled, called again on fresh inputs, and the blame.

After these come the other ways of the same call, where there are any: inputs that use one storage in another form, the
backward inside of the autocast around the call, and the backend's own random numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from pytest_regional._base.text import shown, unknown_name
from pytest_regional._torch.dynamo import never_compiled, original_of
from pytest_regional.harness import isolation
from pytest_regional.harness.blame.culprit import BlameDepth, Culprit
from pytest_regional.harness.blame.reproducing import culprit_of
from pytest_regional.harness.codegen.kernels import CodePlace, places_of_results
from pytest_regional.harness.compiling import raise_annotation_error
from pytest_regional.harness.parity.captured import Captured
from pytest_regional.harness.parity.compare import (
    AFTER,
    Mismatch,
    ParityError,
    check_program,
    compare,
    compare_exceptions,
)
from pytest_regional.harness.parity.execution import Execution, execute, in_autocast
from pytest_regional.harness.parity.inputs import fresh_call, other_form
from pytest_regional.harness.parity.objects import NotComparableError, dense_value
from pytest_regional.harness.parity.precision import precision_of
from pytest_regional.harness.parity.random_code import RUNS, random_mismatches, reseeded
from pytest_regional.harness.parity.report import SECOND_CALL, BadProgramError, NotRefusedError, ParityReport
from pytest_regional.harness.parity.state import KINDS_OF_STATE, raw_bytes, same_bytes
from pytest_regional.harness.parity.tolerance import Noise, NoiseSource, Tolerance
from pytest_regional.harness.vacuity import VacuousTestError

if TYPE_CHECKING:
    from pytest_regional.harness.options import CompileOptions
    from pytest_regional.harness.record import GeneratedSource
    from pytest_regional.harness.regional import Regional


def _wrong_places(
    sources: Sequence[GeneratedSource], report: ParityReport, outputs: Sequence[tuple[str, Any]], regions: Sequence[str]
) -> tuple[CodePlace, ...]:
    """Return the lines of ``sources`` that make what ``report`` finds wrong in ``outputs``, in ``regions`` if any."""
    # These no line of code writes.
    not_written = ("exception", "draws", "distribution")
    where = {mismatch.where.rpartition(": ")[2] for mismatch in report.mismatches if mismatch.kind not in not_written}
    if not where:
        return ()
    tensors = [path for path, leaf in outputs if isinstance(leaf, Captured)]
    wrong = [number for number, path in enumerate(tensors) if path in where]
    backward = all(one.startswith("grad of ") for one in where)
    return places_of_results(sources, backward=backward, regions=regions, wrong=wrong, outputs=len(tensors))


@dataclass(frozen=True, eq=False)
class KeptResults:
    """The live results of one call, by name, with the copies that were taken when they were returned."""

    pairs: Mapping[str, tuple[torch.Tensor, Captured]]

    @classmethod
    def of(cls, execution: Execution) -> KeptResults:
        """Return what an execution with ``keep=True`` returned: outputs, gradients, its inputs as it left them."""
        copies = {name: copy for name, copy in execution.tensors().items() if copy.no_value is None}
        return cls({name: (live, copies[name]) for name, live in execution.live.items() if name in copies})

    def overwritten(self) -> dict[str, Mismatch]:
        """Return, by name, what holds other bytes now than when it was returned."""
        advice = (
            "The backend writes to memory that it gave to the caller; it has to return fresh memory or a copy, or to "
            "disclaim results_kept"
        )
        found = {name: _difference(live, copy) for name, (live, copy) in self.pairs.items()}
        return {name: Mismatch(name, "overwritten", f"{how}. {advice}") for name, how in found.items() if how}


def _difference(live: torch.Tensor, copy: Captured) -> str:
    """Say how ``live`` differs from its copy; empty where it does not."""
    try:
        now = dense_value(live)
    except NotComparableError as error:  # PyTorch's own CUDA graphs refuse to read what a later run has overwritten.
        return str(error)
    if same_bytes(now, copy.value):
        return ""
    if now.shape != copy.value.shape or now.dtype != copy.value.dtype:
        return f"was {copy.dtype} {list(copy.shape)} when returned, is {now.dtype} {list(now.shape)} now"
    differs = (raw_bytes(now) != raw_bytes(copy.value)).any(dim=1)
    first = int(differs.nonzero()[0, 0])
    values = [f"{tensor.reshape(-1)[first].item()!r:.30}" for tensor in (copy.value, now)]
    index = [int(i) for i in torch.unravel_index(torch.tensor(first), now.shape)] if now.dim() else []
    return (
        f"{int(differs.sum())} of {differs.numel()} elements changed after they were returned, first at {index}: "
        f"{values[0]} then, {values[1]} after another call"
    )


@dataclass(frozen=True)
class _Case:
    """One set of inputs with what eager and float64 make of it."""

    inputs: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    eager: Execution
    fp64: Execution | None
    label: str
    noise: NoiseSource
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class ParityCheck:
    """One call of ``assert_parity``."""

    regional: Regional
    fn: Any
    inputs: tuple[Any, ...]
    _: KW_ONLY
    backward: Any = None
    level: str = "close"
    rtol: float | None = None
    atol: float | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    raises: type[Exception] | None = None
    options: CompileOptions | None = None
    depth: BlameDepth | None = None
    ignore_state: tuple[str, ...] = ()
    output_edges: bool = False

    #: The regions that a search found to blame.
    _blamed: tuple[str, ...] = field(default=(), init=False)
    #: Whether a second call that compiles is no failure.
    _may_recompile: bool = field(default=False, init=False)
    #: How many sources were generated before this check.
    _compiled_before: int = field(default=0, init=False)

    #: Whether the harness compiles the program, so that changes reach it, and with other inputs and settings again.
    searchable: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Unwrap a program that ``torch.compile`` returned: the backend under test is to compile it."""
        self.fn = original_of(self.fn)
        self._compiled_before = len(self.regional.observer.sources)
        if self.regional._forward_only and self.backward is None:
            self.backward = False

    def run(self) -> ParityReport:
        """Return the report, or raise :class:`ParityError` with the region to blame."""
        Tolerance.resolve(self.level, self.rtol, self.atol)  # a wrong level is an error before anything runs
        if self.raises is not None:
            return self._refused(self.raises)
        before = self.regional.observer.log.mark()
        first = self._case(self.inputs, self.kwargs, "")
        fresh = fresh_call(self.inputs, self.kwargs, self.regional.seed + 1)
        second = self._case(*fresh, SECOND_CALL)
        compiled = self._compile()
        candidate = self._call(compiled, first, keep=True)
        raise_annotation_error(candidate.exception)
        report = self._judge(first, candidate)
        if candidate.exception is None:
            kept = KeptResults.of(candidate)
            report = _merged(report, self._compare_again(second, compiled), second.label)
            report = replace(report, mismatches=(*report.mismatches, *self._overwritten(kept, first, second)))
        if not report.ok:
            raise self._error(report, first, second) from candidate.exception
        report = self._backward_in_autocast(report, first, compiled)
        if self.searchable:
            report = self._own_random_numbers(self._other_form(report), first)
        self._check_ignored(first.eager, candidate)
        if report.compared == 0 and not first.eager.changes:
            raise VacuousTestError(
                "assert_parity compared nothing: the program returns no tensor, changes nothing and has no gradient"
                + "".join(f"\n  not compared: {one}" for one in report.not_compared)
            )
        if self.searchable and not self._was_compiled(before):
            self.regional._compared_eager.append(shown(self.fn))
        return report

    def _was_compiled(self, before: int) -> bool:
        """Say whether the program was compiled since ``before``, a mark of the log, or earlier in this test."""
        observer, function = self.regional.observer, self.fn
        function = getattr(function, "forward", function) if isinstance(function, torch.nn.Module) else function
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None and observer.reached_backend(before):
            observer.compiled.add(code)
        return code is None or code in observer.compiled or not self.regional._change.compiles

    # A program that eager refuses

    def _refused(self, expected: type[Exception]) -> ParityReport:
        """Return a report of the exceptions that eager and the compiled program raise."""
        with self.regional.observer.paused():
            eager = self._execute(self.fn, self.inputs, self.kwargs)
        raise_annotation_error(eager.exception)
        if eager.exception is None:
            raise NotRefusedError(expected)
        if not isinstance(eager.exception, expected):
            raise BadProgramError(eager) from eager.exception
        candidate = self._execute(self._compile(), self.inputs, self.kwargs)
        report = compare_exceptions(eager, candidate)
        if not report.ok:
            raise ParityError(report) from candidate.exception
        return report

    # Other ways of the same call

    def _backward_in_autocast(self, report: ParityReport, first: _Case, compiled: Any) -> ParityReport:
        """Return the report with a call of which the backward, too, runs in the autocast around this test."""
        if not in_autocast() or first.eager.stage != "backward":
            return report
        case = self._case(self.inputs, self.kwargs, "backward inside of the autocast: ", autocast_backward=True)
        return self._with(report, self._judge(case, self._call(compiled, case)), case)

    def _other_form(self, report: ParityReport) -> ParityReport:
        """Return the report with a call of which the inputs use their common storage in another form."""
        form = other_form(self.inputs, self.kwargs)
        if form is None:
            return report
        said = "inputs as views of one tensor" if form == "views" else "inputs of one storage that are no views"
        try:
            case = self._case(self.inputs, self.kwargs, f"{said}: ", form=form)
        except BadProgramError:  # A write to a view of a leaf, for one; the program is given for its own form.
            return report
        with self.regional.observer.paused():
            again = self._compile_again(apart=form)
            return self._with(report, self._judge(case, self._call(again, case)), case)

    def _with(self, report: ParityReport, other: ParityReport, case: _Case) -> ParityReport:
        """Return one report of a right call and another one of ``case``; raise where that differs."""
        merged = _merged(report, other, case.label)
        if not merged.ok:
            raise self._error(merged, case, case)
        return merged

    def _own_random_numbers(self, report: ParityReport, first: _Case) -> ParityReport:
        """Return the report with runs in which the backend draws as it does for users: not as eager."""
        if not first.eager.rng_consumed or not self.regional.supports("rng"):
            return report
        seeds = [reseeded(self.regional.seed, run) for run in range(RUNS)]
        with self.regional.observer.paused():
            eager = [self._call(self.fn, first, draws=seed) for seed in seeds]
            own = self._compile_again(fallback_random=False)
            runs = [self._call(own, first, draws=seed) for seed in (*seeds, seeds[0])]
        found = random_mismatches(eager, runs[:-1], runs[-1])
        if found:
            label = "with the backend's own random numbers: "
            found = [replace(mismatch, where=label + mismatch.where) for mismatch in found]
            raise self._error(replace(report, mismatches=tuple(found))) from runs[0].exception
        return replace(report, random_runs=len(seeds))

    # Parts of all calls

    def _case(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], label: str, **options: Any) -> _Case:
        # Eager code may compile as well (flex_attention does, with Dynamo's eager backend): not the backend's doing.
        with self.regional.observer.paused():
            eager = self._execute(self.fn, inputs, kwargs, **options)
            raise_annotation_error(eager.exception)
            check_program(eager)
            precision = None if self.level == "bitwise" else precision_of(self.regional._spec)
            if precision is not None:
                eager.coarse = self._execute(self.fn, inputs, kwargs, precision=precision, **options)
            fp64 = self._execute(self.fn, inputs, kwargs, fp64=True, **options) if self.level == "close" else None
            if eager.not_compared:
                again = self._execute(self.fn, inputs, kwargs, **options)
                eager.unrepeatable = not compare(eager, again, level="bitwise").ok
                if eager.unrepeatable and fp64 is not None and fp64.fp64_unavailable_reason is None:
                    # Threads that add in another order differ, too, by rounding. Then runs in float64 agree, and each
                    # run judges the other; state that only the first run changes leaves the two float64 runs alike.
                    wide = self._execute(self.fn, inputs, kwargs, fp64=True, **options)
                    pairs = ((fp64, wide, None), (eager, again, fp64), (again, eager, fp64))
                    eager.unrepeatable = not all(compare(*pair).ok for pair in pairs)

        def rounded_otherwise(seed: int) -> Execution:
            with self.regional.observer.paused():
                return self._execute(self.fn, inputs, kwargs, rounding=seed, **options)

        noise = Noise.source_of_executions(eager, rounded_otherwise)
        return _Case(inputs, kwargs, eager, fp64, label, noise, options)

    def _call(self, fn: Any, case: _Case, **options: Any) -> Execution:
        return self._execute(fn, case.inputs, case.kwargs, **case.options, **options)

    def _execute(self, fn: Any, inputs: tuple[Any, ...], kwargs: Mapping[str, Any], **options: Any) -> Execution:
        how: dict[str, Any] = {"backward": self.backward, "seed": self.regional.seed, "state_of": self.fn}
        how["output_edges"] = self.output_edges
        # What the program itself compiled, with whatever backend, is no part of eager; nor does Dynamo trace where
        # runs change what operators compute, which traced code would pass by.
        traces = {"precision", "rounding"}.isdisjoint(options)
        with (
            never_compiled(tracing=traces) if fn is self.fn else contextlib.nullcontext(),
            torch.no_grad() if self.regional._forward_only and self.backward is False else contextlib.nullcontext(),
        ):
            return execute(fn, inputs, kwargs=kwargs, **how, **options)

    def _compile(self, eager_regions: frozenset[str] = frozenset()) -> Any:
        options = replace(self.options or self.regional._options, fallback_random=True)
        return self.regional._compile_with(self.fn, options, eager_regions)

    def _compile_again(self, *, fallback_random: bool = True, apart: str = "") -> Any:
        options = replace(self.options or self.regional._options, fallback_random=fallback_random)
        return self.regional._compile_with(self.fn, options, apart=apart)

    def _judge(self, case: _Case, candidate: Execution) -> ParityReport:
        how: dict[str, Any] = {"level": self.level, "rtol": self.rtol, "atol": self.atol}
        own_draws = not self.regional.supports("rng")
        report = compare(case.eager, candidate, case.fp64, noise=case.noise, own_draws=own_draws, **how)
        found = [m for m in report.mismatches if not any(_is_in(m.where, ignored) for ignored in self.ignore_state)]
        if not self.regional._looks_at_strides:
            found = [mismatch for mismatch in found if mismatch.kind != "stride"]
        report = replace(report, mismatches=tuple(found))
        if not any(mismatch.where.endswith(AFTER) for mismatch in report.mismatches):
            return report
        # A time or an address differs in any two runs.
        with self.regional.observer.paused():
            again = compare(case.eager, self._call(self.fn, case), **how)
        unstable = {mismatch.where for mismatch in again.mismatches if mismatch.where.endswith(AFTER)}
        return replace(
            report,
            mismatches=tuple(mismatch for mismatch in report.mismatches if mismatch.where not in unstable),
            not_compared=(*report.not_compared, *(f"{where}: two eager runs differ" for where in sorted(unstable))),
        )

    def _check_ignored(self, eager: Execution, candidate: Execution) -> None:
        """Refuse names in ``ignore_state`` of which neither program changed anything."""
        changed = {**eager.changes, **candidate.changes}
        places = [*changed, *eager.mutated, *candidate.mutated]
        for ignored in self.ignore_state:
            if not any(_is_in(place, ignored) for place in places):
                raise ValueError(f"ignore_state: {unknown_name('changed state', ignored, changed)}")

    def _compare_again(self, case: _Case, compiled: Any) -> ParityReport:
        """Call the compiled program a second time: catches constants baked in from the first call."""
        with self.regional.no_compile(traces=not (self.options or self.regional._options).fullgraph):
            return self._judge(case, self._call(compiled, case))

    def _overwritten(self, kept: KeptResults, first: _Case, second: _Case) -> tuple[Mismatch, ...]:
        """Return which results of the first call did not outlive the second; those of eager may not either."""
        if not self.regional._looks_again:
            return ()
        found = kept.overwritten()
        if found:
            with self.regional.observer.paused():
                eager = KeptResults.of(self._call(self.fn, first, keep=True))
                self._call(self.fn, second)
            for name in eager.overwritten():
                found.pop(name, None)
        return tuple(found.values())

    def _first_wrong(self, report: ParityReport) -> str:
        """Return which value of the program, or gradient, is the first that differs; empty where none is found."""
        if not any(mismatch.kind in ("value", "nan") for mismatch in report.mismatches):
            return ""
        try:
            found = self.regional._first_divergence(replace(self, depth="off"))
        except Exception as error:  # noqa: BLE001 - it must not hide the failure
            return Culprit.of_failed_search(error).sentence
        return found.sentence if found and found.operator else ""

    # Blame

    def culprit(self, seconds: float | None = None) -> Culprit:
        """Return where the failure comes from, by experiments; see ``docs/blame.md``."""
        attempt = replace(self, depth="off")
        return culprit_of(self.regional, attempt.run, seconds=seconds)

    def _error(self, report: ParityReport, *cases: _Case) -> ParityError:
        """Return the error of a failed comparison, with what is to blame as far as it is to be looked for."""
        depth = "off" if self.regional._experimenting else self.depth or self.regional.blame_depth
        sources = tuple(self.regional.observer.sources[self._compiled_before :])
        outputs = cases[0].eager.outputs if cases else ()
        blame: str | None = None
        culprit: Culprit | None = None
        regions: tuple[str, ...] = ()
        if depth == "deep" and self.searchable:
            try:
                culprit = self.culprit()
            except Exception as error:  # noqa: BLE001 - whatever it is, the comparison's own error comes first
                culprit = Culprit.of_failed_search(error)
            culprit = replace(culprit, first_wrong=self._first_wrong(report))
            self.regional.culprits.append(culprit)
            blame, regions = culprit.sentence, culprit.regions
        elif depth != "off" and cases:
            blame = self._blame(*cases)
            regions = self._blamed
        places = _wrong_places(sources, report, outputs, regions)
        return ParityError(report, blame, culprit, places, _regions(regions))

    def blame_for(self, second: tuple[Any, ...]) -> str:
        """Return which region causes a difference that was found on the inputs, or on a ``second`` set of them.

        The second call may compile again.
        """
        self._may_recompile = True
        return self._blame(self._case(self.inputs, self.kwargs, ""), self._case(second, self.kwargs, ""))

    def _blame(self, first: _Case, second: _Case) -> str:
        """Return which region causes the difference, by leaving regions eager in turn."""
        names = list(self.regional._region_names(self.regional.observer.graph_records()))
        if not self.regional.supports("regions"):
            return "no region can be singled out: the backend compiles whole graphs, or parts that it chooses itself"
        if not names:
            return "the program has no region, so none can be singled out"
        # The recompiles below are ours, not the test's: they must not show in its counters.
        with self.regional.observer.paused():
            try:
                return self._blame_among(names, first, second)
            except Exception as error:  # noqa: BLE001 - it must not hide the failure
                return Culprit.of_failed_search(error).sentence

    def _blame_among(self, names: list[str], first: _Case, second: _Case) -> str:
        if not self._agrees(first, second, frozenset(names)):
            return "no region: the difference remains with every region left eager, so it arises outside the regions"
        self._blamed = tuple(names)
        alone = [name for name in names if self._agrees(first, second, frozenset({name}))]
        if alone:
            self._blamed = tuple(alone)
            which = "it" if len(alone) == 1 else "any of them"
            return f"{_regions(alone)}: with {which} left eager the program agrees with eager"
        guilty = [name for name in names if not self._agrees(first, second, frozenset(names) - {name})]
        if guilty:
            self._blamed = tuple(guilty)
            return _regions(guilty) + ": each differs even when it is the only one compiled"
        return f"a combination of {_regions(names)}: every region alone agrees with eager"

    def _agrees(self, first: _Case, second: _Case, eager_regions: frozenset[str]) -> bool:
        self.regional.restart()
        # Its own folder: what the backend cached for the failing compile must not answer for this one.
        folder = self.regional.folder / "blame" / "-".join(sorted(eager_regions))
        with isolation.cache_folder(folder):
            compiled = self._compile(eager_regions)
            return self._both_agree(compiled, first, second)

    def _both_agree(self, compiled: Any, first: _Case, second: _Case) -> bool:
        candidate = self._call(compiled, first, keep=True)
        if not self._judge(first, candidate).ok:
            return False
        kept = KeptResults.of(candidate)
        again = self._call(compiled, second) if self._may_recompile else None
        report = self._judge(second, again) if again else self._compare_again(second, compiled)
        return report.ok and not self._overwritten(kept, first, second)


@dataclass
class GivenParity(ParityCheck):
    """Parity of a program that the user's function compiles, such as a pipeline."""

    compiled: Callable[[Any], Any] = field(kw_only=True)
    #: The function may have captured the program with these inputs, and under settings of its own.
    searchable: ClassVar[bool] = False

    def _compile(self, eager_regions: frozenset[str] = frozenset()) -> Any:
        self.regional._programs.append(self.fn)
        options = replace(self.regional._options, fallback_random=True)
        with options.scope(self.regional._spec.compile_options):
            return self.compiled(self.fn)

    def _blame(self, first: _Case, second: _Case) -> str:
        return "not searched for: the program was compiled by the function given as compiled="


def _merged(first: ParityReport, second: ParityReport, label: str) -> ParityReport:
    """Return one report of both calls; what the second found says so."""
    worst = max((first, second), key=lambda report: report.worst_ratio)
    return replace(
        first,
        mismatches=(*first.mismatches, *(replace(m, where=label + m.where) for m in second.mismatches)),
        compared=first.compared + second.compared,
        anchored=first.anchored and second.anchored,
        fp64_unavailable_reason=first.fp64_unavailable_reason or second.fp64_unavailable_reason,
        worst_ratio=worst.worst_ratio,
        worst_where=worst.worst_where,
        rule=first.rule if first.rule == second.rule else f"{first.rule}; second call: {second.rule}",
        rounding_only=tuple(dict.fromkeys((*first.rounding_only, *second.rounding_only))),
        not_compared=tuple(dict.fromkeys((*first.not_compared, *second.not_compared))),
    )


def _is_in(where: str, state: str) -> bool:
    """Say whether ``where``, as reports name it, is the Python state of this name, or inside of it."""
    place = where.removesuffix(AFTER).partition(" (mutated")[0]
    name = next((place.removeprefix(kind) for kind in KINDS_OF_STATE if place.startswith(kind)), place)
    return name == state or name.startswith((f"{state}.", f"{state}["))


def _regions(names: Sequence[str]) -> str:
    several = "regions " if len(names) > 1 else "region "
    return several + ", ".join(map(repr, names)) if names else ""
