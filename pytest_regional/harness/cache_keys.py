"""The keys with which a backend's cache is looked up for a program, and in which ingredients two of them differ."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from pytest_regional._cache_keys import GROUPS, CacheKey, Parts, RegionKey
from pytest_regional._errors import RegionalError
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.ingredients import grouped_ingredients


class NoCacheKeyError(RegionalError):
    """The backend does not say with which key its cache is looked up."""


class NoGraphError(RegionalError):
    """Dynamo hands no graph of the program to a backend."""


@dataclass(frozen=True)
class GraphKey:
    """The key of one graph that Dynamo captured.

    Attributes:
        key: as the backend says it.
        ingredients: what the code of the graph depends on, whatever the key holds.
        inputs: what Dynamo calls the inputs.
    """

    key: CacheKey
    ingredients: Parts = field(default_factory=dict)
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramKeys:
    """The keys of a program.

    Attributes:
        program: what it is called.
        backend: name of the backend.
        graphs: in the order in which Dynamo captured them.
        changed_settings: names of the settings of Inductor and AOTAutograd that are not at their default.
        process: facts of the process that are in no key, but explain what is: rank, environment variables.
    """

    program: str
    backend: str
    graphs: tuple[GraphKey, ...]
    changed_settings: tuple[str, ...] = ()
    process: Mapping[str, str] = field(default_factory=dict)


def keys_of(
    spec: BackendSpec,
    program: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool | None = None,
) -> ProgramKeys:
    """Return the keys of ``fn``, which runs once, eagerly.

    Raises:
        NoCacheKeyError: the specification of the backend has no ``cache_key``.
        NoGraphError: nothing of it would be compiled.
    """
    import torch

    from pytest_regional._torch.config import changed_settings
    from pytest_regional._torch.fx_graphs import clone_graph

    ask = spec.cache_key
    if ask is None:
        raise NoCacheKeyError(
            f"backend {spec.name!r} does not say with which key its cache is looked up: its BackendSpec has no "
            f"cache_key. The backends reference, torch and inductor have one."
        )
    graphs: list[GraphKey] = []

    def backend(gm: Any, example_inputs: Sequence[Any]) -> Any:
        inputs = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
        ingredients = dict(grouped_ingredients(gm))
        if not spec.supports("regions"):
            del ingredients["annotations"]  # it compiles annotated and other ops alike
        # Not the graph itself: what asks for its key may change it, and a copy has another key.
        eager = clone_graph(gm).forward
        graphs.append(GraphKey(ask(gm, example_inputs), ingredients, inputs))
        return eager

    torch.compile(fn, backend=backend, dynamic=dynamic)(*args, **kwargs)
    if not graphs:
        raise NoGraphError(f"nothing of {program} is compiled: Dynamo hands no graph of it to a backend")
    return ProgramKeys(program, spec.name, tuple(graphs), changed_settings(), dict(_process()))


def keys_of_pipeline(
    program: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any
) -> ProgramKeys:
    """Return the key that a pipeline's result of ``fn`` has in the outer cache; ``fn`` is captured as one graph.

    ``options`` are those of ``pipeline.compile``: ``passes``, ``partitioner``, ``dynamic``. What it raises is raised.
    """
    from pytest_regional._torch.config import changed_settings

    pipeline, _ = registry.full_graph_modules()
    key, inputs = pipeline.explain_pipeline_key(fn, args, kwargs, **options)
    return ProgramKeys(program, PIPELINE, (GraphKey(key, {}, inputs),), changed_settings(), dict(_process()))


#: What stands for a backend in the keys of pipelines.
PIPELINE = "pipeline"

#: Variables that PyTorch, Triton, or a compiler reads, by how their names begin.
_VARIABLES = ("TORCH", "TRITON_", "ATEN_", "PYTORCH_", "CUDA_", "CXX", "CC", "CFLAGS", "OMP_", "MKL_")

#: Variables of those that are places or addresses.
_PLACES = ("_DIR", "_HOME", "_PATH", "_HOST", "_URL", "_PORT")


def _process() -> Iterator[tuple[str, str]]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        yield "the rank", f"{dist.get_rank()} of {dist.get_world_size()}"
    for name, value in sorted(os.environ.items()):
        if name.startswith(_VARIABLES) and not name.endswith(_PLACES) and "SECRET" not in name:
            yield f"the environment variable {name}", value


@dataclass(frozen=True)
class Difference:
    """One ingredient in which two keys, or two programs, differ; ``None`` stands for one that is not there."""

    name: str
    first: str | None
    second: str | None
    group: str = ""


@dataclass(frozen=True)
class GraphDifferences:
    """How the keys of two graphs differ.

    Attributes:
        same: whether both have the same key.
        in_key: ingredients of the keys that differ.
        missing: in what the graphs differ, and their keys do not.
    """

    same: bool
    in_key: tuple[Difference, ...] = ()
    missing: tuple[Difference, ...] = ()


def compared(first: GraphKey, second: GraphKey) -> GraphDifferences:
    """Compare two graphs and their keys."""
    in_key: list[Difference] = []
    missing: list[Difference] = []
    for group in GROUPS:
        of_keys = _differences(group, first.key.ingredients, second.key.ingredients)
        seen = _differences(group, first.ingredients, second.ingredients)
        names = first.key.ingredients.get(group, {}).keys() | second.key.ingredients.get(group, {}).keys()
        differ = {one.name for one in of_keys}
        # What the key has another name for is in it where anything of the group differs.
        covered = [one for one in seen if one.name in differ or (of_keys and one.name not in names)]
        missing += _without_absent(group, [one for one in seen if one not in covered])
        in_key += _most_telling(group, covered, of_keys)
    if any(one.name == "the graph" for one in in_key):
        in_key, missing = ([one for one in each if not _is_moved(one)] for each in (in_key, missing))
    have_keys = bool(first.key.key) and bool(second.key.key)
    return GraphDifferences(have_keys and first.key.key == second.key.key, tuple(in_key), tuple(missing))


def _is_moved(one: Difference) -> bool:
    """Return whether a region has as many ops as the other: where graphs differ, they may only have other numbers."""
    return one.name.startswith("the ops of region") and (one.first or "").count("%") == (one.second or "").count("%")


def _differences(group: str, first: Parts, second: Parts) -> list[Difference]:
    one, other = first.get(group, {}), second.get(group, {})
    return [
        Difference(name, one.get(name), other.get(name), group)
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    ]


#: What follows from other ingredients of the same group, by the end of its name.
_FOLLOWS = {
    "inputs": (", memory_format", ", storage_bytes", ", where it comes from", ", everything else"),
    "graph": ("everything else of the graph",),
}


def _most_telling(group: str, covered: list[Difference], of_keys: list[Difference]) -> list[Difference]:
    """Return the differences as the graphs show them, and those of the keys that they do not show."""
    if covered and group in ("annotations", "graph", "passes"):
        return _without_absent(group, covered)  # the key says the same in another form
    shown = {one.name for one in covered}
    said = covered + [one for one in of_keys if one.name not in shown]
    telling = [one for one in said if not one.name.endswith(_FOLLOWS.get(group, ()) or ("\0",))]
    return _without_absent(group, telling or said)


def _without_absent(group: str, differences: list[Difference]) -> list[Difference]:
    """Return one difference for all that is said of an input, or of a region, that one side has not."""
    if group not in ("inputs", "annotations"):
        return differences
    made: dict[str, Difference] = {}
    for one in differences:
        found = _PART.search(one.name) if None in (one.first, one.second) else None
        if found:
            first, second = (None if value is None else "there" for value in (one.first, one.second))
            made.setdefault(found.group(), Difference(found.group(), first, second, group))
        else:
            made[one.name] = one
    return list(made.values())


_PART = re.compile(r"\b(input|region) \d+")


def compared_regions(
    first: Sequence[RegionKey], second: Sequence[RegionKey]
) -> Iterator[tuple[RegionKey | None, RegionKey | None, tuple[Difference, ...]]]:
    """Yield the regions of two graphs in pairs of the same name, and the ingredients in which their keys differ.

    Without a backward, the forward graph is called inference graph.
    """
    others = {_as_forward(region): region for region in second}
    for region in first:
        other = others.pop(_as_forward(region), None)
        differ = () if other is None else _differences("", {"": region.ingredients}, {"": other.ingredients})
        yield region, other, tuple(differ)
    yield from ((None, other, ()) for other in others.values())


def _as_forward(region: RegionKey) -> str:
    return f"forward.{region.name.removeprefix('inference.')}".replace("forward.forward.", "forward.")


def pairs(first: ProgramKeys, second: ProgramKeys) -> Iterator[tuple[int, GraphKey | None, GraphKey | None]]:
    """Yield the graphs of two programs in pairs, numbered."""
    for number, (one, other) in enumerate(zip_longest(first.graphs, second.graphs)):
        yield number, one, other


__all__ = [
    "Difference",
    "GraphDifferences",
    "GraphKey",
    "NoCacheKeyError",
    "NoGraphError",
    "ProgramKeys",
    "compared",
    "compared_regions",
    "keys_of",
    "keys_of_pipeline",
    "pairs",
]
