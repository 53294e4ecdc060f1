"""AOTAutograd's cache: its lookup, where a backend's own cache plugs in; refusals of keys; and its keys as texts.

PyTorch calls ``AOTAutogradCache.try_load`` for every Dynamo graph and ``AOTAutogradCache.save`` with the result. Both
can be overridden for one graph at a time; all other graphs, regions included, stay PyTorch's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pytest_regional._base.cache_keys import CacheKey
from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import fetching, private_module, symbol
from pytest_regional._torch.compile_phases import logged
from pytest_regional._torch.config import FUNCTORCH, INDUCTOR, dynamo_config, functorch_config, inductor_config
from pytest_regional._torch.dynamo import counters
from pytest_regional._torch.fx_graphs import is_graph_module
from pytest_regional._torch.patching import COMPILE_STAGES, AnsweredError, PatchPoint, patched_stages, wrapped
from pytest_regional._torch.tracing import compile_lock, size_hint, storage_key


def is_serializable(artifact: Any) -> bool:
    """Return whether an ``AOTCompiledArtifact`` can be stored (2.11 to 2.15).

    AOTAutograd makes a cache entry only if its own lookup had a key. Otherwise the function ``serialize``, which
    ``AOTCompiledArtifact.serialize`` calls, is None.
    """
    return artifact.inner_fn.compiled_fn.serialize is not None


@contextlib.contextmanager
def refused_keys() -> Iterator[list[str]]:
    """Collect why AOTAutograd made no key for graphs compiled inside: ``autograd_cache_key`` (2.11 to 2.15)."""
    reasons: list[str] = []

    def key(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except Exception as error:
            reasons.append(str(error))
            raise

    with compile_lock(), patched_stages({"aot_key": key}):
        yield reasons


def note_refused_keys(artifact: Any, reasons: Sequence[str]) -> None:
    """Keep ``reasons`` on an artifact, for :func:`why_unserializable`."""
    artifact.regional_refusals = tuple(reasons)


def why_unserializable(artifact: Any) -> str:
    """Return why PyTorch made no key for an artifact's graph; empty if unknown."""
    return "; ".join(dict.fromkeys(getattr(artifact, "regional_refusals", ())))


_MODULE = "torch._functorch._aot_autograd.autograd_cache"

#: AOTAutograd's cache of whole results (2.11 to 2.15).
cache_class = fetching(_MODULE, "AOTAutogradCache")


class UncacheableGraphError(RegionalError):
    """PyTorch makes no key for this graph; the message is its reason.

    Attributes:
        failed: whether the key computation failed with an error that is no refusal; the message says which, and where.
    """

    failed = False


