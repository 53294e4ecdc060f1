"""Operators: their types and schemas, higher-order ones, control dependencies."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pytest_regional._torch import fetching, symbol, torch_version

#: The type of ``torch.ops.aten.mm.default``; cached, since every node is asked (2.11 to 2.15).
op_overload = functools.cache(fetching("torch._ops", "OpOverload"))
#: The type of ``cond``, ``control_deps`` and their kind (2.11 to 2.15).
higher_order_operator = functools.cache(fetching("torch._ops", "HigherOrderOperator"))
#: ``while_loop(condition, body, carried)`` (2.11 to 2.15).
while_loop = fetching("torch._higher_order_ops", "while_loop")
#: ``scan(combine, initial, elements)``, along the first dimension (2.11 to 2.15).
scan = fetching("torch._higher_order_ops", "scan")
#: ``associative_scan(combine, elements, dim, combine_mode=...)`` (2.11 to 2.15).
associative_scan = fetching("torch._higher_order_ops", "associative_scan")


def operator_types() -> tuple[Any, Any]:
    """``torch._ops.OpOverload`` and ``torch._ops.OpOverloadPacket`` (2.11 to 2.15)."""
    return op_overload(), symbol("torch._ops", "OpOverloadPacket")


def is_op_overload(target: Any) -> bool:
    """Return whether ``target`` is one overload of an operator."""
    return isinstance(target, op_overload())


def is_op_packet(target: Any) -> bool:
    """Return whether ``target`` is an operator with all its overloads."""
    return isinstance(target, operator_types()[1])


def is_higher_order_op(target: Any) -> bool:
    """Return whether ``target`` is a higher-order operator."""
    return isinstance(target, higher_order_operator())


def schema_of(target: Any) -> Any:
    """Return the schema of an operator (what it reads, writes and returns); None for anything else (2.11 to 2.15)."""
    return getattr(target, "_schema", None)


class SchemaArgument(NamedTuple):
    """One argument of an operator.

    Attributes:
        name: as in the schema.
        type: as in the schema, such as ``"Optional[List[int]]"``.
        default: what it is where none is given; :data:`REQUIRED` where one has to be.
        keyword_only: whether it is given by name.
        length: how many integers a list of them has; None where that is open, or where it is no list.
    """

    name: str
    type: str
    default: Any
    keyword_only: bool
    length: int | None


#: The default of an argument that has none.
REQUIRED: Any = object()


@functools.cache
def aten_arguments(name: str) -> tuple[SchemaArgument, ...] | None:
    """Return the arguments of an overload such as ``"add.Tensor"``; None where this torch lacks it (2.11 to 2.15)."""
    target = _aten_overload(name)
    if target is None:
        return None
    return tuple(
        SchemaArgument(
            argument.name,
            str(argument.real_type),
            argument.default_value if argument.has_default_value() else REQUIRED,
            argument.kwarg_only,
            argument.N,
        )
        for argument in schema_of(target).arguments
    )


def aten_results(name: str) -> int:
    """Return how many results an overload such as ``"sort.stable"`` has, by its schema (2.11 to 2.15)."""
    return len(schema_of(_aten_overload(name)).returns)


def _aten_overload(name: str) -> Any:
    """Return the overload ``"packet.overload"`` of ATen's, or None where this torch lacks it."""
    packet, _, overload = name.partition(".")
    target = getattr(getattr(symbol("torch.ops", "aten"), packet, None), overload or "default", None)
    return target if is_op_overload(target) else None


def op_name(target: Any) -> str:
    """Return an operator's name without namespace and overload; for a higher-order one, its name (2.11 to 2.15)."""
    return str(getattr(target, "_opname", None) or getattr(target, "__name__", target))


def returns_nothing(target: Any) -> bool:
    """Return whether an op's schema has no result: ``OpOverload._schema`` (2.11 to 2.15)."""
    return is_op_overload(target) and not schema_of(target).returns


#: Operators that write running statistics, which their schemas do not say, and the argument that turns it on, if any.
_WRITES_STATISTICS = {
    "batch_norm": "training",
    "batch_norm_gather_stats": None,
    "batch_norm_gather_stats_with_counts": None,
    "batch_norm_update_stats": None,
    "_batch_norm_impl_index": "training",
    "cudnn_batch_norm": "training",
    "instance_norm": "use_input_stats",
    "miopen_batch_norm": "training",
    "native_batch_norm": "training",
}


def written_arguments(target: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an op writes to, from its schema: ``OpOverload._schema`` (2.11 to 2.15)."""
    if not is_op_overload(target):
        return []
    schema = schema_of(target)
    name = schema.name.removeprefix("aten::")
    if not schema.is_mutable and name not in _WRITES_STATISTICS:
        return []
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | dict(named)
    switch = _WRITES_STATISTICS.get(name)
    untold = ("running_mean", "running_var") if name in _WRITES_STATISTICS and given.get(switch) is not False else ()
    written = (argument for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write)
    return [given.get(name) for name in (*untold, *(argument.name for argument in written))]


def operator_called(name: str) -> Any:
    """Return the operator that generated code calls ``name``, None if it is none, such as ``extern_kernels.mm``.

    ``name`` is ``torch.ops.aten...`` or ``aten...``, with the overload at its end.
    """
    found: Any = symbol("torch", "ops")
    for part in name.removeprefix("torch.ops.").split("."):
        found = getattr(found, part, None)
    return found if is_op_overload(found) else None


def returns_a_view(target: Any) -> bool:
    """Say whether an operator may return a view of what it is given: ``alias_info`` in its schema (2.11 to 2.15)."""
    return is_op_overload(target) and any(result.alias_info is not None for result in schema_of(target).returns)


def hides_a_view(target: Any) -> bool:
    """Say whether an operator returns a view, though its schema calls it new: ``aten::_unsafe_view`` (2.11 to 2.15)."""
    return is_op_overload(target) and schema_of(target).name == "aten::_unsafe_view"


def copy_to_strides() -> Any:
    """``torch.ops.prims.copy_strided``: copies a tensor into new memory of given strides (2.11, 2.13, 2.15)."""
    return symbol("torch.ops", "prims").copy_strided.default


def is_user_kernel(node: Any) -> bool:
    """Say whether a node launches a Triton kernel that the user wrote (2.11 to 2.15)."""
    names = "triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation"
    return any(node.target is symbol("torch._higher_order_ops.triton_kernel_wrap", name) for name in names)


@functools.cache
def control_deps() -> Any:
    """Return ``torch._inductor.fx_passes.control_dependencies.control_deps``, runnable (2.11 to 2.15).

    2.11 registers neither an eager nor an autograd kernel for it; they are registered here, once, with the semantics of
    2.13. Remove that when torch 2.11 is no longer supported.
    """
    operator = symbol("torch._inductor.fx_passes.control_dependencies", "control_deps")
    if torch_version() < (2, 13):
        keys = symbol("torch._C", "DispatchKey")
        for key in (keys.CompositeExplicitAutograd, keys.Autograd):
            operator.py_impl(key)(lambda _, body, *args, **kwargs: body(*args, **kwargs))
    return operator
