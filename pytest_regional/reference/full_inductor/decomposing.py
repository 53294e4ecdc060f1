"""``decompose``: ops replaced in place by their decompositions; functional collectives; ``full_inductor``'s errors.

The graph is not traced again, so ops that a trace cannot run (``graphsafe_run_with_rng_state``, order edges, compiled
regions) stay. Bodies of higher-order ops are decomposed too. An op that is an *argument* of one (of
``run_and_save_rng_state``, of ``with_effects``) is not, since exactly that op must run again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
import torch.fx
from torch.fx.node import map_arg

from pytest_regional._base.errors import RegionalError, RegionalWarning
from pytest_regional._torch.distributed import NAMESPACE, functionalize_collectives, group_name
from pytest_regional._torch.fx_graphs import (
    attribute,
    called_attributes,
    preserve_node_meta,
    snapshot,
    tensor_metadata,
    trace_op,
)
from pytest_regional._torch.inductor import inductor_decompositions
from pytest_regional._torch.operators import is_op_overload
from pytest_regional._torch.tracing import compile_lock, detect_fake_mode, fake_execution, is_symbolic, storage_key
from pytest_regional.reference.regional_inductor import first_fake_mode

Template: TypeAlias = torch.fx.GraphModule


@dataclass
class Templates:
    """The decomposed graphs of ops in a table, by op, constants and fake values.

    Attributes:
        table: op to its decomposition.
    """

    table: Mapping[Any, Callable[..., Any]]
    fake_mode: Any
    _known: dict[Any, Template | None] = field(default_factory=dict)

    def of(self, node: torch.fx.Node) -> Template | None:
        """Return the graph for ``node``, whose placeholders are its inputs; None if the op is kept."""
        values = [source.meta.get("val") for source in node.all_input_nodes]
        # Sizes of the result that depend on data: a second trace would create other symbols.
        if node.target not in self.table or not all(map(_is_plain, values)) or node.meta.get("unbacked_bindings"):
            return None
        key = (node.target, _constants(node), tuple(map(_signature, values)))
        if key not in self._known:
            self._known[key] = self._trace(node, values)
        return self._known[key]

    def _trace(self, node: torch.fx.Node, values: Sequence[Any]) -> Template | None:
        def call(*given: Any) -> Any:
            by_node = dict(zip(node.all_input_nodes, given, strict=True))
            args, kwargs = map_arg((node.args, node.kwargs), by_node.__getitem__)
            return node.target(*args, **kwargs)

        template: Template = trace_op(call, values, self.table, self.fake_mode)
        ops = [other.target for other in template.graph.nodes if other.op not in ("placeholder", "output")]
        return None if ops == [node.target] else template


def _is_plain(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, bool, int, float, complex)) or is_symbolic(value)


def _constants(node: torch.fx.Node) -> str:
    """Return the arguments as text, with numbers for inputs."""
    numbers = {source: _Input(number) for number, source in enumerate(node.all_input_nodes)}
    return repr(map_arg((node.args, node.kwargs), numbers.__getitem__))


@dataclass(frozen=True)
class _Input:
    number: int


def _signature(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return type(value), str(value)
    sizes = str((tuple(value.shape), value.stride(), value.storage_offset()))
    bits = value.is_conj(), value.is_neg(), value.requires_grad
    return type(value), value.dtype, value.device, value.layout, sizes, bits


_OF_THE_RESULT = ("val", "tensor_meta", "eager_input_vals", "unbacked_bindings")


def decompose(gm: torch.fx.GraphModule, table: Mapping[Any, Callable[..., Any]] | None = None) -> torch.fx.GraphModule:
    """Decompose the ops of ``gm`` that are in ``table``, and those of the bodies it calls; return ``gm``.

    New nodes have the original op's metadata (annotations, stack trace, ``seq_nr``, tags of checkpointing and of the
    partitioner, with the op itself as ``original_aten``) and their own fake values.

    Args:
        gm: An ATen graph with fake values.
        table: Decompositions by op; by default Inductor's own table.

    Raises:
        MissingValueError: the graph has no fake values.
    """
    table = inductor_decompositions() if table is None else table
    with compile_lock(), preserve_node_meta(enable=False):
        _decompose(gm, Templates(table, fake_mode_of(gm)), set())
    return gm


def fake_mode_of(gm: torch.fx.GraphModule) -> Any:
    """Return the fake mode of the values in ``gm``.

    Raises:
        MissingValueError: no node has one.
    """
    mode = first_fake_mode(gm)
    if mode is None:
        raise MissingValueError(
            "the graph holds no fake values (node.meta['val']): trace it with make_fx(tracing_mode='fake'), or give "
            "full_inductor its example inputs."
        )
    return mode


def _decompose(gm: torch.fx.GraphModule, templates: Templates, done: set[int]) -> None:
    done.add(id(gm))
    with fake_execution(templates.fake_mode):
        for node in list(gm.graph.nodes):
            template = templates.of(node) if node.op == "call_function" else None
            if template is not None:
                _Inlining(gm, node, template, templates.fake_mode).run()
    for body in called_attributes(gm).values():
        if id(body) not in done:
            _decompose(body, templates, done)
    gm.recompile()


class _Inlining:
    """One node to be replaced by the nodes of a template."""

    def __init__(self, gm: torch.fx.GraphModule, node: torch.fx.Node, template: Template, fake_mode: Any) -> None:
        self._gm = gm
        self._node = node
        self._template = template
        self._fake_mode = fake_mode
        self._new: dict[torch.fx.Node, torch.fx.Node] = {}

    def run(self) -> None:
        """Insert the template's nodes, pass their results to the users, and remove unused ones."""
        *ops, output = self._template.graph.nodes
        inputs = iter(self._node.all_input_nodes)
        with self._gm.graph.inserting_before(self._node):
            for op in ops:
                self._new[op] = next(inputs) if op.op == "placeholder" else self._copied(op)
        replace_node(self._node, self._mapped(output.args[0]))
        for op in reversed(ops):
            if op.op != "placeholder" and not self._new[op].users:
                self._gm.graph.erase_node(self._new[op])

    def _mapped(self, arguments: Any) -> Any:
        return map_arg(arguments, self._new.__getitem__)

    def _copied(self, op: torch.fx.Node) -> torch.fx.Node:
        graph = self._gm.graph
        if op.op == "get_attr":
            value, number = getattr(self._template, op.target), 0
            while hasattr(self._gm, f"{op.target}_{number}"):
                number += 1
            setattr(self._gm, f"{op.target}_{number}", value)
            new = graph.create_node("get_attr", f"{op.target}_{number}")
            is_tensor = isinstance(value, torch.Tensor)
            self._describe(new, self._fake_mode.from_tensor(value, static_shapes=True) if is_tensor else None)
            return new
        name = f"{self._node.name}_{op.name}"
        new = graph.create_node(op.op, op.target, self._mapped(op.args), self._mapped(op.kwargs), name)
        args, kwargs = map_arg((new.args, new.kwargs), lambda source: source.meta.get("val"))
        self._describe(new, snapshot(new.target(*args, **kwargs)))
        if "eager_input_vals" in op.meta:
            new.meta["eager_input_vals"] = (args, kwargs)
        return new

    def _describe(self, new: torch.fx.Node, value: Any) -> None:
        origin = self._node.meta
        new.meta = {name: entry for name, entry in origin.items() if name not in _OF_THE_RESULT}
        new.meta["original_aten"] = origin.get("original_aten") or self._node.target
        if value is not None:
            new.meta["val"] = value
        if isinstance(value, torch.Tensor):
            new.meta["tensor_meta"] = tensor_metadata(value)


