"""AOTAutograd: partitioners, donated buffers, metadata of gradients, serializable compilers, the backward engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.fx_graphs import ANNOTATION, is_backward_node, is_gradient_sum
from pytest_regional._torch.patching import PatchPoint, patched, wrapped
from pytest_regional._torch.tracing import ambient_context


def serializable_compiler_class() -> Any:
    """``SerializableAOTDispatchCompiler``: AOTAutograd caches only what comes from such a compiler (2.11 to 2.15)."""
    return symbol("torch._functorch.aot_autograd", "SerializableAOTDispatchCompiler")


def bundled_callable() -> Any:
    """``BundledAOTAutogradSerializableCallable``: a compiled function and its entry of the cache (2.11 to 2.15)."""
    return symbol("torch._dynamo.aot_compile_types", "BundledAOTAutogradSerializableCallable")


def compiler_like(original: Any, compiler: Callable[..., Any]) -> Any:
    """Return ``compiler`` wearing the type that AOTAutograd looks for on ``original``.

    AOTAutograd caches only what comes from a ``SerializableAOTDispatchCompiler`` (2.11 to 2.15), so a wrapper must
    stay one.
    """
    serializable = serializable_compiler_class()
    if isinstance(original, serializable):
        return serializable(original.output_code_ty, compiler)
    return compiler


def partition_function(name: str) -> Callable[..., Any]:
    """Return AOTAutograd's ``default`` or ``min_cut`` partitioner (``functorch.compile``, 2.11 to 2.15)."""
    functions = {"default": "default_partition", "min_cut": "min_cut_rematerialization_partition"}
    function: Callable[..., Any] = symbol("functorch.compile", functions[name])
    return function


def autograd_number(node: Any) -> int | None:
    """``meta["seq_nr"]``: which autograd node was the newest when an op was traced, or runs while a gradient is.

    An op that makes one autograd node bears the number of its gradients. Checked on torch 2.11, 2.13 and 2.15.
    """
    number = node.meta.get("seq_nr")
    return number if isinstance(number, int) else None


def stack_of(node: Any) -> str | None:
    """``meta["stack_trace"]``: the user's lines; a gradient has those of its forward op (2.11 to 2.15)."""
    return node.meta.get("stack_trace") or None


def has_lost_its_forward_op(node: Any) -> bool:
    """Return whether ``node`` is a gradient for which AOTAutograd found no forward op to copy metadata from.

    ``copy_fwd_metadata_to_bw_nodes`` writes ``meta["fwd_nn_module_stack"]`` wherever it finds one, and passes over sums
    of gradients (2.11 to 2.15).
    """
    if not is_backward_node(node) or is_gradient_sum(node):
        return False
    return "fwd_nn_module_stack" not in node.meta and autograd_number(node) is not None


def annotate_like(node: Any, forward: Any) -> None:
    """Give ``node`` the region annotation of ``forward``, as AOTAutograd would; other annotations stay as they are."""
    node.meta["custom"] = {**node.meta.get("custom", {}), ANNOTATION: forward.meta["custom"][ANNOTATION]}


#: Ours, next to PyTorch's: partitioners copy ``meta`` into the backward (2.11 to 2.15).
_OF_OUTER_VALUE = "regional_gradient_of_outer_value"


def mark_gradient_of_outer_value(gradient_sum: Any) -> None:
    """Note that a sum of gradients is the gradient of a value that an op outside of the region made."""
    gradient_sum.meta[_OF_OUTER_VALUE] = True


def is_gradient_of_outer_value(gradient_sum: Any) -> bool:
    """Return whether :func:`mark_gradient_of_outer_value` was called for the sum."""
    return bool(gradient_sum.meta.get(_OF_OUTER_VALUE, False))


