"""Joint graphs with descriptors: capture, stage two of AOTAutograd, and its results as bytes."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_regional._torch import symbol
from pytest_regional._torch.aot_autograd import bundled_callable, with_serialization
from pytest_regional._torch.caches import CodeFile, code_files_of_entry
from pytest_regional._torch.config import dynamo_config, functorch_config
from pytest_regional._torch.fx_graphs import preserve_node_meta
from pytest_regional._torch.patching import patched_stages
from pytest_regional._torch.tracing import (
    compile_lock,
    entered,
    new_fake_mode,
    new_shape_env,
    python_dispatcher,
    tracing,
    tracing_context_class,
)

_SIDE_EFFECTS = re.compile(
    r"certain side effects happened .* potential sources you can double check: (\[.*\])", re.DOTALL
)


def capture_with_dynamo(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, dynamic: bool
) -> tuple[Any, list[str]]:
    """Capture ``module`` as one graph with its own parameters and calling convention.

    ``torch._dynamo.functional_export.dynamo_graph_capture_for_export`` (2.11 to 2.15). The result's ``meta`` holds the
    tracing context of its sizes. Numbers among the arguments are constants (``specialize_float``): AOTAutograd could
    not restart Dynamo to make them constant.

    Also returns the Python side effects of the model: attributes that it sets, lists that it appends to. They are not
    in the graph, and Dynamo only warns about them.
    """
    capture = symbol("torch._dynamo.functional_export", "dynamo_graph_capture_for_export")
    with (
        dynamo_config().patch(assume_static_by_default=not dynamic, specialize_int=True, specialize_float=True),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        gm = capture(module)(*args, **kwargs)
    effects: list[str] = []
    for one in caught:
        found = _SIDE_EFFECTS.search(str(one.message))
        if found:
            effects += ast.literal_eval(found[1])
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return gm, effects


def tracing_context_of(gm: Any) -> Any:
    """Return the ``torch._guards.TracingContext`` that Dynamo captured ``gm`` in, or a new one (2.11 to 2.15)."""
    context = getattr(gm, "meta", {}).get("tracing_context")
    return tracing_context_class()(new_fake_mode()) if context is None else context


def export_joint(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], decompositions: Any, context: Any) -> Any:
    """Trace forward and backward: ``torch._functorch.aot_autograd.aot_export_joint_with_descriptors`` (2.11 to 2.15).

    Its modes are exited when this returns; ``compile_joint`` enters them again. In between, no state of the process is
    changed.
    """
    export = symbol("torch._functorch.aot_autograd", "aot_export_joint_with_descriptors")
    with contextlib.ExitStack() as stack:
        stack.enter_context(compile_lock())
        stack.enter_context(preserve_node_meta())
        stack.enter_context(entered(context))
        return export(stack, module, tuple(args), dict(kwargs), decompositions=decompositions)


@dataclass(frozen=True)
class CompiledJoint:
    """Forward and backward as one callable that takes the list of parameters, buffers and inputs."""

    _call: Callable[[list[Any]], Sequence[Any]]
    dump: Callable[[], bytes]
    """Serializes it for ``load_compiled``."""
    code_files: Callable[[], tuple[CodeFile, ...]]
    """Returns its files of generated code; compiled regions in it bring their own."""

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Run the forward; autograd runs the backward."""
        return self._call(inputs)


def compile_joint(
    joint: Any,
    context: Any,
    *,
    partition: Callable[..., Any],
    forward: Callable[[Any, Sequence[Any]], Any],
    backward: Callable[[Any, Sequence[Any]], Any],
) -> CompiledJoint:
    """Split and compile a joint graph: ``aot_compile_joint_with_descriptors`` (2.11 to 2.15).

    ``joint`` is consumed. AOTAutograd makes a cache entry under a key that is never looked up: it is kept for
    serialization instead of stored.
    """
    compile_function = symbol("torch._functorch.aot_autograd", "aot_compile_joint_with_descriptors")
    entries: list[Any] = []

    def save(original: Callable[..., None], key: str, entry: Any, remote: bool) -> None:
        if key == joint_key:
            entries.append(entry)
        else:
            original(key, entry, remote)

    with contextlib.ExitStack() as stack:
        stack.enter_context(compile_lock())
        stack.enter_context(preserve_node_meta())
        stack.enter_context(entered(context))
        stack.enter_context(_stage_two_modes(joint))
        joint_key = joint.cache_hash()
        stack.enter_context(patched_stages({"aot_save": save}))
        # The user's autograd functions may be in results that are stored.
        stack.enter_context(functorch_config().patch(autograd_cache_allow_custom_autograd_functions=True))
        compiled = compile_function(
            joint, partition_fn=partition, fw_compiler=forward, bw_compiler=backward, serializable=True
        )
    call = compiled.__wrapped__
    if isinstance(call, bundled_callable()):
        call = call.compiled_fn  # a forward with a backward; inference has no wrapper
    entry = entries[0]
    return CompiledJoint(call, functools.partial(_dump_entry, entry), functools.partial(code_files_of_entry, entry))


