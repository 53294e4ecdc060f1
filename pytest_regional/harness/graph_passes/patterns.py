"""How an assertion names an operator: by text or by the object itself, one occurrence of it or all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional._text import unknown_name
from pytest_regional._torch.graph_passes import higher_order_operator, load_control_deps, operator_types
from pytest_regional.harness.graph_passes.errors import UnknownOpError
from pytest_regional.harness.graph_passes.ops import Occurrence, function_names


@dataclass(frozen=True)
class OpPattern:
    """One operator as an assertion names it.

    Attributes:
        text: how messages show it.
        wanted: the object that is called, or ``None`` when a name is all there is.
        name: the name, without what it may be prefixed with.
        ordinal: which occurrence in program order, from 1; ``None`` for every one.
    """

    text: str
    wanted: Any
    name: str
    ordinal: int | None = None

    def among(self, occurrences: Sequence[Occurrence]) -> list[Occurrence]:
        """Return the occurrences meant, in program order."""
        found = [one for one in occurrences if self._is(one)]
        return found if self.ordinal is None else found[self.ordinal - 1 : self.ordinal]

    def _is(self, one: Occurrence) -> bool:
        if self.name and self.name in one.names:
            return True
        return self.wanted is not None and any(_same(self.wanted, target) for target in one.targets)

    @property
    def is_known(self) -> bool:
        """Whether torch has such an operator, be it in the graph or not."""
        return self.wanted is not None


def op_pattern(op: Any) -> OpPattern:
    """Return the pattern for ``op``: a name, or the operator, function or module class itself.

    Names are ``"aten.mm"``, ``"aten.mm.default"``, ``"torch.nn.functional.silu"``, ``".view"`` (a method), and
    ``"aten.mm#1"`` (the first in program order).

    Raises:
        UnknownOpError: something that can name no operator.
    """
    if not isinstance(op, str):
        return _pattern_of_object(op)
    name, _, ordinal = op.partition("#")
    if ordinal and not (ordinal.isdecimal() and int(ordinal)):
        raise UnknownOpError(f"{op!r}: what follows '#' is the number of an occurrence, from 1, such as 'aten.mm#1'")
    name = name.strip().removeprefix("torch.ops.")
    return OpPattern(op, _resolve(name), name, int(ordinal) if ordinal else None)


def _pattern_of_object(op: Any) -> OpPattern:
    if not callable(op):
        raise UnknownOpError(f"{op!r} names no operator: give a string, an operator, a function, or a module class")
    name = str(getattr(op, "__name__", op))
    if getattr(torch.Tensor, name, None) is op:
        return OpPattern(f".{name}", op, f".{name}")
    return OpPattern(name if isinstance(op, type) else function_names(op)[0], op, "")


def _same(wanted: Any, target: Any) -> bool:
    overload, packet = operator_types()
    if isinstance(wanted, type):
        return isinstance(target, wanted) and isinstance(target, torch.nn.Module)
    if isinstance(wanted, packet):
        return target is wanted or (isinstance(target, overload) and target.overloadpacket is wanted)
    return target is wanted


def _resolve(name: str) -> Any:
    """Return what ``name`` is called by in torch or in another module, ``None`` when nothing is."""
    if name.startswith((".", "Tensor.", "torch.Tensor.")):
        return getattr(torch.Tensor, name.rpartition(".")[2], None)
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        return None
    return _registered(name) or _importable(name) or (getattr(torch.nn, name, None) if "." not in name else None)


def _registered(name: str) -> Any:
    if name.removeprefix("higher_order.") == "control_deps":
        return load_control_deps()
    namespace, _, rest = name.partition(".")
    found: Any = getattr(torch.ops, namespace if rest else "higher_order")
    for part in rest.split(".") if rest else [name]:
        found = getattr(found, part, None)
    return found if isinstance(found, (*operator_types(), higher_order_operator())) else None


def _importable(name: str) -> Any:
    """Return the callable at a dotted path of modules that are imported already."""
    module, _, attribute = name.rpartition(".")
    found: Any = getattr(sys.modules.get(module), attribute, None)
    return found if callable(found) else None


def require_known(patterns: Iterable[OpPattern], present: Sequence[Occurrence]) -> None:
    """Refuse a pattern that matches nothing in ``present`` and that torch does not know.

    Raises:
        UnknownOpError: with the nearest, and all that are there.
    """
    for pattern in patterns:
        if not pattern.is_known and not OpPattern(pattern.text, None, pattern.name).among(present):
            there = {one.name for one in present} or {"no operator at all"}
            raise UnknownOpError(
                f"{unknown_name('operator', pattern.text, there)} These are the operators of the graphs before and "
                f"after the pass; torch knows no other of that name, so an assertion about it could not fail."
            )
