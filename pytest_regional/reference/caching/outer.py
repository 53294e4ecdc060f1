"""The outer cache: one lookup per Dynamo graph, and one save after a miss."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch.fx

from pytest_regional._base.cache_keys import CacheKey, KeyTexts, keep_texts, why_missed
from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.aot_autograd import serializable_compiler, with_serialization
from pytest_regional._torch.autograd_cache import (
    Answer,
    GraphLookup,
    KeyFailedError,
    UncacheableGraphError,
    all_ranks_agree,
    answering,
    bypasses_are_errors,
    count_outcome,
    entries_are_wanted,
    pytorchs_texts,
)
from pytest_regional._torch.caches import inductor_cache_dir
from pytest_regional._torch.dynamo import constant_floats, float_inputs, float_restart, restart_with_constant
from pytest_regional._torch.fx_graphs import is_graph_module
from pytest_regional._torch.inductor import appended_passes, custom_graph_pass_base
from pytest_regional._torch.tracing import without_dispatch_modes
from pytest_regional.reference.caching.code import UnstableValueError, user_code
from pytest_regional.reference.caching.container import UnsavableGraphError, dumped, warn_of_unusable_entry, warn_once
from pytest_regional.reference.caching.key import KeyDetails, annotations_of, details_of, digest, named_texts
from pytest_regional.reference.caching.program import CompiledGraph
from pytest_regional.reference.caching.store import Store, record
from pytest_regional.reference.options import BackendOptions
from pytest_regional.reference.pass_uuids import PreGradPlan

# An entry's bytes are intact and of this torch here, but may refer to something missing: a custom operator that this
# process did not register, a library that this system cannot load.
UNUSABLE = (ImportError, AttributeError, LookupError, OSError, RuntimeError, TypeError, pickle.UnpicklingError)

# The key of an entry that is made but not stored: a compile ahead of time takes it from the compiled function.
_KEY_OF_NONE = "none"


@dataclass(frozen=True)
class Restart:
    """An entry for a graph that AOTAutograd does not compile: these of its inputs, all floats, have to be constants."""

    inputs: tuple[int, ...]


class KeyFound(RegionalError):
    """The key of a graph, raised instead of compiling it."""

    def __init__(self, key: CacheKey) -> None:
        super().__init__(key.key)
        self.key = key


@dataclass
class OuterCache:
    """The cache for one compile.

    Attributes:
        store: the store of entries.
        options: the backend's options; part of the key.
        plan: the pre-grad passes; those that are not early run here, after a miss.
        key_only: raise :class:`KeyFound` instead of looking up.
        key: the key that was used, or None before the lookup or without one.
        texts: what the key is made of, after a miss.
        unsavable: why the result may not be stored, if so.
        floats: the symbols of its inputs that are floats, by position.
    """

    store: Store
    options: BackendOptions
    plan: PreGradPlan
    key_only: bool = False
    key: str | None = None
    texts: KeyTexts = field(default_factory=dict)
    unsavable: str = ""
    floats: dict[int, str] = field(default_factory=dict)

    def compile(
        self,
        backend: Callable[[dict[str, Any]], Callable[..., Any]],
        gm: torch.fx.GraphModule,
        inputs: Any,
        compiler: Callable[[torch.fx.GraphModule, Any], torch.fx.GraphModule],
    ) -> Callable[..., Any]:
        """Compile ``gm``, or load its cached result.

        Args:
            backend: makes an AOTAutograd backend from compilers given by keyword.
            gm: Dynamo's graph.
            inputs: its (fake) inputs.
            compiler: compiles the regions of one ATen graph.
        """

        def compile_graph(graph: torch.fx.GraphModule, graph_inputs: Any) -> CompiledGraph:
            compiled = compiler(graph, graph_inputs)
            if _runs_a_region_eager(compiled):
                self.unsavable = "a region did not compile and runs eager"
            return CompiledGraph(compiled)

        compilers = {
            # AOTAutograd's front end writes into the backward compiler, so it gets its own object.
            "fw_compiler": serializable_compiler(CompiledGraph, compile_graph),
            "bw_compiler": serializable_compiler(CompiledGraph, compile_graph),
        }
        self.floats = float_inputs(gm)
        try:
            with answering(gm, self._lookup, self._save):
                compiled: Callable[..., Any] = backend(compilers)(gm, inputs)
                return compiled
        except float_restart():
            self._save_restart()
            raise

    def _lookup(self, question: GraphLookup) -> Answer:
        details = self._find_details(question)
        if isinstance(details, KeyDetails):
            self.key = details.digest()
        if self.key_only:
            texts = _texts(question, details) if isinstance(details, KeyDetails) else {}
            raise KeyFound(CacheKey(self.key or "", "" if self.key else str(details), texts))
        if not isinstance(details, KeyDetails):
            _bypass(details)
        found = self._find(question, self.key) if self.key else None
        if not all_ranks_agree(found is not None):
            found = None
        if found is not None:
            count_outcome("hit")
            if isinstance(found, Restart):
                self.key = None  # nothing is to be saved
                restart_with_constant(self.floats[position] for position in found.inputs)
            return Answer(found, None)
        if isinstance(details, KeyDetails):
            self.texts = _texts(question, details)
            count_outcome("miss", why_missed(inductor_cache_dir(), self.texts))
        if not self.plan.early:
            self.plan.run(question.graph)
        return Answer(None, self.key or (_KEY_OF_NONE if entries_are_wanted() else None))

    def _find_details(self, question: GraphLookup) -> KeyDetails | UncacheableGraphError | UnstableValueError:
        """Return what the key is the digest of, or why there is none."""
        try:
            code = user_code(question.graph, question.inputs)
            return details_of(question, self.options, self.plan.uuids, code)
        except (UncacheableGraphError, UnstableValueError) as error:
            if isinstance(error, KeyFailedError):
                warn_once(f"A graph is not looked up in the outer cache: {error}")
            return error

    def _find(self, question: GraphLookup, key: str) -> Callable[..., Any] | Restart | None:
        restart: tuple[Restart, bytes] | None = None
        for payload in self.store.candidates(key):
            try:
                entry = pickle.loads(payload)
                if isinstance(entry, Restart):
                    # A tensor without dimensions has such a symbol too, and the same graph after the restart. Its
                    # result answers before the restart as well, and the order of the entries means nothing.
                    if not set(entry.inputs) <= set(constant_floats(self.floats)):
                        restart = entry, payload
                    continue
                if question.guards_hold(entry.guards_expr):
                    compiled = with_serialization(question.revive(entry), lambda: pickle.loads(payload))  # noqa: B023
                    record(key, payload)
                    return compiled
            except MissingTorchSymbolError:
                raise
            except UNUSABLE as error:
                if bypasses_are_errors():
                    raise
                warn_of_unusable_entry(error)
        if restart is None:
            return None
        record(key, restart[1])
        return restart[0]

    def _save_restart(self) -> None:
        constant = constant_floats(self.floats)
        payload = pickle.dumps(Restart(constant))
        if self.key and constant and self.store.save(self.key, payload):
            record(self.key, payload)
            self._count_saved(self.key)

    def _save(self, key: str, entry: Any) -> None:
        try:
            payload = self._as_bytes(entry)
        except UnsavableGraphError as error:
            _bypass(error)
            return
        if key == _KEY_OF_NONE:
            return
        record(key, payload)
        if self.store.save(key, payload):
            self._count_saved(key)

    def _count_saved(self, key: str) -> None:
        count_outcome("saved")
        keep_texts(inductor_cache_dir(), key, self.texts)

    def _as_bytes(self, entry: Any) -> bytes:
        """Serialize an entry of AOTAutograd's.

        Raises:
            UnsavableGraphError: naming the part that cannot be stored.
        """
        if self.unsavable:
            raise UnsavableGraphError(self.unsavable)
        parts = ((f"{part.name} of the entry", getattr(entry, part.name)) for part in fields(entry))
        try:
            with without_dispatch_modes():  # as in dump_program: a view that is returned may hold a tensor
                entry.pre_save()
                return dumped(entry, parts)
        except UnsavableGraphError as error:
            raise UnsavableGraphError(f"the result cannot be stored: {error}") from error


def _texts(question: GraphLookup, details: KeyDetails) -> KeyTexts:
    """Return what a key is made of: PyTorch's key, which is a part of it, is made of many texts itself."""
    texts = named_texts(details)
    del texts["program"]
    return pytorchs_texts(question.key) | texts


