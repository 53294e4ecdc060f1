"""Passes under test: stages, how a pass is called, and graphs recorded and checked before and after it."""

from __future__ import annotations

import copy
import functools
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch.fx

from pytest_regional._base.errors import RegionalError, RegionalValueError
from pytest_regional._torch import pass_forms
from pytest_regional._torch.fx_graphs import attribute, codegen_of, region_mark, rename_node, sort_topologically
from pytest_regional._torch.inductor import custom_graph_pass_base, inference_aware_pass_base
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload, schema_of
from pytest_regional._torch.pass_forms import PassForm, form_of, pass_name
from pytest_regional._torch.tracing import detect_fake_mode, fake_result


class GraphSnapshot(torch.fx.GraphModule):  # type: ignore[misc]
    """A graph as it was: a separate ``GraphModule`` that can be called, and lists ``nodes`` as a ``Graph`` does."""

    @property
    def nodes(self) -> Any:
        """The nodes in program order."""
        return self.graph.nodes


def snapshot(
    module: torch.fx.GraphModule, copies: dict[int, Any] | None = None, *, copy_values: bool = False
) -> GraphSnapshot:
    """Copy ``module``'s graph, names and metadata kept, and every body that it calls.

    ``copies`` holds by ``id`` of a body what to put in its place, such as how it was before it changed; it gets the
    others. With ``copy_values``, tensors and modules that the graph holds are copied too, so that the copy goes on
    computing the same when the original is written to.
    """
    copies = {} if copies is None else copies
    graph, values = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    for node in module.graph.nodes:
        values[node] = graph.node_copy(node, values.__getitem__)
    for original, copied in values.items():
        rename_node(copied, original.name)
    graph.set_codegen(copy.copy(codegen_of(module.graph)))
    attributes = {}
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            value = attribute(module, node.target)
            # What two names hold together stays one: a body called twice, tied weights.
            if id(value) not in copies:
                copies[id(value)] = _copy(value, copies, copy_values)
            attributes[node.target] = copies[id(value)]
    return GraphSnapshot(attributes, graph)


def _copy(value: Any, copies: dict[int, Any], copy_values: bool) -> Any:
    if isinstance(value, torch.fx.GraphModule):
        return snapshot(value, copies, copy_values=copy_values)
    if not copy_values or not isinstance(value, torch.Tensor | torch.nn.Module):
        return value
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        return value.detach().clone().requires_grad_(value.requires_grad)
    return copy.deepcopy(value)


class Place(NamedTuple):
    """Which graph of a compile: its kind, and the region when one region is compiled on its own."""

    kind: str
    region: str | None = None

    def __str__(self) -> str:
        named = "the graph" if self.kind == "graph" else f"the {self.kind} graph"
        return named + (f" of region {self.region!r}" if self.region else "")


class PassGraphs(NamedTuple):
    """One graph that passes ran on."""

    #: ``inference``, ``forward`` or ``backward`` as AOTAutograd made it; ``joint`` before it is split in two,
    #: ``dynamo`` before AOTAutograd, ``graph`` for one that was given
    kind: str
    region: str | None  # the region, where one is compiled on its own, else ``None``
    before: GraphSnapshot  # the graph before the first pass
    after: GraphSnapshot  # the graph after the last

    @property
    def place(self) -> Place:
        """Which graph it is."""
        return Place(self.kind, self.region)


@dataclass
class _Record:
    graphs: PassGraphs
    again: GraphSnapshot | None
    live: torch.fx.GraphModule


