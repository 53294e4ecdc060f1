"""The first value of a program that differs: ``regional.first_divergence``.

Dynamo's graph of the program gets more outputs, a copy of each intermediate value, and is compared with eager and with
its float64 run as ``assert_parity`` compares outputs. For gradients, each value of floating point gets a zero added
whose gradient is that of the value.

An output keeps its value from being fused away. Where the program is right with all of them, each value is asked for
alone, and the first wrong one is bounded from below by what could be seen.

The yardstick is eager, another backend, or another version of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch.dynamo import registered_backend
from pytest_regional._torch.fx_graphs import run_checked
from pytest_regional._torch.vetoes import line_of
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.blame.culprit import Change
from pytest_regional.harness.observe.annotated import region_of
from pytest_regional.harness.parity.check import ParityCheck
from pytest_regional.harness.parity.compare import check_program
from pytest_regional.harness.parity.inputs import copy_inputs
from pytest_regional.harness.parity.report import Mismatch, ParityReport

#: Mismatches that say that a value is wrong.
_OF_VALUES = ("value", "nan", "dtype", "shape", "missing-grad")


class NoGraphError(RegionalError):
    """The program is not one graph of Dynamo's, so its values have no order."""


@dataclass(frozen=True)
class Divergence:
    """The first value that differs, in the order of the program.

    Attributes:
        operator: what computes it, ``"torch.nn.functional.silu"``; empty where nothing differs.
        value: its name in Dynamo's graph.
        where: file and line of the program, ``"model.py:41"``; empty where none is known.
        region: the region that it is in.
        stage: whether the value differs, or its gradient: the last one in the order of the program, as a backward
            runs the other way round.
        detail: how, and by how much.
        before: the last value (or gradient) before it that was seen, and is right.
        hidden: values in between that could not be seen: with them as an output the program is right.
        against: what it differs from: "eager", "backend 'torch'", "the other graph".
        new: of two versions of a graph, values in between that only this one has.
    """

    operator: str = ""
    value: str = ""
    where: str = ""
    region: str | None = None
    stage: Literal["forward", "backward"] = "forward"
    detail: str = ""
    before: str = ""
    hidden: tuple[str, ...] = ()
    against: str = "eager"
    new: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The answer."""
        if not self.operator:
            return f"no value of the program differs from {self.against}"
        place = f" ({self.where})" if self.where else ""
        region = f"region {self.region!r}, " if self.region else ""
        what = "the gradient of its value" if self.stage == "backward" else "its value"
        after = f"; {self.before} is right" if self.before else ""
        hidden = f"; not seen, as the program is right with them as outputs: {', '.join(self.hidden)}"
        new = f"; only in this graph: {', '.join(self.new)}"
        than = f" from {self.against}" if self.against != "eager" else ""
        unseen = (hidden if self.hidden else "") + (new if self.new else "")
        return f"{region}{self.operator}{place}: {what} differs first{than}{after}{unseen}"


def first_divergence(check: ParityCheck, against: str | BackendSpec | None = None) -> Divergence:
    """Return the first value of a program that differs from eager, or from another backend."""
    regional = check.regional
    with regional.observer.paused():
        check_program(check._execute(check.fn, check.inputs, check.kwargs))
        seen = captured_graphs(check)
        if len(seen) != 1:
            raise NoGraphError(
                f"Dynamo makes {len(seen)} graphs of the program; values are compared where it makes one: without "
                f"graph breaks, and without a compiler of its own"
            )
        ((graph, inputs),) = seen
        if against is None:
            yardstick = _Yardstick()
        else:
            spec = against if isinstance(against, BackendSpec) else registry.resolve(against)
            yardstick = _Yardstick(f"backend {spec.name!r}", backend=spec)
        return _Values(check, graph, inputs, yardstick).first_of_both()


def first_divergence_of_graphs(check: ParityCheck, before: torch.fx.GraphModule) -> Divergence:
    """Return the first value of a graph, ``check.fn``, that differs from that of its name in another version of it.

    Both run uncompiled.
    """
    with check.regional.observer.paused():
        examples: dict[str, torch.Tensor] = {}

        def note(node: torch.fx.Node, given: tuple[Any, ...], value: Any) -> None:
            if isinstance(value, torch.Tensor) and node.op in _COMPUTED:
                examples[node.name] = value

        check_program(check._execute(before, check.inputs, {}))
        run_checked(before, copy_inputs(check.inputs).arguments, note)
        yardstick = _Yardstick("the other graph", before)
        return _Values(check, check.fn, list(check.inputs), yardstick, examples).first_of_both()


@dataclass(frozen=True)
class _Yardstick:
    """What values are compared with: eager, another version of the graph, or another backend."""

    words: str = "eager"
    before: torch.fx.GraphModule | None = None
    backend: BackendSpec | None = None


def captured_graphs(check: ParityCheck) -> list[tuple[torch.fx.GraphModule, list[Any]]]:
    """Return Dynamo's graphs of a program, one for each call, and what they were called with."""
    seen: list[tuple[torch.fx.GraphModule, list[Any]]] = []
    eager = registered_backend("eager")

    def capture(gm: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        run = eager(gm, inputs)

        def call(*arguments: Any) -> Any:
            seen.append((gm, list(copy_inputs(arguments).arguments)))
            return run(*arguments)

        return call

    regional = check.regional
    regional.restart()
    options = replace(check.options or regional._options, fallback_random=True, dynamic=False)
    with regional._changed(Change("values", backend=capture)), torch.enable_grad():
        copied = copy_inputs(check.inputs, kwargs=check.kwargs)
        regional._compile_with(check.fn, options)(*copied.arguments, **copied.keywords)
    regional.restart()
    return seen


@dataclass(frozen=True)
class _Variant:
    """A graph that shows values, and where they are in a report."""

    gm: torch.fx.GraphModule
    more_inputs: tuple[torch.Tensor, ...]
    places: tuple[str, ...]


def _with_values(gm: torch.fx.GraphModule, examples: Mapping[str, torch.Tensor]) -> _Variant:
    """Return a copy of a graph that returns a copy of each value with an example, and then what it returned."""
    made = _copy_of(gm)
    output = made.graph.output_node()
    results = list(output.args[0]) if isinstance(output.args[0], list | tuple) else [output.args[0]]
    nodes = {node.name: node for node in made.graph.nodes}
    for place, node in enumerate(nodes[name] for name in examples):
        with made.graph.inserting_after(node):
            shown = made.graph.call_method("clone", (node,))
        shown.meta = dict(node.meta)
        results.insert(place, shown)
    output.args = (tuple(results),)
    made.recompile()
    return _Variant(made, (), tuple(f"output[{place}]" for place in range(len(examples))))


def _with_zeros(gm: torch.fx.GraphModule, examples: Mapping[str, torch.Tensor]) -> _Variant:
    """Return a copy of a graph that adds a zero, an input of its own, to each value with an example."""
    made = _copy_of(gm)
    nodes = {node.name: node for node in made.graph.nodes}
    first = next(node for node in made.graph.nodes if node.op != "placeholder")
    inputs = len(gm.graph.find_nodes(op="placeholder"))
    zeros = []
    for name, example in examples.items():
        node = nodes[name]
        zeros.append(torch.zeros(example.shape, dtype=example.dtype, device=example.device, requires_grad=True))
        with made.graph.inserting_before(first):
            zero = made.graph.placeholder(f"zero_of_{name}")
        zero.meta = {"example_value": example}
        with made.graph.inserting_after(node):
            added = made.graph.call_function(torch.add, (node, zero))
        added.meta = dict(node.meta)
        node.replace_all_uses_with(added, delete_user_cb=lambda user, added=added: user is not added)
    made.recompile()
    return _Variant(made, tuple(zeros), tuple(f"grad of input {inputs + place}" for place in range(len(zeros))))


def _copy_of(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    # Made of the finished graph, it has the modules that the graph names: bodies of nested regions and of branches.
    return torch.fx.GraphModule(gm, graph)


class _Values:
    """Compares values of one graph."""

    def __init__(
        self,
        check: ParityCheck,
        gm: torch.fx.GraphModule,
        inputs: list[Any],
        yardstick: _Yardstick,
        examples: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self._check, self._gm, self._inputs, self._yardstick = check, gm, inputs, yardstick
        if examples is None:
            examples = {node.name: node.meta["example_value"] for node in _shown(gm)}
        self._examples = examples
        self._nodes = {node.name: node for node in gm.graph.nodes if node.name in examples}

    def first_of_both(self) -> Divergence:
        """Return the first value that differs, or else the first gradient."""
        forward = self.first(backward=False)
        return forward if forward.operator or self._check.backward is False else self.first(backward=True)

    def first(self, *, backward: bool) -> Divergence:
        names = list(self._nodes)  # in the order in which they are computed
        if backward:
            names = [name for name in names if self._examples[name].requires_grad][::-1]
        if not names:
            return self._none()
        wrong, report = self._wrong(names, backward)
        if wrong:
            first = min(wrong, key=names.index)
            return self._divergence(first, wrong, names[: names.index(first)], (), backward)
        # Where the program is wrong and no value is, only what is returned differs: strides, or an alias.
        if not report.ok:
            return self._none()
        # By halves, each seen alone; those with which nothing is wrong are hidden.
        low, high = 0, len(names)
        found: dict[str, Mismatch] = {}
        hidden: list[str] = []
        right: list[str] = []
        while low < high:
            middle = (low + high) // 2
            wrong, report = self._wrong([names[middle]], backward)
            if wrong:
                high, found = middle, wrong
            else:
                low = middle + 1
                (hidden if report.ok else right).append(names[middle])
        if high == len(names):
            return self._none()
        return self._divergence(names[high], found, right, hidden, backward)

    def _none(self) -> Divergence:
        return Divergence(against=self._yardstick.words)

    def _wrong(self, names: Sequence[str], backward: bool) -> tuple[dict[str, Mismatch], ParityReport]:
        """Return what is wrong of some values, and the report."""
        in_order = {name: self._examples[name] for name in self._nodes if name in names}
        shows = _with_zeros if backward else _with_values
        variant = shows(self._gm, in_order)
        before = self._yardstick.before and shows(self._yardstick.before, in_order).gm
        inputs = (*self._inputs, *variant.more_inputs)
        report = _GraphParity(self._check, variant.gm, inputs, replace(self._yardstick, before=before)).compared_once()
        found = {one.where: one for one in report.mismatches if one.kind in _OF_VALUES}
        places = zip(in_order, variant.places, strict=True)
        return {name: found[place] for name, place in places if place in found}, report

    def _divergence(
        self, name: str, wrong: dict[str, Mismatch], right: Sequence[str], hidden: Sequence[str], backward: bool
    ) -> Divergence:
        node = self._nodes[name]
        region = region_of(node)
        return Divergence(
            _operator(node),
            name,
            line_of(node),
            region[0] if region else None,
            "backward" if backward else "forward",
            wrong[name].detail,
            right[-1] if right else "",
            tuple(hidden),
            self._yardstick.words,
            self._new(node) if self._yardstick.before and not backward else (),
        )

    def _new(self, node: torch.fx.Node) -> tuple[str, ...]:
        """Return what a value is made of that only this version of the graph has, up to values of both."""
        found: dict[str, None] = {}
        waiting = list(node.all_input_nodes)
        while waiting:
            one = waiting.pop()
            if one.op in _COMPUTED and one.name not in self._nodes and one.name not in found:
                found[one.name] = None
                waiting += one.all_input_nodes
        return tuple(found)[::-1]


class _GraphParity(ParityCheck):
    """Parity of a graph that is handed to the backend as it is: Dynamo, traced again, would lose its annotations."""

    def __init__(
        self, check: ParityCheck, gm: torch.fx.GraphModule, inputs: tuple[Any, ...], yardstick: _Yardstick
    ) -> None:
        how = {name: getattr(check, name) for name in ("backward", "level", "rtol", "atol", "options")}
        super().__init__(check.regional, yardstick.before or gm, inputs, **how, depth="off")
        self._gm, self._yardstick = gm, yardstick

    def _compile(self, eager_regions: frozenset[str] = frozenset()) -> Any:
        options = replace(self.options or self.regional._options, fallback_random=True)

        def call(*inputs: Any) -> Any:
            return tuple(self.regional._compile_graph(_copy_of(self._gm), inputs, options)(*inputs))

        return call

    def compared_once(self) -> ParityReport:
        """Return the report of one call."""
        self.regional.restart()
        case = self._case(self.inputs, {}, "")
        backend = self._yardstick.backend
        if backend is not None:
            with self.regional._changed(Change("the other backend", instead=backend)):
                other = self._call(self._compile(), case)
            check_program(other)
            case = replace(case, eager=other)
            self.regional.restart()
        if self._yardstick.before is None:
            return self._judge(case, self._call(self._compile(), case))
        version = _GraphParity(self, self._gm, self.inputs, _Yardstick())
        return self._judge(case, version._call(version.fn, case))


_COMPUTED = ("call_function", "call_method", "call_module")


def _shown(gm: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Yield the nodes whose values can be outputs: not those inside of ``grad``, ``jvp`` or ``vmap``.

    These have a level of functorch around them, which ends before the program does.
    """
    levels = 0
    for node in gm.graph.nodes:
        name = _operator(node)
        levels += name.endswith("_increment_nesting") - name.endswith("_decrement_nesting")
        if not levels and node.op in _COMPUTED and isinstance(node.meta.get("example_value"), torch.Tensor):
            yield node


def _operator(node: torch.fx.Node) -> str:
    """Return what a node calls, as people write it."""
    if isinstance(node.target, str):
        return node.target
    name = torch.overrides.resolve_name(node.target) if callable(node.target) else None
    return str(name or getattr(node.target, "__name__", node.target))
