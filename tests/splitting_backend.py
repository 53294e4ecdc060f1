"""Dynamo backends that split graphs: pieces that are compiled, with eager ones between them. For tests of the harness.

``bare`` refuses everything that a backend can disclaim, and says so: what passes on it needs no capability, so it finds
suite tests that need one which they do not name, and fuzzed programs that hold what a backend disclaims.
``through_aot`` hands every second piece to AOTAutograd, and trains.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.split_module import split_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_regional import BackendSpec, Capabilities, declared, unsupported

#: So many nodes of Dynamo's graph are one piece.
PIECE = 3

Compiler = Callable[[Any, Sequence[Any]], Callable[..., Any]]


class RefusedError(Exception):
    """The backend was given what it disclaims: ``capability``."""

    def __init__(self, capability: str, what: str) -> None:
        super().__init__(f"this backend disclaims {capability}: {what}")
        self.capability = capability


def split(gm: Any, compiler: Compiler) -> Any:
    """Split ``gm`` into pieces of a few nodes; every second one is compiled when it is first called."""
    places: dict[Any, int] = {}
    for place, node in enumerate(gm.graph.nodes):
        # An element of a tuple stays with what made the tuple: values between pieces are tensors.
        places[node] = places[node.args[0]] if node.target is operator.getitem else place // PIECE
    whole = split_module(gm, None, lambda node: places[node])
    for number, (name, piece) in enumerate(list(whole.named_children())):
        if name.startswith("submod_") and number % 2 == 0:
            setattr(whole, name, Piece(piece, compiler))
    return whole


class Piece(torch.nn.Module):
    """A part of a graph."""

    def __init__(self, gm: Any, compiler: Compiler) -> None:
        super().__init__()
        self.gm, self._compiler, self._compiled = gm, compiler, None

    def forward(self, *inputs: Any) -> Any:
        if self._compiled is None:
            self._compiled = self._compiler(self.gm, inputs)
        return self._compiled(*inputs)


# Everything is refused


def bare(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compile pieces by tracing them; refuse whatever a backend can disclaim."""
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise RefusedError("higher_order_operators", str(node.target))
    whole = split(gm, _traced)

    def run(*inputs: Any) -> Any:
        _check_inputs(inputs)
        with Refusing(inputs):
            return whole(*inputs)

    return run


def _traced(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    return make_fx(gm, tracing_mode="fake")(*inputs)


def _check_inputs(inputs: Sequence[Any]) -> None:
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            raise RefusedError("dynamic_shapes", f"an input is {value!r}")
        if value.requires_grad and torch.is_grad_enabled():
            raise RefusedError("backward", "an input wants a gradient")


class Refusing(TorchDispatchMode):
    """Raises at the first operator that needs a capability."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._inputs = {_memory(value) for value in inputs}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace not in ("aten", "prims", "prim"):
            raise RefusedError("custom_ops", str(func))
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise RefusedError("rng", str(func))
        if func._schema.is_mutable:
            self._check_writes(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _check_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        for place, argument in enumerate(func._schema.arguments):
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tree_leaves(value) if written else ():
                if isinstance(tensor, torch.Tensor) and _memory(tensor) in self._inputs:
                    raise RefusedError("mutation", f"{func} writes to an input")


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Nothing(declared(**{name: unsupported("this backend refuses it") for name in Capabilities.names()})):
    """No capability at all."""


BARE = BackendSpec("bare", lambda: bare, Nothing())


# Pieces through AOTAutograd

#: What a backend has no part in that looks at no annotation, generates no code and keeps nothing.
_OF_REGIONS = tuple(
    name
    for name in Capabilities.names()
    if "region" in name or name.startswith(("share_", "outer_cache", "pre_grad", "full_graph", "flex_"))
)


def through_aot(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Hand every second piece to AOTAutograd, when it is first called."""
    return split(gm, _by_aot)


def _by_aot(gm: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    output = gm.graph.output_node()
    single = not isinstance(output.args[0], tuple)
    if single:
        output.args = ((output.args[0],),)
        gm.recompile()
    compiled = aot_module_simplified(gm, list(inputs), fw_compiler=_as_it_is)
    return lambda *values: compiled(*values)[0] if single else compiled(*values)


def _as_it_is(gm: Any, example_inputs: Sequence[Any]) -> Any:
    return make_boxed_func(gm.forward)


class Splitting(declared(**{name: unsupported("annotations are not looked at") for name in _OF_REGIONS})):
    """Everything but what has to do with regions, generated code and caches."""


THROUGH_AOT = BackendSpec("through_aot", lambda: through_aot, Splitting())
