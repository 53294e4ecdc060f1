"""Region keys: annotations, checked and made comparable.

PyTorch uses the first configuration of a region and silently accepts misspelt keys. Here two configurations are two
keys, and invalid annotations are errors with the region and the user's line.
"""

from __future__ import annotations

import difflib
import enum
import operator
import os
import re
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import torch
import torch.fx

from pytest_regional._base.region import AnnotationError, AnnotationWarning, misspelt_text
from pytest_regional._torch.config import INDUCTOR, config_names, inductor_config_type
from pytest_regional._torch.fx_graphs import (
    REGION_AFTER,
    REGION_CONFIGS,
    REGION_ID,
    is_graph_module,
    misspelt_marks,
    region_mark,
)
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in .*\n?[ \t]*(.*)')
_TORCH = os.path.dirname(torch.__file__) + os.sep
_SHOWN_OPS = 8


def op_names(nodes: Iterable[torch.fx.Node]) -> tuple[str, ...]:
    """Return the names of the ops among ``nodes``, in order; picking a tuple element is not an op."""
    names = []
    for node in nodes:
        if node.op not in ("placeholder", "get_attr", "output") and node.target is not operator.getitem:
            text = str(node.target)
            names.append(str(getattr(node.target, "__name__", text)) if text.startswith("<") else text)
    return tuple(names)


def called_name(node: torch.fx.Node) -> str:
    """Return the operator's name in reports."""
    target: Any = node.target
    if node.op == "call_method":
        return f".{target}"
    if node.op == "call_module":
        owner = node.graph.owning_module
        called = owner.get_submodule(target) if owner is not None else None
        return str(target) if called is None or is_graph_module(called) else type(called).__name__
    if is_op_overload(target):
        return str(target)
    if is_higher_order_op(target):
        return str(target.name())
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", str(target))
    return name if module is None else f"{module.lstrip('_')}.{name}"


def shortened(names: Sequence[str]) -> str:
    """Join distinct ``names``, up to a maximum, with the number of the others."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _SHOWN_OPS
    return ", ".join(distinct[:_SHOWN_OPS]) + (f" and {more} more" if more > 0 else "")


def source_line(nodes: Iterable[torch.fx.Node]) -> str | None:
    """Return ``file:line: code`` of the first node that has one; PyTorch's own lines are a last resort."""
    frames = next((found for node in nodes if (found := _FRAME.findall(node.stack_trace or ""))), None)
    if frames is None:
        return None
    path, line, code = next((frame for frame in reversed(frames) if not frame[0].startswith(_TORCH)), frames[-1])
    return f"{path}:{line}: {code}"


DEFAULT_REGION = "default"


class RegionAnnotationError(AnnotationError):
    """An annotation's region is invalid."""


class RegionConfigError(RegionAnnotationError):
    """An annotation's Inductor configuration does not exist or has the wrong type."""


@dataclass(frozen=True)
class RegionKey:
    """Identity of a region: nodes share a compiled partition only if their keys are equal.

    ``True``, ``1`` and ``1.0`` differ here although they are equal in Python: the frozen parts carry types.
    """

    region: Hashable
    configs: Hashable = ()
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    label: str = field(default=DEFAULT_REGION, compare=False)

    @property
    def identifier(self) -> str:
        """The label in graph and attribute names."""
        return re.sub(r"\W", "_", self.label) or "_"


DEFAULT_KEY = RegionKey(region=None)


def region_key(node: torch.fx.Node) -> RegionKey | None:
    """Return the key of ``node``'s annotation, or None if it is not annotated for compilation.

    Raises:
        RegionAnnotationError: naming region and source line, if the annotation is invalid.
    """
    marked, value = region_mark(node)
    if not marked:
        return None
    if isinstance(value, Mapping):
        return _key_from_mapping(value, node)
    if value is None or isinstance(value, (str, bool, int, float)):
        return DEFAULT_KEY
    raise RegionAnnotationError(
        f"compile_with_inductor={value!r} is not understood{_where(node)}: give a dictionary with "
        f"{REGION_ID!r} and {REGION_CONFIGS!r}, or a plain value for the default region."
    )


def read_region_keys(graph: torch.fx.Graph) -> dict[torch.fx.Node, RegionKey]:
    """Return the keys of all annotated nodes; equal annotation objects are read once.

    Warns:
        AnnotationWarning: an annotation's key resembles that of a region, with the user's line.
    """
    known: dict[int, RegionKey | None] = {}
    keys: dict[torch.fx.Node, RegionKey] = {}
    misspelt: dict[str, torch.fx.Node] = {}
    for node in graph.nodes:
        marked, value = region_mark(node)
        if not marked:
            misspelt.update((key, node) for key in misspelt_marks(node) if key not in misspelt)
            continue
        if id(value) not in known:
            known[id(value)] = region_key(node)
        key = known[id(value)]
        if key is not None:
            keys[node] = key
    for name, node in misspelt.items():
        warnings.warn(AnnotationWarning(f"{misspelt_text(name)}{_where(node)}"), stacklevel=2)
    return keys


