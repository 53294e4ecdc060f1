"""Which suite tests need a capability that they do not name.

A plugin, and a backend behind AOTAutograd that looks at no annotation and refuses what the running test does not name
in ``requires=``. So each capability is disclaimed to each test that does not ask for it, in one run:

    python -m pytest suites -p tests.needs_named --regional-backend=tests.needs_named:NAMED --regional-device=cpu
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils._pytree import tree_leaves

from pytest_regional import BackendSpec, Capabilities, Support, declared, unsupported
from tests.splitting_backend import RefusedError

#: What such a backend has; the others it has no part in. A trace loses channels-last strides (of ``roll``, say).
THERE = frozenset(
    (
        "aliasing",
        "backward",
        "custom_ops",
        "dynamic_shapes",
        "flex_attention",
        "flex_attention_backward",
        "higher_order_operators",
        "mutation",
        "results_kept",
        "rng",
    )
)

#: A test that names one of these says that it needs higher-order operators as well.
_SAY_SO = ("nested_regions", "nested_region_options", "flex_attention", "outer_cache_of_training")

_named: set[str] = set()
_running: list[pytest.Item] = []
#: What the last call returned.
_returned: list[torch.Tensor] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what the test names."""
    _running[:] = [item]
    marks = [mark.kwargs for mark in item.iter_markers("regional_compile")]
    names = next((mark["requires"] for mark in marks if "requires" in mark), ()) if marks else THERE
    _named.clear()
    _named.update((names,) if isinstance(names, str) else names)
    if _named.intersection(_SAY_SO):
        _named.add("higher_order_operators")


def pytest_runtest_teardown() -> None:
    """Let collection of the next test ask for everything again."""
    _running.clear()
    _returned.clear()


def refuse(capability: str, what: object) -> None:
    """Raise where the running test does not name ``capability``; in a process that it started nobody knows the test."""
    if _running and capability not in _named:
        raise RefusedError(capability, str(what))


def backend(gm: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph as AOTAutograd makes it; refuse what the test does not name."""
    _check_operators(gm)
    # The default partitioner draws again in a backward: docs/findings/dropout_draws_again.py.
    partitioner = min_cut_rematerialization_partition
    compiled = aot_autograd(fw_compiler=_checked, bw_compiler=_checked, partition_fn=partitioner)(gm, example_inputs)

    def run(*inputs: Any) -> Any:
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        _check_inputs(inputs)
        _spoil_results(tensors)
        versions = [tensor._version for tensor in tensors if not tensor.is_inference()]
        outputs = compiled(*inputs)
        if versions != [tensor._version for tensor in tensors if not tensor.is_inference()]:
            refuse("mutation", "an input is written to")
        _check_aliases(tensors, outputs)
        _returned[:] = [value for value in tree_leaves(outputs) if isinstance(value, torch.Tensor)]
        return outputs

    return run


def _spoil_results(inputs: Iterable[torch.Tensor]) -> None:
    """Write to what the last call returned, as a backend with output buffers does, unless the test wants it kept."""
    if not _running or "results_kept" in _named:
        return
    entering = {tensor.untyped_storage()._cdata for tensor in inputs if tensor.layout == torch.strided}
    for tensor in _returned:
        plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.requires_grad
        if plain and tensor.untyped_storage()._cdata not in entering:
            tensor.data.zero_()


def _check_inputs(inputs: Iterable[Any]) -> None:
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            refuse("dynamic_shapes", f"an input is {value!r}")
        elif value.requires_grad and torch.is_grad_enabled():
            refuse("backward", "an input wants a gradient")


def _check_aliases(inputs: Iterable[torch.Tensor], outputs: Any) -> None:
    seen = {tensor.untyped_storage()._cdata for tensor in inputs if tensor.layout == torch.strided}
    for tensor in tree_leaves(outputs):
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.numel():
            memory = tensor.untyped_storage()._cdata
            if memory in seen:
                refuse("aliasing", "an output shares memory with an input or another output")
            seen.add(memory)


def _checked(gm: Any, example_inputs: Sequence[Any]) -> Any:
    _check_operators(gm)
    return make_boxed_func(gm.forward)


def _check_operators(gm: Any) -> None:
    for module in gm.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                # What AOTAutograd makes of a custom operator that writes is none of the program's.
                if "auto_functionalized" not in str(node.target):
                    refuse("higher_order_operators", node.target)
            elif isinstance(node.target, torch._ops.OpOverload):
                if node.target.namespace not in ("aten", "prims", "prim", "inductor"):
                    refuse("custom_ops", node.target)
                if torch.Tag.nondeterministic_seeded in node.target.tags:
                    refuse("rng", node.target)


class WhatIsNamed(declared(**{name: unsupported("nothing is compiled") for name in set(Capabilities.names()) - THERE})):
    """While a test runs: what it names, and nothing else, so that a test may ask and do with less."""

    def get(self, name: str) -> Support:
        support = super().get(name)
        return support if not _running or name in _named else unsupported("the running test does not name it")


NAMED = BackendSpec("named", lambda: backend, WhatIsNamed())
