"""What a call of a captured model must be like: what tracing took for granted, checked instead of silently wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional._torch.joint_graph import evaluate_size_guards
from pytest_regional._torch.pytree import flatten
from pytest_regional._torch.region_compile import is_symbolic, plain_symbol
from pytest_regional.reference.artifacts import InputMismatchError

_REMEDY = "Capture and compile the model for such calls"


@dataclass(frozen=True)
class InputCheck:
    """One leaf of the arguments.

    Attributes:
        shape: Sizes: a number, the name of a symbol, or None for what follows from others. Empty for no tensor.
        dtype: None for what is no tensor.
        device: As text.
        requires_grad: Whether gradients may reach it in what was captured.
        value: What is no tensor is a constant of the graph.
    """

    shape: tuple[int | str | None, ...]
    dtype: torch.dtype | None
    device: str
    requires_grad: bool
    value: Any = None

    @classmethod
    def of(cls, leaf: Any, fake: Any) -> InputCheck:
        """Look at an example input and the value that stood for it in the trace."""
        if not isinstance(leaf, torch.Tensor):
            return cls((), None, "", requires_grad=False, value=leaf)
        sizes = fake.shape if isinstance(fake, torch.Tensor) else leaf.shape
        shape = tuple(plain_symbol(size) if is_symbolic(size) else int(size) for size in sizes)
        return cls(shape, leaf.dtype, str(leaf.device), leaf.requires_grad and torch.is_grad_enabled())

    def complaint(self, leaf: Any) -> str | None:
        """Say what is wrong with ``leaf``, or return None."""
        if self.dtype is None:
            same = type(leaf) is type(self.value) and leaf == self.value
            return None if same else f"is {leaf!r}, and was captured as the constant {self.value!r}"
        if not isinstance(leaf, torch.Tensor):
            return f"is a {type(leaf).__name__}, and was captured as a tensor"
        if leaf.dtype != self.dtype:
            return f"has dtype {leaf.dtype}, and was captured with {self.dtype}"
        if str(leaf.device) != self.device:
            return f"is on {leaf.device}, and was captured on {self.device}"
        if not self._fits(leaf.shape):
            return self._other_shape(leaf.shape)
        if leaf.requires_grad and not self.requires_grad and torch.is_grad_enabled():
            return "requires gradients, and gets none in what was captured (frozen then, or under no_grad)"
        return None

    def _other_shape(self, shape: Sequence[int]) -> str:
        fixed = {expected for size, expected in zip(shape, self.shape, strict=False) if size != expected} & {0, 1}
        hint = f"; a size of {fixed.pop()} is never a symbol: capture with a larger example" if fixed else ""
        return (
            f"has shape {tuple(shape)}, and was captured with ({', '.join(map(str, self.shape))}); with dynamic=True "
            f"one compile serves several sizes{hint}"
        )

    def _fits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(
            type(expected) is not int or size == expected for size, expected in zip(shape, self.shape, strict=True)
        )


@dataclass(frozen=True)
class CallChecks:
    """All that a call must be like.

    Attributes:
        state: Parameters and buffers, by name, in the order of the graph.
        inputs: The leaves of the arguments.
        structure: How they are nested.
        keywords: Names of keyword arguments, in the order of the trace.
        symbols: Names of symbolic sizes, with the leaf and dimension that tells each.
        guards: What the trace assumed of them, as an expression.
        training: Which modules were in training mode.
        modes: Global modes that decide what a model computes.
        returns: How the results are nested.
    """

    state: tuple[tuple[str, InputCheck], ...]
    inputs: tuple[InputCheck, ...]
    structure: Any
    keywords: tuple[str, ...]
    symbols: tuple[tuple[str, tuple[int, int]], ...]
    guards: str | None
    training: tuple[tuple[str, bool], ...]
    modes: tuple[tuple[str, Any], ...]
    returns: Any

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of a call's arguments.

        Raises:
            InputMismatchError: saying which argument does not fit, and how.
        """
        if set(kwargs) != set(self.keywords):
            raise InputMismatchError(
                f"the compiled model was captured with keyword arguments {list(self.keywords)} and is called with "
                f"{list(kwargs)}. {_REMEDY}."
            )
        leaves, structure = flatten((tuple(args), {name: kwargs[name] for name in self.keywords}))
        if structure != self.structure:
            raise InputMismatchError(
                f"the compiled model was captured with arguments of another structure: {self.structure} there, "
                f"{structure} here. {_REMEDY}."
            )
        for index, (check, leaf) in enumerate(zip(self.inputs, leaves, strict=True)):
            complaint = check.complaint(leaf)
            if complaint:
                raise InputMismatchError(f"input {index} {complaint}. {_REMEDY}.")
        self._check_sizes(leaves)
        return leaves

    def _check_sizes(self, leaves: Sequence[Any]) -> None:
        if not self.symbols:
            return
        sizes = {name: int(leaves[index].shape[dimension]) for name, (index, dimension) in self.symbols}
        for index, check in enumerate(self.inputs):
            for dimension, name in enumerate(check.shape):
                if type(name) is str and leaves[index].shape[dimension] != sizes[name]:
                    raise InputMismatchError(
                        f"input {index} has size {leaves[index].shape[dimension]} in dimension {dimension}, which was "
                        f"captured as the same size {name} as another that is {sizes[name]} now. {_REMEDY}."
                    )
        if self.guards and not evaluate_size_guards(self.guards, list(sizes.values())):
            raise InputMismatchError(
                f"the compiled model does not hold for sizes {sizes}: tracing assumed {self.guards} "
                f"(t0 is the first of them). {_REMEDY}."
            )

    def check_module(self, module: torch.nn.Module) -> None:
        """Raise unless ``module`` is in the mode that it was captured in.

        Raises:
            InputMismatchError: naming the first module in another mode, or a parameter that would get no gradient.
        """
        for name, mode in self.training:
            child = module.get_submodule(name)
            if child.training != mode:
                asked, was = ("training", "evaluation") if child.training else ("evaluation", "training")
                raise InputMismatchError(
                    f"module {name or 'the model'!r} is in {asked} mode, and was captured in {was} mode. {_REMEDY}, "
                    f"one for each mode."
                )

    def check_state(self, values: Sequence[Any]) -> None:
        """Raise unless parameters and buffers are as they were, up to their values.

        Raises:
            InputMismatchError: naming the first that is not.
        """
        for (name, check), value in zip(self.state, values, strict=True):
            complaint = check.complaint(value)
            if complaint:
                raise InputMismatchError(f"{name!r} of the model {complaint}. Capture and compile the model as it is.")

    def check_modes(self) -> None:
        """Raise unless autocast and determinism are as they were.

        Raises:
            InputMismatchError: naming what is different.
        """
        for (name, was), (_, now) in zip(self.modes, ambient_modes(), strict=True):
            if was != now:
                raise InputMismatchError(f"{name} is {now}, and was {was} when the model was captured. {_REMEDY}.")


def ambient_modes() -> tuple[tuple[str, Any], ...]:
    """Return the global modes that decide which ops a model consists of."""
    devices = ("cpu", "cuda")
    autocast = [
        (f"autocast on {device}", torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)
        for device in devices
    ]
    return (*autocast, ("the default dtype", torch.get_default_dtype()))
