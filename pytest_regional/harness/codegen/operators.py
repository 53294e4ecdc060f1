"""What PyTorch's operator registry says about operators named in generated code."""

from __future__ import annotations

from functools import cache
from typing import Any

COPIES = frozenset(["aten.copy_", "aten.copy", "aten.clone", "aten.lift_fresh_copy", "aten.contiguous"])


def packet_name(name: str) -> str:
    """Return ``"aten.add"`` for ``"aten.add.Tensor"`` and for ``"aten.add"``."""
    return ".".join(name.split(".")[:2])


@cache
def overload_of(name: str) -> Any:
    """Return the overload called ``name``, the first one of its packet where the name holds none, or None."""
    import torch

    namespace, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    packet: Any = getattr(getattr(torch.ops, namespace), operator, None) if operator.isidentifier() else None
    overloads: list[str] = packet.overloads() if hasattr(packet, "overloads") else []
    chosen = overload or next(iter(overloads), "")
    return getattr(packet, chosen) if chosen in overloads else None


def exists(name: str) -> bool:
    """Say whether PyTorch knows an operator called ``name``."""
    return overload_of(name) is not None


def mutated_positions(name: str) -> tuple[int, ...]:
    """Return the positions of the arguments that the operator writes."""
    overload = overload_of(name)
    arguments = overload._schema.arguments if overload else ()
    return tuple(i for i, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write)


def only_moves(name: str) -> bool:
    """Say whether the operator computes nothing: a copy, or a view."""
    if packet_name(name) in COPIES:
        return True
    overload = overload_of(name)
    return bool(overload and overload.is_view)
