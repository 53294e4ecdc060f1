"""AOTAutograd: partitioners, donated buffers, metadata of gradients, serializable compilers, the backward engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_regional._torch import calling, fetching, symbol
from pytest_regional._torch.fx_graphs import ANNOTATION, is_backward_node, is_gradient_sum
from pytest_regional._torch.patching import Patch, PatchPoint, applied, patched, wrapped
from pytest_regional._torch.tracing import ambient_context

#: The class of compilers whose results AOTAutograd caches (2.11 to 2.15).
serializable_compiler_class = fetching("torch._functorch.aot_autograd", "SerializableAOTDispatchCompiler")
#: The class of compiled functions that have their cache entry (2.11 to 2.15).
bundled_callable = fetching("torch._dynamo.aot_compile_types", "BundledAOTAutogradSerializableCallable")
#: Turns a compiled function into one that returns its cache entry (2.11 to 2.15).
with_serialization: Callable[..., Callable[..., Any]] = calling(
    "torch._functorch._aot_autograd.runtime_wrappers", "SerializableCompiledFunction"
)


def compiler_like(original: Any, compiler: Callable[..., Any]) -> Any:
    """Return ``compiler`` with the type of ``original`` that AOTAutograd checks for."""
    serializable = serializable_compiler_class()
    if isinstance(original, serializable):
        return serializable(original.output_code_ty, compiler)
    return compiler


def partition_function(name: str) -> Callable[..., Any]:
    """Return AOTAutograd's ``default`` or ``min_cut`` partitioner (2.11 to 2.15)."""
    names = {"default": "default_partition", "min_cut": "min_cut_rematerialization_partition"}
    return symbol("functorch.compile", names[name])


def autograd_number(node: Any) -> int | None:
    """``meta["seq_nr"]``: the newest autograd node when an op was traced, or the one that runs in the backward.

    An op that makes one autograd node has the number of its gradients. Checked on torch 2.11, 2.13 and 2.15.
    """
    number = node.meta.get("seq_nr")
    return number if isinstance(number, int) else None


def stack_of(node: Any) -> str | None:
    """``meta["stack_trace"]``: the user's lines; a gradient has those of its forward op (2.11 to 2.15)."""
    return node.meta.get("stack_trace") or None


def has_lost_its_forward_op(node: Any) -> bool:
    """Return whether ``node`` is a gradient for which AOTAutograd found no forward op to copy metadata from.

    ``copy_fwd_metadata_to_bw_nodes`` writes ``meta["fwd_nn_module_stack"]`` where it finds one, and skips sums of
    gradients (2.11 to 2.15).
    """
    if not is_backward_node(node) or is_gradient_sum(node):
        return False
    return "fwd_nn_module_stack" not in node.meta and autograd_number(node) is not None


def annotate_like(node: Any, forward: Any) -> None:
    """Give ``node`` the region annotation of ``forward``, as AOTAutograd would; other annotations stay."""
    node.meta["custom"] = {**node.meta.get("custom", {}), ANNOTATION: forward.meta["custom"][ANNOTATION]}


def _metadata() -> Any:
    """Return AOTAutograd's metadata of the graph it compiles (``TracingContext.fw_metadata``, 2.11 to 2.15)."""
    return getattr(ambient_context(), "fw_metadata", None)


def donate_nothing() -> None:
    """Declare that the graph being compiled overwrites no saved value, so that it may run again.

    Empties ``ViewAndMutationMeta.bw_donated_idxs`` of the ambient tracing context (2.11 to 2.15). AOTAutograd fills it
    when it splits a graph, before the forward is compiled. Unless it is an empty list (None does not count), a backward
    with ``retain_graph=True`` is an error, even if nothing is donated. AOTAutograd itself handles a backward that
    compiles when it first runs. With tensor subclasses, the metadata of the inner and the outer graph share the list,
    so it is emptied and not replaced.
    """
    metadata = _metadata()
    if metadata is None:
        return
    if metadata.bw_donated_idxs is None:
        metadata.bw_donated_idxs = []
    metadata.bw_donated_idxs.clear()


@contextlib.contextmanager
def buffer_donation(may_be_donated: Callable[[int], bool]) -> Iterator[Sequence[int]]:
    """Donate fewer inputs of the backward: those for which ``may_be_donated(index)``. Yields the indices.

    ``ViewAndMutationMeta.bw_donated_idxs`` lists the inputs that Inductor may write its results into (2.11 to 2.15).
    With effect tokens before the forward's inputs, AOTAutograd computes wrong indices, so nothing is donated then.
    """
    metadata = _metadata()
    donated = getattr(metadata, "bw_donated_idxs", None)
    if metadata is None or donated is None:
        yield ()
        return
    chosen = [] if metadata.tokens else [index for index in donated if may_be_donated(index)]
    with applied([Patch(metadata, "bw_donated_idxs", chosen)]):
        yield chosen


def without_donation() -> contextlib.AbstractContextManager[None]:
    """Make AOTAutograd find nothing to donate (2.11 to 2.15).

    The setting ``donated_buffer=False`` is not enough: the backward reads it again when it runs.
    """
    point = PatchPoint("torch._functorch._aot_autograd.graph_compile", "collect_bw_donated_buffer_idxs")
    return patched({"find": point}, {"find": lambda original: lambda *graphs: []})


def backward_keeps_graph() -> bool:
    """Return whether the running backward may run again; True outside of a backward (2.11 to 2.15)."""
    return bool(symbol("torch._C._autograd", "_get_current_graph_task_keep_graph")())


def backwards_inside(
    context: Callable[[], contextlib.AbstractContextManager[Any]],
) -> contextlib.AbstractContextManager[None]:
    """Run every backward that starts in the body in a fresh ``context()``.

    A Python mode is disabled while it handles a function, and so for all of a backward that it sees start. It would
    miss what that backward recomputes (checkpointing).
    """
    # torch.autograd.backward and grad call this once their arguments are checked (2.11 to 2.15). torch.compiler
    # replaces it in the same way for its own tracing.
    engine = PatchPoint("torch.autograd", "_engine_run_backward")

    def run(original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with context():
            return original(*arguments, **options)

    return wrapped({"engine": engine}, {"engine": run})


def effect_token_count() -> int:
    """Count the effect tokens before the inputs of the graph that is compiled (``fw_metadata``, 2.11 to 2.15)."""
    return len(getattr(_metadata(), "tokens", ()))


def user_output_count() -> int | None:
    """Count the user's outputs of a forward graph; None if the tracing context has no metadata.

    Saved values for the backward follow them. ``compile_fx`` counts from the end of the mutated inputs. It never sees
    effect tokens, which come first, so they are counted here (``fw_metadata``, 2.11 to 2.15).
    """
    metadata = _metadata()
    return None if metadata is None else len(metadata.tokens) + int(metadata.num_outputs)


def outputs_before_the_users() -> int:
    """Count the outputs of a forward graph that are mutated inputs (``num_mutated_inp_runtime_indices``)."""
    metadata = _metadata()
    return 0 if metadata is None else int(metadata.num_mutated_inp_runtime_indices)


def donated_inputs() -> tuple[int, ...]:
    """Return the positions of saved tensors whose memory the backward being compiled may reuse (2.11 to 2.15)."""
    return tuple(getattr(_metadata(), "bw_donated_idxs", None) or ())
