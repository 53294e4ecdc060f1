"""The first value of a program that differs from eager: ``regional.first_divergence``.

Dynamo's graph of the program gets more outputs, a copy of each intermediate value, and is compared with eager and with
its float64 run as ``assert_parity`` compares outputs. For gradients, each value of floating point gets a zero added
whose gradient is that of the value.

An output keeps its value from being fused away. Where the program is right with all of them, each value is asked for
alone, and the first wrong one is bounded from below by what could be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from pytest_regional._errors import RegionalError
from pytest_regional._torch.dynamo import registered_backend
from pytest_regional._torch.vetoes import line_of
from pytest_regional.harness.blame.experiments import Change
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
    """The first value that differs from eager, in the order of the program.

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
    """

    operator: str = ""
    value: str = ""
    where: str = ""
    region: str | None = None
    stage: Literal["forward", "backward"] = "forward"
    detail: str = ""
    before: str = ""
    hidden: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The answer."""
        if not self.operator:
            return "no value of the program differs from eager"
        place = f" ({self.where})" if self.where else ""
        region = f"region {self.region!r}, " if self.region else ""
        what = "the gradient of its value" if self.stage == "backward" else "its value"
        after = f"; {self.before} is right" if self.before else ""
        hidden = f"; not seen, as the program is right with them as outputs: {', '.join(self.hidden)}"
        return f"{region}{self.operator}{place}: {what} differs first{after}{hidden * bool(self.hidden)}"


def first_divergence(check: ParityCheck) -> Divergence:
    """Return the first value of a program that differs from eager, compiled by the backend under test.

    Args:
        check: how it is compared: the program, its inputs, backward and level.

    Raises:
        NoGraphError: Dynamo makes none or several graphs of the program.
        BadProgramError: the program fails in eager.
    """
    regional = check.regional
    with regional._observer.paused():
        check_program(check._execute(check.fn, check.inputs, check.kwargs))
        graph, inputs = _captured(check)
        search = _Values(check, graph, inputs)
        forward = search.first(_with_values)
        if forward.operator or check.backward is False:
            return forward
        return search.first(_with_zeros)


def _captured(check: ParityCheck) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Return Dynamo's graph, and what it was called with."""
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
    if len(seen) != 1:
        raise NoGraphError(
            f"Dynamo makes {len(seen)} graphs of the program; values are compared where it makes one: without graph "
            f"breaks, and without a compiler of its own"
        )
    return seen[0]


@dataclass(frozen=True)
class _Variant:
    """A graph that shows values, and where they are in a report."""

    gm: torch.fx.GraphModule
    more_inputs: tuple[torch.Tensor, ...]
    places: tuple[str, ...]


Shows = Callable[[torch.fx.GraphModule, Sequence[Any], Sequence[str]], _Variant]


def _with_values(gm: torch.fx.GraphModule, inputs: Sequence[Any], names: Sequence[str]) -> _Variant:
    """Return a copy of a graph that also returns a copy of each named value."""
    made = _copy_of(gm)
    output = made.graph.output_node()
    results = list(output.args[0]) if isinstance(output.args[0], list | tuple) else [output.args[0]]
    first = len(results)
    for node in [node for node in made.graph.nodes if node.name in names]:
        with made.graph.inserting_after(node):
            shown = made.graph.call_method("clone", (node,))
        shown.meta = dict(node.meta)
        results.append(shown)
    output.args = (tuple(results),)
    made.recompile()
    return _Variant(made, (), tuple(f"output[{first + place}]" for place in range(len(names))))


def _with_zeros(gm: torch.fx.GraphModule, inputs: Sequence[Any], names: Sequence[str]) -> _Variant:
    """Return a copy of a graph that adds a zero, an input of its own, to each named value."""
    made = _copy_of(gm)
    last = [node for node in made.graph.nodes if node.op == "placeholder"][-1]
    zeros = []
    for node in [node for node in made.graph.nodes if node.name in names]:
        example = node.meta["example_value"]
        zeros.append(torch.zeros(example.shape, dtype=example.dtype, device=example.device, requires_grad=True))
        with made.graph.inserting_after(last):
            last = made.graph.placeholder(f"zero_of_{node.name}")
        last.meta = {"example_value": example}
        with made.graph.inserting_after(node):
            added = made.graph.call_function(torch.add, (node, last))
        added.meta = dict(node.meta)
        node.replace_all_uses_with(added, delete_user_cb=lambda user, added=added: user is not added)
    made.recompile()
    places = tuple(f"grad of input {len(inputs) + place}" for place in range(len(names)))
    return _Variant(made, tuple(zeros), places)