@dataclass(frozen=True)
class GraphLookup:
    """AOTAutograd's cache lookup for one Dynamo graph."""

    graph: Any
    inputs: list[Any]
    _aot_config: Any
    _rest: tuple[Any, ...]

    def key(self) -> str:
        """Return PyTorch's key of graph, inputs and settings; it includes no annotations and no custom pass.

        Pre-grad passes and their timing are kept out of it; our key includes them separately.
        ``autograd_function_apply`` is allowed: Dynamo lifts the closure of such a function into inputs of the graph, so
        its bodies are in the key like any other part.

        Raises:
            UncacheableGraphError: PyTorch does not cache such a graph, or its key computation failed.
        """
        settings: dict[str, Any] = {"pre_grad_custom_pass": None}
        if hasattr(inductor_config(), "pre_grad_pass_timing"):
            settings["pre_grad_pass_timing"] = "default"
        with (
            inductor_config().patch(settings),
            functorch_config().patch(
                autograd_cache_allow_custom_autograd_functions=True, bypass_autograd_cache_key=False
            ),
        ):
            return self.pytorchs_key()

    def pytorchs_key(self) -> str:
        """Return the key under which PyTorch's own cache would look the graph up, with the settings as they are.

        ``autograd_cache_key`` takes other arguments in 2.11, where its caller also hides what differs between equal
        graphs (``sanitize_gm_for_cache``).

        Raises:
            UncacheableGraphError: PyTorch does not cache such a graph, or its key computation failed.
        """
        compute = COMPILE_STAGES["aot_key"].current()
        # What PyTorch raises for a graph that it does not cache, always with a message (2.11 to 2.15).
        refusals = symbol(_MODULE, "BypassAOTAutogradCache"), symbol("torch._inductor.codecache", "BypassFxGraphCache")
        self._check_bodies(refusals)
        extra: tuple[Any, ...] = self._rest
        sanitized: AbstractContextManager[Any] = contextlib.nullcontext()
        if _is_first_generation():
            extra = (dict(zip(("cudagraphs", "boxed_forward_device_index"), self._rest, strict=False)),)
            sanitized = symbol(_MODULE, "sanitize_gm_for_cache")(self.graph)
        # Dynamo gives each compile a name, which does not affect the result and would prevent every hit
        # (``caching_precompile``, 2.11 to 2.15).
        nameless = self._aot_config
        if getattr(nameless, "precompile_backend_id", None) is not None:
            nameless = dataclasses.replace(nameless, precompile_backend_id=None)
        with _without_backend_id(self.graph), sanitized:
            try:
                key, _ = compute(self.graph, self.inputs, nameless, *extra)
            except refusals as error:
                raise UncacheableGraphError(str(error)) from error
            except Exception as error:
                frame = traceback.extract_tb(error.__traceback__)[-1]
                failure = UncacheableGraphError(
                    f"PyTorch failed while it computed its key of the graph: {type(error).__name__}: {error} "
                    f"(in {frame.name}, {frame.filename}:{frame.lineno})"
                )
                failure.failed = True
                raise failure from error
        return str(key)

    def _check_bodies(self, refusals: tuple[type[Exception], ...]) -> None:
        """Refuse functions in the bodies of higher-order operators as PyTorch does in the graph itself.

        PyTorch's key has only the name of a function that Dynamo does not look into
        (``torch.compiler.allow_in_graph``), and ``check_cacheable`` does not visit bodies (2.11 to 2.15).
        """
        check = symbol(_MODULE, "check_node_safe")
        bodies = (module for module in self.graph.modules() if is_graph_module(module) and module is not self.graph)
        for node in (node for body in bodies for node in body.graph.nodes if node.op == "call_function"):
            try:
                check(node)
            except refusals as error:
                raise UncacheableGraphError(str(error)) from error

    def guards_hold(self, guards: str | None) -> bool:
        """Return whether an entry's size guards hold for these inputs; adds no guard to the trace."""
        if guards is None:
            return True
        hints = [size_hint(size) for size in self._symbolic_sizes()]
        return bool(cache_class().evaluate_guards(guards, hints))

    def revive(self, entry: Any) -> Callable[..., Any]:
        """Turn a stored ``BundledAOTAutogradResult`` into the callable that AOTAutograd originally made."""
        self._guard_shared_memory(entry)
        cudagraphs = {"cudagraphs": symbol("torch._inductor.utils", "BoxedBool")(False)}
        compiled: Callable[..., Any] = entry.wrap_post_compile(
            self.inputs, self._aot_config, {**cudagraphs, "boxed_forward_device_index": None}
        )
        return compiled

    def _guard_shared_memory(self, entry: Any) -> None:
        """Guard which inputs overlap, as AOTAutograd does while it compiles, but not where it loads an entry.

        With symbolic sizes a later call may have inputs that share memory in another way. Only a program that writes to
        an input depends on that. ``compute_overlapping_inputs`` adds the guard (2.11 to 2.15).
        """
        if not any(info.mutates_data for info in entry.runtime_metadata.input_info):
            return
        sharing: dict[Any, list[int]] = {}
        for position, value in enumerate(self.inputs):
            storage = storage_key(value)
            if storage is not None:
                sharing.setdefault(storage, []).append(position)
        overlapping = symbol("torch._functorch._aot_autograd.input_output_analysis", "compute_overlapping_inputs")
        for positions in sharing.values():
            if len(positions) > 1:
                overlapping(self._aot_config, self.inputs, positions)

    def _symbolic_sizes(self) -> list[Any]:
        return cache_class()._filter_backed_symints(self.inputs)

    def _answer(self, compiled: Any, key: str | None) -> Any:
        """Return the value for ``try_load``; a miss with a key makes AOTAutograd offer the result for saving."""
        config = self._aot_config
        if compiled is None and key is not None:
            info = symbol("torch._functorch._aot_autograd.schemas", "AOTAutogradCacheInfo")(
                key, time.time_ns(), self._symbolic_sizes()
            )
            if _is_first_generation():
                config.cache_info = info
            else:
                config = dataclasses.replace(config, cache_info=info)
        return compiled if _is_first_generation() else (compiled, config)


@contextlib.contextmanager
def _without_backend_id(gm: Any) -> Iterator[None]:
    """Remove the name that Dynamo gives a graph whose trace is stored, so that its key is that of other traces.

    ``sanitize_gm_for_cache`` clears the attribute ``_backend_id`` (2.11 to 2.15). But its place among the attributes,
    which the key keeps, depends on whether it was set before.
    """
    attributes = vars(gm)
    name = attributes.pop("_backend_id", None)
    try:
        yield
    finally:
        attributes.pop("_backend_id", None)
        if name is not None:
            attributes["_backend_id"] = name


