"""Which value of the graph each buffer of the generated code holds, step by step.

What Inductor says of a buffer is something to be proved of the kernel that writes it, and is of use for those that read
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import z3

from pytest_regional.verify.buffers import Effects
from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.operators.calls import Place, is_tensor, shape_of
from pytest_regional.verify.sizes import expression_of
from pytest_regional.verify.symbols import Expression, constant
from pytest_regional.verify.wrappers import INPUT, Contents, Graph, OperatorCall, SymbolicLaunch, View, WrapperRun


@dataclass(frozen=True)
class Holding:
    """A tensor of the graph in memory.

    Attributes:
        node: the node whose value it is.
        view: where its elements lie.
    """

    node: torch.fx.Node
    view: View

    def address(self, place: Place) -> Expression:
        """Return where an element lies, counted from the start of the memory."""
        terms = [at * expression_of(stride) for at, stride in zip(place, self.view.strides, strict=True)]
        return z3.simplify(z3.Sum([expression_of(self.view.start), *terms]))


@dataclass(frozen=True)
class Part:
    """A buffer that holds no value of the graph, but a part of the work on one: sums of pieces, for example.

    Attributes:
        view: the buffer.
        order: of the launch that writes it.
        argument: through which that launch writes it.
        candidates: nodes that are as large: it may be the value of one after all.
    """

    view: View
    order: int
    argument: str
    candidates: tuple[torch.fx.Node, ...] = ()


InMemory = Holding | Part | str
"""A node's value, a part of the work, or why what is there is not known."""


@dataclass(frozen=True)
class Held:
    """What the arguments of a launch hold, by their names.

    Attributes:
        before: when it is launched, of those that it reads.
        after: when it is done, of those that it writes.
    """

    before: Mapping[str, InMemory]
    after: Mapping[str, InMemory]


