"""The key of a cache of compiled graphs, and everything that it is made of, as plain data.

A backend says it of one Dynamo graph (``BackendSpec.cache_key``); ``pytest-regional explain-key`` compares two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Parts = Mapping[str, Mapping[str, str]]
"""Ingredients by group and name; values are texts that are the same in every process.

Groups are :data:`GROUPS`; a name is a noun phrase such as ``input 0, shape``.
"""

#: What an ingredient of a key is about, in the order in which it is shown.
GROUPS = (
    "graph",
    "annotations",
    "inputs",
    "passes",
    "settings",
    "state",
    "options",
    "processes",
    "machine",
    "others",
)


@dataclass(frozen=True)
class RegionKey:
    """What decides whether the code of a region is another one's.

    Attributes:
        name: of its call, after the kind of its graph: ``forward.compiled_region_mlp_0``.
        region: label of the region.
        key: digest; equal ones share their code.
        ingredients: by name; a name is a noun phrase such as ``op 3``.
        symbolic: whether sizes are symbols; then code is shared within one compile only.
    """

    name: str
    region: str
    key: str
    ingredients: Mapping[str, str] = field(default_factory=dict)
    symbolic: bool = False


@dataclass(frozen=True)
class CacheKey:
    """The key of one Dynamo graph.

    Attributes:
        key: under which its result is stored; empty without one.
        refusal: why there is none.
        ingredients: what the key is made of.
        regions: keys of the regions of its forward and backward graph, in order, where the backend shares their code.
    """

    key: str
    refusal: str = ""
    ingredients: Parts = field(default_factory=dict)
    regions: tuple[RegionKey, ...] = ()


__all__ = ["GROUPS", "CacheKey", "Parts", "RegionKey"]
