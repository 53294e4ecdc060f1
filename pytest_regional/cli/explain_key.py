"""``explain-key``: in which entries the keys of two programs, or processes, differ in a backend's cache."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._base.cache_keys import differences, in_words
from pytest_regional._base.documents import DocumentError, read
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.files import dumps, write_whole
from pytest_regional._base.text import plural, printable
from pytest_regional.backends import registry
from pytest_regional.cli.targets import UsageError, find

if TYPE_CHECKING:
    from pytest_regional.harness.cache_keys import ProgramKeys

_TARGET_HELP = (
    "a function without arguments, as package.module:name or path/to/file.py:name, that returns (model, args) or "
    "(model, args, kwargs); or a file that --save wrote, NAME.json"
)
_REMEDY = "Write one with: pytest-regional explain-key TARGET --save FILE.json"

#: Differences of one graph that are listed.
_MOST = 8

#: Raised where the fields of a file of keys change.
_VERSION = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Print the keys of a program in a backend's cache of whole results; of two programs, in which entries their "
        "keys differ, or in what the programs differ although their keys are the same. Each program runs once, "
        "eagerly; nothing is compiled. Exit status 0: the keys are the same; 1: they differ, or there is none; 2: a "
        "usage error, or a program that fails."
    )
    parser.add_argument("first", metavar="A", help=_TARGET_HELP)
    parser.add_argument("second", metavar="B", nargs="?", help="the other program, given the same way")
    parser.add_argument("--backend", metavar="NAME", help="default: reference")
    parser.add_argument("--dynamic", action="store_true", help="make symbols of the sizes of the inputs")
    parser.add_argument(
        "--save", metavar="FILE.json", type=Path, help="write the keys of A, to be compared in another process"
    )
    parser.add_argument("--traceback", action="store_true", help="show the traceback of a program that fails")


def run(asked: argparse.Namespace) -> int:
    """Print the keys of one program, or how those of two differ; return the exit status."""
    if asked.save and asked.second:
        raise UsageError("--save writes the keys of one program: give no second one.")
    targets = [target for target in (asked.first, asked.second) if target]
    one_module = len(targets) == 2 and targets[0].rpartition(":")[0] == targets[1].rpartition(":")[0]
    if one_module and not targets[0].endswith(".json"):
        find(targets[0])  # before torch is imported: what the module sets holds for both
    first, *others = [_keys(target, asked) for target in targets]
    if asked.save:
        _save(first, asked.save)
    if others and first.backend != others[0].backend:
        raise UsageError(f"A is of backend {first.backend!r} and B of {others[0].backend!r}: such keys always differ.")
    print(printable("\n".join(_compared(first, others[0]) if others else _said(first))))
    keys = [[graph.key for graph in one.graphs] for one in (first, *others)]
    return 0 if all(map(all, keys)) and keys[0] == keys[-1] else 1


def _said(keys: ProgramKeys) -> Iterator[str]:
    yield f"{keys.program} on backend {keys.backend}"
    for number, graph in enumerate(keys.graphs):
        if graph.key:
            yield f"graph {number}: key {graph.key}, of {plural(len(graph.texts), 'entry')}"
        else:
            yield f"graph {number} has no key: {' '.join(graph.refusal.split())}"


def _compared(first: ProgramKeys, second: ProgramKeys) -> Iterator[str]:
    yield f"A: {first.program}"
    yield f"B: {second.program}"
    for number, (one, other) in enumerate(zip(first.graphs, second.graphs, strict=False)):
        refusals = {which: " ".join(each.refusal.split()) for which, each in (("A", one), ("B", other)) if not each.key}
        for which, refusal in refusals.items():
            yield f"graph {number} of {which} has no key, so nothing is shared: {refusal}"
        if refusals:
            continue
        if one.key != other.key:
            found = differences(one.texts, other.texts)
            which = f"in {plural(len(found), 'entry')}:" if found else "in something that the backend does not name"
            yield f"graph {number}: the keys {one.key[:12]} and {other.key[:12]} differ {which}"
        else:
            found = differences(one.ingredients, other.ingredients)
            lacks = f", although the programs differ in {plural(len(found), 'thing')}: a hit that should be a miss"
            yield f"graph {number}: the same key {one.key[:12]}{lacks if found else ''}"
        yield from (f"  {in_words([each], first='A has', second='B')}" for each in found[:_MOST])
        if len(found) > _MOST:
            yield f"  and {len(found) - _MOST} more"
    if len(first.graphs) != len(second.graphs):
        yield f"Dynamo captures {plural(len(first.graphs), 'graph')} in A, and {len(second.graphs)} in B"


def _save(keys: ProgramKeys, path: Path) -> None:
    if path.suffix != ".json":
        raise UsageError(f"--save={path}: the name has to end with .json.")
    data = {"version": _VERSION, **dataclasses.asdict(keys)}
    try:
        write_whole(path, dumps(data, indent=1).encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error


def _keys(target: str, asked: argparse.Namespace) -> ProgramKeys:
    # They import torch, which reads variables that the user's module may set: see :func:`run`.
    from pytest_regional.harness.cache_keys import SavedKeys, keys_of
    from pytest_regional.harness.isolation import isolated

    if target.endswith(".json"):
        try:
            return read(Path(target), SavedKeys, "file of keys", remedy=_REMEDY)
        except DocumentError as error:
            raise UsageError(f"{error}.") from error
    spec = registry.resolve(asked.backend or "reference")
    # What the factory of one program sets does not reach the other one, and both draw the same numbers.
    with tempfile.TemporaryDirectory() as folder, isolated(Path(folder), seed=0):
        try:
            model, args, kwargs = _made_by(find(target), target)
            return keys_of(spec, target, model, args, kwargs, dynamic=asked.dynamic or None)
        except (UsageError, RegionalValueError):
            raise
        except Exception as error:
            # The user's function or program, or Dynamo on it.
            if asked.traceback:
                raise
            raise UsageError(f"{target} cannot be captured: {type(error).__name__}: {error}") from error


def _made_by(factory: Any, target: str) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """Call a factory and return model, arguments and keyword arguments."""
    if not callable(factory):
        raise UsageError(f"{target} is {type(factory).__name__}, not {_TARGET_HELP}.")
    made = factory()
    fits = isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0]) and isinstance(made[1], (tuple, list))
    if not fits or not isinstance(made[-1], (tuple, list, Mapping)):
        items = f"({', '.join(type(item).__name__ for item in made)})" if isinstance(made, tuple) else ""
        returned = items or type(made).__name__
        raise UsageError(f"{target}() returned {returned}, not (model, args) or (model, args, kwargs).")
    model, args, *rest = made
    return model, args, rest[0] if rest else {}