class Holdings:
    """What each launch of one graph finds in memory, and leaves there.

    Attributes:
        launches: by the order of the launch.
        inputs: the tensors that the graph is given, by the names of their nodes.
        readers: of parts of the work, by the order of the launch that writes them: the orders of those that read them;
            None among them stands for an operator, or the caller.
        misread: names of sizes that are not shown to be the elements of tensors that they are in the graph.
        outputs: for each tensor that the graph returns: its node, the tensor that the code returns in its place, and
            what the buffer holds that it is a view of.
    """

    def __init__(self, graph: Graph, run: WrapperRun, effects: Mapping[int, Effects]) -> None:
        assert graph.module is not None
        self._origins = graph.origins
        self._nodes = {node.name: node for node in graph.module.graph.nodes}
        self._inputs = [node for node in graph.module.graph.nodes if node.op == "placeholder"]
        self._written: dict[Contents, set[tuple[str, ...]]] = {}
        self._writers: dict[Contents, tuple[int, str]] = {}
        self._changed: set[Contents] = set()
        self.launches: dict[int, Held] = {}
        self.readers: dict[int, set[int | None]] = {}
        self.misread: set[str] = set()
        for step in run.steps:
            if isinstance(step, OperatorCall):
                for view in step.reads:
                    held = self._before(view)
                    self._note_reader(held, None)
                    if step.number and not self._is_number_of(step.number, held):
                        self.misread.add(step.number)
                for view in step.writes:
                    self._write(view)
            else:
                self.launches[step.order] = self._launch(step, effects.get(step.order, Effects()))
        self.inputs = self._of_inputs(run)
        self.outputs: list[tuple[torch.fx.Node, View | None, InMemory]] = list(self._outputs(graph.module, run))

    def _launch(self, step: SymbolicLaunch, effects: Effects) -> Held:
        views = {key: value for key, value in step.arguments.items() if isinstance(value, View)}
        if effects.reads is None or effects.writes is None:
            for view in views.values():
                self._changed.add(view.contents)
            return Held({}, {})
        before = {name: self._before(views[name]) for name in effects.reads & views.keys()}
        for held in before.values():
            self._note_reader(held, step.order)
        for name in effects.writes & views.keys():
            self._writers.setdefault(views[name].contents, (step.order, name))
        after = {name: self._after(views[name]) for name in effects.writes & views.keys()}
        for name in sorted(effects.writes & views.keys()):
            self._write(views[name])
        for name in effects.updates & views.keys():
            self._changed.add(views[name].contents)
        return Held(before, after)

    def _of_inputs(self, run: WrapperRun) -> dict[str, InMemory]:
        return {
            self._inputs[number].name: self._laid_out(self._inputs[number], view) for number, view in run.inputs.items()
        }

    def _note_reader(self, held: InMemory, order: int | None) -> None:
        if isinstance(held, Part):
            self.readers.setdefault(held.order, set()).add(order)

    def _is_number_of(self, name: str, held: InMemory) -> bool:
        """Say whether the graph has a size of this name that is the element of what is in memory."""
        for node in self._nodes.values():
            if node.target is torch.ops.aten._local_scalar_dense.default and str(node.meta.get("val")) == name:
                return isinstance(held, Holding) and held.node is node.args[0]
        return False

    def _before(self, view: View) -> InMemory:
        if view.contents in self._changed:
            return "a buffer that was changed after it was written"
        if view.contents not in self._written and view.previous is not None:
            return self._before(view.previous)
        return self._of(view)

    def _after(self, view: View) -> InMemory:
        if self._overwrites(view):
            return "a buffer that is changed after it was written"
        if view.origin.storage.name.startswith(INPUT) and view.previous is None:
            return self._copied_to(view)
        return self._of(view)

    def _of(self, view: View) -> InMemory:
        origin = view.origin
        if origin.storage.name.startswith(INPUT) and view.previous is None:
            return self._laid_out(self._inputs[int(origin.storage.name.removeprefix(INPUT))], origin)
        names = self._origins.get(origin.buffer, ())
        holdings = [self._laid_out(self._nodes[name], origin) for name in names if name in self._nodes]
        known = next((holding for holding in holdings if isinstance(holding, Holding)), None)
        if known is not None:
            return known
        writer = self._writers.get(view.contents)
        whole = origin.place() == view.place()
        if writer is None or not whole:
            return "a buffer that holds no value of the graph"
        tensors = [node for node in self._nodes.values() if node.op == "call_function" and is_tensor(node)]
        laid_out = [self._laid_out(node, origin) for node in tensors]
        candidates = [holding.node for holding in laid_out if isinstance(holding, Holding)]
        return Part(origin, *writer, tuple(candidates))

    def _copied_to(self, view: View) -> InMemory:
        """Return what the graph copies into an input at its end."""
        target = self._inputs[int(view.origin.storage.name.removeprefix(INPUT))]
        for user in target.users:
            if user.target is torch.ops.aten.copy_.default and user.args[0] is target:
                source = user.args[1]
                if isinstance(source, torch.fx.Node):
                    return self._laid_out(source, view.origin)
        return "an input that the graph does not write"

    def _laid_out(self, node: torch.fx.Node, view: View) -> InMemory:
        if not is_tensor(node):
            return "a value that is no tensor"
        try:
            sizes, shape = [expression_of(size) for size in view.sizes], shape_of(node)
        except NotVerifiableError as error:
            return f"a buffer of {error}"
        same = len(sizes) == len(shape) and all(
            constant(z3.simplify(a - b, som=True)) == 0 for a, b in zip(sizes, shape, strict=True)
        )
        return Holding(node, view) if same else "a buffer whose sizes are not those of the value"

    def _overwrites(self, view: View) -> bool:
        places = self._written.get(view.contents, set())
        whole = view.storage.whole
        all_of_it = {whole.place()} if whole is not None else set()
        return bool(places) and bool(
            {view.place(), view.origin.place(), *all_of_it} & places or {view.place()} & all_of_it
        )

    def _write(self, view: View) -> None:
        if self._overwrites(view) or view.contents.complete:
            self._changed.add(view.contents)
        self._written.setdefault(view.contents, set()).add(view.place())

    def _outputs(
        self, module: torch.fx.GraphModule, run: WrapperRun
    ) -> Iterator[tuple[torch.fx.Node, View | None, InMemory]]:
        (output,) = (node for node in module.graph.nodes if node.op == "output")
        returned = iter(run.outputs)
        values: Any = output.args[0]
        for value in values:
            if isinstance(value, torch.fx.Node) and is_tensor(value):
                view = next(returned, None)
                yield value, view, "an output that is not returned" if view is None else self._before(view)
