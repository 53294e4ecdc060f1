"""Checks of calls of a captured model: the assumptions of tracing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional._torch.joint_graph import evaluate_size_guards
from pytest_regional._torch.pytree import flatten, unflatten
from pytest_regional._torch.tracing import is_symbolic, plain_symbol, storage_key
from pytest_regional.reference.caching.container import ArtifactError

_REMEDY = "Capture and compile the model for such calls"


@dataclass(frozen=True)
class InputCheck:
    """One leaf of the arguments.

    Attributes:
        shape: Sizes: a number, the name of a symbol, or None if computed from others. Empty if not a tensor.
        dtype: None if not a tensor.
        device: As text.
        strides: Like ``shape``, but None if not a number; empty if not a tensor.
        requires_grad: Whether it may receive gradients in the captured graph.
        value: A leaf that is not a tensor is a constant of the graph.
    """

    shape: tuple[int | str | None, ...]
    dtype: torch.dtype | None
    device: str
    requires_grad: bool
    strides: tuple[int | None, ...] = ()
    value: Any = None

    @classmethod
    def of(cls, leaf: Any, fake: Any) -> InputCheck:
        """Describe an example input and its value in the trace."""
        if not isinstance(leaf, torch.Tensor):
            return cls((), None, "", requires_grad=False, value=leaf)
        seen = fake if isinstance(fake, torch.Tensor) else leaf
        shape = tuple(plain_symbol(size) if is_symbolic(size) else int(size) for size in seen.shape)
        strided = leaf.layout is torch.strided
        strides = tuple(None if is_symbolic(step) else int(step) for step in seen.stride()) if strided else ()
        return cls(shape, leaf.dtype, str(leaf.device), leaf.requires_grad and torch.is_grad_enabled(), strides)

    def complaint(self, leaf: Any) -> str | None:
        """Describe what is wrong with ``leaf``, or return None."""
        if self.dtype is None:
            return None if _same(leaf, self.value) else f"is {leaf!r}, and was captured as the constant {self.value!r}"
        if not isinstance(leaf, torch.Tensor):
            return f"is a {type(leaf).__name__}, and was captured as a tensor"
        if leaf.dtype != self.dtype:
            return f"has dtype {leaf.dtype}, and was captured with {self.dtype}"
        if str(leaf.device) != self.device:
            return f"is on {leaf.device}, and was captured on {self.device}"
        if not self._fits(leaf.shape):
            return self._other_shape(leaf.shape)
        if leaf.layout is torch.strided and leaf.numel() and not self._lies_alike(leaf):
            return f"has strides {leaf.stride()}, and was captured with ({', '.join(map(str, self.strides))})"
        if leaf.requires_grad and not self.requires_grad and torch.is_grad_enabled():
            return "requires gradients, and gets none in what was captured (frozen then, or under no_grad)"
        return None

    def _lies_alike(self, leaf: torch.Tensor) -> bool:
        """Compare strides of the dimensions with more than one element."""
        return all(
            size < 2 or expected is None or step == expected
            for size, step, expected in zip(leaf.shape, leaf.stride(), self.strides, strict=False)
        )

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


def _same(leaf: Any, value: Any) -> bool:
    """Compare constants; a NaN equals another NaN."""
    return type(leaf) is type(value) and bool(leaf == value or (leaf != leaf and value != value))


@dataclass(frozen=True)
class Aliases:
    """Which parameters, buffers and inputs are identical, by position.

    Attributes:
        same: pairs that were one tensor, and one input of the trace.
        storages: for each tensor the first one that it shares memory with; None if the model writes to none.
    """

    same: tuple[tuple[int, int], ...]
    storages: tuple[int, ...] | None

    @classmethod
    def of(cls, values: Sequence[Any], *, writes: bool) -> Aliases:
        """Describe the values of a capture."""
        first: dict[int, int] = {}
        same = []
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                earlier = first.setdefault(id(value), index)
                same += [(earlier, index)] if earlier != index else []
        return cls(tuple(same), _storages(values) if writes else None)

    def complaint(self, values: Sequence[Any]) -> tuple[int, int, str] | None:
        """Return two positions and what is wrong with them, or None."""
        for one, other in self.same:
            if values[one] is not values[other]:
                return one, other, "are two tensors, and were one and the same when the model was captured"
        if self.storages is None:
            return None
        for index, (was, now) in enumerate(zip(self.storages, _storages(values), strict=True)):
            if was != now:
                return min(was, now), index, "share memory differently than when the model, which writes, was captured"
        return None


def _storages(values: Sequence[Any]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    keys = [storage_key(value) for value in values]
    return tuple(index if key is None else first.setdefault(key, index) for index, key in enumerate(keys))


@dataclass(frozen=True)
class CallChecks:
    """All requirements of a call.

    Attributes:
        state: Parameters and buffers, by name, in the order of the graph.
        inputs: The leaves of the arguments.
        structure: Their nesting.
        keywords: Names of keyword arguments, in the order of the trace.
        symbols: Names of symbolic sizes, each with the leaf and dimension that determine it.
        guards: The trace's assumptions about them, as an expression.
        training: Which modules were in training mode.
        modes: Global modes that affect the model's ops.
        aliases: Which inputs are identical.
        gradients: Whether there is a backward.
        returns: The nesting of the results.
    """

    state: tuple[tuple[str, InputCheck], ...]
    inputs: tuple[InputCheck, ...]
    structure: Any
    keywords: tuple[str, ...]
    symbols: tuple[tuple[str, tuple[int, int]], ...]
    guards: str | None
    training: tuple[tuple[str, bool], ...]
    modes: tuple[tuple[str, Any], ...]
    aliases: Aliases
    gradients: bool
    returns: Any

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of a call's arguments.

        Raises:
            ArtifactError: naming the invalid argument, and why.
        """
        if set(kwargs) != set(self.keywords):
            raise ArtifactError(
                f"the compiled model was captured with keyword arguments {list(self.keywords)} and is called with "
                f"{list(kwargs)}. {_REMEDY}."
            )
        leaves, structure = flatten((tuple(args), {name: kwargs[name] for name in self.keywords}))
        if structure != self.structure:
            raise ArtifactError(
                f"the compiled model was captured with arguments of another structure: {_shown(self.structure)} there, "
                f"{_shown(structure)} here. {_REMEDY}, or pass them in the same way."
            )
        for index, (check, leaf) in enumerate(zip(self.inputs, leaves, strict=True)):
            complaint = check.complaint(leaf)
            if complaint:
                raise ArtifactError(f"input {index} {complaint}. {_REMEDY}.")
        self._check_sizes(leaves)
        return leaves

    def _check_sizes(self, leaves: Sequence[Any]) -> None:
        if not self.symbols:
            return
        sizes = {name: int(leaves[index].shape[dimension]) for name, (index, dimension) in self.symbols}
        for index, check in enumerate(self.inputs):
            for dimension, name in enumerate(check.shape):
                if type(name) is str and leaves[index].shape[dimension] != sizes[name]:
                    raise ArtifactError(
                        f"input {index} has size {leaves[index].shape[dimension]} in dimension {dimension}, which was "
                        f"captured as the same size {name} as another that is {sizes[name]} now. {_REMEDY}."
                    )
        if self.guards and not evaluate_size_guards(self.guards, list(sizes.values())):
            raise ArtifactError(
                f"the compiled model does not hold for sizes {sizes}: tracing assumed {self.guards} "
                f"(t0 is the first of them). {_REMEDY}."
            )

    def check_module(self, module: torch.nn.Module) -> None:
        """Raise unless ``module`` is in the mode of its capture.

        Raises:
            ArtifactError: naming the first module in another mode, or a parameter that would get no gradient.
        """
        for name, mode in self.training:
            child = module.get_submodule(name)
            if child.training != mode:
                now, was = ("training", "evaluation") if child.training else ("evaluation", "training")
                raise ArtifactError(
                    f"module {name or 'the model'!r} is in {now} mode, and was captured in {was} mode. {_REMEDY}, "
                    f"one for each mode."
                )

    def check_aliases(self, state: Sequence[Any], leaves: Sequence[Any]) -> None:
        """Raise unless the same inputs are identical, or share memory, as at capture.

        Raises:
            ArtifactError: naming two that differ.
        """
        found = self.aliases.complaint([*state, *leaves])
        if found:
            one, other, what = found
            raise ArtifactError(f"{self._called(one)} and {self._called(other)} {what}. {_REMEDY}.")

    def _called(self, position: int) -> str:
        names = [name for name, _ in self.state]
        return repr(names[position]) if position < len(names) else f"input {position - len(names)}"

    def check_state(self, values: Sequence[Any]) -> None:
        """Raise unless parameters and buffers are unchanged, except for their values.

        Raises:
            ArtifactError: naming the first that differs.
        """
        for (name, check), value in zip(self.state, values, strict=True):
            complaint = check.complaint(value)
            if complaint:
                raise ArtifactError(f"{name!r} of the model {complaint}. Capture and compile the model as it is.")

    def check_modes(self) -> None:
        """Raise unless autocast and determinism are unchanged.

        Raises:
            ArtifactError: naming the mode that differs.
        """
        for (name, was), (_, now) in zip(self.modes, ambient_modes(), strict=True):
            if was != now:
                raise ArtifactError(f"{name} is {now}, and was {was} when the model was captured. {_REMEDY}.")


def _shown(structure: Any) -> str:
    return str(unflatten(["*"] * structure.num_leaves, structure)).replace("'*'", "*")


def ambient_modes() -> tuple[tuple[str, Any], ...]:
    """Return the global modes that affect a model's ops."""
    devices = ("cpu", "cuda")
    autocast = [
        (f"autocast on {device}", torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)
        for device in devices
    ]
    return (*autocast, ("the default dtype", torch.get_default_dtype()))