@dataclass(frozen=True)
class Answer:
    """The answer to a lookup: the entry found, or None, and the key to save under, or None."""

    compiled: Callable[..., Any] | None
    key: str | None


@contextlib.contextmanager
def answering(gm: Any, lookup: Callable[[GraphLookup], Answer], save: Callable[[str, Any], None]) -> Iterator[None]:
    """Answer AOTAutograd's lookup for ``gm``, and save what it offers under the key of the answer.

    AOTAutograd looks up the static methods ``AOTAutogradCache.try_load`` and ``save`` at each call (2.11, 2.13, 2.15).
    An exception from ``lookup`` propagates to the compile.
    """
    keys: set[str] = set()

    def try_load(
        original: Callable[..., Any], mod: Any, args: list[Any], aot_config: Any, *rest: Any, **named: Any
    ) -> Any:
        question = looked_up(mod, args, aot_config, *rest, **named)
        if question.graph is not gm:
            return original(mod, args, aot_config, *rest, **named)
        with logged("regional.cache"):
            answer = lookup(question)
            if answer.key is not None:
                keys.add(answer.key)
            return question._answer(answer.compiled, answer.key)

    def our_save(original: Callable[..., None], key: str, entry: Any, remote: bool) -> None:
        if key in keys:
            with logged("regional.cache"):
                save(key, entry)
        else:
            original(key, entry, remote)

    # AOTAutograd has to look up every graph, and to offer whole results, backward included, before anything runs.
    saving = functorch_config().patch(
        enable_autograd_cache=True,
        bundled_autograd_cache=True,
        force_non_lazy_backward_lowering=True,
        autograd_cache_allow_custom_autograd_functions=True,
    )
    with compile_lock(), saving, patched_stages({"aot_lookup": try_load, "aot_save": our_save}):
        yield


def looked_up(mod: Any, args: list[Any], aot_config: Any, *rest: Any, **named: Any) -> GraphLookup:
    """Return what ``AOTAutogradCache.try_load`` is asked; the graph may be in a ``GmWrapper`` (2.11 to 2.15).

    What follows the AOT config in the arguments of the key function are, of those of ``try_load``: in 2.11
    ``(cudagraphs, device index, local, remote)`` the first two, in 2.13 ``(extra, local, remote, ...)`` the first, in
    2.15 the same with ``act_input_paths`` behind.
    """
    graph = mod.gm if isinstance(mod, symbol("torch._dynamo.utils", "GmWrapper")) else mod
    if _is_first_generation():
        return GraphLookup(graph, args, aot_config, tuple(rest[:2]))
    paths = named.get("act_input_paths", rest[3] if len(rest) > 3 else None)
    return GraphLookup(graph, args, aot_config, (rest[0],) if paths is None else (rest[0], paths))


def caches_are_on() -> bool:
    """Return whether the user lets PyTorch cache AOTAutograd's results (2.11 to 2.15).

    Off with ``torch.compiler.config.force_disable_caches`` or ``torch._functorch.config.enable_autograd_cache=False``.
    """
    return bool(symbol(_MODULE, "should_use_local_autograd_cache")())


def entries_are_wanted() -> bool:
    """Return whether graphs without a key get entries, as when Dynamo compiles ahead of time (2.11 to 2.15)."""
    return bool(functorch_config().bypass_autograd_cache_key)


def bypasses_are_errors() -> bool:
    """Return whether the user wants an error when something is not cached (2.11 to 2.15).

    Compiling ahead of time asks for that as well, but needs no key.
    """
    strict = functorch_config().strict_autograd_cache or dynamo_config().strict_precompile
    return bool(strict) and not entries_are_wanted()


def count_outcome(outcome: str, reason: str = "") -> None:
    """Count an outer lookup or save in PyTorch's own counters, so that existing tools see it.

    ``torch._dynamo.utils.counters["aot_autograd"]["autograd_cache_" + outcome]`` with ``hit``, ``miss``, ``bypass`` or
    ``saved`` (2.11 to 2.15). The reason is counted in ``counters["regional_cache_bypass"]``, or ``_miss``, like graph
    breaks.
    """
    counts = counters()
    counts["aot_autograd"][f"autograd_cache_{outcome}"] += 1
    if reason:
        counts[f"regional_cache_{outcome}"][reason] += 1


def all_ranks_agree(found: bool) -> bool:
    """Return whether a hit may be used: with several ranks only if all hit. Before 2.15 PyTorch asks no other rank."""
    if not _has("sync_cache_decision_cross_ranks"):
        return found
    return bool(symbol(_MODULE, "sync_cache_decision_cross_ranks")(found)) and found


def _is_first_generation() -> bool:
    """Return whether ``try_load`` returns only the callable and notes its key in the config (2.11)."""
    return not _has("create_fx_config")


