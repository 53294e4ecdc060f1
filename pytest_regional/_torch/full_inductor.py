"""What ``torch._inductor.compile_fx.compile_fx`` does with the two halves of a graph, one step a function."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_regional._torch import private_module, symbol, torch_version
from pytest_regional._torch.region_compile import python_dispatcher

_COMPILE_FX = "torch._inductor.compile_fx"


def inductor_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """``torch._inductor.decomposition.select_decomp_table``, which depends on settings (2.11 to 2.15)."""
    table: Mapping[Any, Callable[..., Any]] = symbol("torch._inductor.decomposition", "select_decomp_table")()
    return table


def trace_op(call: Callable[..., Any], values: Sequence[Any], table: Mapping[Any, Any], fake_mode: Any) -> Any:
    """Trace ``call(*values)`` on fake values to a graph of what ``table`` makes of it, as AOTAutograd does.

    ``make_fx`` in the mode ``real``, within the fake mode that the values belong to (2.11 to 2.15).
    """
    tracer = symbol("torch.fx.experimental.proxy_tensor", "make_fx")(call, decomposition_table=dict(table))
    with fake_execution(fake_mode):
        return tracer(*values)


@contextlib.contextmanager
def fake_execution(fake_mode: Any) -> Iterator[None]:
    """Run ops on fake values, symbolic sizes included, as AOTAutograd does while it traces.

    The mode itself, and ``torch._C._DisableAutocast`` (2.11 to 2.15).
    """
    import torch

    with fake_mode, python_dispatcher(), torch.no_grad(), without_autocast():
        yield


def without_autocast() -> contextlib.AbstractContextManager[Any]:
    """``torch._C._DisableAutocast``, under which AOTAutograd compiles: casts are in the graph (2.11 to 2.15)."""
    manager: contextlib.AbstractContextManager[Any] = symbol("torch._C", "_DisableAutocast")()
    return manager


def tensor_metadata(value: Any) -> Any:
    """``torch.fx.passes.shape_prop._extract_tensor_metadata``: what tracers keep as ``tensor_meta`` (2.11 to 2.15)."""
    return symbol("torch.fx.passes.shape_prop", "_extract_tensor_metadata")(value)


def snapshot(value: Any) -> Any:
    """Return a copy of a fake value that later size changes do not reach, as tracers keep it in ``val``.

    ``torch.fx.experimental.proxy_tensor.extract_val`` (2.11 to 2.15).
    """
    return symbol("torch.fx.experimental.proxy_tensor", "extract_val")(value)


def ambient_context() -> Any:
    """``torch._guards.TracingContext.try_get()``: one for forward and backward of a graph (2.11 to 2.15)."""
    return symbol("torch._guards", "TracingContext").try_get()


def user_output_count() -> int | None:
    """Count the outputs of a forward graph that are the user's; None where AOTAutograd told the context nothing.

    Behind them stand what the backward needs. ``compile_fx`` counts from where inputs that were written to end;
    tokens of effects, which it never sees, stand in front, so they are counted in (``fw_metadata``, 2.11 to 2.15).
    """
    metadata = getattr(ambient_context(), "fw_metadata", None)
    return None if metadata is None else len(metadata.tokens) + int(metadata.num_outputs)


def outputs_before_the_users() -> int:
    """Count the outputs of a forward graph that are written inputs (``num_mutated_inp_runtime_indices``)."""
    metadata = getattr(ambient_context(), "fw_metadata", None)
    return 0 if metadata is None else int(metadata.num_mutated_inp_runtime_indices)


def new_shared_state(gm: Any) -> Any:
    """``create_compiler_config_extra``: CUDA graphs' state that forward and backward share (2.11 to 2.15).

    2.11 takes the configuration, later versions the graph that Dynamo made, of which they read one annotation.
    """
    create = symbol(_COMPILE_FX, "create_compiler_config_extra")
    return create(symbol("torch._inductor", "config") if torch_version() < (2, 13) else gm)


def run_joint_graph_passes(gm: Any, example_inputs: Sequence[Any]) -> Any:
    """``_recursive_joint_graph_passes``: Inductor's patterns, constant folding and its random numbers (2.11 to 2.15).

    The strides of the outputs are noted before (``_recursive_record_original_output_strides``): padding changes them.
    """
    devices = symbol("torch._dynamo.utils", "get_inputs_devices")(example_inputs, gm)
    symbol(_COMPILE_FX, "_recursive_record_original_output_strides")(gm)
    return symbol(_COMPILE_FX, "_recursive_joint_graph_passes")(gm, input_device=next(iter(devices), None))


def compile_forward(gm: Any, example_inputs: Sequence[Any], state: Any, *, outputs: int, is_inference: bool) -> Any:
    """``compile_fx_forward``: the layouts that users see, fixed inputs, CUDA graphs, then the compiler (2.11 to 2.15).

    For inference it runs the joint graph passes first.
    """
    return symbol(_COMPILE_FX, "compile_fx_forward")(
        gm,
        example_inputs,
        num_orig_model_outputs=outputs,
        num_example_inputs=len(example_inputs),
        compiler_config_extra=state,
        inner_compile=_inner_compile(),
        is_inference=is_inference,
    )


def compile_backward(gm: Any, example_inputs: Sequence[Any], state: Any) -> Any:
    """``compile_fx_backward``, the same for a backward graph (2.11 to 2.15)."""
    return symbol(_COMPILE_FX, "compile_fx_backward")(
        gm, example_inputs, compiler_config_extra=state, inner_compile=_inner_compile()
    )


def _inner_compile() -> Callable[..., Any]:
    """``compile_fx_inner``, looked up now so that a test's patch is seen (2.11 to 2.15)."""
    function: Callable[..., Any] = symbol(_COMPILE_FX, "compile_fx_inner")
    return function


@contextlib.contextmanager
def inductor_compile(fake_mode: Any) -> Iterator[None]:
    """Enter what ``compile_fx`` has around its compilers.

    ``torch._inductor.virtualized.V.set_fake_mode``, which Inductor's patterns are traced with, lazily written modules
    (``_use_lazy_graph_module``), no gradients, no autocast (2.11 to 2.15).
    """
    import torch

    lazily = symbol("torch.fx._lazy_graph_module", "_use_lazy_graph_module")(True)
    handlers = symbol("torch._inductor.virtualized", "V")
    with lazily, handlers.set_fake_mode(fake_mode), python_dispatcher(), torch.no_grad(), without_autocast():
        yield


def functionalize_collectives(gm: Any) -> bool:
    """Rewrite ``c10d.allreduce_`` to its functional form, in place; return whether this torch can.

    ``torch._inductor._functionalize_collectives`` (2.13, 2.15; 2.11 has none).
    """
    if torch_version() < (2, 13):
        return False
    module = private_module("torch._inductor._functionalize_collectives")
    module._functionalize_inplace_collectives(gm)
    module._unbox_process_group_torchbinds(gm)
    return True


@functools.cache
def nodes_are_lowered_by() -> str:
    """Name of the method of ``GraphLowering`` that lowers one node, its argument ``n`` (2.11 to 2.15)."""
    return str(symbol("torch._inductor.graph", "GraphLowering").run_node.__name__)
