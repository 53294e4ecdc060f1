"""``capture``: a model as one joint graph in plain ATen; ``partition``: the joint graph as forward and backward."""

from __future__ import annotations

import contextlib
import copy
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.fx

from pytest_regional._base.errors import RegionalWarning
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.dynamo import original_of
from pytest_regional._torch.fx_graphs import attribute, clone_graph, flatten, is_graph_module
from pytest_regional._torch.joint_graph import (
    capture_with_dynamo,
    compile_joint,
    copy_of_joint,
    described_input,
    export_joint,
    needs_autograd,
    size_guards,
    tracing_context_of,
)
from pytest_regional._torch.patching import AnsweredError
from pytest_regional.reference.gradients import partitioner_for
from pytest_regional.reference.pass_protocol import PipelineError
from pytest_regional.reference.pipeline.call import Aliases, CallChecks, InputCheck, ambient_modes

Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class GraphValue:
    """An input or output of a joint graph.

    Attributes:
        node: its node, or None for an output that is a constant.
        kind: ``parameter``, ``buffer``, ``input``, ``tangent`` for an input; ``output``, ``gradient``, ``mutated`` (an
            input's new value) for an output.
        label: the parameter's or buffer's qualified name, or the index of an input or output of its kind.
    """

    node: torch.fx.Node | None
    kind: str
    label: str

    def __str__(self) -> str:
        return f"{self.kind} {self.label}".strip()


class JointGraph:
    """Forward and backward of a model in one ATen graph; without gradients, only the forward.

    Attributes:
        graph_module: the graph. It may be changed or replaced before it is compiled.
        model: the captured model.
        checks: the requirements of calls of the compiled model.
        exported: PyTorch's ``JointWithDescriptors``.
    """

    def __init__(self, model: torch.nn.Module, exported: Any, context: Any, checks: CallChecks) -> None:
        self.model = model
        self.checks = checks
        self.context = context
        self.exported = exported

    @property
    def graph_module(self) -> torch.fx.GraphModule:  # noqa: D102 -- see the class
        gm: torch.fx.GraphModule = self.exported.graph_module
        return gm

    @graph_module.setter
    def graph_module(self, gm: torch.fx.GraphModule) -> None:
        self.exported.graph_module = gm

    @property
    def kind(self) -> str:
        """``joint``, or ``inference`` for a model without gradients."""
        return "joint" if needs_autograd(self.exported) else "inference"

    @property
    def parameters(self) -> tuple[str, ...]:
        """Qualified names of the parameters, in the order in which the graph takes them."""
        return tuple(self.exported.params_spec)

    @property
    def buffers(self) -> tuple[str, ...]:
        """Qualified names of the buffers, which the graph takes after the parameters."""
        return tuple(self.exported.buffers_spec)

    @property
    def inputs(self) -> tuple[GraphValue, ...]:
        """Descriptions of the placeholders."""
        nodes = self.graph_module.graph.find_nodes(op="placeholder")
        return tuple(GraphValue(node, *described_input(node.meta["desc"])) for node in nodes)

    @property
    def outputs(self) -> tuple[GraphValue, ...]:
        """Descriptions of the results: mutated inputs, outputs, then gradients."""
        output = self.graph_module.graph.output_node()
        found = zip(output.args[0], output.meta["desc"], strict=True)
        return tuple(
            GraphValue(node if isinstance(node, torch.fx.Node) else None, *described_input(descriptor))
            for node, descriptor in found
            if descriptor is not None
        )

    @property
    def example_inputs(self) -> list[Any]:
        """The (fake) values of the placeholders."""
        return [node.meta.get("val") for node in self.graph_module.graph.find_nodes(op="placeholder")]

    def copy(self) -> JointGraph:
        """Return a copy with its own graph, so that one can be compiled or changed."""
        gm = clone_graph(self.graph_module)
        return JointGraph(self.model, copy_of_joint(self.exported, gm), self.context, self.checks)

    def __str__(self) -> str:
        ops = sum(node.op == "call_function" for node in self.graph_module.graph.nodes)
        counts = f"{len(self.parameters)} parameters, {len(self.buffers)} buffers"
        return f"{self.kind} graph of {type(self.model).__name__}: {ops} ops, {counts}"


