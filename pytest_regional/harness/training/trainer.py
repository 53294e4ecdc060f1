"""Take optimizer steps with a model, and judge each step by eager's and the float64 one."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch

from pytest_regional.harness.inputs import seed_torch
from pytest_regional.harness.parity.fp64_reference import Precision, float64_everywhere, rounding_to
from pytest_regional.harness.parity.inputs import copy_inputs, widen
from pytest_regional.harness.parity.noise import Noise, NoiseSource, is_float, judged
from pytest_regional.harness.parity.report import Comparison
from pytest_regional.harness.parity.rounding import Rounded
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64
from pytest_regional.harness.parity.tolerance import EAGER_ERROR_FACTOR, Coarse, Tolerance, judge
from pytest_regional.harness.training.report import BadTrainingError, Drift, StepReport, TrainingMismatch

Batch: TypeAlias = Any
Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]
OptimizerFactory: TypeAlias = Callable[[Iterable[torch.nn.Parameter]], Any]
Tensors: TypeAlias = Mapping[str, torch.Tensor]

adam: OptimizerFactory = functools.partial(torch.optim.Adam, lr=1e-3)


@dataclass(frozen=True, eq=False)
class TrainingStep:
    """One optimizer step: the loss, the gradients it was taken with, parameters and buffers after it.

    ``number`` counts from 1. A gradient is None where none arrived.
    """

    number: int
    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor | None]
    parameters: Tensors
    buffers: Tensors


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

    Args:
        call: the model, or it compiled.
        model: the module that owns the parameters.
        loss: as :func:`train`'s.
        optimizer: as :func:`train`'s.
        seed: as :func:`train`'s.
        kwargs: as :func:`train`'s.
        wide: hold and compute everything in float64.
        names: order in which the optimizer gets the parameters; that of ``model`` by default.
        precision: compute loss and gradients in this one, which is coarser than the model's.
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
            widen_module(model)
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
        self,
        batch: Batch,
        number: int,
        gradients: Mapping[str, torch.Tensor | None] | None = None,
        rounding: int | None = None,
    ) -> TrainingStep:
        """Take one step; where ``gradients`` are given, the optimizer gets them instead of those just computed.

        ``rounding`` is a seed: loss and gradients are computed with every intermediate result moved by at most one unit
        in its last place.
        """
        for parameter in self.parameters.values():
            parameter.grad = None
        # Copied outside the float64 mode, which would take the copying itself for part of the program.
        arguments, keywords = as_call(batch)
        transform = widen if self.wide else torch.clone
        copied = copy_inputs(arguments, transform=transform, kwargs={**self.kwargs, **keywords})
        rounded = contextlib.nullcontext() if rounding is None else Rounded(rounding)
        with seeded(self.seed + number, self.parameters.values()), self._precision(), rounded:
            loss = self._loss(copied.arguments, copied.keywords, target=_last(keywords))
            loss.backward()
        own = {name: _gradient(parameter) for name, parameter in self.parameters.items()}
        if gradients is not None:
            self._replace_gradients(gradients)
        self.optimizer.step()
        buffers = dict(self.model.named_buffers())
        return TrainingStep(number, loss.detach().clone(), own, _copied(self.parameters), _copied(buffers))

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        if self.precision is not None:
            return rounding_to(self.precision)
        return float64_everywhere() if self.wide else contextlib.nullcontext()

    def _loss(self, arguments: tuple[Any, ...], keywords: dict[str, Any], target: str | None) -> torch.Tensor:
        if self.loss is None:
            output = self.call(*arguments, **keywords)
            loss = getattr(output, "loss", output)
        elif target is not None:
            expected = keywords.pop(target)
            loss = self.loss(self.call(*arguments, **keywords), expected)
        else:
            *inputs, expected = arguments
            loss = self.loss(self.call(*inputs, **keywords), expected)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise BadTrainingError(
                f"a loss is a tensor of one element that requires a gradient, not {_brief(loss)}; return one from the "
                f"model, or an object with it as its attribute loss, or pass loss=, a function of the output and the "
                f"last item of the batch"
            )
        return loss

    def _replace_gradients(self, gradients: Mapping[str, torch.Tensor | None]) -> None:
        for name, parameter in self.parameters.items():
            given = gradients.get(name)
            parameter.grad = None if given is None else given.to(parameter.dtype, copy=True)


def as_call(batch: Batch) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and keyword arguments that ``batch`` stands for."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


def _last(keywords: Mapping[str, Any]) -> str | None:
    return next(reversed(list(keywords)), None)


def widen_module(model: torch.nn.Module) -> None:
    """Hold every parameter and buffer of ``model`` in float64; tied ones stay tied."""
    for tensor in (*model.parameters(), *model.buffers()):
        dtype = LOW_PRECISION_TO_FP64.get(tensor.dtype)
        if dtype is not None:
            tensor.data = tensor.data.to(dtype)


@contextlib.contextmanager
def seeded(seed: int, tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Seed the default generators of the CPU and of the tensors' devices in the body; put them back afterwards."""
    cuda = sorted({tensor.device.index or 0 for tensor in tensors if tensor.device.type == "cuda"})
    with torch.random.fork_rng(devices=cuda):
        seed_torch(seed)
        yield


