"""The key of the outer cache: everything that affects the result of compiling a Dynamo graph."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from pytest_regional._torch.autograd_cache import GraphLookup
from pytest_regional._torch.config import global_state
from pytest_regional._torch.distributed import groups_named_in
from pytest_regional._torch.fx_graphs import is_graph_module
from pytest_regional._torch.tracing import base_of, inner_tensors, size_hint, storage_key
from pytest_regional.reference.caching.code import UnstableValueError
from pytest_regional.reference.caching.container import TargetFingerprint, this_machine
from pytest_regional.reference.options import BackendOptions

_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def stable_text(value: Any) -> str:
    """Describe ``value`` by type and content, the same in every process.

    Containers are described by their items, dataclasses by their fields, objects with a ``uuid()`` method (Inductor's
    custom passes) by its result.

    Raises:
        UnstableValueError: for anything else.
    """
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if type(value) in _ATOMS:
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, _TORCH_VALUES):
        return repr(value)
    if isinstance(value, Mapping):
        return _joined("{}", sorted(f"{stable_text(key)}={stable_text(item)}" for key, item in value.items()))
    if isinstance(value, Set):
        return _joined("{}", sorted(map(stable_text, value)))
    if isinstance(value, (list, tuple)):
        return _joined("[]", map(stable_text, value))
    if isinstance(value, slice):
        return f"slice{stable_text((value.start, value.stop, value.step))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__qualname__}{stable_text(fields_of(value))}"
    return _by_uuid(value)


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


def _by_uuid(value: Any) -> str:
    uuid = getattr(value, "uuid", None)
    found = uuid() if callable(uuid) and not isinstance(value, type) else None
    if not found:
        raise UnstableValueError(
            f"{value!r} of type {type(value).__qualname__} means nothing in another process: use numbers, strings, "
            f"containers or dataclasses of them, or give its class a uuid() method"
        )
    return f"{type(value).__qualname__}:uuid={stable_text(found)}"


def _joined(brackets: str, parts: Any) -> str:
    return f"{brackets[0]}{','.join(parts)}{brackets[1]}"


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

    def digest(self) -> str:
        """Return the key, in hexadecimal."""
        return digest(self)


def details_of(
    lookup: GraphLookup, options: BackendOptions, passes: tuple[Hashable, ...], code: Iterable[str]
) -> KeyDetails:
    """Collect everything that affects the result of compiling the looked-up graph.

    Raises:
        UncacheableGraphError: PyTorch does not cache such a graph.
        UnstableValueError: an annotation holds a value without a meaning in another process.
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
        UnstableValueError: naming the node.
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
    except UnstableValueError as error:
        raise UnstableValueError(f"annotation of node {node.name}: {error}") from None
