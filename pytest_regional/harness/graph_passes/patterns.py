"""How an assertion names an operator: by text or by the object itself, one occurrence of it or all."""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._text import unknown_name
from pytest_regional._torch.fx_graphs import bodies_of
from pytest_regional._torch.operators import control_deps, higher_order_operator, operator_types
from pytest_regional.harness.graph_passes.forms import UnknownOpError

_PUBLIC_MODULES = (torch, torch.nn.functional, torch.special, torch.linalg, torch.fft, operator, math)


@dataclass(frozen=True, eq=False)
class Occurrence:
    """One operator at one place.

    Attributes:
        node: the node that calls it.
        names: everything it is called, the most exact first.
        targets: the objects it calls; for a ``call_module`` the module.
        chain: the node, and before it the nodes in whose bodies it stands, outermost first.
    """

    node: torch.fx.Node
    names: tuple[str, ...]
    targets: tuple[Any, ...]
    chain: tuple[torch.fx.Node, ...]

    @property
    def name(self) -> str:
        """The most exact name."""
        return self.names[0]


def occurrences(module: torch.fx.GraphModule) -> list[Occurrence]:
    """Return every operator in program order; bodies stand where they are first called, behind their caller."""
    return list(_occurrences(module, (), set()))


def _occurrences(module: torch.fx.GraphModule, outer: tuple[torch.fx.Node, ...], seen: set[int]) -> Iterator[Any]:
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        chain = (*outer, node)
        targets = _targets(node, module)
        names = [name for target in targets for name in _names(node, target)]
        yield Occurrence(node, tuple(dict.fromkeys(names)), targets, chain)
        for body in bodies_of(node, module, modules=True):
            if id(body) not in seen:
                seen.add(id(body))
                yield from _occurrences(body, chain, seen)


def _targets(node: torch.fx.Node, module: torch.fx.GraphModule) -> tuple[Any, ...]:
    if node.op == "call_module":
        return (module.get_submodule(str(node.target)),)
    # auto_functionalized(op, ...) and its kind run the operator that they are given.
    wraps = (
        isinstance(node.target, higher_order_operator()) and node.args and isinstance(node.args[0], operator_types())
    )
    return (node.target, node.args[0]) if wraps else (node.target,)


def _names(node: torch.fx.Node, target: Any) -> list[str]:
    if node.op == "call_method":
        return [f".{target}", f"Tensor.{target}", f"torch.Tensor.{target}"]
    if node.op == "call_module":
        cls = type(target)
        public = f"torch.nn.{cls.__name__}" if getattr(torch.nn, cls.__name__, None) is cls else _qualified(cls)
        return [public, cls.__name__, str(node.target)]
    return function_names(target)


def function_names(target: Any) -> list[str]:
    """Return what a function that a graph calls may be called, the most exact name first."""
    overload, packet = operator_types()
    if isinstance(target, overload):
        return [str(target), str(target.overloadpacket)]
    if isinstance(target, packet):
        return [str(target)]
    if isinstance(target, higher_order_operator()):
        return [target.name(), f"higher_order.{target.name()}"]
    name = str(getattr(target, "__name__", target))
    return [_public_name(target, name), name]


def _public_name(target: Any, name: str) -> str:
    for module in _PUBLIC_MODULES:
        if getattr(module, name, None) is target:
            return f"{module.__name__}.{name}"
    return _qualified(target)


def _qualified(target: Any) -> str:
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or str(target)
    module = getattr(target, "__module__", None)
    return f"{module}.{name}" if module else str(name)


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
        return control_deps()
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