def _has(name: str) -> bool:
    return hasattr(private_module(_MODULE), name)


#: Attributes that are settings; those of AOTAutograd are a pickle of this process.
_SETTINGS = {
    "autograd_config": FUNCTORCH,
    "inductor_config": INDUCTOR,
    "inductor_config_comms": "torch._inductor.config_comms",
}


def pytorchs_texts(compute: Callable[[], str]) -> dict[str, str]:
    """Return the texts of the key that ``compute`` makes PyTorch compute; most names are PyTorch's."""
    texts: dict[str, str] = {}

    def hashed(original: Callable[..., str], pickler: Any, details: Any) -> str:
        if isinstance(details, symbol(_MODULE, "AOTAutogradCacheDetails")):
            # Now: names of inputs are made equal for as long as the key is computed.
            texts.update(_texts(details, pickler))
        return original(pickler, details)

    point = PatchPoint(f"{_MODULE}:AOTAutogradCachePickler", "get_hash")
    with compile_lock(), wrapped({"hash": point}, {"hash": hashed}):
        compute()
    return texts


def pytorchs_key(backend: Callable[..., Any], gm: Any, example_inputs: Sequence[Any]) -> CacheKey:
    """Return the key with which AOTAutograd's own cache is looked up where ``backend`` compiles ``gm``.

    Nothing is compiled or looked up. ``gm`` may be changed.
    """
    found: list[CacheKey] = []

    def lookup(_: Callable[..., Any], *args: Any, **named: Any) -> Any:
        question = looked_up(*args, **named)
        try:
            found.append(CacheKey(question.pytorchs_key(), "", pytorchs_texts(question.pytorchs_key)))
        except UncacheableGraphError as error:
            found.append(CacheKey("", " ".join(str(error).split())))
        raise AnsweredError

    with patched_stages({"aot_lookup": lookup}), contextlib.suppress(AnsweredError):
        backend(gm, example_inputs)
    return found[0] if found else CacheKey("", "AOTAutograd looks up no cache for it")


def _texts(details: Any, pickler: Any) -> Iterator[tuple[str, str]]:
    for name, value in vars(details).items():
        if name in _SETTINGS:
            settings = pickle.loads(value) if isinstance(value, bytes) else value
            yield from ((f"{_SETTINGS[name]}.{setting}", _text(one)) for setting, one in settings.items())
        elif name == "gm":
            for path, module in value.named_modules():
                yield from ((f"{name}{path and f'.{path}'}, {what}", text) for what, text in _of_module(module))
        elif name == "example_inputs":
            for index, one in enumerate(value):
                yield from ((f"input {index}{what}", text) for what, text in _input(one))
        elif name == "aot_config":
            reduced = pickler.dispatch_table[type(value)](value)[1]
            yield from ((f"{name}[{index}]", _text(one)) for index, one in enumerate(reduced))
        elif isinstance(value, Mapping):
            yield from ((f"{name}[{key}]", _text(one)) for key, one in value.items())
        else:
            yield name, _text(value)


def _of_module(module: Any) -> Iterator[tuple[str, str]]:
    import torch

    if hasattr(module, "code"):
        yield "code", module.code.strip()
    for name, value in {**vars(module), **module._parameters, **module._buffers}.items():
        if isinstance(value, torch.Tensor):
            yield f"constant {name}", tensor_text(value)


def tensor_text(value: Any) -> str:
    """Return dtype, shape and a digest of the values of a tensor; without values, of a fake one, dtype and shape."""
    import torch

    text = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return text
    # Of the memory itself: each miss asks, and a constant may be a gigabyte.
    data = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if value.numel() else b""
    return f"{text}, SHA-256 of values {hashlib.sha256(data).hexdigest()[:12]}"


def _input(value: Any) -> Iterator[tuple[str, str]]:
    import torch

    if not isinstance(value, torch.Tensor):
        yield "", _text(value)
        return
    metadata = symbol("torch._inductor.codecache", "extract_tensor_metadata_for_cache_key")(value)
    for each in dataclasses.fields(metadata):
        yield f", {each.name}", _text(getattr(metadata, each.name))
    yield ", class", type(value).__name__
    for name in ("device_mesh", "placements"):  # of a DTensor
        if hasattr(value, name):
            yield f", {name}", str(getattr(value, name))


def _text(value: Any) -> str:
    """Return a text that is the same in every process: sorted sets, no addresses, sizes as lists."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:12]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(name)}: {_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_text, value)) + "]"
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", str(value))
    except Exception as error:  # noqa: BLE001 - of a user's class; what explains a miss must not fail the compile
        return f"<{type(value).__name__} whose __str__ raises {type(error).__name__}>"
