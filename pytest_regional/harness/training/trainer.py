"""Take optimizer steps with a model, and judge each step by eager's and the float64 one."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from pytest_regional._base.text import first_line
from pytest_regional.harness.isolation import seed_torch
from pytest_regional.harness.parity.compare import Comparison, judged
from pytest_regional.harness.parity.inputs import copy_inputs, widen
from pytest_regional.harness.parity.precision import Precision, Rounded, RoundsOperands, float64_everywhere, is_float
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64, promote
from pytest_regional.harness.parity.tolerance import EAGER_ERROR_FACTOR, Coarse, Noise, NoiseSource, Tolerance
from pytest_regional.harness.training.report import BadTrainingError, Drift, StepReport, TrainingMismatch

Batch: TypeAlias = Any
Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]
OptimizerFactory: TypeAlias = Callable[[Iterable[torch.nn.Parameter]], Any]
Tensors: TypeAlias = Mapping[str, torch.Tensor]
Values: TypeAlias = Mapping[str, torch.Tensor | None]

adam: OptimizerFactory = functools.partial(torch.optim.Adam, lr=1e-3)


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """One optimizer step: the loss, the gradients it was taken with, parameters and buffers after it."""

    number: int  # from 1
    loss: torch.Tensor
    gradients: Values  # None where none arrived
    parameters: Tensors
    buffers: Tensors

    def named_values(self) -> dict[str, torch.Tensor | None]:
        """Return what the step made under the names that reports give it."""
        groups = {"gradient of": self.gradients, "parameter": self.parameters, "buffer": self.buffers}
        values = {f"{kind} {name}": value for kind, group in groups.items() for name, value in group.items()}
        return {"loss": self.loss, **values}

    def floats(self) -> dict[str, torch.Tensor]:
        """Return the floating tensors among them."""
        values = self.named_values().items()
        return {name: value for name, value in values if value is not None and is_float(value.dtype)}


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """The steps of one training, in order."""

    steps: tuple[TrainingStep, ...]

    @property
    def losses(self) -> tuple[float, ...]:
        """The loss of every step."""
        return tuple(float(step.loss) for step in self.steps)


@dataclass(frozen=True, eq=False)
class TrainingState:
    """All that a step starts from but the batch: parameters, buffers, what the optimizer remembers."""

    parameters: Tensors
    buffers: Tensors
    optimizer: Any


def train(
    call: Callable[..., Any],
    model: torch.nn.Module,
    batches: Sequence[Batch],
    *,
    loss: Loss | None = None,
    optimizer: OptimizerFactory = adam,
    seed: int = 0,
    kwargs: Mapping[str, Any] | None = None,
) -> TrainingRun:
    """Train ``model`` itself with one optimizer step a batch, forward through ``call``; return what each step did.

    Args:
        call: the model, or it compiled.
        model: the module whose parameters are trained.
        batches: for each step a tuple of arguments, or a dictionary of keyword arguments; a single tensor stands for
            the tuple of it. Tensors are copied.
        loss: gets the output and the last item of the batch, the target, which ``call`` is not given. Without one,
            ``call`` returns the loss, or an object with the loss as its attribute ``loss``.
        optimizer: called with the parameters; Adam with a learning rate of 1e-3 by default.
        seed: step number n draws its random numbers from ``seed + n``.
        kwargs: keyword arguments of ``call`` that are the same in every step.

    Raises:
        BadTrainingError: no parameters, or no scalar loss to backpropagate from.
    """
    trainer = Trainer(call, model, loss=loss, optimizer=optimizer, seed=seed, kwargs=kwargs)
    return TrainingRun(tuple(trainer.step(batch, number) for number, batch in enumerate(batches, start=1)))


class Trainer:
    """A model under training: takes steps, tells its state, and can go on from the state of another.

    The arguments are those of :func:`train`. With ``wide``, everything is held and computed in float64. ``names`` is
    the order in which the optimizer gets the parameters, that of ``model`` by default. Loss and gradients are computed
    in ``precision``, if one is given.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        model: torch.nn.Module,
        *,
        loss: Loss | None,
        optimizer: OptimizerFactory,
        seed: int,
        kwargs: Mapping[str, Any] | None = None,
        wide: bool = False,
        names: Sequence[str] = (),
        precision: Precision | None = None,
    ) -> None:
        self.precision = precision
        self.call, self.model, self.loss, self.seed, self.wide = call, model, loss, seed, wide
        self.kwargs = dict(kwargs or {})
        if wide:
            promote((*model.parameters(), *model.buffers()))
        parameters = dict(model.named_parameters())
        if not any(parameter.requires_grad for parameter in parameters.values()):
            raise BadTrainingError(f"{type(model).__name__} has no parameter that requires a gradient: nothing trains")
        self.parameters = {name: parameters[name] for name in names or parameters}
        self.optimizer = optimizer(list(self.parameters.values()))

    def state(self) -> TrainingState:
        """Return a copy of all that the next step starts from."""
        return TrainingState(
            _copied(self.parameters),
            _copied(dict(self.model.named_buffers())),
            copy.deepcopy(self.optimizer.state_dict()),
        )

    def resume(self, state: TrainingState) -> None:
        """Go on from ``state``, of this model or of one in another precision."""
        buffers = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in state.parameters.items():
                self.parameters[name].copy_(value)
            for name in (name for name in state.buffers if name in buffers):
                buffers[name].copy_(state.buffers[name])
        # load_state_dict keeps the tensors that need no conversion: without a copy two optimizers would share them.
        self.optimizer.load_state_dict(copy.deepcopy(state.optimizer))

    def step(
        self, batch: Batch, number: int, gradients: Values | None = None, rounding: int | None = None
    ) -> TrainingStep:
        """Take one step; where ``gradients`` are given, the optimizer gets them instead of those just computed.

        ``rounding`` is a seed: loss and gradients are computed with every intermediate result moved by at most one unit
        in its last place.
        """
        for parameter in self.parameters.values():
            parameter.grad = None
        # Copied outside the float64 mode, which would take the copying itself for part of the program.
        arguments: tuple[Any, ...] = ()
        keywords: dict[str, Any] = {}
        if isinstance(batch, Mapping):
            keywords = dict(batch)
        else:
            arguments = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        transform = widen if self.wide else torch.clone
        copied = copy_inputs(arguments, transform=transform, kwargs={**self.kwargs, **keywords})
        mode: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if self.precision is not None:
            mode = RoundsOperands(self.precision)
        elif self.wide:
            mode = float64_everywhere()
        rounded = contextlib.nullcontext() if rounding is None else Rounded(rounding)
        # Seeds the default generators of the CPU and of the parameters' devices, and puts them back.
        devices = {one.device.index or 0 for one in self.parameters.values() if one.device.type == "cuda"}
        with torch.random.fork_rng(devices=sorted(devices)):
            seed_torch(self.seed + number)
            with mode, rounded:
                loss = self._loss(copied.arguments, copied.keywords, target=next(reversed(keywords), None))
                loss.backward()
        grads = {name: parameter.grad for name, parameter in self.parameters.items()}
        own = {name: None if grad is None else grad.detach().clone() for name, grad in grads.items()}
        if gradients is not None:
            for name, parameter in self.parameters.items():
                given = gradients.get(name)
                parameter.grad = None if given is None else given.to(parameter.dtype, copy=True)
        self.optimizer.step()
        buffers = dict(self.model.named_buffers())
        return TrainingStep(number, loss.detach().clone(), own, _copied(self.parameters), _copied(buffers))

    def _loss(self, arguments: tuple[Any, ...], keywords: dict[str, Any], target: str | None) -> torch.Tensor:
        expected = None
        if self.loss is not None:
            *given, last = arguments if target is None else (*arguments, keywords.pop(target))
            arguments, expected = tuple(given), last
        output = self.call(*arguments, **keywords)
        loss = getattr(output, "loss", output) if self.loss is None else self.loss(output, expected)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            is_tensor = isinstance(loss, torch.Tensor)
            shown = f"a tensor of shape {list(loss.shape)}" if is_tensor else repr(loss)[:100]
            raise BadTrainingError(
                f"a loss is a tensor of one element that requires a gradient, not {shown}; return one from the "
                f"model, or an object with it as its attribute loss, or pass loss=, a function of the output and the "
                f"last item of the batch"
            )
        return loss


