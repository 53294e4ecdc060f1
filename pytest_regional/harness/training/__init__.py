"""Several optimizer steps of a compiled model, every one judged by what eager makes of the same step.

The flow is here: ``copying`` makes the models that are trained, ``trainer`` takes steps and judges each,
``report`` describes them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from pytest_regional._base.text import first_line, plural, unknown_name
from pytest_regional._torch.config import INDUCTOR, patched_config
from pytest_regional._torch.dynamo import never_compiled, original_of
from pytest_regional.harness.parity.precision import Precision, precision_of
from pytest_regional.harness.parity.tolerance import Tolerance
from pytest_regional.harness.training.copying import REMEDY, copy_model
from pytest_regional.harness.training.report import (
    BadTrainingError,
    NoFp64ReferenceWarning,
    StepReport,
    TrainingMismatch,
    TrainingParityError,
    TrainingReport,
)
from pytest_regional.harness.training.trainer import (
    NOTHING_TO_REFINE,
    Batch,
    Loss,
    OptimizerFactory,
    References,
    Trainer,
    adam,
    train,
)

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

__all__ = ["TrainingParityError", "TrainingReport", "assert_training_parity", "train"]

AllowUnused: TypeAlias = bool | str | Sequence[str]
Compiler: TypeAlias = Callable[[torch.nn.Module], Any]


@contextlib.contextmanager
def _original_untouched(model: torch.nn.Module) -> Iterator[Callable[[], None]]:
    """Yield a check that no copy of ``model`` computes with the parameters of ``model`` itself in the body.

    No copying of callables finds every way in which one can refer to a module; a gradient that arrives does.

    Raises:
        BadTrainingError: by the check: a gradient has arrived at the model, so that a copy is no separate training.
    """
    parameters = dict(model.named_parameters())
    gradients = {name: parameter.grad for name, parameter in parameters.items()}

    def check() -> None:
        reached = [name for name, parameter in parameters.items() if parameter.grad is not None]
        if reached:
            raise BadTrainingError(
                f"gradients arrive at {_listed(reached)} of the model itself, not of its copies: something in a copy "
                f"still refers to the original's modules, so that all trainings share them. {REMEDY}"
            )

    for parameter in parameters.values():
        parameter.grad = None
    try:
        yield check
    finally:
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]


def _patterns_of(allowed: AllowUnused, model: torch.nn.Module) -> tuple[str, ...]:
    """Return the patterns, as of a shell, of the names of parameters that may stay without a gradient."""
    if isinstance(allowed, bool):
        patterns: tuple[str, ...] = ("*",) if allowed else ()
    else:
        patterns = (allowed,) if isinstance(allowed, str) else tuple(allowed)
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if names and not fnmatch.filter(names, pattern):
            raise ValueError(f"allow_unused: {unknown_name('parameter', pattern, names)}")
    return patterns


def _steps_without_fp64(steps: Sequence[StepReport]) -> list[StepReport]:
    """Return the steps for which a float64 run was to be had and was not: none of a program in float64 itself."""
    return [step for step in steps if step.fp64_unavailable_reason not in (None, NOTHING_TO_REFINE)]


def _in_steps(steps: Sequence[StepReport]) -> str:
    """Return ``in steps 2 to 5``, or the numbers one by one where some are left out."""
    numbers = [step.number for step in steps]
    if len(numbers) == 1:
        return f"in step {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"in steps {numbers[0]} to {numbers[-1]}"
    return f"in steps {', '.join(map(str, numbers))}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def assert_training_parity(
    regional: Regional,
    model: torch.nn.Module,
    batches: Sequence[Batch],
    *,
    compiled: Compiler | None = None,
    loss: Loss | None = None,
    optimizer: OptimizerFactory = adam,
    level: str = "close",
    rtol: float | None = None,
    atol: float | None = None,
    compiling_steps: int = 1,
    allow_unused: AllowUnused = False,
    kwargs: Mapping[str, Any] | None = None,
) -> TrainingReport:
    """Assert that the compiled model trains as eager does, judging every optimizer step.

    A copy of the model is compiled and trained. Each of its steps is taken again, from where it began, by eager copies
    in the model's dtype and in float64: losses, gradients, parameters and buffers are compared element by element.

    Args:
        regional: the harness.
        model: is copied, never changed.
        batches: one optimizer step each; see :func:`~pytest_regional.harness.training.train`.
        compiled: makes a callable, or a module with parameters of the same names, of a copy of the model;
            ``regional.compile`` by default.
        loss: as of ``train``.
        optimizer: called with the parameters of each copy.
        level: as of ``regional.assert_parity``; "bitwise" wants every step equal to eager in the model's dtype.
        rtol: relative tolerance that replaces the level's.
        atol: absolute tolerance that replaces the level's.
        compiling_steps: in all later steps any compile is an error.
        allow_unused: which trainable parameters may get no gradient in eager: patterns of their names (``*`` stands for
            any characters), or True for all. They are named in the report's ``unused``.
        kwargs: keyword arguments of the model, the same in every step; a batch that is a dictionary adds its own.

    Raises:
        TrainingParityError: what differs, at which step first, by how much.
        BadTrainingError: the training fails in eager, or could not show anything; a parameter got no gradient; a
            callable that was set on an instance refers to the model in a way that no copy can follow.
        ValueError: a pattern in ``allow_unused`` that matches no parameter.

    Warns:
        NoFp64ReferenceWarning: a step had no float64 run to be judged by.
    """
    tolerance = Tolerance.resolve(level, rtol, atol)
    model = original_of(model)  # the backend under test is to compile what torch.compile compiled already
    patterns = _patterns_of(allow_unused, model)
    how = {"loss": loss, "optimizer": optimizer, "kwargs": dict(kwargs or {})}
    check = TrainingCheck(
        regional, model, tuple(batches), compiled, how, tolerance=tolerance, compiling_steps=compiling_steps
    )
    report = check.run()
    regional._parity_reports.append(report)
    lost = _steps_without_fp64(report.steps) if tolerance.uses_fp64 else []
    if lost:
        warnings.warn(
            f"no float64 reference {_in_steps(lost)}: {lost[0].fp64_unavailable_reason}. Judged by the defaults of "
            f"torch.testing.assert_close, which know nothing of this program's rounding",
            NoFp64ReferenceWarning,
            stacklevel=1,
        )
    if not report.ok:
        raise TrainingParityError(report) from check.error
    _check_unused(report.unused, patterns)
    return report


def _check_unused(unused: Sequence[str], patterns: Sequence[str]) -> None:
    left = [name for name in unused if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if left:
        raise BadTrainingError(
            f"{plural(len(left), 'trainable parameter')} got no gradient in any step of eager: {_listed(left)}; "
            f"nothing of {'it' if len(left) == 1 else 'them'} was compared. Use a loss that depends on every "
            f"parameter, freeze what does not train with requires_grad_(False), or allow it: allow_unused=True, or "
            f"allow_unused=('{left[0]}',), where * stands for any characters"
        )


@dataclass
class TrainingCheck:
    """One call of :func:`assert_training_parity`; ``error`` is what the compiled training raised, if it did.

    ``how`` holds loss, optimizer and keyword arguments, as of :class:`Trainer`.
    """

    regional: Regional
    model: torch.nn.Module
    batches: tuple[Batch, ...]
    compiled: Compiler | None
    how: dict[str, Any]
    tolerance: Tolerance
    compiling_steps: int
    error: Exception | None = None

    def run(self) -> TrainingReport:
        """Train and return the report; only a test that proves nothing raises here."""
        if not self.batches:
            raise BadTrainingError("no batches: nothing was trained")
        precision = None if self.tolerance.level == "bitwise" else precision_of(self.regional._spec)
        coarse = None if precision is None else functools.partial(self._eager_trainer, precision=precision)
        references = References(self._eager_trainer, self.tolerance, coarse)
        with _original_untouched(self.model) as check_original:
            steps, failure = self._train(references, check_original)
        if failure is None and not references.saw_gradient:
            raise BadTrainingError("every gradient of every step is zero in eager: no comparison of them could fail")
        trainable = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        unused = () if failure else tuple(name for name in trainable if name not in references.with_gradient)
        return TrainingReport(tuple(steps), self.tolerance.level, self._rule(steps), failure, unused)

    def _train(
        self, references: References, check_original: Callable[[], None]
    ) -> tuple[list[StepReport], TrainingMismatch | None]:
        steps: list[StepReport] = []
        candidate: Trainer | None = None
        for number, batch in enumerate(self.batches, start=1):
            try:
                with self._compiling(number):
                    candidate = candidate or self._candidate()
                    start = candidate.state()
                    step = candidate.step(batch, number)
            except BadTrainingError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the compiled program raises is a result.
                with self.regional.observer.paused(), never_compiled():
                    references.take(references.free, batch, number)
                self.error = error
                return steps, TrainingMismatch("the compiled step", "exception", first_line(error), step=number)
            # Eager code may compile as well (flex_attention does): not the backend's doing.
            with self.regional.observer.paused(), never_compiled():
                steps.append(references.judge(start, step, batch))
            check_original()
        return steps, None

    def _compiling(self, number: int) -> contextlib.AbstractContextManager[None]:
        if number > self.compiling_steps:
            return self.regional.no_compile()
        # Inductor draws other random numbers than eager otherwise; whoever compiles, compiles in this scope.
        return patched_config(INDUCTOR, {"fallback_random": True})

    def _candidate(self) -> Trainer:
        model = copy_model(self.model)
        if self.compiled is None:
            options = replace(self.regional._options, fallback_random=True)
            call = self.regional._compile_with(model, options)
        else:
            call = self.compiled(model)
        return self._trainer(call, owner_of(call, model))

    def _eager_trainer(self, wide: bool = False, precision: Precision | None = None) -> Trainer:
        model = copy_model(self.model)
        return self._trainer(model, model, wide=wide, precision=precision)

    def _trainer(self, call: Any, owner: torch.nn.Module, **precision: Any) -> Trainer:
        names = tuple(name for name, _ in self.model.named_parameters())
        return Trainer(call, owner, names=names, seed=self.regional.seed, **self.how, **precision)

    def _rule(self, steps: Sequence[StepReport]) -> str:
        tolerance = self.tolerance
        if tolerance.explicit:
            return f"rtol={tolerance.rtol}, atol={tolerance.atol}"
        lost = _steps_without_fp64(steps) if tolerance.uses_fp64 else []
        notes = [f"no float64 reference {_in_steps(lost)}: assert_close defaults"] if lost else []
        measured = [step for step in steps if step.rounded_runs and not step.mismatches]
        if measured:
            runs = measured[0].rounded_runs
            notes.append(f"{_in_steps(measured)} with eager's own rounding, measured in {runs} runs")
        return f"level {tolerance.level!r}" + (f" ({'; '.join(notes)})" if notes else "")


def owner_of(call: Any, model: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose parameters ``call`` trains: ``model``, or ``call`` itself if it has others."""
    if not callable(call):
        raise BadTrainingError(f"compiled= returned {call!r}, which cannot be called; return what trains")
    own = {id(parameter) for parameter in model.parameters()}
    if not isinstance(call, torch.nn.Module) or all(id(parameter) in own for parameter in call.parameters()):
        return model
    found, expected = ({name for name, _ in module.named_parameters()} for module in (call, model))
    if found != expected:
        raise BadTrainingError(
            f"compiled= returned a module with other parameters than the model: {', '.join(sorted(found ^ expected))} "
            f"in one of them only; name them alike, so that they can be compared"
        )
    return call
