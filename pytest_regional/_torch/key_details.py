"""What AOTAutograd's cache key is made of: ``AOTAutogradCacheDetails`` (2.11 to 2.15)."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_regional._base.cache_keys import CacheKey
from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import symbol
from pytest_regional._torch.autograd_cache import UncacheableGraphError, looked_up
from pytest_regional._torch.config import FUNCTORCH, INDUCTOR
from pytest_regional._torch.patching import PatchPoint, patched_stages, wrapped
from pytest_regional._torch.tracing import compile_lock

_MODULE = "torch._functorch._aot_autograd.autograd_cache"
_HASH = {"hash": PatchPoint(f"{_MODULE}:AOTAutogradCachePickler", "get_hash")}

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

    with compile_lock(), wrapped(_HASH, {"hash": hashed}):
        compute()
    return texts


class _AskedError(RegionalError):
    """AOTAutograd has looked the graph up; raised instead of compiling it."""


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
        raise _AskedError

    with patched_stages({"aot_lookup": lookup}), contextlib.suppress(_AskedError):
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
            yield from ((f"{name}[{index}]", _text(one)) for index, one in enumerate(_reduced(value, pickler)))
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


def _reduced(config: Any, pickler: Any) -> Sequence[Any]:
    """Return what the key has of AOTAutograd's configuration."""
    reduced: Sequence[Any] = pickler.dispatch_table[type(config)](config)[1]
    return reduced


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