def _copy_of(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    made = torch.fx.GraphModule(gm, torch.fx.Graph())
    made.graph.output(made.graph.graph_copy(gm.graph, {}))
    made.recompile()
    return made


class _Values:
    """Compares values of one graph."""

    def __init__(self, check: ParityCheck, gm: torch.fx.GraphModule, inputs: list[Any]) -> None:
        self._check, self._gm, self._inputs = check, gm, inputs
        self._nodes = {node.name: node for node in gm.graph.nodes if _is_shown(node)}

    def first(self, shows: Shows) -> Divergence:
        backward = shows is _with_zeros
        names = list(self._nodes)
        if backward:
            names = [name for name in names if self._nodes[name].meta["example_value"].requires_grad][::-1]
        if not names:
            return Divergence()
        wrong, report = self._wrong(shows, names)
        if wrong:
            first = min(wrong, key=names.index)
            return self._divergence(first, wrong, names[: names.index(first)], (), backward)
        # Where the program is wrong and no value is, only what is returned differs: strides, or an alias.
        return self._one_by_one(shows, names, backward) if report.ok else Divergence()

    def _one_by_one(self, shows: Shows, names: list[str], backward: bool) -> Divergence:
        """Return the first wrong value by halves, each seen alone; those with which nothing is wrong are hidden."""
        low, high = 0, len(names)
        found: dict[str, Mismatch] = {}
        hidden: list[str] = []
        right: list[str] = []
        while low < high:
            middle = (low + high) // 2
            wrong, report = self._wrong(shows, [names[middle]])
            if wrong:
                high, found = middle, wrong
            else:
                low = middle + 1
                (hidden if report.ok else right).append(names[middle])
        if high == len(names):
            return Divergence()
        return self._divergence(names[high], found, right, hidden, backward)

    def _wrong(self, shows: Shows, names: Sequence[str]) -> tuple[dict[str, Mismatch], ParityReport]:
        """Return what is wrong of some values, and the report."""
        in_order = [name for name in self._nodes if name in names]
        variant = shows(self._gm, self._inputs, in_order)
        report = _GraphParity(self._check, variant.gm, (*self._inputs, *variant.more_inputs)).compared_once()
        found = {one.where: one for one in report.mismatches if one.kind in _OF_VALUES}
        shown = zip(in_order, variant.places, strict=True)
        return {name: found[place] for name, place in shown if place in found}, report

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
        )


class _GraphParity(ParityCheck):
    """Parity of a graph that is handed to the backend as it is: Dynamo, traced again, would lose its annotations."""

    def __init__(self, check: ParityCheck, gm: torch.fx.GraphModule, inputs: tuple[Any, ...]) -> None:
        how = (check.backward, check.level, check.rtol, check.atol)
        super().__init__(check.regional, gm, inputs, *how, options=check.options, depth="off")
        self._gm = gm

    def _compile(self, eager_regions: frozenset[str] = frozenset()) -> Any:
        options = replace(self.options or self.regional._options, fallback_random=True)

        def call(*inputs: Any) -> Any:
            return tuple(self.regional._compile_graph(_copy_of(self._gm), inputs, options)(*inputs))

        return call

    def compared_once(self) -> ParityReport:
        """Return the report of one call."""
        self.regional.restart()
        case = self._case(self.inputs, {}, "")
        return self._judge(case, self._call(self._compile(), case))


def _is_shown(node: torch.fx.Node) -> bool:
    return node.op in ("call_function", "call_method", "call_module") and isinstance(
        node.meta.get("example_value"), torch.Tensor
    )


def _operator(node: torch.fx.Node) -> str:
    """Return what a node calls, as people write it."""
    if isinstance(node.target, str):
        return node.target
    name = torch.overrides.resolve_name(node.target) if callable(node.target) else None
    return str(name or getattr(node.target, "__name__", node.target))
