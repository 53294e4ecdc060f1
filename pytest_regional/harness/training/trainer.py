"""Take optimizer steps with a model, and keep what each of them did."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from pytest_regional.harness.inputs import seed_torch
from pytest_regional.harness.parity.fp64_reference import Precision, float64_everywhere, rounding_to
from pytest_regional.harness.parity.inputs import copy_inputs, widen
from pytest_regional.harness.parity.rounding import Rounded
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64
from pytest_regional.harness.training.report import BadTrainingError

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
