"""``explain-key``: what the key of a program in a backend's cache is made of; why two programs do not share."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._text import plural, printable
from pytest_regional.command_line.explain import ModelError, made_by, passes_of
from pytest_regional.command_line.targets import UsageError, find

if TYPE_CHECKING:
    from pytest_regional.harness.cache_keys import ProgramKeys

_HELP = "say why two programs do not share a cached result, or share one wrongly"
_TARGET_HELP = (
    "a function without arguments, as package.module:name or path/to/file.py:name, that returns (model, args) or "
    "(model, args, kwargs); or a file that --save wrote, NAME.json"
)


def add_command(commands: Any) -> None:
    """Add ``explain-key`` to the commands of a parser."""
    parser = commands.add_parser(
        "explain-key",
        help=_HELP,
        description="Print what the keys of a program in a backend's cache of whole results are made of; of two "
        "programs, in which ingredients their keys differ, and in which the programs do and their keys do not. Each "
        "program runs once, eagerly; nothing is compiled. Exit status 0: the keys are the same; 1: they differ, or "
        "there is none; 2: a usage error, or a program that fails.",
    )
    parser.add_argument("first", metavar="A", help=_TARGET_HELP)
    parser.add_argument("second", metavar="B", nargs="?", help="the other program, given the same way")
    parser.add_argument("--backend", metavar="NAME", help="default: reference")
    parser.add_argument(
        "--passes",
        action="append",
        metavar="NAMES",
        help="explain the key of a pipeline of these passes, named as for `explain`; given twice: of A, and of B",
    )
    parser.add_argument(
        "--partitioner",
        action="append",
        choices=("default", "min_cut"),
        help="of the pipeline; default: default; given twice: of A, and of B",
    )
    parser.add_argument("--dynamic", action="store_true", help="make symbols of the sizes of the inputs")
    parser.add_argument(
        "--save", metavar="FILE.json", type=Path, help="write the keys of A, to be compared in another process"
    )
    parser.add_argument("--traceback", action="store_true", help="show the traceback of a program that fails")
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Print the keys of one program, or how those of two differ; return the exit status.

    Raises:
        UsageError: a target, a file or a backend is not what it has to be, or a program fails.
    """
    from pytest_regional.command_line.key_files import KeyFileError, save
    from pytest_regional.command_line.key_words import lines_of, lines_of_both

    if asked.save and asked.second:
        raise UsageError("--save writes the keys of one program: give no second one.")
    if asked.save and asked.save.suffix != ".json":
        raise UsageError(f"--save={asked.save}: the name has to end with .json.")
    targets = [target for target in (asked.first, asked.second) if target]
    if len(targets) == 2 and _module(targets[0]) == _module(targets[1]):
        # What the module sets when it is imported holds for both.
        _found(targets[0])
    _check_pipelines(asked, len(targets))
    keys = [_keys(target, asked, which) for which, target in enumerate(targets)]
    if len(keys) == 1:
        if asked.save:
            try:
                save(keys[0], asked.save)
            except KeyFileError as error:
                raise UsageError(f"{error}.") from error
        print(printable("\n".join(lines_of(keys[0]))))
        return 0 if all(graph.key.key for graph in keys[0].graphs) else 1
    first, second = keys
    if first.backend != second.backend:
        raise UsageError(f"A is of backend {first.backend!r} and B of {second.backend!r}, whose keys say nothing.")
    same, lines = lines_of_both(first, second)
    print(printable("\n".join(lines)))
    return 0 if same else 1


def _check_pipelines(asked: argparse.Namespace, programs: int) -> None:
    for option, values in (("--passes", asked.passes), ("--partitioner", asked.partitioner)):
        if values and len(values) > programs:
            raise UsageError(f"{option} is given {len(values)} times, for {plural(programs, 'program')}.")
    if asked.partitioner and not asked.passes:
        raise UsageError("--partitioner is of a pipeline: give --passes, too.")
    if asked.backend and asked.passes:
        raise UsageError("--backend and --passes: a pipeline has a key of its own, whatever the backend.")


def _module(target: str) -> str:
    return target.rpartition(":")[0]


def _is_file(target: str) -> bool:
    return target.endswith(".json")


def _found(target: str) -> Any:
    return None if _is_file(target) else find(target)


def _keys(target: str, asked: argparse.Namespace, which: int) -> ProgramKeys:
    from pytest_regional.command_line.key_files import KeyFileError, load

    if not _is_file(target):
        return _keys_of_program(target, asked, which)
    try:
        return load(Path(target))
    except KeyFileError as error:
        raise UsageError(f"{error}.") from error


def _keys_of_program(target: str, asked: argparse.Namespace, which: int) -> ProgramKeys:
    from pytest_regional.backends import registry
    from pytest_regional.harness.cache_keys import NoCacheKeyError, NoGraphError, keys_of, keys_of_pipeline
    from pytest_regional.harness.isolation import isolated

    try:
        spec = registry.resolve(asked.backend or "reference")
    except registry.UnknownBackendError as error:
        raise UsageError(str(error)) from error
    # What the factory of one program sets does not reach the other one, and both draw the same numbers.
    with tempfile.TemporaryDirectory() as folder, isolated(Path(folder), seed=0):
        try:
            model, args, kwargs = made_by(find(target), target)
            if asked.passes:
                passes = list(passes_of(asked.passes[which % len(asked.passes)]))
                partitioners = asked.partitioner or ["default"]
                partitioner = partitioners[which % len(partitioners)]
                options = {"passes": passes, "partitioner": partitioner, "dynamic": asked.dynamic}
                return keys_of_pipeline(target, model, args, kwargs, **options)
            return keys_of(spec, target, model, args, kwargs, dynamic=asked.dynamic or None)
        except (UsageError, NoCacheKeyError, NoGraphError) as error:
            raise UsageError(str(error)) from error
        except ModelError as error:
            if asked.traceback:
                raise
            raise UsageError(str(error)) from error
        except Exception as error:
            # The user's program, or Dynamo on it.
            if asked.traceback:
                raise
            raise UsageError(f"{target} cannot be captured: {type(error).__name__}: {error}") from error