def replace_node(node: torch.fx.Node, result: Any) -> None:
    """Give the users of ``node`` ``result``, a node or a structure of nodes and None, and erase ``node``."""
    for user in list(node.users):
        if user.target is operator.getitem and isinstance(result, (tuple, list)):
            replace_node(user, result[int(user.args[1])])
        else:
            arguments = (user.args, user.kwargs)
            user.args, user.kwargs = map_arg(arguments, lambda other: result if other is node else other)
    node.graph.erase_node(node)


class FullInductorError(RegionalError, RuntimeError):
    """Inductor did not compile a graph; its error is chained.

    Attributes:
        graph: the kind of graph.
        node: the name of the node it failed on, if known.
    """

    def __init__(self, message: str, graph: str | None = None, node: str | None = None) -> None:
        self.graph = graph
        self.node = node
        super().__init__(message)


class MissingValueError(FullInductorError):
    """A node has no fake value, so nothing can be decomposed or compiled."""


class NumericsWarning(RegionalWarning):
    """A program was compiled by Inductor as a whole: its results differ from eager in the last bits."""


def use_functional_collectives(gm: torch.fx.GraphModule) -> None:
    """Rewrite in-place collectives of ``gm`` to functional ones, whose groups are given by name.

    Raises:
        FullInductorError: PyTorch cannot rewrite one, or its result is also read through a view.
    """
    if not any(map(_is_in_place, gm.graph.nodes)):
        return
    try:
        can_rewrite = functionalize_collectives(gm)
    except (AssertionError, NotImplementedError) as error:
        raise FullInductorError(f"an in-place collective cannot be rewritten: {error}") from error
    if can_rewrite:
        for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            _use_received_value(node)
        # Groups by name: a group as an attribute keeps the result out of caches.
        for node in gm.graph.nodes:
            if is_op_overload(node.target) and node.target.namespace == NAMESPACE:
                node.args = tuple(_group_by_name(gm, argument) for argument in node.args)
        for node in gm.graph.find_nodes(op="get_attr"):
            if not node.users:
                gm.graph.erase_node(node)
    left = next(filter(_is_in_place, gm.graph.nodes), None)
    if left is not None:
        raise FullInductorError(
            f"node {left.name!r} ({left.target}) is an in-place collective, which Inductor does not support and "
            f"this torch ({torch.__version__}) does not rewrite: use torch.distributed._functional_collectives.",
            node=left.name,
        )
    gm.graph.lint()
    gm.recompile()


