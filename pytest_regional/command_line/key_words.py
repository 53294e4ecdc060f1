"""What to print of keys: their ingredients, or in which of them two keys differ."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from pytest_regional._cache_keys import GROUPS, CacheKey, RegionKey
from pytest_regional._text import plural
from pytest_regional.harness.cache_keys import (
    Difference,
    GraphDifferences,
    GraphKey,
    ProgramKeys,
    compared,
    compared_regions,
    pairs,
)

#: Differences of one kind that are listed, and characters of one value.
_MOST, _WIDE = 8, 70

_NOT_THERE = "nothing"


def lines_of(keys: ProgramKeys) -> Iterator[str]:
    """Yield lines that say what the keys of a program are made of."""
    yield f"{keys.program} on backend {keys.backend}"
    for number, graph in enumerate(keys.graphs):
        yield _key_of(number, graph.key)
        seen = {name: graph.ingredients.get(name, {}) for name in _SHOWN_AS_SEEN} if graph.ingredients else {}
        ingredients = {**graph.key.ingredients, **seen}
        for group in GROUPS if graph.key.key else ():
            if ingredients.get(group):
                yield f"  {group}: {_group(group, graph, ingredients[group], keys.changed_settings)}"
        for region in graph.key.regions:
            note = ", shared within one compile only: sizes are symbols" if region.symbolic else ""
            yield f"  region {region.region!r}: {region.name}, key {region.key[:12]}{note}"


#: Groups of which the key of a backend has digests, or texts made for computers.
_SHOWN_AS_SEEN = ("graph", "annotations", "inputs")


def _key_of(number: int, key: CacheKey) -> str:
    return f"graph {number}: key {key.key}" if key.key else f"graph {number} has no key: {_one_line(key.refusal)}"


def _group(group: str, graph: GraphKey, named: Mapping[str, str], changed: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(f"{name}\0{value}" for name, value in sorted(named.items())).encode()).hexdigest()
    if group == "graph":
        ops = [line for line in named["the graph"].splitlines() if not line.startswith(("placeholder", "output"))]
        said = f"{plural(len(ops), 'op')}: {', '.join(_op(line) for line in ops)}"
    elif group == "inputs":
        said = "; ".join(_inputs(graph, named))
    elif group == "annotations":
        said = ", ".join(_annotated(named)) or plural(len(named), "annotated node")
    else:
        telling = {name: value for name, value in named.items() if _tells(group, name, value, changed)}
        said = ", ".join(f"{_place(name, graph)} {value}" for name, value in telling.items())
        said = said or (f"all {len(named)} as they are by default" if group == "settings" else "none")
    return f"{_short(said, 3 * _WIDE)} (SHA-256 {digest[:12]})"


def _tells(group: str, name: str, value: str, changed: Sequence[str]) -> bool:
    """Return whether a value says something: a setting that was changed, or what is not off, none or empty."""
    return name in changed if group == "settings" else not re.fullmatch(r"(None|False|0|off|[\[\](){}, ])*", value)


def _op(line: str) -> str:
    return line.partition("(")[0].rpartition(" ")[2]


def _annotated(named: Mapping[str, str]) -> Iterator[str]:
    for name, label in named.items():
        found = re.fullmatch(r"the id of (region \d+)", name)
        if found:
            ops = named[f"the ops of {found.group(1)}"].count("%")
            configs = named[f"the configs of {found.group(1)}"]
            yield f"region {label!r} of {plural(ops, 'op')}" + (f" with {configs}" if configs != "{}" else "")


def _inputs(graph: GraphKey, named: Mapping[str, str]) -> Iterator[str]:
    for index, name in enumerate(graph.inputs):
        facts = [named.get(f"input {index}, {what}", "") for what in ("dtype", "shape", "stride", "device")]
        grad = " requires grad" * (named.get(f"input {index}, requires_grad") == "True")
        dtype, shape, stride, device = facts
        text = f"{dtype.removeprefix('torch.')} {shape} strides {stride} on {device}{grad}"
        yield f"{_argument(name)} {text if dtype else named.get(f'input {index}', '')}"


def lines_of_both(first: ProgramKeys, second: ProgramKeys) -> tuple[bool, list[str]]:
    """Return whether two programs have the same keys, and lines that say in what they differ."""
    lines = [f"A: {first.program}", f"B: {second.program}"]
    same = True
    for number, one, other in pairs(first, second):
        if one is None or other is None:
            lines.append(f"graph {number} is of {'B' if one is None else 'A'} alone: Dynamo captures more graphs there")
            same = False
            continue
        found = compared(one, other)
        same = same and found.same
        lines += _graph(number, one, other, found)
        lines += _regions(one.key.regions, other.key.regions, found)
    if not same:
        facts = _of_processes(first.process, second.process)
        lines += [f"In no key, but it may be why: {'; '.join(facts)}"] if facts else []
    return same, lines


def _graph(number: int, one: GraphKey, other: GraphKey, found: GraphDifferences) -> Iterator[str]:
    refusals = {which: key.refusal for which, key in (("A", one.key), ("B", other.key)) if not key.key}
    if refusals:
        for which, refusal in refusals.items():
            yield f"graph {number} of {which} has no key, so nothing is shared: {_one_line(refusal)}"
    elif found.same:
        but = ", although the programs differ" if found.missing else ": they share one result"
        yield f"graph {number}: the same key {one.key.key[:12]}{but}"
    else:
        said = f"{plural(len(found.in_key), 'ingredient')}:" if found.in_key else "what the backend does not name."
        yield f"graph {number}: other keys, {one.key.key[:12]} and {other.key.key[:12]}. They differ in {said}"
        yield from _listed(found.in_key, one)
    if found.missing and not refusals:
        yield f"The key lacks {plural(len(found.missing), 'ingredient')}: a hit that should be a miss."
        yield from _listed(found.missing, one)


def _listed(differences: Sequence[Difference], graph: GraphKey) -> Iterator[str]:
    alike: dict[tuple[str, str | None, str | None], list[Difference]] = {}
    for one in differences:
        what = re.sub(r"^input \d+", "input", one.name)
        alike.setdefault((what, one.first, one.second), []).append(one)
    for first, *others in [*alike.values()][:_MOST]:
        yield from _difference(first, graph, len(others))
    if len(alike) > _MOST:
        yield f"  and {len(alike) - _MOST} more"


def _difference(one: Difference, graph: GraphKey, more_inputs: int = 0) -> Iterator[str]:
    name = _place(one.name, graph)
    if more_inputs:
        place, comma, what = name.partition(", ")
        name = f"{place} and {plural(more_inputs, 'more input')}{comma}{what}"
    first, second = one.first or _NOT_THERE, one.second or _NOT_THERE
    more = ""
    if "\n" in first + second:
        number, first, second, more = _first_difference(first, second)
        name = f"{name}, {'op %' if name == 'the graph' else 'line '}{number}"
    if len(first + second) > _WIDE:
        yield f"  {name}{more}"
        yield f"    A: {_short(first, 2 * _WIDE)}"
        yield f"    B: {_short(second, 2 * _WIDE)}"
    else:
        yield f"  {name}{more}: {first} in A, {second} in B"


def _first_difference(first: str, second: str) -> tuple[int, str, str, str]:
    """Return the line in which two texts differ first, what stands there, and how many more lines differ."""
    both = list(zip_longest(first.splitlines(), second.splitlines(), fillvalue=_NOT_THERE))
    at = [number for number, (one, other) in enumerate(both) if one != other]
    more = f" (and {plural(len(at) - 1, 'line')} after it)" if len(at) > 1 else ""
    one, other = both[at[0]]
    return at[0], _call(one), _call(other), more


def _call(line: str) -> str:
    return re.sub(r"^(call_function|call_method|call_module) ", "", line.strip())


def _place(name: str, graph: GraphKey) -> str:
    """Return a name of an ingredient with the user's names of inputs and regions in it."""
    found = re.match(r"input (\d+)", name)
    if found and int(found.group(1)) < len(graph.inputs):
        return f"{found.group()} ({_argument(graph.inputs[int(found.group(1))])}){name[found.end() :]}"
    if name.startswith("the id of region"):
        return "the id of a region"
    if name.startswith("the code of"):
        return f"the names of values in {name}"  # shown where the ops are the same
    ids = graph.ingredients.get("annotations", {})
    return re.sub(r"region \d+", lambda at: _region_name(at.group(), ids), name)


