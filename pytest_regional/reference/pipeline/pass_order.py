"""Passes of a pipeline: their declarations, their order, and the inputs and outputs that they must keep.

An impossible order is an error with the passes and their contradictory declarations.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import tuple_text, unknown_name
from pytest_regional._torch import pass_forms
from pytest_regional._torch.pass_forms import PassForm, form_of
from pytest_regional.reference.pass_protocol import (
    DEFAULT_GRAPHS,
    GRAPH_KINDS,
    InvalidPassError,
    PassOrderError,
    PipelineError,
    checked_uuid,
)

# earlier -> later -> the declaration that says so
_Edges = dict[str, dict[str, str]]


def in_order(passes: Sequence[DeclaredPass], disabled: Collection[str] = ()) -> tuple[DeclaredPass, ...]:
    """Return the passes that are not ``disabled``, in the order in which they run.

    Passes for the joint graph only come first, and terminal ones last.

    Raises:
        PassOrderError: names given twice, a required pass that is absent or disabled, two terminal passes for one
            graph, a pass declared after a terminal one, a joint pass after one of a later graph, or a cycle.
    """
    twice = tuple(name for name, count in Counter(one.name for one in passes).items() if count > 1)
    if twice:
        raise PassOrderError(
            f"more than one pass is called {_listed(twice)}: give each its own name, since declarations and "
            f"disable= refer to passes by name.",
            twice,
        )
    enabled = {one.name: one for one in passes if one.name not in disabled}
    for one in enabled.values():
        for name in one.requires:
            if name not in enabled:
                raise _missing(one, name, enabled, disabled)
        if one.terminal and "joint" in one.graphs:
            raise PassOrderError(
                f"pass {one.name!r} is terminal and runs on the joint graph, which still has to be partitioned into "
                f"forward and backward: take 'joint' from its graphs.",
                (one.name,),
            )
    last: dict[str, DeclaredPass] = {}
    for one in enabled.values():
        for graph in one.graphs if one.terminal else ():
            other = last.setdefault(graph, one)
            if other is not one:
                raise PassOrderError(
                    f"passes {other.name!r} and {one.name!r} are both terminal for the {graph} graph, and only one can "
                    f"be the last: disable one of them, or give them different graphs.",
                    (other.name, one.name),
                )
    edges: _Edges = {name: {} for name in enabled}
    for earlier, later, reason in _declared(enabled):
        _refuse_impossible(enabled[earlier], enabled[later], reason)
        edges[earlier].setdefault(later, reason)
    for final in enabled.values():
        for one in enabled.values() if final.terminal else ():
            if one is not final and set(one.graphs) & set(final.graphs):
                reason = f"{final.name!r} is terminal, so that {one.name!r} runs before it"
                edges[one.name].setdefault(final.name, reason)
    rank = {name: (one.graphs != ("joint",), index, name) for index, (name, one) in enumerate(enabled.items())}
    waiting = Counter(later for targets in edges.values() for later in targets)
    ready = [rank[name] for name in enabled if not waiting[name]]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        *_, name = heapq.heappop(ready)
        order.append(name)
        for later in edges[name]:
            waiting[later] -= 1
            if not waiting[later]:
                heapq.heappush(ready, rank[later])
    if len(order) < len(enabled):
        raise _cycle([name for name in enabled if name not in order], edges)
    return tuple(enabled[name] for name in order)


def _missing(one: DeclaredPass, name: str, enabled: Collection[str], disabled: Collection[str]) -> PassOrderError:
    if name in disabled:
        text = f"is disabled: enable it, or disable {one.name!r} too."
    else:
        close = difflib.get_close_matches(name, list(enabled), n=1)
        hint = f" Is {close[0]!r} meant?" if close else ""
        text = (
            f"is not in the pipeline: add it, or take {name!r} from requires= of {one.name!r}.{hint} The passes there "
            f"are: {_listed(enabled)}."
        )
    return PassOrderError(f"pass {one.name!r} requires pass {name!r}, which {text}", (one.name, name))


def near_misses(passes: Sequence[DeclaredPass]) -> Iterator[str]:
    """Yield warnings for names in ``after`` and ``before`` that no pass has, but that resemble one."""
    names = [one.name for one in passes]
    for one in passes:
        for word, others in (("after", one.after), ("before", one.before)):
            for name in (name for name in others if name not in names):
                # A name that differs in a number, or in parentheses, differs on purpose.
                similar = [other for other in names if other != one.name and _stem(other) != _stem(name)]
                close = difflib.get_close_matches(name, similar, n=1, cutoff=0.8)
                if close:
                    yield (
                        f"pass {one.name!r} has {word}={name!r}, but no pass has that name, so it has no effect. Is "
                        f"{close[0]!r} meant?"
                    )


def _stem(name: str) -> str:
    return re.sub(r"\(.*\)|\d+", "", name)


def refuse_unmet(passes: Iterable[DeclaredPass], graph: str) -> None:
    """Raise if a pass on ``graph`` requires one that runs neither on it nor on the joint graph before it.

    Raises:
        PassOrderError: naming both passes and their kinds of graphs.
    """
    by_name = {one.name: one for one in passes}
    for one in by_name.values():
        for name in one.requires if graph in one.graphs else ():
            graphs = by_name[name].graphs
            if graph not in graphs and not ("joint" in graphs and graph in ("forward", "backward")):
                raise PassOrderError(
                    f"pass {one.name!r} requires pass {name!r}, which does not run on the {graph} graph, but on "
                    f"{_listed(graphs)}: add {graph!r} to its graphs, or take it from {one.name!r}.",
                    (one.name, name),
                )


def _declared(enabled: dict[str, DeclaredPass]) -> Iterator[tuple[str, str, str]]:
    for name, one in enabled.items():
        for word, others in (("requires", one.requires), ("after", one.after)):
            for other in (other for other in others if other in enabled):
                yield other, name, f"{name!r} must run after {other!r} ({word}={others!r})"
        for other in (other for other in one.before if other in enabled):
            yield name, other, f"{name!r} must run before {other!r} (before={one.before!r})"


def _refuse_impossible(earlier: DeclaredPass, later: DeclaredPass, reason: str) -> None:
    names = (later.name, earlier.name)
    if earlier is later:
        raise PassOrderError(f"{reason}, which is itself: take it from the declaration.", names[:1])
    if earlier.terminal and set(earlier.graphs) & set(later.graphs):
        raise PassOrderError(
            f"{reason}, but {earlier.name!r} is terminal: its result is not a graph, so no other pass can run on it.  "
            f"Remove the declaration, or let {later.name!r} run before it.",
            names,
        )
    if later.graphs == ("joint",) and set(earlier.graphs) & {"forward", "backward"} and "joint" not in earlier.graphs:
        raise PassOrderError(
            f"{reason}, but {later.name!r} runs on the joint graph, and {earlier.name!r} on {_listed(earlier.graphs)} "
            f"graphs, which the joint graph is partitioned into later. Let both run on the same graphs, or take the "
            f"declaration away.",
            names,
        )


def _cycle(stuck: list[str], edges: _Edges) -> PassOrderError:
    """Walk from a pass to its predecessor; the first repeated one closes the cycle."""
    previous = {later: earlier for earlier in reversed(stuck) for later in edges[earlier]}
    path = [stuck[0]]
    while previous[path[-1]] not in path:
        path.append(previous[path[-1]])
    cycle = path[path.index(previous[path[-1]]) :][::-1]
    steps = [edges[earlier][later] for earlier, later in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
    return PassOrderError(
        f"these passes wait for each other: {'; '.join(steps)}. Remove one of these declarations.", tuple(cycle)
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


_UNKNOWN = object()
_TENSOR, _NOTHING, _OTHER = "a tensor", "None", "no tensor"


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of a graph.

    Attributes:
        inputs: names of the placeholders.
        paths: path of each returned value; the empty string for a single value.
        outputs: the (fake) values; those without a traced value are not compared.
    """

    inputs: tuple[str, ...]
    paths: tuple[str, ...]
    outputs: tuple[Any, ...]

    @classmethod
    def of(cls, gm: torch.fx.GraphModule) -> Interface:
        """Return the interface of ``gm``."""
        inputs = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
        returned = [pair for node in gm.graph.find_nodes(op="output") for pair in _leaves(node.args[0], "")]
        return cls(inputs, tuple(path for path, _ in returned), tuple(map(_value, (one for _, one in returned))))

    def changes_to(self, after: Interface) -> Iterator[str]:
        """Yield the differences in ``after``, as text."""
        if len(self.inputs) != len(after.inputs):
            yield f"takes {len(after.inputs)} inputs and took {len(self.inputs)}"
        else:
            # Names may change when a pass traces again; remaining ones keep their order.
            was = [name for name in self.inputs if name in after.inputs]
            now = [name for name in after.inputs if name in self.inputs]
            if was != now:
                yield f"takes its inputs in another order: {_listed(now)}; it was {_listed(was)}"
        if len(self.paths) != len(after.paths):
            yield f"returns {len(after.paths)} values and returned {len(self.paths)}"
        elif self.paths != after.paths:
            then, there = (", ".join(path or "the only value" for path in one.paths) for one in (self, after))
            yield f"returns values as {there} and returned them as {then}"
        else:
            for index, values in enumerate(zip(self.outputs, after.outputs, strict=True)):
                if not any(value is _UNKNOWN for value in values):
                    yield from (f"output {index} {change}" for change in _of_value(*values))