def _is_in_place(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and is_op_overload(node.target) and node.target.namespace == "c10d"


def _use_received_value(copy: torch.fx.Node) -> None:
    """Make later nodes use the collective's result instead of the tensor it was written to."""
    target, received = copy.args
    if not isinstance(target, torch.fx.Node) or not isinstance(received, torch.fx.Node):
        return
    if received.target is not torch.ops._c10d_functional.wait_tensor.default:
        return
    nodes = list(copy.graph.nodes)
    later = set(nodes[nodes.index(copy) + 1 :])
    for user in list(target.users):
        if user in later:
            user.replace_input_with(target, received)
    storage = storage_key(target.meta.get("val"))
    rewritten = (torch.ops._c10d_functional.wait_tensor.default, torch.ops.aten.copy_.default)
    for node in later:
        for source in node.all_input_nodes:
            if source.target not in rewritten and storage_key(source.meta.get("val")) == storage is not None:
                raise FullInductorError(
                    f"a collective writes to {target.name!r}, and node {node.name!r} reads that through the view "
                    f"{source.name!r}: take the view after the collective, or use functional collectives.",
                    node=node.name,
                )
    # PyTorch's rewriting gives the collective and its wait the value of the input, not their own.
    (collective,) = received.args
    value = received.meta.get("val")
    if isinstance(value, torch.Tensor) and isinstance(collective, torch.fx.Node):
        with fake_execution(detect_fake_mode([value])):
            collective.meta["val"] = torch.empty_like(value)
            received.meta["val"] = snapshot(collective.meta["val"])
    if target.op == "placeholder":
        copy.replace_all_uses_with(received)
        copy.graph.output_node().prepend(copy)
    else:
        replace_node(copy, received)


def _group_by_name(gm: torch.fx.GraphModule, argument: Any) -> Any:
    if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
        group = attribute(gm, argument.target)
        return group_name(group) if hasattr(group, "group_name") else argument
    return argument