def capture(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    decompositions: Decompositions | None = None,
    dynamic: bool = False,
    strict: bool = True,
) -> JointGraph:
    """Capture ``model`` on example inputs: forward, and backward if something requires gradients. Nothing runs.

    Args:
        model: A module, one of its methods, or a function of tensors; a compiled model is unwrapped.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        decompositions: Operators to decompose while tracing. Normally None: the pass that compiles chooses
            decompositions, which change numerics.
        dynamic: Whether sizes of the inputs become symbols; dimensions marked by ``torch._dynamo.mark_dynamic`` always
            do.
        strict: Whether Dynamo reads the model's code. Otherwise the model runs on fake tensors, which does not support
            ``flex_attention`` and runs Python's side effects.

    Raises:
        PipelineError: the model cannot be captured as one graph, with the cause chained; or it uses parameters that are
            not its own.
    """
    model = original_of(model)
    args, kwargs = _checked(model, args, kwargs)
    owner = _owner(model)
    module = model
    if owner is None:
        module = FunctionModule(model)
    elif model is not owner:
        module = copy.copy(owner)  # shares parameters, buffers and children
        module.forward = types.MethodType(getattr(model, "__func__", model), module)
    with _explained(model, strict=strict):
        source, effects = capture_with_dynamo(module, args, kwargs, dynamic=dynamic) if strict else (module, [])
        context = tracing_context_of(source if strict else None)
        exported = export_joint(source, args, kwargs, decompositions, context)
    _check_captured(exported.graph_module, effects, model)
    owner = module if owner is None else owner
    return JointGraph(owner, exported, context, _checks_of(owner, exported, args, kwargs))


class FunctionModule(torch.nn.Module):  # type: ignore[misc]
    """A function as a module without parameters."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


def _owner(model: Callable[..., Any]) -> torch.nn.Module | None:
    """Return ``model`` if it is a module, or its module if it is a method."""
    found = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    return found if isinstance(found, torch.nn.Module) else None


def _check_captured(gm: torch.fx.GraphModule, effects: Sequence[str], model: Callable[..., Any]) -> None:
    """Raise for what the graph would lose, and warn about other effects of ``model`` that it does not have."""
    graphs = [module for module in gm.modules() if is_graph_module(module)]
    constants = [attribute(body, node.target) for body in graphs for node in body.graph.find_nodes(op="get_attr")]
    foreign = [value for value in constants if isinstance(value, torch.Tensor) and value.requires_grad]
    if foreign:
        shapes = ", ".join(f"{type(value).__name__} of shape {tuple(value.shape)}" for value in foreign[:3])
        raise PipelineError(
            f"{_name(model)} uses tensors that require gradients and are neither its inputs nor its parameters "
            f"({shapes}): they would be constants without gradients. Capture the module that holds them, or one of its "
            f"methods; a module in a plain list belongs into a ModuleList."
        )
    lost = [source for source in effects if source.endswith(("._buffers", "._parameters"))]
    if lost:
        raise PipelineError(
            f"{_name(model)} assigns a buffer or parameter ({', '.join(lost)}), which the graph cannot: the value "
            f"would be lost. Write into it in place instead: self.buffer.copy_(value)."
        )
    if effects:
        warnings.warn(
            f"{_name(model)} changes non-tensors ({', '.join(effects)}: attributes that it sets, lists that it "
            f"appends to): the compiled model does not, and uses their values at capture as constants.",
            RegionalWarning,
            stacklevel=3,
        )


def _name(model: Callable[..., Any]) -> str:
    return str(getattr(model, "__qualname__", type(model).__qualname__))


def _checked(
    model: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not callable(model):
        raise PipelineError(f"capture needs a module or a function, not {model!r}")
    if isinstance(args, torch.Tensor) or not isinstance(args, Sequence):
        raise PipelineError(
            f"capture takes the positional arguments of the model as a tuple, not {type(args).__name__}: "
            f"write capture(model, (x,), {{}})"
        )
    return tuple(args), dict(kwargs or {})


_READ = "torch.compile(model, fullgraph=True, backend='aot_eager') reads code in the same way, but takes more inputs."
_RUN = "With strict=False the model runs on fake tensors: the traceback of this error's cause names its line."


@contextlib.contextmanager
def _explained(model: Callable[..., Any], *, strict: bool) -> Iterator[None]:
    """Turn any error of tracing, which runs the user's model, into one error."""
    try:
        yield
    except MissingTorchSymbolError:
        raise
    except Exception as error:
        raise PipelineError(
            f"{_name(model)} cannot be captured as one graph: {type(error).__name__}: {error}\n"
            f"{_READ if strict else _RUN} An input has to be a tensor, a number, or a pytree of these: register "
            f"another class with torch.utils._pytree.register_pytree_node."
        ) from error