def _leaves(returned: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each value and its path; lists and tuples are equivalent for callers of a graph."""
    if isinstance(returned, (list, tuple)):
        for index, one in enumerate(returned):
            yield from _leaves(one, f"{path}[{index}]")
    elif isinstance(returned, dict):
        for key, one in returned.items():
            yield from _leaves(one, f"{path}[{key!r}]")
    else:
        yield path, returned


def _value(returned: Any) -> Any:
    return returned.meta.get("val", _UNKNOWN) if isinstance(returned, torch.fx.Node) else returned


def _of_value(before: Any, after: Any) -> Iterator[str]:
    was, now = _kind(before), _kind(after)
    if was != now:
        yield f"is {now} and was {was}"
    elif now == _TENSOR:
        for what, old, new in (
            ("shape", _shape(before), _shape(after)),
            ("dtype", str(before.dtype), str(after.dtype)),
            ("device", str(before.device), str(after.device)),
        ):
            if _comparable(old) != _comparable(new):
                yield f"has {what} {new} and had {old}"


def _kind(value: Any) -> str:
    return _NOTHING if value is None else _TENSOR if isinstance(value, torch.Tensor) else _OTHER


def _shape(value: torch.Tensor) -> str:
    return tuple_text([str(size) for size in value.shape])


def _comparable(text: str) -> str:
    """Replace data-dependent sizes, which get new symbols each time an op runs."""
    return re.sub(r"\bu\d+\b", "u", text)


_WHAT_IS_ONE = (
    "a pass is a callable (gm, example_inputs), an object with a name and __call__, a CustomGraphPass, a "
    "CustomGraphModulePass or a PatternMatcherPass"
)


@dataclass(frozen=True, eq=False)
class DeclaredPass:
    """One pass of a pipeline: its declarations with defaults, and a single way to call it.

    Attributes:
        given: the user's object.
        changes_interface: whether it may change a graph's inputs and outputs.
    """

    given: Any
    name: str
    requires: tuple[str, ...]
    after: tuple[str, ...]
    before: tuple[str, ...]
    terminal: bool
    graphs: tuple[str, ...]
    changes_interface: bool
    form: PassForm

    @property
    def keeps_graph(self) -> bool:
        """Whether its return value is ignored: it changes a ``torch.fx.Graph`` in place."""
        return self.form.takes == pass_forms.GRAPH

    def call(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], graph: str) -> Any:
        """Call the pass on the module of a graph of kind ``graph``."""
        return self.form.call(gm, lambda: example_inputs, graph=graph, is_inference=graph == "inference")

    def uuid(self) -> Hashable | None:
        """Return the pass's uuid in its form for keys, or None without one.

        Raises:
            PipelineError: a uuid that is empty, changes between calls, or means nothing in another process.
        """
        method = getattr(self.given, "uuid", None)
        if method is None:
            return None
        if not callable(method):
            raise PipelineError(
                f"the pass {self.name!r} has a uuid that is no method but {method!r}: define uuid(self) and return it."
            )
        return checked_uuid(method, f"the pass {self.name!r}", PipelineError)

    def summary(self, graph: str) -> str:
        """Return the pass's text on its latest run on ``graph``; empty without a method ``summary``."""
        method = getattr(self.given, "summary", None)
        return str(method(graph)) if callable(method) else ""


def declared_pass(given: Any) -> DeclaredPass:
    """Read the declarations of ``given``.

    Raises:
        InvalidPassError: not a pass, or an invalid declaration.
        PipelineError: an unknown kind of graph.
    """
    if isinstance(given, type):
        raise InvalidPassError(f"{given.__name__} is a class: a pipeline needs an instance, {given.__name__}(...).")
    try:
        form = form_of(given, pass_forms.MODULE, ("graph",), offers_inputs=True)
    except RegionalValueError as error:
        raise InvalidPassError(f"{error}: {_WHAT_IS_ONE}.") from None
    if form is None:
        raise InvalidPassError(f"{given!r} cannot be called: {_WHAT_IS_ONE}.")
    name = name_of(given)
    return DeclaredPass(
        given,
        name,
        _names(given, "requires", name),
        _names(given, "after", name),
        _names(given, "before", name),
        _flag(given, "terminal", name),
        _graphs(given, name),
        _flag(given, "changes_interface", name),
        form,
    )


def name_of(given: Any) -> str:
    """Return the name of a pass: its ``name``, a function's own, else that of its class."""
    name = getattr(given, "name", None)
    if name is not None:
        if isinstance(name, str) and name.strip():
            return name
        raise InvalidPassError(f"the name of the pass {given!r} is {name!r}: give a string that is not empty.")
    inner = getattr(given, "func", given)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def _names(given: Any, declaration: str, name: str) -> tuple[str, ...]:
    value = getattr(given, declaration, ())
    if callable(value):  # PassBase of torch.fx has a method ``requires``, a check
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(one, str) for one in names):
        raise InvalidPassError(
            f"{declaration}={value!r} of the pass {name!r} names no passes: give a tuple of their names."
        )
    return tuple(sorted(names) if isinstance(names, (set, frozenset)) else names)


def _flag(given: Any, declaration: str, name: str) -> bool:
    value = getattr(given, declaration, False)
    if not isinstance(value, bool):
        raise InvalidPassError(f"{declaration}={value!r} of the pass {name!r} is neither True nor False.")
    return value


def _graphs(given: Any, name: str) -> tuple[str, ...]:
    value = getattr(given, "graphs", DEFAULT_GRAPHS)
    graphs = (value,) if isinstance(value, str) else tuple(value)
    for graph in graphs:
        checked_kind(graph, f" in graphs={value!r} of the pass {name!r}")
    if not graphs:
        raise InvalidPassError(f"the pass {name!r} has graphs=(): it would never run. Leave it out, or disable it.")
    return graphs


def checked_kind(graph: object, where: str = "") -> str:
    """Return ``graph`` if it is a kind of graph.

    Raises:
        PipelineError: listing the kinds.
    """
    if isinstance(graph, str) and graph in GRAPH_KINDS:
        return graph
    raise PipelineError(unknown_name(f"kind of graph{where}:", graph, GRAPH_KINDS))
