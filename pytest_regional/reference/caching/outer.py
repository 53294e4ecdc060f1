"""The outer cache: its key, with all that affects a result; one lookup per Dynamo graph, and one save after a miss."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.fx

from pytest_regional._base.cache_keys import CacheKey, KeyTexts, keep_texts, why_missed
from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.aot_autograd import serializable_compiler_class, with_serialization
from pytest_regional._torch.autograd_cache import (
    Answer,
    GraphLookup,
    UncacheableGraphError,
    all_ranks_agree,
    answering,
    bypasses_are_errors,
    count_outcome,
    entries_are_wanted,
    pytorchs_texts,
)
from pytest_regional._torch.caches import inductor_cache_dir
from pytest_regional._torch.config import global_state
from pytest_regional._torch.distributed import groups_named_in
from pytest_regional._torch.dynamo import constant_floats, float_inputs, float_restart, restart_with_constant
from pytest_regional._torch.fx_graphs import is_graph_module
from pytest_regional._torch.inductor import appended_passes, custom_graph_pass_base
from pytest_regional._torch.patching import AnsweredError
from pytest_regional._torch.tracing import base_of, inner_tensors, size_hint, storage_key, without_dispatch_modes
from pytest_regional.reference.caching.code import user_code
from pytest_regional.reference.caching.container import (
    TargetFingerprint,
    UnstorableError,
    dumped,
    this_machine,
    warn_of_unusable_entry,
    warn_once,
)
from pytest_regional.reference.caching.program import CompiledGraph
from pytest_regional.reference.caching.store import Store, record
from pytest_regional.reference.options import BackendOptions
from pytest_regional.reference.pass_protocol import PreGradPlan

_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def stable_text(value: Any) -> str:
    """Describe ``value`` by type and content, the same in every process.

    Containers are described by their items, dataclasses by their fields, objects with a ``uuid()`` method (Inductor's
    custom passes) by its result.

    Raises:
        UnstorableError: for anything else.
    """
    name = type(value).__qualname__
    if isinstance(value, enum.Enum):
        return f"{name}.{value.name}"
    if type(value) in _ATOMS:
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, _TORCH_VALUES):
        return repr(value)
    if isinstance(value, Mapping):
        items = sorted(f"{stable_text(key)}={stable_text(item)}" for key, item in value.items())
        return f"{{{','.join(items)}}}"
    if isinstance(value, Set):
        return f"{{{','.join(sorted(map(stable_text, value)))}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(stable_text, value))}]"
    if isinstance(value, slice):
        return f"slice{stable_text((value.start, value.stop, value.step))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{name}{stable_text(fields_of(value))}"
    uuid = getattr(value, "uuid", None)
    found = uuid() if callable(uuid) and not isinstance(value, type) else None
    if not found:
        raise UnstorableError(
            f"{value!r} of type {name} means nothing in another process: use numbers, strings, containers or "
            f"dataclasses of them, or give its class a uuid() method"
        )
    return f"{name}:uuid={stable_text(found)}"


def fields_of(value: Any) -> dict[str, Any]:
    """Return every field of a dataclass except for those with metadata ``in_key=False``."""
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.metadata.get("in_key", True)
    }


def named_texts(details: Any) -> dict[str, str]:
    """Return the fields of a dataclass, and of what is in it, as texts by name."""
    return dict(_named(details, ""))


def _named(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = fields_of(value)
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _named(one, f"{name}.{key}" if name else str(key))
    elif isinstance(value, tuple) and all(isinstance(one, str) for one in value):
        yield name, "\n".join(value)
    else:
        yield name, stable_text(value) if not isinstance(value, str) else value


def digest(value: Any) -> str:
    """Return the SHA-256 of the stable text of ``value``, in hexadecimal."""
    return hashlib.sha256(stable_text(value).encode()).hexdigest()


#: Increased whenever the format of entries or keys changes.
FORMAT = 1


@dataclass(frozen=True)
class KeyDetails:
    """The parts of the key; all fields are included.

    Attributes:
        format: of the entries.
        program: PyTorch's own key: ops and constants of the graph, metadata of inputs, settings of Inductor and
            AOTAutograd, versions, sources of user-defined kernels.
        annotations: those of every node, including configs of regions, which PyTorch's key omits.
        options: of the backend.
        code: what the user's code that tracing runs does (:mod:`pytest_regional.reference.caching.code`).
        memory: which inputs share memory, and where in it each of them is.
        passes: uuids of the pre-grad passes that run after a miss; none if they ran before the lookup.
        groups: names and sizes of the process groups that collectives of the graph name. PyTorch's key has the name,
            and the size only where it is an argument; Inductor estimates the time of a collective by the size. The
            rank is in the graph where the program reads it, and decides over no other code.
        state: the global state that Dynamo guards: threads, precision, determinism, autocast.
        machine: versions of the code generators, and the target CPU or GPU.
    """

    format: int
    program: str
    annotations: tuple[str, ...]
    code: tuple[str, ...]
    memory: tuple[str, ...]
    options: BackendOptions
    passes: tuple[Hashable, ...]
    groups: tuple[str, ...]
    state: str
    machine: TargetFingerprint


def details_of(
    lookup: GraphLookup, options: BackendOptions, passes: tuple[Hashable, ...], code: Iterable[str]
) -> KeyDetails:
    """Collect everything that affects the result of compiling the looked-up graph.

    Raises:
        UncacheableGraphError: PyTorch does not cache such a graph.
        UnstorableError: an annotation holds a value without a meaning in another process.
    """
    return KeyDetails(
        FORMAT,
        lookup.key(),
        tuple(annotations_of(lookup.graph)),
        tuple(code),
        tuple(shared_memory(lookup.inputs)),
        options,
        passes,
        tuple(f"{name}: {size}" for name, size in sorted(groups_named_in(lookup.graph).items())),
        str(global_state()),
        this_machine(),
    )


def shared_memory(inputs: Sequence[Any]) -> Iterator[str]:
    """Yield a line for every input that shares its storage with another input; none of them share for most programs.

    AOTAutograd compiles a program that writes to one of such inputs for the places they have in the storage, and for
    the tensors that autograd says they are views of. PyTorch's key includes neither (2.11 to 2.15). Numbers stand for
    symbolic sizes, because AOTAutograd adds no guard on them where it compares places.
    """
    tensors = [(str(i), value) for i, each in enumerate(inputs) for value in (each, *inner_tensors(each))]
    sharing: dict[int, list[int]] = {}
    for position, (_, value) in enumerate(tensors):
        storage = storage_key(value)
        if storage is not None:
            sharing.setdefault(storage, []).append(position)
    bases: list[Any] = [value for _, value in tensors]
    for number, group in enumerate(group for group in sharing.values() if len(group) > 1):
        for position in group:
            name, value = tensors[position]
            yield f"input {name}: in storage {number}, {_place(value)}, {_view(value, bases)}"


def _place(value: torch.Tensor) -> str:
    sizes, strides = [*map(size_hint, value.shape)], [*map(size_hint, value.stride())]
    return f"sizes {sizes}, strides {strides}, offset {size_hint(value.storage_offset())}"


def _view(value: torch.Tensor, bases: list[Any]) -> str:
    """Say what ``value`` is a view of, by its number in ``bases``, to which others are added."""
    base = base_of(value)
    if base is None:
        return "no view"
    known = [number for number, one in enumerate(bases) if one is base]
    if not known:
        known = [len(bases)]
        bases.append(base)
    gradient = "requires grad" if base.requires_grad else "no grad"
    return f"a view of tensor {known[0]}, {base.dtype}, {_place(base)}, {gradient}"


def annotations_of(gm: torch.fx.GraphModule) -> Iterator[str]:
    """Yield a line for every annotated node of ``gm`` and of the bodies of its higher-order ops.

    Raises:
        UnstorableError: naming the node.
    """
    texts: dict[int, str] = {}  # nodes of one ``with annotate(...)`` share a dictionary
    for path, module in gm.named_modules():
        if not is_graph_module(module):
            continue
        for index, node in enumerate(module.graph.nodes):
            custom = node.meta.get("custom")
            if custom:
                if id(custom) not in texts:
                    texts[id(custom)] = _text(node, custom)
                yield f"{path}:{index}:{texts[id(custom)]}"


def _text(node: torch.fx.Node, custom: Any) -> str:
    try:
        return stable_text(custom)
    except UnstorableError as error:
        raise UnstorableError(f"annotation of node {node.name}: {error}") from None


# An entry's bytes are intact and of this torch here, but may refer to something missing: a custom operator that this
# process did not register, a library that this system cannot load.
UNUSABLE = (ImportError, AttributeError, LookupError, OSError, RuntimeError, TypeError, pickle.UnpicklingError)

# The key of an entry that is made but not stored: a compile ahead of time takes it from the compiled function.
_KEY_OF_NONE = "none"


@dataclass(frozen=True)
class Restart:
    """An entry for a graph that AOTAutograd does not compile: these of its inputs, all floats, have to be constants."""

    inputs: tuple[int, ...]


@dataclass
class OuterCache:
    """The cache for one compile.

    Attributes:
        store: the store of entries.
        options: the backend's options; part of the key.
        plan: the pre-grad passes; those that are not early run here, after a miss.
        found: gets the key, if given; then nothing is looked up or compiled, and an AnsweredError ends it.
        key: the key that was used, or None before the lookup or without one.
        texts: what the key is made of, after a miss.
        unsavable: why the result may not be stored, if so.
        floats: the symbols of its inputs that are floats, by position.
    """

    store: Store
    options: BackendOptions
    plan: PreGradPlan
    found: list[CacheKey] | None = None
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
            graphs = [module.graph for module in compiled.modules() if is_graph_module(module)]
            if any(one.find_nodes(op="call_module") for one in graphs):
                self.unsavable = "a region did not compile and runs eager"
            return CompiledGraph(compiled)

        compilers = {
            # AOTAutograd's front end writes into the backward compiler, so it gets its own object.
            "fw_compiler": serializable_compiler_class()(CompiledGraph, compile_graph),
            "bw_compiler": serializable_compiler_class()(CompiledGraph, compile_graph),
        }
        self.floats = float_inputs(gm)
        try:
            with answering(gm, self._lookup, self._save):
                compiled: Callable[..., Any] = backend(compilers)(gm, inputs)
                return compiled
        except float_restart():
            constant = constant_floats(self.floats)
            payload = pickle.dumps(Restart(constant))
            if self.key and constant and self.store.save(self.key, payload):
                record(self.key, payload)
                self._count_saved(self.key)
            raise

    def _lookup(self, question: GraphLookup) -> Answer:
        details: KeyDetails | UncacheableGraphError | UnstorableError
        try:
            code = user_code(question.graph, question.inputs)
            details = details_of(question, self.options, self.plan.uuids, code)
            self.key = digest(details)
        except (UncacheableGraphError, UnstorableError) as error:
            if isinstance(error, UncacheableGraphError) and error.failed:
                warn_once(f"A graph is not looked up in the outer cache: {error}")
            details = error
        if self.found is not None:
            texts = _texts(question, details) if isinstance(details, KeyDetails) else {}
            self.found.append(CacheKey(self.key or "", "" if self.key else str(details), texts))
            raise AnsweredError("the key is known")
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

    def _save(self, key: str, entry: Any) -> None:
        try:
            payload = self._as_bytes(entry)
        except UnstorableError as error:
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
            UnstorableError: naming the part that cannot be stored.
        """
        if self.unsavable:
            raise UnstorableError(self.unsavable)
        parts = ((f"{part.name} of the entry", getattr(entry, part.name)) for part in fields(entry))
        try:
            with without_dispatch_modes():  # as in dump_program: a view that is returned may hold a tensor
                entry.pre_save()
                return dumped(entry, parts)
        except UnstorableError as error:
            raise UnstorableError(f"the result cannot be stored: {error}") from error


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


@contextlib.contextmanager
def annotations_in_pytorchs_key(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Distinguish programs that differ only in annotations in AOTAutograd's cache, while the context lasts.

    Its key omits annotations (2.11 to 2.15), so a hit could be another program's result. Its key includes the uuids of
    Inductor's custom passes, so a pass without effect carries a digest of the annotations. An annotation without a
    meaning in another process has no digest; then the pass has no uuid, which keeps the result out of the cache. Remove
    this when PyTorch's key includes ``node.meta["custom"]``.
    """
    try:
        identity: str | None = digest(tuple(annotations_of(gm)))
    except UnstorableError:
        identity = None

    class Annotations(custom_graph_pass_base()):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            """Do nothing."""

        def uuid(self) -> str | None:
            return identity

    with appended_passes(post_grad_custom_post_pass=Annotations()):
        yield