@dataclass
class Recorder:
    """Runs passes on every graph it is called with."""

    passes: Sequence[PassUnderTest]
    stage: Stage
    locate: Callable[[], Place]  # tells which graph is being compiled now
    twice: bool = False  # whether to run all passes once more on their own result
    ran: Callable[[PassUnderTest, torch.fx.Graph], None] = lambda one, graph: None  # called with every pass that ran
    failure: BaseException | None = None  # what a pass raised, as it was, before any compiler wrapped it
    records: list[_Record] = field(default_factory=list)

    @property
    def names(self) -> str:
        """The passes as messages call them."""
        return ", ".join(one.name for one in self.passes)

    @property
    def graphs(self) -> tuple[PassGraphs, ...]:
        """The graphs met, in order; bodies of operators are parts of the graph that holds them."""
        return tuple(record.graphs for record in self.records)

    def run(self, module: torch.fx.GraphModule, is_inference: bool | None = None) -> torch.fx.GraphModule:
        """Run the passes on ``module`` and record it; what a pass raises goes on, with a note of where it was."""
        place, given = self.locate(), self.stage is GRAPH
        if is_inference is None:
            # A region is compiled on its own, as a graph that needs no gradient.
            is_inference = place.region is not None or place.kind not in ("forward", "backward", "joint")
        bodies = {id(record.live): record.graphs.before for record in self.records}
        try:
            before = snapshot(module, bodies, copy_values=given)
            module = self._pipeline(module, place, is_inference)
            after = snapshot(module, copy_values=given)
            again = snapshot(self._pipeline(module, place, is_inference), copy_values=given) if self.twice else None
        except Exception as error:
            self.failure = error
            raise
        inner = {id(part) for part in module.modules()}
        self.records = [record for record in self.records if id(record.live) not in inner]
        self.records.append(_Record(PassGraphs(*place, before, after), again, module))
        return module

    def _pipeline(self, module: torch.fx.GraphModule, place: Place, is_inference: bool) -> torch.fx.GraphModule:
        where = f"({place}, stage {self.stage.name!r})"
        for one in self.passes:
            self.ran(one, module.graph)
            before = {node: _Metadata.of(node) for node in module.graph.nodes}
            try:
                module = run_one(one, module, is_inference, self.stage)
            except Exception as error:
                note(error, f"run_pass: raised by the pass {one.name} at stage {self.stage.name!r} on {place}")
                raise
            require_valid(module, f"the pass {one.name} left an invalid graph {where}", self.stage)
            for what in wrong_metadata(before, module.graph, self.stage):
                raise GraphPassError(f"the pass {one.name} left wrong metadata {where}: {what}")
        return module


def require_valid(module: torch.fx.GraphModule, what: str, stage: Stage) -> None:
    """Sort as Inductor would where it would, and lint; say ``what`` is wrong, and why."""
    try:
        if stage.sorts:
            sort_topologically(module.graph)
        module.graph.lint()
    except Exception as error:  # noqa: BLE001 - the message holds what it says
        reason = str(error).strip() or "its nodes depend on each other in a cycle"
        hint = "" if stage.sorts else " (at Inductor's own stages it would be sorted first)"
        raise GraphPassError(f"{what}{hint}: {reason}") from None
    if not stage.sorts:
        module.recompile()


@dataclass(frozen=True)
class _Metadata:
    """A node as it was before a pass."""

    target: Any
    arguments: tuple[Any, ...]
    value: Any
    marked: bool

    @staticmethod
    def of(node: torch.fx.Node) -> _Metadata:
        return _Metadata(node.target, (node.args, node.kwargs), node.meta.get("val"), region_mark(node)[0])


def wrong_metadata(before: dict[torch.fx.Node, _Metadata], graph: torch.fx.Graph, stage: Stage) -> Iterator[str]:
    """Yield what is wrong with values and annotations of the nodes that a pass made or changed.

    Inductor computes values again after its post-grad passes, and AOTAutograd after those on Dynamo's graph. Regions
    are cut out of a graph before Inductor's joint and post-grad passes see it.
    """
    if stage is GRAPH or stage.name.startswith("joint"):
        yield from _wrong_values(before, graph)
    if stage is GRAPH or stage.name == "pre_grad":
        yield from _lost_annotations(before, graph)