def _bypass(reason: Exception) -> None:
    """Count a bypass; in PyTorch's strict mode, raise."""
    count_outcome("bypass", str(reason))
    if bypasses_are_errors():
        raise reason


def _runs_a_region_eager(gm: torch.fx.GraphModule) -> bool:
    """Return whether a region, even in the body of an operator, stayed a module because it did not compile."""
    graphs = (module.graph for module in gm.modules() if is_graph_module(module))
    return any(graph.find_nodes(op="call_module") for graph in graphs)


@contextlib.contextmanager
def annotations_in_pytorchs_key(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Distinguish programs that differ only in annotations in AOTAutograd's cache, while the context lasts.

    Its key omits annotations (2.11 to 2.15), so a hit could be another program's result. Its key includes the uuids of
    Inductor's custom passes, so a pass without effect carries a digest of the annotations. An annotation without a
    meaning in another process has no digest; then the pass has no uuid, which keeps the result out of the cache. Remove
    this when PyTorch's key includes ``node.meta["custom"]``.
    """
    with appended_passes(post_grad_custom_post_pass=_carrier(_identity(gm))):
        yield


def _identity(gm: torch.fx.GraphModule) -> str | None:
    try:
        return digest(tuple(annotations_of(gm)))
    except UnstableValueError:
        return None


def _carrier(identity: str | None) -> Any:
    base: Any = custom_graph_pass_base()

    class Annotations(base):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            """Do nothing."""

        def uuid(self) -> str | None:
            return identity

    return Annotations()
