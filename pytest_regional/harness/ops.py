"""How assertions name an operator, in graphs and in generated code alike.

``"aten.add"`` and ``"add"`` are every overload, ``"aten.add.Tensor"`` is one; ``"a>b"`` is the ``b`` inside an ``a`` (a
part that it was decomposed into, an operator of a body that it calls); ``"aten.mm#2"`` is the second one, counted from
1. Graphs before autograd also hold functions (``"torch.nn.functional.silu"``), methods (``".view"``) and modules
(``"Linear"``). The operator, function or module class itself does as well.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch.operators import control_deps, higher_order_operator, operator_types

_PUBLIC_MODULES = (torch, torch.nn.functional, torch.special, torch.linalg, torch.fft, operator, math)

OpLike = Any
"""A pattern as text, or an operator, a function or a module class."""

T = TypeVar("T")


class OpError(RegionalError, LookupError):
    """An assertion names an operator that torch does not know, or that no graph holds."""


@dataclass(frozen=True)
class OpPattern:
    """One operator as an assertion names it."""

    name: str  # ``"aten.add"``, ``"aten.add.Tensor"``, the end of such a name, ``".view"``, or a name of torch's
    inside: str | None = None  # the operator that holds it, before a ``>``; ``None`` for wherever it stands
    ordinal: int | None = None  # which one, from 1; ``None`` for every one
    by_object: bool = False  # whether the object itself was given, so that a name alone does not match
    text: str = field(default="", compare=False)  # how messages show it
    #: the object that has the name in torch, or that was given; ``None`` for a name that torch does not know
    target: Any = field(default=None, compare=False)

    @staticmethod
    def of(op: OpLike) -> OpPattern:
        """Read a pattern."""
        if isinstance(op, str):
            whole, hash_sign, ordinal = op.partition("#")
            inside, arrow, name = whole.rpartition(">")
            if hash_sign and not (ordinal.isdecimal() and int(ordinal)):
                raise OpError(f"{op!r}: what follows '#' is the number of an occurrence, from 1, such as 'aten.mm#1'")
            name, inside = (one.strip().removeprefix("torch.ops.") for one in (name, inside))
            if not name.strip(".") or (arrow and not inside):
                raise OpError(f"{op!r} names no operator")
            return OpPattern(name, inside or None, int(ordinal) if ordinal else None, text=op, target=_resolve(name))
        if not callable(op):
            raise OpError(
                f"{op!r} names no operator: give its name as text, an operator of torch.ops, a function, or a module "
                f"class"
            )
        name = str(getattr(op, "__name__", op))
        if getattr(torch.Tensor, name, None) is op:
            return OpPattern(f".{name}", text=f".{name}", target=op)
        shown = name if isinstance(op, type) else function_names(op)[0]
        return OpPattern(shown, by_object=not isinstance(op, operator_types()), text=shown, target=op)

    def is_called(self, names: Collection[str], targets: Collection[Any] = ()) -> bool:
        """Say whether what has these ``names``, and calls these ``targets``, is meant; ``inside`` is not looked at."""
        if not self.by_object and self.name in names:
            return True
        return self.target is not None and any(_same(self.target, target) for target in targets)

    def chosen(self, found: Sequence[T]) -> list[T]:
        """Return those of ``found`` that the ordinal chooses, all without one."""
        return list(found) if self.ordinal is None else list(found[self.ordinal - 1 : self.ordinal])

    @property
    def is_known(self) -> bool:
        """Whether torch has something of that name, and of the name before a ``>``."""
        return self.target is not None and (self.inside is None or _resolve(self.inside) is not None)

    @property
    def is_operator(self) -> bool:
        """Whether it is a registered operator, as generated code calls them."""
        holder = None if self.inside is None else _resolve(self.inside)
        return all(isinstance(one, operator_types()) for one in (self.target, holder or self.target))

    def __str__(self) -> str:
        return (f"{self.inside}>" if self.inside else "") + self.name + (f"#{self.ordinal}" if self.ordinal else "")


def _same(wanted: Any, target: Any) -> bool:
    overload, packet = operator_types()
    if isinstance(wanted, type):
        return isinstance(target, wanted) and isinstance(target, torch.nn.Module)
    if isinstance(wanted, packet):
        return target is wanted or (isinstance(target, overload) and target.overloadpacket is wanted)
    return target is wanted


# Names of what is called


def operator_spellings(name: str) -> list[str]:
    """Return what ``"aten.add.Tensor"`` may be called, the most exact first; ``"aten.add"`` has no overload."""
    namespace, packet, *overload = name.split(".")
    with_overload = [f"{namespace}.{packet}.{overload[0]}"] if overload else []
    return [*with_overload, f"{namespace}.{packet}", *(f"{packet}.{one}" for one in overload[:1]), packet]


def function_names(target: Any) -> list[str]:
    """Return what a function that a graph calls may be called, the most exact name first."""
    if isinstance(target, operator_types()):
        return operator_spellings(str(target))
    if isinstance(target, higher_order_operator()):
        return [target.name(), f"higher_order.{target.name()}"]
    name = str(getattr(target, "__name__", target))
    public = (f"{one.__name__}.{name}" for one in _PUBLIC_MODULES if getattr(one, name, None) is target)
    return [next(public, None) or _qualified(target), name]


def module_names(module: torch.nn.Module, path: str) -> list[str]:
    """Return what the module at ``path`` may be called, the most exact name first."""
    cls = type(module)
    public = f"torch.nn.{cls.__name__}" if getattr(torch.nn, cls.__name__, None) is cls else _qualified(cls)
    return [public, cls.__name__, path]


def method_names(name: str) -> list[str]:
    """Return what the method ``name`` of tensors may be called."""
    return [f".{name}", f"Tensor.{name}", f"torch.Tensor.{name}"]


def _qualified(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or str(target)
    module = getattr(target, "__module__", None)
    return f"{module}.{name}" if module else str(name)


# What has a name


def _resolve(name: str) -> Any:
    """Return what ``name`` is called by in torch or in another module, ``None`` when nothing is."""
    if name.startswith((".", "Tensor.", "torch.Tensor.")):
        return getattr(torch.Tensor, name.rpartition(".")[2], None)
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        return None
    # A callable in a module that is imported already.
    module, _, attribute = name.rpartition(".")
    found: Any = getattr(sys.modules.get(module), attribute, None)
    in_nn = getattr(torch.nn, name, None) if "." not in name else None
    return _registered(name) or (found if callable(found) else None) or in_nn or _registered(f"aten.{name}")


def _registered(name: str) -> Any:
    """Return the operator that is registered as ``name``, with or without an overload, or ``None``."""
    if name.removeprefix("higher_order.") == "control_deps":
        return control_deps()
    namespace, _, rest = name.partition(".")
    found: Any = getattr(torch.ops, namespace if rest else "higher_order")
    for part in rest.split(".") if rest else [name]:
        found = getattr(found, part, None)
    return found if isinstance(found, (*operator_types(), higher_order_operator())) else None
