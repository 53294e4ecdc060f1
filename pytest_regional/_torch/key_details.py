"""What AOTAutograd's cache key is made of, in words: ``AOTAutogradCacheDetails`` (2.11 to 2.15)."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._cache_keys import CacheKey
from pytest_regional._errors import RegionalError
from pytest_regional._torch import symbol
from pytest_regional._torch.autograd_cache import GraphLookup, UncacheableGraphError, graph_looked_up, key_arguments
from pytest_regional._torch.config import FUNCTORCH, INDUCTOR
from pytest_regional._torch.patching import COMPILE_STAGES, PatchPoint, patched_stages, wrapped
from pytest_regional._torch.tracing import compile_lock

_MODULE = "torch._functorch._aot_autograd.autograd_cache"
_POINTS = {
    "hash": PatchPoint(f"{_MODULE}:AOTAutogradCachePickler", "get_hash"),
    "key": COMPILE_STAGES["aot_key"],
}

_Ingredient = tuple[str, str, str]
"""Group, name and value."""

#: Facts of the process, by attribute.
_STATE = {
    "grad_enabled": "whether gradients are recorded",
    "deterministic_algorithms": "deterministic algorithms",
    "deterministic_algorithms_settings": "deterministic algorithms, with warn_only and fill_uninitialized_memory",
    "default_dtype": "the default dtype",
    "cuda_matmul_settings": "the precision of products on CUDA",
    "cpp_runtime_thread_count": "the number of threads",
    "default_cuda_device_index": "the current device",
}

#: Dictionaries of settings, by attribute.
_SETTINGS = {"inductor_config": INDUCTOR, "inductor_config_comms": "torch._inductor.config_comms"}

_MACHINE = {"torch_version": "the sources of torch", "system_info": "the GPU"}

#: Fields that ``_reduce_aot_config`` makes of the configuration, in its order.
_AOT = (
    "num_params_buffers",
    "keep_inference_input_mutations",
    "is_export",
    "no_tangents",
    "dynamic_shapes",
    "aot_autograd_arg_pos_to_source",
    "static_input_indices",
    "enable_log",
    "pre_dispatch",
    "precompile_backend_id",
)


@dataclass
class RecordedDetails:
    """The last key that was computed, and what it was made of, by group and name."""

    key: str = ""
    ingredients: dict[str, dict[str, str]] = field(default_factory=dict)


@contextlib.contextmanager
def recorded_details() -> Iterator[RecordedDetails]:
    """Record what AOTAutograd's keys computed inside are made of; the last one stays."""
    recorded = RecordedDetails()

    def hashed(original: Callable[..., str], pickler: Any, details: Any) -> str:
        found = original(pickler, details)
        if isinstance(details, symbol(_MODULE, "AOTAutogradCacheDetails")):
            # Now: names of inputs are made equal for as long as the key is computed.
            recorded.ingredients = _grouped(_ingredients(details, pickler))
        return found

    def computed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        recorded.key = str(found[0])
        return found

    with compile_lock(), wrapped(_POINTS, {"hash": hashed, "key": computed}):
        yield recorded


class _AskedError(RegionalError):
    """AOTAutograd has looked the graph up; raised instead of compiling it."""


def pytorchs_key(backend: Callable[..., Any], gm: Any, example_inputs: Sequence[Any]) -> CacheKey:
    """Return the key with which AOTAutograd's own cache is looked up where ``backend`` compiles ``gm``.

    Nothing is compiled or looked up. ``gm`` may be changed.
    """
    found: list[CacheKey] = []

    def lookup(_: Callable[..., Any], mod: Any, args: list[Any], config: Any, *rest: Any, **named: Any) -> Any:
        try:
            key = GraphLookup(graph_looked_up(mod), args, config, key_arguments(rest, named)).pytorchs_key()
            found.append(CacheKey(key, "", recorded.ingredients))
        except UncacheableGraphError as error:
            found.append(CacheKey("", " ".join(str(error).split())))
        raise _AskedError

    with recorded_details() as recorded, patched_stages({"aot_lookup": lookup}), contextlib.suppress(_AskedError):
        backend(gm, example_inputs)
    return found[0] if found else CacheKey("", "AOTAutograd looks up no cache for it")