def donate_nothing() -> None:
    """Tell AOTAutograd that the graph which is being compiled overwrites no saved value, so it may run again.

    ``ViewAndMutationMeta.bw_donated_idxs`` of the ambient tracing context (2.11 to 2.15). AOTAutograd fills it when it
    splits a graph, before the forward is compiled. While it is not an empty list (None counts too), a backward that
    keeps its graph is an error, whatever the compiler made of the permission. A backward that compiles when it first
    runs, and then keeps its graph, is handled so by AOTAutograd itself. With tensor subclasses there is metadata of the
    graph within and without, which share the list: so it is emptied, and not replaced.
    """
    metadata = _metadata()
    if metadata is None:
        return
    if metadata.bw_donated_idxs is None:
        metadata.bw_donated_idxs = []
    metadata.bw_donated_idxs.clear()


@contextlib.contextmanager
def donating(may_be_donated: Callable[[int], bool]) -> Iterator[Sequence[int]]:
    """Donate fewer inputs of the backward: only those, by index, that may be. Yields the indices.

    ``ViewAndMutationMeta.bw_donated_idxs`` says which inputs Inductor may write its results into (2.11 to 2.15). With
    tokens of effects in front of the forward's inputs, AOTAutograd numbers what it compares them with wrongly, so then
    nothing is donated.
    """
    metadata = _metadata()
    donated = getattr(metadata, "bw_donated_idxs", None)
    if metadata is None or donated is None:
        yield ()
        return
    chosen = [] if metadata.tokens else [index for index in donated if may_be_donated(index)]
    metadata.bw_donated_idxs = chosen
    try:
        yield chosen
    finally:
        metadata.bw_donated_idxs = donated


_DONATION = {"find": PatchPoint("torch._functorch._aot_autograd.graph_compile", "collect_bw_donated_buffer_idxs")}


def without_donation() -> contextlib.AbstractContextManager[None]:
    """Have AOTAutograd find nothing to donate.

    ``torch._functorch._aot_autograd.graph_compile.collect_bw_donated_buffer_idxs`` (2.11 to 2.15) finds it. Its setting
    ``donated_buffer=False`` would not do: the backward asks for the setting as well, when it runs.
    """
    return patched(_DONATION, {"find": lambda original: lambda *graphs: []})


def backward_keeps_graph() -> bool:
    """Return whether the backward that is running may run again; outside of one it may.

    ``torch._C._autograd._get_current_graph_task_keep_graph`` (2.11 to 2.15), which AOTAutograd asks too.
    """
    return bool(symbol("torch._C._autograd", "_get_current_graph_task_keep_graph")())


def _metadata() -> Any:
    """Return what AOTAutograd knows of the graph that it compiles (``TracingContext.fw_metadata``, 2.11 to 2.15)."""
    return getattr(ambient_context(), "fw_metadata", None)


_ENGINE = {
    # What torch.autograd.backward and grad call when they are done with their arguments (2.11 to 2.15).
    # torch.compiler replaces it in the same way for its own tracing.
    "engine": PatchPoint("torch.autograd", "_engine_run_backward"),
}


def backwards_inside(
    context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> contextlib.AbstractContextManager[None]:
    """Run every backward that starts in the body inside a fresh ``context()``.

    A mode of Python is off while it handles a function, so it is off for the whole of a backward that it sees start;
    what that backward recomputes (checkpointing) would escape it.
    """

    def run(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with context():
            return original(*arguments, **options)

    return wrapped(_ENGINE, {"engine": run})


def serializable_compiler(output_type: type, compiler: Callable[..., Any]) -> Any:
    """``SerializableAOTDispatchCompiler``: a compiler whose results AOTAutograd offers to the cache (2.11 to 2.15)."""
    return serializable_compiler_class()(output_type, compiler)


def with_serialization(compiled: Callable[..., Any], entry: Callable[[], Any]) -> Callable[..., Any]:
    """``SerializableCompiledFunction``: a compiled function that tells the entry it came from (2.11 to 2.15)."""
    wrapped: Callable[..., Any] = symbol(
        "torch._functorch._aot_autograd.runtime_wrappers", "SerializableCompiledFunction"
    )(compiled, entry)
    return wrapped


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