def _region_name(place: str, ids: Mapping[str, str]) -> str:
    known = ids.get(f"the id of {place}")
    return place if known is None else f"region {known!r}"


def _argument(name: str) -> str:
    """Return what an input is called in the program: Dynamo writes ``l_x_``."""
    found = re.fullmatch(r"[lL]_(.+)_", name)
    return found.group(1) if found else name


def _regions(first: Sequence[RegionKey], second: Sequence[RegionKey], graphs: GraphDifferences) -> Iterator[str]:
    """Yield which regions share their code: those that are equal, where settings and state are, too."""
    settings = any(one.group in ("settings", "state") for one in (*graphs.in_key, *graphs.missing))
    equal, alone, other_code = 0, [], []
    for one, other, differ in compared_regions(first, second):
        if one is None or other is None:
            alone.append(f"{(one or other or _NO_REGION).name} in {'B' if one is None else 'A'}")
        elif one.symbolic and not differ:
            other_code.append([f"  {one.name}: equal, with symbols for sizes: such code is shared in one compile only"])
        elif differ:
            other_code.append([*_region(one.name, differ)])
        else:
            equal += 1
    if first or second:
        most = max(len(first), len(second))
        yield f"regions that share their code: {0 if settings else equal} of {most}" + (
            f"; {equal} of them would if settings and state were the same" if settings and equal else ""
        )
    yield from other_code[0] if other_code else ()
    if len(other_code) > 1:
        yield f"  and {plural(len(other_code) - 1, 'more region')} with other code"
    if alone:
        yield f"  in one program alone: {_short(', '.join(alone), 3 * _WIDE)}"


_NO_REGION = RegionKey("", "", "")


def _region(name: str, differ: Sequence[Difference]) -> Iterator[str]:
    """Yield the first ingredient in which a region differs: most that come later follow from it."""
    one = min(differ, key=lambda each: each.name == "the results")
    more = f" (and in {plural(len(differ) - 1, 'more ingredient')})" if len(differ) > 1 else ""
    yield f"  {name} differs in {one.name}{more}:"
    yield f"    A: {_short(one.first or _NOT_THERE, 2 * _WIDE)}"
    yield f"    B: {_short(one.second or _NOT_THERE, 2 * _WIDE)}"


def _of_processes(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    names = sorted({*first, *second})
    return [
        f"{name}: {first.get(name, _NOT_THERE)} in A, {second.get(name, _NOT_THERE)} in B"
        for name in names
        if first.get(name) != second.get(name)
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