def _dump_entry(entry: Any) -> bytes:
    """Serialize an entry of AOTAutograd's cache.

    ``BundledAOTAutogradSerializableCallable.serialize_compile_artifacts`` (2.11 to 2.15) expects an entry after
    ``pre_save``, which AOTAutograd's cache calls before it writes. This uses a copy.
    """
    entry = copy.copy(entry)
    entry.compiled_fw = copy.copy(entry.compiled_fw)
    entry.compiled_bw = copy.copy(entry.compiled_bw)
    # Only compiled autograd needs it, to trace again; a graph that takes a list cannot be pickled.
    entry.serialized_bw_module = None
    with functorch_config().patch(bundled_autograd_cache=True):
        entry.pre_save()
    wrapper = bundled_callable()
    return bytes(wrapper.serialize_compile_artifacts(wrapper(with_serialization(lambda: None, lambda: entry))))


def load_compiled(data: bytes, files: tuple[CodeFile, ...] = ()) -> CompiledJoint:
    """Load the bytes of ``CompiledJoint.dump``, with its ``files``; nothing is compiled (2.11 to 2.15)."""
    wrapper = bundled_callable()
    with tracing(new_fake_mode()):
        loaded = wrapper.deserialize_compile_artifacts(data)
    return CompiledJoint(loaded.compiled_fn.__wrapped__, lambda: data, lambda: files)


def copy_of_joint(joint: Any, graph_module: Any) -> Any:
    """Return a ``JointWithDescriptors`` that can be consumed while ``joint`` stays (fields of 2.11 to 2.15)."""
    state, capture = copy.copy(joint._aot_state), copy.copy(joint._aot_graph_capture)
    state.fw_metadata = copy.copy(state.fw_metadata)
    state.aot_config = copy.copy(state.aot_config)
    capture.graph_module = graph_module
    duplicate = copy.copy(joint)
    duplicate._aot_state, duplicate._aot_graph_capture = state, capture
    return duplicate


def needs_autograd(joint: Any) -> bool:
    """Return whether there is a backward: ``AOTState.needs_autograd`` (2.11 to 2.15)."""
    return bool(joint._aot_state.needs_autograd)


def size_guards(joint: Any, sizes: Sequence[Any]) -> str | None:
    """Return the guards of the trace on ``sizes``, as an expression over them; None without any (2.11 to 2.15)."""
    environment = joint.fake_mode.shape_env
    if environment is None or not sizes:
        return None
    guards = environment.get_pruned_guards(list(sizes))
    return environment.produce_guards_expression(placeholders=list(sizes), guards=guards)


def evaluate_size_guards(expression: str, sizes: Sequence[int]) -> bool:
    """Return whether ``size_guards`` hold for numbers: ``ShapeEnv.evaluate_guards_expression`` (2.11 to 2.15)."""
    return bool(new_shape_env().evaluate_guards_expression(expression, list(sizes)))


def described_input(descriptor: Any) -> tuple[str, str]:
    """Return the kind of a joint graph's input, in a word, and its name or number.

    Descriptors are ``torch._functorch._aot_autograd.descriptors`` (2.11 to 2.15); those that wrap another (gradients,
    mutations, parts of subclasses) are given by class and full text.
    """
    kinds = {"ParamAOTInput": "parameter", "BufferAOTInput": "buffer", "PlainAOTInput": "input"}
    kinds |= {"TangentAOTInput": "tangent", "PlainAOTOutput": "output", "GradAOTOutput": "gradient"}
    name = type(descriptor).__name__
    for attribute in ("target", "idx"):
        if hasattr(descriptor, attribute):
            return kinds.get(name, name), str(getattr(descriptor, attribute))
    inner = next(
        (getattr(descriptor, a) for a in ("grad_of", "output", "mutated_input") if hasattr(descriptor, a)), None
    )
    if inner is None:
        return kinds.get(name, name), ""
    kind, label = described_input(inner)
    return {"InputMutationAOTOutput": "mutated"}.get(name, kinds.get(name, name)), f"{kind} {label}"


@contextlib.contextmanager
def _stage_two_modes(joint: Any) -> Iterator[None]:
    """Enter the contexts of ``aot_export_joint_with_descriptors`` again (``create_aot_state``, 2.11 to 2.15).

    Except for a timer, and the tracker of Philox states, which only tracing needs.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(symbol("torch._dynamo.compiled_autograd", "_disable")())
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        stack.enter_context(symbol("torch._dynamo.utils", "preserve_rng_state")())
        stack.enter_context(joint.fake_mode)
        if joint.fake_mode.shape_env is not None:
            stack.enter_context(python_dispatcher())
        stack.enter_context(symbol("torch._dynamo.utils", "_disable_saved_tensors_hooks_during_tracing")())
        yield
