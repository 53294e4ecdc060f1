"""The flow of ``assert_training_parity``: the compiled training, and references that follow it step by step."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from pytest_regional._torch.state import patched_config
from pytest_regional.harness.check import Unobserved
from pytest_regional.harness.tolerance import Tolerance

from .errors import BadTrainingError, TrainingParityError
from .references import References, first_line
from .report import StepReport, TrainingMismatch, TrainingReport
from .trainer import Batch, Loss, OptimizerFactory, Trainer, adam

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

Compiler = Callable[[torch.nn.Module], Any]


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

    Raises:
        TrainingParityError: what differs, at which step first, by how much.
        BadTrainingError: the training fails in eager, or could not show anything.
    """
    __tracebackhide__ = True
    tolerance = Tolerance.resolve(level, rtol, atol)
    check = TrainingCheck(regional, model, tuple(batches), compiled, loss, optimizer, tolerance, compiling_steps)
    report = check.run()
    regional.parity_reports.append(report)
    if not report.ok:
        raise TrainingParityError(report) from check.error
    return report


@dataclass
class TrainingCheck:
    """One call of :func:`assert_training_parity`; ``error`` is what the compiled training raised, if it did."""

    regional: Regional
    model: torch.nn.Module
    batches: tuple[Batch, ...]
    compiled: Compiler | None
    loss: Loss | None
    optimizer: OptimizerFactory
    tolerance: Tolerance
    compiling_steps: int
    error: Exception | None = None

    def run(self) -> TrainingReport:
        """Train and return the report; only a test that proves nothing raises here."""
        if not self.batches:
            raise BadTrainingError("no batches: nothing was trained")
        references = References(self._eager_trainer, self.tolerance)
        steps, failure = self._train(references)
        if failure is None and not references.saw_gradient:
            raise BadTrainingError("every gradient of every step is zero in eager: no comparison of them could fail")
        return TrainingReport(tuple(steps), self.tolerance.level, self._rule(steps), failure)

    def _train(self, references: References) -> tuple[list[StepReport], TrainingMismatch | None]:
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
                return steps, self._failure(references, batch, number, error)
            # Eager code may compile as well (flex_attention does): not the backend's doing.
            with Unobserved(self.regional):
                steps.append(references.judge(start, step, batch))
        return steps, None

    def _failure(self, references: References, batch: Batch, number: int, error: Exception) -> TrainingMismatch:
        with Unobserved(self.regional):
            references.confirm(batch, number)
        self.error = error
        return TrainingMismatch(number, "the compiled step", "exception", first_line(error))

    def _compiling(self, number: int) -> contextlib.AbstractContextManager[None]:
        if number > self.compiling_steps:
            return self.regional.no_compile()
        # Inductor draws other random numbers than eager otherwise; whoever compiles, compiles in this scope.
        return patched_config("torch._inductor.config", {"fallback_random": True})

    def _candidate(self) -> Trainer:
        model = self._copy()
        call = self._compile(model) if self.compiled is None else self.compiled(model)
        return self._trainer(call, owner_of(call, model))

    def _compile(self, model: torch.nn.Module) -> Any:
        return self.regional.compile_with(model, replace(self.regional.options, fallback_random=True))

    def _eager_trainer(self, wide: bool) -> Trainer:
        model = self._copy()
        return self._trainer(model, model, wide)

    def _trainer(self, call: Any, owner: torch.nn.Module, wide: bool = False) -> Trainer:
        names = tuple(name for name, _ in self.model.named_parameters())
        keywords: dict[str, Any] = {"loss": self.loss, "optimizer": self.optimizer, "seed": self.regional.seed}
        return Trainer(call, owner, wide=wide, names=names, **keywords)

    def _copy(self) -> torch.nn.Module:
        try:
            return copy.deepcopy(self.model)
        except (RuntimeError, TypeError) as error:
            raise BadTrainingError(
                f"{type(self.model).__name__} cannot be copied ({first_line(error)}); each of the trainings that are "
                f"compared needs a copy of its own"
            ) from error

    def _rule(self, steps: Sequence[StepReport]) -> str:
        tolerance = self.tolerance
        if tolerance.explicit:
            return f"rtol={tolerance.rtol}, atol={tolerance.atol}"
        without = [str(step.number) for step in steps if step.anchor_unavailable_reason]
        if tolerance.uses_anchor and without:
            return f"level 'close' (assert_close defaults in step {', '.join(without)})"
        return f"level {tolerance.level!r}"


def owner_of(call: Any, model: torch.nn.Module) -> torch.nn.Module:
    """Return the module whose parameters ``call`` trains: ``model``, or ``call`` itself if it has others.

    Raises:
        BadTrainingError: its parameters have other names than the model's.
    """
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