def _copied(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


#: Why a step has no float64 reference that could not have one: its tensors are as wide as float64 already.
NOTHING_TO_REFINE = "nothing that trains has a precision below float64"
#: How many runs say how far rounding moves all gradients together.
FEW_RUNS = 5
#: Where rounding moves all gradients together by more than this of their size, choices flip in those runs, too.
MOST_MOVED = 0.1


TrainerFactory = Callable[[bool], Trainer]
"""Makes a trainer of a fresh eager copy of the model; the argument says whether in float64."""


class _Float64:
    """A float64 trainer that may turn out to be impossible; the reason then takes the place of every step."""

    def __init__(self, make: TrainerFactory) -> None:
        self.make = make
        self.trainer: Trainer | None = None
        self.reason = ""

    def step(
        self, batch: Batch, number: int, start: TrainingState | None = None, gradients: Values | None = None
    ) -> TrainingStep | str:
        if self.reason:
            return self.reason
        try:
            self.trainer = self.trainer or self.make(True)
            if start is not None:
                self.trainer.resume(start)
            return self.trainer.step(batch, number, gradients)
        except Exception as error:  # noqa: BLE001 - a program that cannot run in float64 is judged without.
            self.reason = f"the float64 run raised {first_line(error)}"
            return self.reason


@dataclass
class References:
    """Eager and float64 trainings: two that start each step where the compiled run did, two left to themselves."""

    make: TrainerFactory
    tolerance: Tolerance
    make_coarse: Callable[[], Trainer] | None = None  # in the precision of a backend that computes in a coarser one
    with_gradient: set[str] = field(default_factory=set)  # the parameters that got a gradient in any eager step
    saw_gradient: bool = False  # whether one was not zero

    def __post_init__(self) -> None:
        """Make the copies."""
        self.eager, self.free = self.make(False), self.make(False)
        self.coarse = self.make_coarse() if self.make_coarse else None
        self.float64, self.free64 = _Float64(self.make), _Float64(self.make)

    def judge(self, start: TrainingState, candidate: TrainingStep, batch: Batch) -> StepReport:
        """Take the step that ``candidate`` took from ``start``, in eager and in float64, and compare."""

        def step_of(trainer: Trainer, rounding: int | None = None) -> TrainingStep:
            trainer.resume(start)
            return self.take(trainer, batch, candidate.number, candidate.gradients, rounding)

        eager = step_of(self.eager)
        fp64 = self.float64.step(batch, candidate.number, start, candidate.gradients)
        self.with_gradient |= {name for name, gradient in eager.gradients.items() if gradient is not None}
        self.saw_gradient |= any(g is not None and bool(g.any()) for g in eager.gradients.values())
        coarse = step_of(self.coarse) if self.coarse else None
        precision = self.coarse.precision if self.coarse else None
        noise = Noise.source(eager.floats(), lambda seed: step_of(self.eager, seed).floats())
        drift = self._drift(candidate, batch)
        float64 = None if isinstance(fp64, str) else fp64
        reason = fp64 if isinstance(fp64, str) else _flaw(eager, fp64, noise)
        usable = float64 if reason is None else None

        def compared(noise: Noise | None) -> _StepComparison:
            comparison = _StepComparison(self.tolerance, noise)
            comparison.run(candidate, eager, usable, coarse, precision)
            return comparison

        found = judged(compared, noise)
        return StepReport(
            number=candidate.number,
            loss=float(candidate.loss),
            loss_eager=float(eager.loss),
            loss_float64=None if float64 is None else float(float64.loss),
            gradient_error=None if usable is None else _largest_error(candidate.gradients, usable.gradients),
            gradient_error_eager=None if usable is None else _largest_error(eager.gradients, usable.gradients),
            mismatches=tuple(TrainingMismatch(**vars(one), step=candidate.number) for one in found.mismatches),
            compared=found.compared,
            worst_ratio=found.worst_ratio,
            worst_where=found.worst_where,
            fp64_unavailable_reason=reason,
            drift=drift,
            errors=found.errors,
            rounded_runs=0 if found.noise is None else len(found.noise.runs),
        )

    def take(
        self, trainer: Trainer, batch: Batch, number: int, gradients: Values | None = None, rounding: int | None = None
    ) -> TrainingStep:
        """Take a step in eager."""
        try:
            return trainer.step(batch, number, gradients, rounding)
        except BadTrainingError:
            raise
        except Exception as error:
            raise BadTrainingError(
                f"the training fails in eager, in step {number}: {first_line(error)}\n"
                f"This is not the compiler's failure. Fix the model or its batches first."
            ) from error

    def _drift(self, candidate: TrainingStep, batch: Batch) -> Drift | None:
        eager, fp64 = self.take(self.free, batch, candidate.number), self.free64.step(batch, candidate.number)
        if isinstance(fp64, str):
            return None
        return Drift(
            parameters=_largest_error(candidate.parameters, fp64.parameters),
            parameters_eager=_largest_error(eager.parameters, fp64.parameters),
        )


class _StepComparison(Comparison):
    """The comparison of one step."""

    def run(
        self,
        candidate: TrainingStep,
        eager: TrainingStep,
        fp64: TrainingStep | None,
        coarse: TrainingStep | None,
        precision: Precision | None,
    ) -> None:
        ours, theirs = candidate.named_values(), eager.named_values()
        exact, rounded = ({} if step is None else step.named_values() for step in (fp64, coarse))
        for where in {**theirs, **ours}:
            found, expected = ours.get(where), theirs.get(where)
            if found is None and expected is None:
                continue
            if found is None or expected is None:
                has = "there is none" if found is None else "there is one"
                self.add(where, "missing", f"{has} in the compiled training, but in eager it is the other way round")
                continue
            kinds = (kind for kind in ("shape", "dtype", "device") if getattr(found, kind) != getattr(expected, kind))
            other = next(kinds, "")
            if other:
                self.add(where, other, f"compiled {getattr(found, other)}, eager {getattr(expected, other)}")
            else:
                at_coarse = Coarse(precision, rounded.get(where)) if precision else None
                self.judge(where, found, expected, exact.get(where), at_coarse)


def _flaw(eager: TrainingStep, fp64: TrainingStep, noise: NoiseSource) -> str | None:
    """Say why the float64 step is no step of the same computation, or None.

    Another dropout mask or another choice of experts in float64 makes gradients that are far from eager's, and a
    tolerance earned from their distance would excuse everything. All gradients count together: that of a bias before
    a normalization is nothing but rounding. Under autocast the gradients' dtype does not say how coarse the numbers
    are that they were computed from, so what rounding does to them decides.
    """
    dtypes = {gradient.dtype for gradient in eager.gradients.values() if gradient is not None}
    narrow = [dtype for dtype in dtypes if dtype in LOW_PRECISION_TO_FP64]
    if not narrow:
        return NOTHING_TO_REFINE
    limit = max(math.sqrt(torch.finfo(dtype).eps) for dtype in narrow)
    distance, size = _distance(eager.gradients, fp64.gradients)
    if distance <= limit * size:
        return None
    gradients = {f"gradient of {name}": value for name, value in eager.gradients.items()}
    found = [_distance(run, gradients) for run in noise(FEW_RUNS).runs]
    moved = statistics.median(distance for distance, _ in found) if found else 0.0
    if distance <= EAGER_ERROR_FACTOR * moved and all(moved <= MOST_MOVED * size for _, size in found):
        return None
    return (
        f"the float64 run computes something else: its gradients are {distance / size if size else math.inf:.2g} "
        f"of their size away from eager's (random numbers, or choices that flipped)"
    )


def _distance(first: Values, second: Values) -> tuple[float, float]:
    """Return the norm of the difference of all gradients together, and that of ``second``."""
    apart = size = 0.0
    for name, value in second.items():
        other = first.get(name)
        if value is None or other is None:
            continue
        apart += float((other.to(value.dtype) - value).abs().double().square().sum())
        size += float(value.abs().double().square().sum())
    return math.sqrt(apart), math.sqrt(size)


def _largest_error(values: Values, exact: Values) -> float:
    """Return the largest distance of any element of ``values`` from the float64 value of it."""
    pairs = ((values.get(name), truth) for name, truth in exact.items())
    errors = [
        float((value.to(truth.dtype) - truth).abs().max())
        for value, truth in pairs
        if value is not None and truth is not None and value.shape == truth.shape and truth.numel()
    ]
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error, default=0.0)
