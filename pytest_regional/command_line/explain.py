"""``explain``: a model's regions, partitions and passes."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional._files import dumps
from pytest_regional._text import unknown_name
from pytest_regional.backends import registry
from pytest_regional.command_line.targets import UsageError, find

_HELP = "print the passes, regions and partitions of a model"
_TARGET_HELP = (
    "a function without arguments, as package.module:name or path/to/file.py:name, that returns (model, args) or "
    "(model, args, kwargs)"
)


class ModelError(RegionalError):
    """The model, or a pass, failed; the message is its own."""


def add_command(commands: Any) -> None:
    """Add ``explain`` to the commands of a parser."""
    parser = commands.add_parser("explain", help=_HELP, description=f"{_HELP.capitalize()}, forward and backward.")
    parser.add_argument("target", metavar="TARGET", help=_TARGET_HELP)
    parser.add_argument(
        "--passes",
        default="regional_inductor",
        metavar="NAMES",
        help="comma list of passes, by name or as module:attribute; default: regional_inductor",
    )
    parser.add_argument("--disable", action="append", default=[], metavar="NAME", help="leave a pass out; repeatable")
    parser.add_argument("--partitioner", default="default", choices=("default", "min_cut"))
    parser.add_argument("--dynamic", action="store_true", help="make symbols of the sizes of the inputs")
    parser.add_argument("--no-strict", action="store_true", help="run the model on fake tensors, without Dynamo")
    parser.add_argument("--dry-run", action="store_true", help="leave terminal passes out: compile nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--traceback", action="store_true", help="show the traceback of a model or pass that fails")
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> None:
    """Explain the given model.

    Raises:
        UsageError: the target or a pass is not what it has to be.
        ModelError: the model cannot be captured, or a pass failed.
    """
    passes = list(passes_of(asked.passes))
    if asked.dry_run:
        passes = [one for one in passes if not getattr(one, "terminal", False)]
    model, args, kwargs = made_by(find(asked.target), asked.target)
    explanation = _explained(asked, model, args, kwargs, passes)
    print(dumps(explanation.as_dict(), indent=2) if asked.json else explanation)


def made_by(factory: Any, target: str) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """Call a factory and return model, arguments and keyword arguments.

    Raises:
        UsageError: it is no factory, or returns something else.
        ModelError: it raises.
    """
    if not callable(factory):
        raise UsageError(f"{target} is {type(factory).__name__}, not {_TARGET_HELP}.")
    try:
        made = factory()
    except Exception as error:
        raise ModelError(f"{target}() raised {type(error).__name__}: {error}") from error
    fits = isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0]) and isinstance(made[1], (tuple, list))
    if not fits or not isinstance(made[-1], (tuple, list, Mapping)):
        raise UsageError(f"{target}() returned {_described(made)}, not (model, args) or (model, args, kwargs).")
    model, args, *rest = made
    return model, args, rest[0] if rest else {}


def _explained(asked: argparse.Namespace, model: Any, args: Any, kwargs: Any, passes: list[Any]) -> Any:
    from pytest_regional.backends import registry

    pipeline, _ = registry.full_graph_modules()
    options = {"partitioner": asked.partitioner, "dynamic": asked.dynamic, "strict": not asked.no_strict}
    try:
        return pipeline.explain_pipeline(model, args, kwargs, passes=passes, disable=asked.disable, **options)
    except (pipeline.UnknownPassError, pipeline.PassOrderError, pipeline.InvalidPassError) as error:
        raise UsageError(str(error)) from error
    except pipeline.PipelineError as error:
        raise ModelError(str(error)) from error


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(item).__name__ for item in value)})"
    return type(value).__name__


def known_passes() -> dict[str, Callable[[], Any]]:
    """Return the passes that need nothing said but their name."""
    _, passes = registry.full_graph_modules()
    by_class = (passes.Canonicalization, passes.DeadCodeElimination, passes.OverlapCollectives)
    terminal = {name: registry.resolve(backend).graph_pass for name, backend in _TERMINAL.items()}
    return {cls.name: cls for cls in by_class} | {name: made for name, made in terminal.items() if made is not None}


_TERMINAL = {"regional_inductor": "reference", "full_inductor": "inductor"}


def passes_of(names: str) -> Iterator[Any]:
    """Yield the passes that a comma-separated list names: known ones, or ``module:attribute``.

    Raises:
        UsageError: a name that there is not.
    """
    known = known_passes()
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name in known:
            yield known[name]()
        elif ":" in name:
            yield from _several(find(name))
        else:
            raise UsageError(f"{unknown_name('pass', name, known)} Others are named module:attribute.")


def _several(found: Any) -> Iterator[Any]:
    """Take one pass, or an iterable of passes, such as a list or a pipeline."""
    if isinstance(found, Iterable) and not isinstance(found, type):
        yield from found
    else:
        yield found() if isinstance(found, type) else found
