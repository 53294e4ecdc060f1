"""What graph passes ask of the (fake) values that tracing left, without adding guards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.region_compile import is_fake_tensor


def known_equal(first: Any, second: Any) -> bool:
    """Return whether two sizes are equal whatever their symbols are; False where that is not known.

    ``torch.fx.experimental.symbolic_shapes.statically_known_true`` adds no guard (2.11 to 2.15).
    """
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    return bool(symbol("torch.fx.experimental.symbolic_shapes", "statically_known_true")(first == second))


def is_backward_node(node: Any) -> bool:
    """Return whether AOTAutograd marked a node of a joint graph as made while gradients were computed.

    ``meta["partitioner_tag"]`` and, for sums of gradients, ``meta["is_gradient_acc"]`` (2.11 to 2.15).
    """
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def is_gradient_sum(node: Any) -> bool:
    """Return whether ``node`` adds up gradients of several users, and so belongs to no single forward op."""
    return bool(node.meta.get("is_gradient_acc", False))


def fake_mode_of(values: Iterable[Any]) -> Any:
    """Return ``fake_mode`` (2.11 to 2.15) of the first fake tensor of ``values``, or None."""
    return next((value.fake_mode for value in values if is_fake_tensor(value)), None)


def as_fake(value: Any, fake_mode: Any) -> Any:
    """Return a tensor that is no fake one as one: ``FakeTensorMode.from_tensor`` (2.11 to 2.15)."""
    return value if is_fake_tensor(value) else fake_mode.from_tensor(value, static_shapes=True)


def unbacked_bindings(fake_mode: Any, value: Any) -> Any:
    """Return where in ``value`` sizes stand that only data tell, as Inductor wants to read it; None where none does.

    ``torch.fx.experimental.symbolic_shapes.compute_unbacked_bindings`` (2.11 to 2.15).
    """
    compute = symbol("torch.fx.experimental.symbolic_shapes", "compute_unbacked_bindings")
    return compute(fake_mode.shape_env, value) if fake_mode.shape_env is not None else None


def returns_nothing(target: Any) -> bool:
    """Return whether an op has no result, by its schema: ``OpOverload._schema`` (2.11 to 2.15)."""
    return isinstance(target, symbol("torch._ops", "OpOverload")) and not target._schema.returns


def written_arguments(target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an op writes to, by its schema: ``OpOverload._schema`` (2.11 to 2.15).

    Those of batch normalization do not say that they write to the running statistics.
    """
    if not isinstance(target, symbol("torch._ops", "OpOverload")):
        return []
    untold = {"running_mean", "running_var"} if "batch_norm" in target._schema.name else set()
    return [
        args[number] if number < len(args) else named.get(argument.name)
        for number, argument in enumerate(target._schema.arguments)
        if argument.name in untold or (argument.alias_info is not None and argument.alias_info.is_write)
    ]