def _copied(tensors: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _gradient(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    return None if parameter.grad is None else parameter.grad.detach().clone()


def _brief(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:100]


Values = Mapping[str, torch.Tensor | None]

#: Why a step has no float64 reference that could not have one: its tensors are as wide as float64 already.
NOTHING_TO_REFINE = "nothing that trains has a precision below float64"
#: How many runs say how far rounding moves all gradients together.
FEW_RUNS = 5
#: Where rounding moves all gradients together by more than this of their size, choices flip in those runs, too.
MOST_MOVED = 0.1


class CoarseStep(NamedTuple):
    """A step of eager's in the coarser precision that a backend computes in."""

    precision: Precision
    step: TrainingStep


def judge_step(
    tolerance: Tolerance,
    candidate: TrainingStep,
    eager: TrainingStep,
    fp64: TrainingStep | str,
    *,
    coarse: CoarseStep | None = None,
    noise: NoiseSource,
    drift: Drift | None = None,
) -> StepReport:
    """Return the differences of one step; ``fp64`` is the float64 one, or the reason why there is none."""
    float64 = None if isinstance(fp64, str) else fp64
    reason = fp64 if isinstance(fp64, str) else _flaw(eager, fp64, noise)
    usable = float64 if reason is None else None

    def compared(noise: Noise | None) -> _StepComparison:
        comparison = _StepComparison(tolerance, candidate, eager, usable, coarse, noise)
        comparison.run()
        return comparison

    found = judged(compared, noise)
    return StepReport(
        number=candidate.number,
        loss=float(candidate.loss),
        loss_eager=float(eager.loss),
        loss_float64=None if float64 is None else float(float64.loss),
        gradient_error=None if usable is None else largest_error(candidate.gradients, usable.gradients),
        gradient_error_eager=None if usable is None else largest_error(eager.gradients, usable.gradients),
        mismatches=tuple(TrainingMismatch(**vars(one), step=candidate.number) for one in found.mismatches),
        compared=found.compared,
        worst_ratio=found.worst_ratio,
        worst_where=found.worst_where,
        fp64_unavailable_reason=reason,
        drift=drift,
        errors=found.errors,
        rounded_runs=0 if found.noise is None else len(found.noise.runs),
    )


class _StepComparison(Comparison):
    """The comparison of one step."""

    def __init__(
        self,
        tolerance: Tolerance,
        candidate: TrainingStep,
        eager: TrainingStep,
        fp64: TrainingStep | None,
        coarse: CoarseStep | None,
        noise: Noise | None,
    ) -> None:
        super().__init__(tolerance, noise)
        self.candidate, self.eager = candidate, eager
        self.fp64, self.coarse = fp64, coarse

    def run(self) -> None:
        for where, values in self._pairs():
            self._compare(where, *values)

    def _pairs(self) -> Iterator[tuple[str, tuple[torch.Tensor | None, ...]]]:
        """Yield what a tensor is called, and its value in the compiled, the eager, the float64 and the coarse step."""
        steps = self.candidate, self.eager, self.fp64, self.coarse.step if self.coarse else None
        values = [{} if step is None else named_values(step) for step in steps]
        for name in dict.fromkeys([*values[1], *values[0]]):
            yield name, tuple(one.get(name) for one in values)

    def _compare(
        self,
        where: str,
        candidate: torch.Tensor | None,
        eager: torch.Tensor | None,
        fp64: torch.Tensor | None,
        coarse: torch.Tensor | None,
    ) -> None:
        if candidate is None and eager is None:
            return
        if candidate is None or eager is None:
            has = "there is none" if candidate is None else "there is one"
            self.add(where, "missing", f"{has} in the compiled training, but in eager it is the other way round")
            return
        for kind in ("shape", "dtype", "device"):
            ours, theirs = getattr(candidate, kind), getattr(eager, kind)
            if ours != theirs:
                self.add(where, kind, f"compiled {ours}, eager {theirs}")
                return
        rounded = Coarse(self.coarse.precision, coarse) if self.coarse else None
        self._judge(where, candidate, eager, fp64, rounded)

    def _judge(
        self,
        where: str,
        candidate: torch.Tensor,
        eager: torch.Tensor,
        fp64: torch.Tensor | None,
        coarse: Coarse | None,
    ) -> None:
        noise = None if self.noise is None else self.noise.of(where, eager, fp64)
        self.judged(where, judge(self.tolerance, candidate, eager, fp64, coarse, noise))


def named_values(step: TrainingStep) -> dict[str, torch.Tensor | None]:
    """Return what a step made under the names that reports give it."""
    values: dict[str, torch.Tensor | None] = {"loss": step.loss}
    for kind, group in (("gradient of", step.gradients), ("parameter", step.parameters), ("buffer", step.buffers)):
        values |= {f"{kind} {name}": value for name, value in group.items()}
    return values


def noise_of(eager: TrainingStep, run: Callable[[int], TrainingStep]) -> NoiseSource:
    """Return what takes the step that ``eager`` is again, each time rounded otherwise."""
    return Noise.source(_floats(eager), lambda seed: _floats(run(seed)))


def _floats(step: TrainingStep) -> dict[str, torch.Tensor]:
    return {name: value for name, value in named_values(step).items() if value is not None and is_float(value.dtype)}


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
    if not distance <= limit * size and not distance <= _moved_by_rounding(eager, noise):
        return (
            f"the float64 run computes something else: its gradients are {distance / size if size else math.inf:.2g} "
            f"of their size away from eager's (random numbers, or choices that flipped)"
        )
    return None


def _moved_by_rounding(eager: TrainingStep, noise: NoiseSource) -> float:
    """Return how far all gradients together may be from float64 for no reason but rounding; 0 where it says nothing."""
    gradients = {f"gradient of {name}": value for name, value in eager.gradients.items()}
    found = [_distance(run, gradients) for run in noise(FEW_RUNS).runs]
    moved = statistics.median(distance for distance, _ in found) if found else 0.0
    return EAGER_ERROR_FACTOR * moved if all(moved <= MOST_MOVED * size for _, size in found) else 0.0


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


def largest_error(values: Values, exact: Values) -> float:
    """Return the largest distance of any element of ``values`` from the float64 value of it."""
    pairs = [(values.get(name), truth) for name, truth in exact.items()]
    errors = [
        float((value.to(truth.dtype) - truth).abs().max())
        for value, truth in pairs
        if value is not None and truth is not None and value.shape == truth.shape and truth.numel()
    ]
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error, default=0.0)