def _grouped(ingredients: Iterator[_Ingredient]) -> dict[str, dict[str, str]]:
    groups: dict[str, dict[str, str]] = {}
    for group, name, value in ingredients:
        groups.setdefault(group, {}).setdefault(name, value)
    return groups


def _ingredients(details: Any, pickler: Any) -> Iterator[_Ingredient]:
    for attribute, value in vars(details).items():
        if attribute == "gm":
            yield from _graph(value, pickler)
        elif attribute == "example_inputs":
            for index, one in enumerate(value):
                yield from _input(index, one)
                yield "inputs", f"input {index}, everything else", str(pickler.get_hash(one))
        elif attribute == "aot_config":
            yield from _configuration(value)
        elif attribute == "autograd_config":
            for name, one in _settings_of(value).items():
                yield "settings", f"{FUNCTORCH}.{name}", _text(one)
        elif attribute in _SETTINGS:
            for name, one in value.items():
                yield "settings", f"{_SETTINGS[attribute]}.{name}", _text(one)
        elif attribute == "autocast_state":
            for device, dtype in value.items():
                yield "state", f"autocast of {device}", str(dtype)
        elif attribute in _STATE:
            yield "state", _STATE[attribute], _text(value)
        elif attribute in _MACHINE:
            yield "machine", _MACHINE[attribute], _text(value)
        elif "pass" in attribute:
            yield "passes", f"the uuids of {attribute}", _text(value)
        else:
            yield "others", attribute, _text(value)


def _settings_of(saved: Any) -> Mapping[str, Any]:
    """Return the settings of ``save_config()``, a pickle that this process has just made."""
    values: Mapping[str, Any] = pickle.loads(saved) if isinstance(saved, bytes) else saved
    return values


def _graph(gm: Any, pickler: Any) -> Iterator[_Ingredient]:
    for path, module in gm.named_modules():
        if hasattr(module, "code"):
            yield "graph", f"the code of the body {path}" if path else "the code of the graph", module.code.strip()
        for name, value in _tensors(module):
            yield "graph", f"the constant {f'{path}.' if path else ''}{name}", tensor_text(value)
    yield "graph", "everything else of the graph", str(pickler.get_hash(gm))


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    import torch

    own = {**vars(module), **module._parameters, **module._buffers}
    return ((name, value) for name, value in own.items() if isinstance(value, torch.Tensor))


def tensor_text(value: Any) -> str:
    """Return dtype, shape and a digest of the values of a tensor; without values, of a fake one, dtype and shape."""
    import torch

    text = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return text
    data = value.detach().cpu().contiguous().flatten().view(torch.uint8) if value.numel() else value
    return f"{text}, SHA-256 of values {hashlib.sha256(bytes(data.tolist())).hexdigest()[:12]}"


def _input(index: int, value: Any) -> Iterator[_Ingredient]:
    import torch

    if not isinstance(value, torch.Tensor):
        yield "inputs", f"input {index}", _text(value)
        return
    metadata = symbol("torch._inductor.codecache", "extract_tensor_metadata_for_cache_key")(value)
    for each in dataclasses.fields(metadata):
        yield "inputs", f"input {index}, {each.name}", _text(getattr(metadata, each.name))
    yield "inputs", f"input {index}, class", type(value).__name__
    for name in ("device_mesh", "placements"):  # of a DTensor
        if hasattr(value, name):
            yield "inputs", f"input {index}, {name}", str(getattr(value, name))


def _configuration(config: Any) -> Iterator[_Ingredient]:
    for name in _AOT:
        value = getattr(config, name, None)
        if name == "aot_autograd_arg_pos_to_source":
            for index, source in enumerate(value or ()):
                yield "inputs", f"input {index}, where it comes from", _source(source)
        else:
            yield "others", f"AOTAutograd's {name}", _text(value)


def _source(source: Any) -> str:
    """Return a Dynamo source as Python: ``name`` is a property since 2.12, a method before."""
    name = getattr(source, "name", None)
    return str(name() if callable(name) else name)


def _text(value: Any) -> str:
    """Return a text without addresses: what has no text of its value is named by its class."""
    import torch

    if isinstance(value, bytes):
        return value.hex()[:12] if len(value) <= 64 else hashlib.sha256(value).hexdigest()[:12]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(name)}: {_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_text, value)) + "]"
    plain = (str, int, float, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
    text = str(value)
    return text if isinstance(value, plain) or " at 0x" not in text else type(value).__qualname__