def _checks_of(module: torch.nn.Module, exported: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallChecks:
    leaves, structure = flatten((args, dict(kwargs)))
    parameters, buffers = ([*exported.params_spec], [*exported.buffers_spec])
    state = {name: attribute(module, name) for name in (*parameters, *buffers)}
    graph = exported.graph_module.graph
    results = [described_input(one)[0] for one in graph.output_node().meta["desc"] if one is not None]
    aliases = Aliases.of([*state.values(), *leaves], writes="mutated" in results)
    kinds = [*(("parameter", name) for name in parameters), *(("buffer", name) for name in buffers)]
    kinds += [("input", str(index)) for index in range(len(leaves))]
    placeholders = graph.find_nodes(op="placeholder")
    seen = {described_input(node.meta["desc"]): node.meta.get("val") for node in placeholders}
    values: list[Any] = [seen.get(kind) for kind in kinds]
    for one, other in aliases.same:  # the trace may have kept one of two identical tensors
        values[other] = values[one] if values[other] is None else values[other]
    checks = [InputCheck.of(real, fake) for real, fake in zip([*state.values(), *leaves], values, strict=True)]
    inputs, fakes = checks[len(state) :], values[len(state) :]
    symbols = {
        name: (i, d) for i, check in enumerate(inputs) for d, name in enumerate(check.shape) if type(name) is str
    }
    return CallChecks(
        state=tuple(zip(state, checks, strict=False)),
        inputs=tuple(inputs),
        structure=structure,
        keywords=tuple(kwargs),
        symbols=tuple(symbols.items()),
        guards=size_guards(exported, [fakes[i].shape[d] for i, d in symbols.values()]),
        training=tuple((name, child.training) for name, child in module.named_modules()),
        modes=ambient_modes(),
        aliases=aliases,
        gradients=needs_autograd(exported),
        returns=exported.out_spec,
    )


#: Takes a joint graph and its inputs, with AOTAutograd's keywords, and returns forward and backward.
PartitionFunction = Callable[..., tuple[torch.fx.GraphModule, torch.fx.GraphModule]]

_NAMES = ("default", "min_cut")


@dataclass(frozen=True)
class PartitionedGraphs:
    """Forward and backward of a joint graph. Both may be changed before they are compiled.

    Attributes:
        joint: The original joint graph.
        forward: Takes the joint graph's inputs without tangents; returns its outputs, then saved values.
        backward: Takes saved values and tangents; returns gradients.
        partitioner: How they were split.
    """

    joint: JointGraph
    forward: torch.fx.GraphModule
    backward: torch.fx.GraphModule
    partitioner: str | PartitionFunction

    def __iter__(self) -> Iterator[torch.fx.GraphModule]:
        """Unpack: ``forward, backward = partition(joint)``."""
        return iter((self.forward, self.backward))

    def as_partition_function(self) -> PartitionFunction:
        """Return a partitioner that splits the joint graph into copies of these two."""
        split = partition_function(self.partitioner)

        def given(gm: torch.fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
            if is_outermost(gm):
                return clone_graph(self.forward), clone_graph(self.backward)
            return split(gm, inputs, **keywords)

        return given


def partition(joint: JointGraph, partitioner: str | PartitionFunction = "default") -> PartitionedGraphs:
    """Split ``joint``, which is not changed, into forward and backward.

    Args:
        joint: The result of ``capture``.
        partitioner: ``default`` saves the forward's values; ``min_cut`` recomputes cheap ones; or a function of the
            joint graph and its inputs, as in ``torch._functorch.partitioners``.

    Raises:
        PipelineError: there is no backward, or the partitioner did not return two graphs.
    """
    if joint.kind != "joint":
        raise PipelineError(
            f"{joint} has no backward to split off: nothing that it returns requires gradients. It is compiled whole."
        )
    split = partition_function(partitioner)

    def stop_at_outermost(gm: torch.fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        graphs = checked_graphs(split(gm, inputs, **keywords), partitioner)
        if is_outermost(gm):
            forward, backward = graphs
            found.append(PartitionedGraphs(joint, forward, backward, partitioner))
            raise AnsweredError("the graphs are there, and are not to be compiled")
        return graphs

    def not_reached(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> NoReturn:
        raise PipelineError("a graph was about to be compiled during a partition-only run")

    found: list[PartitionedGraphs] = []
    mine = joint.copy()
    with contextlib.suppress(AnsweredError):
        compile_joint(
            mine.exported, mine.context, partition=stop_at_outermost, forward=not_reached, backward=not_reached
        )
    if not found:
        raise PipelineError(f"{joint} was not partitioned: AOTAutograd called no partitioner.")
    return found[0]


def partition_function(partitioner: str | PartitionFunction) -> PartitionFunction:
    """Return the function that ``partitioner`` is or names.

    Raises:
        PipelineError: an unknown name.
    """
    if callable(partitioner):
        return partitioner
    if partitioner not in _NAMES:
        raise PipelineError(f"there is no partitioner {partitioner!r}: give {' or '.join(_NAMES)}, or a function.")
    return partitioner_for(partitioner)


def checked_graphs(result: Any, partitioner: str | PartitionFunction) -> Any:
    """Return ``result`` if it is two graph modules.

    Raises:
        PipelineError: it is not.
    """
    if isinstance(result, tuple) and len(result) == 2 and all(isinstance(gm, torch.fx.GraphModule) for gm in result):
        return result
    name = partitioner if isinstance(partitioner, str) else getattr(partitioner, "__qualname__", repr(partitioner))
    raise PipelineError(f"partitioner {name} returned {type(result).__name__}, not (forward, backward) graph modules.")


def is_outermost(gm: torch.fx.GraphModule) -> bool:
    """Return whether ``gm`` is a whole joint graph: AOTAutograd splits bodies of higher-order ops in the same way."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    return any("desc" in node.meta for node in placeholders)