def _key_from_mapping(value: Mapping[Any, Any], node: torch.fx.Node) -> RegionKey:
    known = [REGION_ID, REGION_CONFIGS, REGION_AFTER]
    unknown = [name for name in value if name not in known]
    if unknown:
        of_region = f" of region {value[REGION_ID]!r}" if REGION_ID in value else ""
        raise RegionAnnotationError(
            f"compile_with_inductor{of_region} has an unknown entry {unknown[0]!r}{_nearest(str(unknown[0]), known)}"
            f"{_where(node)}: it understands {REGION_ID!r}, {REGION_CONFIGS!r} and {REGION_AFTER!r}."
        )
    region, label = None, DEFAULT_REGION
    if REGION_ID in value:
        name = value[REGION_ID]
        if not _is_region_id(name):
            raise RegionAnnotationError(
                f"{REGION_ID}={name!r} of type {type(name).__name__} is not a region id{_where(node)}: "
                f"use a string, an integer, an enumeration member, or a tuple of these."
            )
        region, label = freeze(name), str(name)
    after = value.get(REGION_AFTER)
    if after is not None:
        if not isinstance(after, (list, tuple)) or not all(map(_is_region_id, after)):
            raise RegionAnnotationError(
                f"{REGION_AFTER}={after!r} of region {label!r} is not a list of region ids{_where(node)}: "
                f"name the regions that must run first, as in ['mlp']."
            )
        if REGION_ID in value and value[REGION_ID] in after:
            raise RegionAnnotationError(f"region {label!r} is to run after itself{_where(node)}.")
    settings = value.get(REGION_CONFIGS)
    settings = {} if settings is None else checked_settings(settings, label, node)
    configs = tuple(sorted((name, freeze(setting)) for name, setting in settings.items()))
    return RegionKey(region, configs, settings, label)


def regions_before(node: torch.fx.Node) -> tuple[Hashable, ...]:
    """Return the ids of the regions that ``node``'s region runs after."""
    _, value = region_mark(node)
    return tuple(value.get(REGION_AFTER) or ()) if isinstance(value, Mapping) else ()


def _is_region_id(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_region_id, value))
    return isinstance(value, (str, int, enum.Enum)) and not isinstance(value, bool)


def checked_settings(settings: Any, label: str, node: torch.fx.Node | None = None) -> dict[str, Any]:
    """Return Inductor settings of region ``label``, annotated on ``node``, as a dictionary.

    Raises:
        RegionConfigError: an unknown Inductor setting, or an invalid value.
    """
    if not isinstance(settings, Mapping):
        raise RegionConfigError(
            f"{REGION_CONFIGS}={settings!r} of region {label!r} is not a dictionary{_where(node)}: "
            f"map names of torch._inductor.config to values."
        )
    names = config_names(INDUCTOR)
    for name, value in settings.items():
        if name not in names:
            raise RegionConfigError(
                f"Invalid inductor config key '{name}' in region {label!r}{_nearest(str(name), sorted(names))}"
                f"{_where(node)}. Names are those of torch._inductor.config."
            )
        expected = inductor_config_type(name)
        if not _is_of_type(value, expected):
            shown = getattr(expected, "__name__", str(expected)) if isinstance(expected, type) else str(expected)
            raise RegionConfigError(
                f"inductor config {name!r} of region {label!r} is {value!r} of type {type(value).__name__}, "
                f"where {shown} is expected{_where(node)}."
            )
    return dict(settings)


def _is_of_type(value: Any, expected: Any) -> bool:
    """Check plain, optional, literal and callable types; others (names in quotes) pass."""
    if expected is NoneType:  # the default is None and no type is declared
        return True
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return any(value is None if part is NoneType else _is_of_type(value, part) for part in get_args(expected))
    if origin is Literal:
        return value in get_args(expected)
    if expected in (int, float):
        return isinstance(value, (int, expected)) and not isinstance(value, bool)
    plain = origin or expected
    if isinstance(plain, type) and "__call__" in vars(plain):  # functions and PyTorch's classes for passes
        return callable(value)
    return plain not in (bool, str, list, dict, tuple, set) or isinstance(value, plain)


_PLAIN = frozenset({bool, int, float, str, NoneType})


def freeze(value: Any) -> Hashable:
    """Return a hashable stand-in that is equal exactly when type and value are; opaque objects are their own."""
    kind = type(value).__qualname__
    if type(value) in _PLAIN:  # most settings are; the checks below take several times as long
        return kind, value
    if isinstance(value, Mapping):
        items = ((repr(name), freeze(item)) for name, item in value.items())
        return kind, tuple(sorted(items, key=lambda pair: pair[0]))
    if isinstance(value, (list, tuple)):
        return kind, tuple(map(freeze, value))
    if isinstance(value, (set, frozenset)):
        return kind, frozenset(map(freeze, value))
    if isinstance(value, Hashable):
        return kind, value
    return kind, id(value)


def _nearest(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f" (nearest: {', '.join(close)})" if close else ""


def _where(node: torch.fx.Node | None) -> str:
    """Return the node, if any, and the user's source line, if traced, as text."""
    if node is None:
        return ""
    line = source_line([node])
    return f" (node {node.name})" if line is None else f" ({node.name}, from {line})"
