"""A backend that adds order edges to the forward graph, and then compiles its regions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch.fx

from pytest_regional import BackendSpec, Capabilities
from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional.reference import add_control_deps, regional_inductor
from pytest_regional.testing import regional
from tests.reference.kernels import kernels_do_nothing

Asked = Mapping[str, Sequence[str]]


class OrderedBackend:
    """Adds ``asked``, names to the names they wait for, wherever a graph has all of these nodes."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.added = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile as PyTorch's own regional backend does, with the pass in front."""
        with preserve_node_meta():
            return aot_autograd(fw_compiler=self._forward, bw_compiler=regional_inductor)(gm, inputs)

    def _forward(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        for module in gm.modules():
            if isinstance(module, torch.fx.GraphModule):
                self._add(module)
        return regional_inductor(gm, *inputs)

    def _add(self, module: torch.fx.GraphModule) -> None:
        nodes = {node.name: node for node in module.graph.nodes}
        named = {name for name, others in self.asked.items() for name in (name, *others)}
        if named and named <= set(nodes):
            edges = {nodes[name]: [nodes[other] for other in others] for name, others in self.asked.items()}
            self.added += len(add_control_deps(module.graph, edges).added)
            module.recompile()


@contextlib.contextmanager
def harness(**options: Any) -> Iterator[Any]:
    """Give the harness, whose backend adds what ``harness.asked`` says when a program is compiled."""
    backend = OrderedBackend({})
    with regional(BackendSpec("ordered", lambda: backend, Capabilities()), **options) as made:
        made.ordered = backend
        yield made


def code_with(made: Any, asked: Asked, program: Callable[..., Any], *inputs: Any) -> Any:
    """Compile ``program`` with ``asked`` in force and return its code, whose kernels are not compiled."""
    made.ordered.asked, made.ordered.added = asked, 0
    with kernels_do_nothing():
        return made.run(program, *inputs).code


def run_with(made: Any, asked: Asked, program: Callable[..., Any], *inputs: Any) -> Any:
    """Compile ``program`` with ``asked`` in force, run it, compare it with eager, and return the record."""
    made.ordered.asked, made.ordered.added = asked, 0
    expected = program(*inputs)
    record = made.run(program, *inputs)
    torch.testing.assert_close(record.output, expected)
    return record