def _wrong_values(before: dict[torch.fx.Node, _Metadata], graph: torch.fx.Graph) -> Iterator[str]:
    changed = {node for node in graph.nodes if node.op == "call_function" and before.get(node) != _Metadata.of(node)}
    changed.update(user for node in list(changed) for user in node.users if user.op == "call_function")
    fake_mode = detect_fake_mode([known.value for known in before.values() if known.value is not None])
    for node in graph.nodes:
        writes = is_op_overload(node.target) and schema_of(node.target).is_mutable
        if node not in changed or fake_mode is None or is_higher_order_op(node.target) or writes:
            continue
        if not all("val" in argument.meta for argument in node.all_input_nodes):
            continue
        args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: argument.meta["val"])
        is_known, value = fake_result(functools.partial(node.target, *args, **kwargs), fake_mode)
        said = node.meta.get("val")
        if said is None and not (is_known and value is None):
            yield f"{node.name} = {node.target} has no meta['val']; set it to the fake value that the operator returns"
        elif is_known and _described(said) != _described(value):
            yield (
                f"{node.name} = {node.target} has meta['val'] {_described(said)}, and the operator returns "
                f"{_described(value)}; later passes and lowerings read it"
            )


def _described(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_described(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return str(value)
    text = f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"
    if value.layout is not torch.strided:
        return f"{text}, {value.layout}"
    # The stride of a dimension of size one is irrelevant, and so are those of a tensor without elements.
    strides = [stride if str(size) != "1" else 1 for size, stride in zip(value.shape, value.stride(), strict=True)]
    return text if 0 in value.shape else f"{text}, strides {tuple(strides)}"


def _lost_annotations(before: dict[torch.fx.Node, _Metadata], graph: torch.fx.Graph) -> Iterator[str]:
    present = set(graph.nodes)
    for user in graph.nodes:
        was = before.get(user)
        if was is None:
            continue
        old, new = (_leaves(arguments) for arguments in (was.arguments, (user.args, user.kwargs)))
        for replaced, node in zip(old, new, strict=False):
            if not (isinstance(node, torch.fx.Node) and node not in before and replaced in before):
                continue
            is_inside = was.marked or replaced not in present
            if node.op == "call_function" and before[replaced].marked and is_inside and not region_mark(node)[0]:
                yield (
                    f"{node.name} = {node.target} replaces {replaced.name}, which is annotated as part of a region, "
                    f"and has no annotation: copy meta['custom'] of the node that it replaces"
                )


def _leaves(arguments: Any) -> list[Any]:
    found: list[Any] = []
    torch.fx.node.map_aggregate(arguments, found.append)
    return found


def note(error: BaseException, text: str) -> None:
    """Add ``text`` below the error's own message, as ``add_note`` does from Python 3.11 on."""
    notes = [*getattr(error, "__notes__", [])]
    error.__notes__ = [*notes, text]


def inductor_pass(recorder: Recorder) -> Any:
    """Return ``recorder`` as a custom pass for one of Inductor's settings.

    Its uuid is new each time, so that no cached result stands in for a run.
    """
    aware = inference_aware_pass_base() if recorder.stage.tells_inference else None
    identity = uuid.uuid4().hex

    class RecordingPass(aware or custom_graph_pass_base()):  # type: ignore[misc]
        """Runs and records the passes under test."""

        # The passes inside are what is counted; the observer keeps what it knows of this one in ``graphs``.
        counts_itself = True

        def __init__(self) -> None:
            self.graphs: list[Any] = []

        def __call__(self, graph: torch.fx.Graph, is_inference: bool | None = None) -> None:
            recorder.run(graph.owning_module, is_inference)

        def uuid(self) -> str:
            return f"run_pass {identity}"

        def __reduce__(self) -> Any:
            # torch 2.11 pickles pre-grad passes into cache keys.
            return str, (f"run_pass {identity}",)

        def __repr__(self) -> str:
            return f"RecordingPass({identity})"

    return RecordingPass()


class GraphPassError(RegionalError, RuntimeError):
    """A pass under test, or what it was asked to run on, cannot be used; the message says why and what to do."""


class GraphAssertionError(RegionalError, AssertionError):
    """An assertion about the graphs before and after a pass does not hold, or no graph reached the pass."""


@dataclass(frozen=True)
class Stage:
    """One place in a compile where custom passes run."""

    name: str  # as ``run_pass(stage=...)`` takes it
    setting: str = ""  # Inductor's setting that holds the pass, ``""`` for the bare graph
    tells_inference: bool = False  # whether Inductor tells a pass there if the graph is for inference
    sorts: bool = True  # whether Inductor sorts the graph topologically after the pass


GRAPH = Stage("graph", sorts=False)

STAGES: dict[str, Stage] = {
    "graph": GRAPH,
    "pre_grad": Stage("pre_grad", "pre_grad_custom_pass"),
    "joint": Stage("joint", "joint_custom_post_pass"),
    "joint_pre": Stage("joint_pre", "joint_custom_pre_pass"),
    "joint_post": Stage("joint_post", "joint_custom_post_pass"),
    "post_grad": Stage("post_grad", "post_grad_custom_post_pass", tells_inference=True),
    "post_grad_pre": Stage("post_grad_pre", "post_grad_custom_pre_pass", tells_inference=True),
    "post_grad_post": Stage("post_grad_post", "post_grad_custom_post_pass", tells_inference=True),
}


@dataclass(frozen=True)
class PassUnderTest:
    """One pass under test."""

    given: Any
    form: PassForm

    @property
    def name(self) -> str:
        """What messages call it."""
        return pass_name(self.given)


def graph_passes(given: Any, stage: Stage) -> tuple[PassUnderTest, ...]:
    """Return the pass, or the passes of a list, ready to be called at ``stage``."""
    passes = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not passes:
        raise GraphPassError("run_pass got an empty list of passes: there is nothing to run")
    return tuple(PassUnderTest(one, _form(one, stage)) for one in passes)


def _form(given: Any, stage: Stage) -> PassForm:
    if isinstance(given, type):
        raise GraphPassError(f"{given.__name__} is a class: run_pass needs an instance, {given.__name__}(...)")
    try:
        form = form_of(given, pass_forms.GRAPH, ("is_inference",))
    except RegionalValueError as error:
        raise GraphPassError(str(error)) from None
    if form is None:
        raise GraphPassError(
            f"{given!r} is no graph pass: give a function of a torch.fx.Graph (or GraphModule), a CustomGraphPass, a "
            f"PatternMatcherPass, or a list of these"
        )
    if form.knows_inference and stage is not GRAPH and not stage.tells_inference:
        raise GraphPassError(
            f"{pass_name(given)} takes is_inference, which Inductor gives to post-grad passes alone: run it at stage "
            f"'post_grad', or derive it from CustomGraphPass for stage {stage.name!r}"
        )
    return form


def run_one(one: PassUnderTest, module: torch.fx.GraphModule, is_inference: bool, stage: Stage) -> torch.fx.GraphModule:
    """Call a pass and return the graph module that counts from here on."""

    def example_inputs() -> list[Any]:
        """Return one (fake) value a placeholder, ``None`` where tracing left none."""
        placeholders = module.graph.find_nodes(op="placeholder")
        return [node.meta.get("val", node.meta.get("example_value")) for node in placeholders]

    returned = one.form.call(module, example_inputs, is_inference=is_inference)
    made = getattr(returned, "graph_module", returned)
    if made is None or made is module or made is module.graph or isinstance(made, int):
        return module
    if not isinstance(made, torch.fx.Graph | torch.fx.GraphModule):
        raise GraphPassError(
            f"the pass {one.name} returned {type(made).__name__} {made!r:.80}: a pass returns nothing (it changed the "
            f"graph in place), or a Graph or GraphModule"
        )
    if stage is not GRAPH:
        raise GraphPassError(
            f"the pass {one.name} returned another {type(made).__name__}, which Inductor drops in silence at stage "
            f"{stage.name!r}: change the graph that it is called with in place"
        )
    return made if isinstance(made, torch.fx.GraphModule) else torch.fx.GraphModule(module, made)
