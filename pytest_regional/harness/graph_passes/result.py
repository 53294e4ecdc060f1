"""What ``run_pass`` returns: graphs before and after, their difference as text, and assertions about them and uuids."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import torch.fx

from pytest_regional._base.text import plural, tuple_text, unknown_name
from pytest_regional._torch.fx_graphs import attribute, bodies_of
from pytest_regional._torch.operators import higher_order_operator, operator_types
from pytest_regional._torch.pass_forms import pass_name
from pytest_regional.harness.graph_passes.recorder import (
    GraphAssertionError,
    GraphPassError,
    GraphSnapshot,
    PassGraphs,
    PassUnderTest,
    Place,
    Stage,
)
from pytest_regional.harness.ops import OpError, OpPattern, function_names, method_names, module_names

if TYPE_CHECKING:
    from pytest_regional.harness.counters import Bound
    from pytest_regional.harness.graph_passes.compiled import CompiledProgram, GivenGraph
    from pytest_regional.harness.parity.compare import ParityReport


@dataclass(frozen=True, eq=False)
class Occurrence:
    """One operator at one place."""

    node: torch.fx.Node
    names: tuple[str, ...]  # everything it is called, the most exact first
    targets: tuple[Any, ...]  # the objects it calls; for a ``call_module`` the module
    holders: tuple[Occurrence, ...] = ()  # the operators in whose bodies it stands, outermost first

    @property
    def chain(self) -> tuple[torch.fx.Node, ...]:
        """The node, and before it the nodes in whose bodies it stands, outermost first."""
        return (*(holder.node for holder in self.holders), self.node)

    @property
    def name(self) -> str:
        """The most exact name."""
        return self.names[0]


def occurrences(module: torch.fx.GraphModule) -> list[Occurrence]:
    """Return every operator in program order; bodies stand where they are first called, behind their caller."""
    return list(_occurrences(module, (), set()))


def _occurrences(module: torch.fx.GraphModule, holders: tuple[Occurrence, ...], seen: set[int]) -> Iterator[Occurrence]:
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        targets: tuple[Any, ...] = (node.target,)
        if node.op == "call_module":
            targets = (module.get_submodule(str(node.target)),)
            names = module_names(targets[0], str(node.target))
        elif node.op == "call_method":
            names = method_names(str(node.target))
        else:
            # auto_functionalized(op, ...) and its kind run the operator that they are given.
            wraps = isinstance(node.target, higher_order_operator()) and len(node.args) > 0
            if wraps and isinstance(node.args[0], operator_types()):
                targets = (node.target, node.args[0])
            names = [name for target in targets for name in function_names(target)]
        one = Occurrence(node, tuple(dict.fromkeys(names)), targets, holders)
        yield one
        for body in bodies_of(node, module, modules=True):
            if id(body) not in seen:
                seen.add(id(body))
                yield from _occurrences(body, (*holders, one), seen)


def meant(pattern: OpPattern, present: Sequence[Occurrence]) -> list[Occurrence]:
    """Return the occurrences that ``pattern`` names, in program order; with ``>`` those in a body of that operator."""
    called = [one for one in present if pattern.is_called(one.names, one.targets)]
    if pattern.inside is not None:
        called = [one for one in called if any(pattern.inside in outer.names for outer in one.holders)]
    return pattern.chosen(called)


def require_known(patterns: Iterable[OpPattern], present: Sequence[Occurrence]) -> None:
    """Refuse a pattern that matches nothing in ``present`` and that torch does not know."""
    for pattern in patterns:
        if not pattern.is_known and not meant(replace(pattern, ordinal=None), present):
            there = {one.name for one in present} or {"no operator at all"}
            raise OpError(
                f"{unknown_name('operator', pattern.text, there)} These are the operators of the graphs before and "
                f"after the pass; torch knows no other of that name, so an assertion about it could not fail."
            )


CONTEXT = 8

Line = tuple[str, torch.fx.Node | None]


def _lines(module: torch.fx.GraphModule, indent: str, seen: set[int]) -> Iterator[Line]:
    """Yield the lines of a graph, each with its node; bodies stand indented below their first caller."""
    for node in module.graph.nodes:
        value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(value, torch.fx.GraphModule) and any(value is body for body in module.children()):
            continue
        yield indent + _line(node), node
        for body in bodies_of(node, module, modules=True) if node.op.startswith("call") else []:
            if id(body) not in seen:
                seen.add(id(body))
                yield from _lines(body, indent + "    ", seen)


def _line(node: torch.fx.Node) -> str:
    if node.op == "placeholder":
        return f"{node.name} = input{_described(node)}"
    if node.op == "output":
        return f"return {_value(node.args[0])}"
    if node.op == "get_attr":
        return f"{node.name} = self.{node.target}"
    arguments = [_value(argument) for argument in node.args] + [f"{k}={_value(v)}" for k, v in node.kwargs.items()]
    if node.op == "call_function":
        called = function_names(node.target)[0]
    else:
        called = f".{node.target}" if node.op == "call_method" else f"self.{node.target}"
    return f"{node.name} = {called}({', '.join(arguments)}){_described(node)}"


def _described(node: torch.fx.Node) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    if not isinstance(value, torch.Tensor):
        return ""
    return f"  # {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _value(value: Any) -> str:
    if isinstance(value, torch.fx.Node):
        return str(value.name)
    if isinstance(value, tuple | list):
        items = list(map(_value, value))
        return f"[{', '.join(items)}]" if isinstance(value, list) else tuple_text(items)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_value(v)}" for key, v in value.items()) + "}"
    return function_names(value)[0] if callable(value) else repr(value)


def diff(
    before: torch.fx.GraphModule, after: torch.fx.GraphModule, marked: Collection[torch.fx.Node] = frozenset()
) -> str:
    """Return both graphs as one text: ``-`` stood before, ``+`` stands after, ``>`` marks a node of ``marked``.

    What is far from any change or mark is left out, with a line that says how much.
    """
    rows = _rows([*_lines(before, "", set())], [*_lines(after, "", set())], marked)
    important = [index for index, (is_important, _) in enumerate(rows) if is_important]
    near = {place for index in important for place in range(index - CONTEXT, index + CONTEXT + 1)}
    lines, hidden = [], 0
    for index, (_, text) in enumerate(rows):
        if index not in (near or range(CONTEXT)):
            hidden += 1
            continue
        lines += [f"    ... {hidden} unchanged"] if hidden else []
        lines.append(text)
        hidden = 0
    return "\n".join([*lines, *([f"    ... {hidden} unchanged"] if hidden else [])])


def _rows(old: list[Line], new: list[Line], marked: Collection[torch.fx.Node]) -> list[tuple[bool, str]]:
    """Return the lines of the difference, and whether each is a change or marked."""
    matcher = difflib.SequenceMatcher(None, [text for text, _ in old], [text for text, _ in new], autojunk=False)
    rows: list[tuple[bool, str]] = []
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(old[i1:i2], new[j1:j2], strict=True)
            rows += [_row(" ", text, first in marked or second in marked) for (text, first), (_, second) in pairs]
        else:
            rows += [_row("-", text, node in marked) for text, node in old[i1:i2]]
            rows += [_row("+", text, node in marked) for text, node in new[j1:j2]]
    return rows


def _row(sign: str, text: str, marked: bool) -> tuple[bool, str]:
    return marked or sign != " ", f"{'>' if marked else ' '} {sign} {text}"


def structure_of(module: torch.fx.GraphModule) -> tuple[Any, ...]:
    """Return what two graphs that differ in names alone have in common: kind, target and arguments of every node."""
    numbers = {node: index for index, node in enumerate(module.graph.nodes)}

    def argument(value: Any) -> str:
        return f"%{numbers[value]}" if isinstance(value, torch.fx.Node) else repr(value)

    found: list[tuple[Any, ...]] = []
    for node in module.graph.nodes:
        if node.op == "placeholder":
            found.append(("placeholder",))
            continue
        value = attribute(module, node.target) if node.op == "get_attr" else None
        # A body's name is chosen by whoever made it: what counts is what it holds.
        target = structure_of(value) if isinstance(value, torch.fx.GraphModule) else node.target
        found.append((node.op, target, repr(torch.fx.node.map_aggregate((node.args, node.kwargs), argument))))
    return tuple(found)


Pair = tuple[Occurrence, Occurrence]


def _depends(later: Occurrence, earlier: Occurrence, needs: Callable[[torch.fx.Node], set[torch.fx.Node]]) -> bool:
    """Say whether ``later`` needs ``earlier``: directly or through others, in the graph that holds both."""
    for ours, theirs in zip(later.chain, earlier.chain, strict=False):
        if ours is not theirs:
            return theirs in needs(ours)
    # One stands in the body of the other: the caller comes first.
    return len(later.chain) > len(earlier.chain)


def _needed_by(node: torch.fx.Node) -> set[torch.fx.Node]:
    """Return all that a node needs, directly or through others; the edges of ``control_deps`` are inputs."""
    found: set[torch.fx.Node] = set()
    waiting = [node]
    while waiting:
        new = [needed for needed in waiting.pop().all_input_nodes if needed not in found]
        found.update(new)
        waiting += new
    return found


@dataclass(frozen=True)
class PassRun:
    """Passes that ran on one program.

    Every assertion looks at all graphs, unless ``graph=`` (a kind such as ``"forward"``) or ``region=`` choose some.

    Attributes:
        graphs: each graph that the passes ran on: ``kind``, ``region``, ``before``, ``after``.
    """

    graphs: tuple[PassGraphs, ...]
    _given: Any = field(repr=False)
    _passes: tuple[PassUnderTest, ...] = field(repr=False)
    _stage: Stage = field(repr=False)
    _rerun: CompiledProgram | GivenGraph = field(repr=False)

    @property
    def stage(self) -> str:
        """The stage at which the passes ran."""
        return self._stage.name

    @property
    def before(self) -> GraphSnapshot:
        """The graph before the passes, where there is a single one; else see :meth:`graph`."""
        return self.graph().before

    @property
    def after(self) -> GraphSnapshot:
        """The graph after the passes, where there is a single one; else see :meth:`graph`."""
        return self.graph().after

    @property
    def changed(self) -> bool:
        """Whether any graph differs in more than the names of its nodes."""
        return any(structure_of(one.before) != structure_of(one.after) for one in self.graphs)

    def graph(self, kind: str | None = None, region: str | None = None, index: int | None = None) -> PassGraphs:
        """Return the one graph of that kind and region, or number ``index`` of those.

        Raises:
            GraphPassError: none, or several; the message lists them.
        """
        found = self._selected(kind, region)
        if index is not None and 0 <= index < len(found):
            return found[index]
        if len(found) > 1 or index is not None:
            raise GraphPassError(
                f"the passes ran on {plural(len(found), 'such graph')}: {_places(found)}. Choose one with "
                f"result.graph(kind, region=..., index=...), or look at all of result.graphs."
            )
        return found[0]

    def _selected(self, kind: str | None, region: str | None) -> list[PassGraphs]:
        found = [one for one in self.graphs if kind in (None, one.kind) and region in (None, one.region)]
        if not found:
            wanted = Place(kind or "whole", region)
            raise GraphPassError(f"the passes did not run on {wanted}; they ran on {_places(self.graphs)}")
        return found

    # Operators

    def assert_count(self, op: Any, n: int | Bound, *, graph: str | None = None, region: str | None = None) -> None:
        """Assert that ``op`` occurs ``n`` times after the passes (``at_least(n)`` and ``at_most(n)`` are ranges).

        Raises:
            GraphAssertionError: another number, with the graphs.
            OpError: an operator that no graph held and torch does not know.
        """
        chosen, pattern = self._selected(graph, region), OpPattern.of(op)
        require_known([pattern], _all(chosen))
        found = _found(pattern, [one.after for one in chosen])
        if not (len(found) == n if isinstance(n, int) else n.admits(len(found))):
            raise self._failure(f"{pattern.text!r} occurs {_times(len(found))}, not {_times(n)}", chosen, found)

    def assert_replaced(self, *, before: Any, after: Any, graph: str | None = None, region: str | None = None) -> None:
        """Assert that every ``before`` is gone and that ``after`` came; each an operator, or a list of them.

        Raises:
            GraphAssertionError: there was nothing to replace, something is left, or nothing came.
            OpError: an operator that no graph held and torch does not know.
        """
        chosen = self._selected(graph, region)
        graphs_before, graphs_after = [one.before for one in chosen], [one.after for one in chosen]
        old, new = (
            [OpPattern.of(op) for op in (ops if isinstance(ops, list | tuple) else [ops])] for ops in (before, after)
        )
        require_known([*old, *new], _all(chosen))
        for pattern in old:
            left = _found(pattern, graphs_after)
            if not _found(pattern, graphs_before):
                raise self._failure(f"there was no {pattern.text!r} to replace", chosen, left)
            if left:
                raise self._failure(f"{pattern.text!r} is left {_times(len(left))}", chosen, left)
        for pattern in new:
            came, were = _found(pattern, graphs_after), _found(pattern, graphs_before)
            if len(came) <= len(were):
                message = f"no {pattern.text!r} came: {_times(len(were))} before, {_times(len(came))} after"
                raise self._failure(message, chosen, came)

    def assert_order(
        self, *ops: Any, pinned: bool = False, graph: str | None = None, region: str | None = None
    ) -> None:
        """Assert that after the passes every occurrence of an operator stands before every one of the next.

        It is checked in each graph for the operators that it holds; one graph at least must hold them all.

        Args:
            ops: two or more; ``"aten.mm#1"`` is the first in program order.
            pinned: also that data flow or ``control_deps`` make it so, not position alone.
            graph: look at graphs of this kind only.
            region: look at graphs of this region only.

        Raises:
            GraphAssertionError: with the graphs, what is out of order marked.
            OpError: an operator that no graph held and torch does not know.
        """
        if len(ops) < 2:
            raise TypeError(f"assert_order needs two operators or more, not {len(ops)}: there is no order otherwise")
        chosen, patterns = self._selected(graph, region), [OpPattern.of(op) for op in ops]
        require_known(patterns, _all(chosen))
        missing = {one: [p.text for p in patterns if not meant(p, occurrences(one.after))] for one in chosen}
        if all(missing.values()):
            lacks = "; ".join(f"{one.place} lacks {', '.join(map(repr, names))}" for one, names in missing.items())
            raise self._failure(f"no graph holds all of these operators: {lacks}", chosen, [])
        for graphs in chosen:
            present = occurrences(graphs.after)
            position = {id(one): index for index, one in enumerate(present)}
            groups = [group for group in (meant(pattern, present) for pattern in patterns) if group]
            pairs = [pair for first, second in pairwise(groups) for pair in product(first, second)]
            wrong = [(a, b) for a, b in pairs if position[id(a)] >= position[id(b)]]
            if wrong:
                raise self._order_failure("stands after", wrong, graphs)
            needs = functools.cache(_needed_by)
            loose = [(a, b) for a, b in pairs if not _depends(b, a, needs)] if pinned else []
            if loose:
                raise self._order_failure(
                    "stands before, by position alone (no data flow, no control_deps),", loose, graphs
                )

    def _order_failure(self, how: str, pairs: Sequence[Pair], graphs: PassGraphs) -> GraphAssertionError:
        sentences = [f"{a.name} ({a.node.name}) {how} {b.name} ({b.node.name})" for a, b in pairs]
        more = [f"and {plural(len(pairs) - 5, 'more pair')}"] if len(pairs) > 5 else []
        return self._failure("\n  ".join(sentences[:5] + more), [graphs], [one for pair in pairs for one in pair])

    def _failure(self, what: str, chosen: Iterable[PassGraphs], marked: Iterable[Occurrence]) -> GraphAssertionError:
        nodes = {one.node for one in marked}
        shown = [f"{one.place}:\n{diff(one.before, one.after, nodes)}" for one in chosen]
        names = ", ".join(one.name for one in self._passes)
        return GraphAssertionError("\n".join([f"after {names} (stage {self.stage!r}): {what}", *shown]))

    # The passes themselves

    def assert_same_numerics(
        self,
        *,
        level: str = "close",
        rtol: float | None = None,
        atol: float | None = None,
        backward: Any = None,
    ) -> ParityReport:
        """Assert that the passes change no value and no gradient; judged as :meth:`Regional.assert_parity` judges.

        At stage ``graph`` the graph after is compared with the graph before, at the others the compiled program with
        eager, and when it differs the program is compiled without the passes to see whether they are to blame.

        Raises:
            ParityError: what differs, by how much, and whether without the passes it differs as well.
        """
        return self._rerun.numerics(level, rtol, atol, backward)

    def assert_idempotent(self) -> None:
        """Assert that the passes, run again on their own result, change nothing but names.

        Raises:
            GraphAssertionError: with what the second run changed.
        """
        for one in self._rerun.again():
            if structure_of(one.before) != structure_of(one.after):
                names = ", ".join(one.name for one in self._passes)
                raise GraphAssertionError(
                    f"{names} (stage {self.stage!r}) is not idempotent: run again on its own result it changed "
                    f"{one.place}:\n{diff(one.before, one.after)}"
                )

    def assert_uuid_changes(self, *others: Any, equal: Any = None) -> None:
        """Assert that the uuid tells configurations of the pass apart.

        Args:
            others: other configurations, whose uuids must differ from this pass's and from each other. Each is a pass,
                a list where a list ran, or a factory (a class, a function without parameters), which is called twice:
                what it makes must have one uuid.
            equal: a pass or factory with the configuration of the pass that ran, whose uuid must be the same.

        Raises:
            GraphPassError: a pass has none; the message says how to give it one.
            GraphAssertionError: two that must differ are equal, or the reverse, or two calls of one differ.
        """
        if not others:
            raise TypeError("assert_uuid_changes needs another configuration of the pass to compare with, or a factory")
        own = _stable_uuid(self._given)
        seen = [("the pass that ran", own)]
        for number, other in enumerate(others, 1):
            name, found = _named(f"configuration {number}", other)
            for earlier, theirs in seen:
                if found == theirs:
                    raise GraphAssertionError(
                        f"{name} has the same uuid as {earlier}: {found!r}. A cache would take the result of one for "
                        f"the other: uuid() must hold everything that changes what the pass does."
                    )
            seen.append((name, found))
        if equal is not None:
            _, found = _named("the equal configuration", equal)
            _require_equal(own, found, "the pass that ran and an equal configuration")


def _places(graphs: Iterable[PassGraphs]) -> str:
    return ", ".join(str(one.place) for one in graphs)


def _all(chosen: Iterable[PassGraphs]) -> list[Occurrence]:
    return [one for graphs in chosen for side in (graphs.before, graphs.after) for one in occurrences(side)]


def _found(pattern: OpPattern, graphs: Iterable[GraphSnapshot]) -> list[Occurrence]:
    return [one for graph in graphs for one in meant(pattern, occurrences(graph))]


def _times(n: int | Bound) -> str:
    return {1: "once", 2: "twice"}.get(n, f"{n} times") if isinstance(n, int) else f"{n} times"


def _named(name: str, given: Any) -> tuple[str, Any]:
    made = _made(given)
    if made is not given:
        _require_equal(_stable_uuid(made), _stable_uuid(_made(given)), f"{name}, made twice by its factory,")
    names = ", ".join(map(pass_name, made if isinstance(made, list | tuple) else [made]))
    return f"{name} ({names})", _stable_uuid(made)


def _made(given: Any) -> Any:
    """Return what a factory makes: a class, or a function that takes nothing."""
    if isinstance(given, list | tuple) or (hasattr(given, "uuid") and not isinstance(given, type)):
        return given
    parameters = inspect.signature(given).parameters.values() if callable(given) else ()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if needed or not callable(given):
        raise GraphPassError(_no_uuid(given))
    return given()


def _stable_uuid(passes: Any) -> Any:
    """Return the uuid, a tuple of them for a list."""
    if isinstance(passes, list | tuple):
        return tuple(_stable_uuid(one) for one in passes)
    method = getattr(passes, "uuid", None)
    first = method() if callable(method) else None
    if first is None:
        raise GraphPassError(_no_uuid(passes))
    assert callable(method)
    _require_equal(first, method(), f"two calls of {pass_name(passes)}.uuid()")
    return first


def _require_equal(first: Any, second: Any, what: str) -> None:
    if first != second:
        raise GraphAssertionError(
            f"{what} give two uuids, {first!r} and {second!r}: no cached result would ever be found. uuid() must be "
            f"made of values, not of identities, times or counters."
        )


def _no_uuid(given: Any) -> str:
    return (
        f"the pass {pass_name(given)} has no uuid, so no cache can tell its configurations apart: derive it from "
        f"torch._inductor.custom_graph_pass.CustomGraphPass and return from uuid() what identifies it, such as a name, "
        f"a version and every option"
    )
