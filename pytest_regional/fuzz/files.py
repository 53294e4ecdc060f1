"""Programs as files: readable, versioned JSON that outlives the generator that drew them.

Hypothesis's own database is opaque and bound to the strategy's layout; a program file says what the program is.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_regional.fuzz.arguments import TensorInput
from pytest_regional.fuzz.building import check
from pytest_regional.fuzz.program import Block, Context, Program, Region, Step

#: Raised when what a file holds changes its meaning; a reader refuses what it does not know.
VERSION = 1


class ProgramFileError(ValueError):
    """A program file that cannot be read; the message names file, place and what to do."""


def to_data(program: Program) -> dict[str, Any]:
    """Return ``program`` as plain data."""
    return {
        "version": VERSION,
        "arguments": [_sparse(argument) for argument in program.arguments],
        "blocks": [
            {
                "parameters": list(block.parameters),
                "steps": list(map(_step_data, block.steps)),
                "result": block.result,
            }
            for block in program.blocks
        ],
        "steps": list(map(_step_data, program.steps)),
        "outputs": list(program.outputs),
        "training": program.training,
        "dynamic": program.dynamic,
    }


def from_data(data: Any) -> Program:
    """Return the program that plain data describes, built again in eager to see that it still can be.

    Raises:
        ProgramFileError: the data is of another version, incomplete, or describes no program.
    """
    version = data.get("version") if isinstance(data, Mapping) else None
    if version != VERSION:
        raise ProgramFileError(
            f"the program has version {version!r}, this pytest-regional reads version {VERSION}: "
            f"replay it with the release that wrote it."
        )
    try:
        program = Program(
            arguments=tuple(_argument(item) for item in data["arguments"]),
            steps=tuple(map(_step, data["steps"])),
            outputs=tuple(data["outputs"]),
            blocks=tuple(map(_block, data["blocks"])),
            training=data["training"],
            dynamic=data["dynamic"],
        )
        check(program)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ProgramFileError(f"the data describes no program: {type(error).__name__}: {error}") from error
    return program


def save(program: Program, path: Path) -> None:
    """Write ``program`` to ``path``."""
    path.write_text(json.dumps(to_data(program), indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Program:
    """Read the program in ``path``.

    Raises:
        ProgramFileError: the file is no program file of this version.
        OSError: it cannot be read.
    """
    try:
        return from_data(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ProgramFileError(f"{path} is no JSON: {error}") from error
    except ProgramFileError as error:
        raise ProgramFileError(f"{path}: {error}") from error


def _sparse(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    return {
        field.name: _plain(getattr(record, field.name))
        for field in dataclasses.fields(record)
        if getattr(record, field.name) != field.default
    }


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return (
        tuple(_tuples(item) for item in value) if isinstance(value, Sequence) and not isinstance(value, str) else value
    )


def _step_data(step: Step) -> dict[str, Any]:
    data = _sparse(step)
    if step.parameters:
        data["parameters"] = {name: _plain(value) for name, value in step.parameters}
    if step.scope:
        data["scope"] = list(map(_context_data, step.scope))
    return data


def _context_data(context: Region | Context) -> dict[str, Any]:
    if isinstance(context, Context):
        return {"context": context.kind}
    configs = {name: _plain(value) for name, value in context.configs}
    return {"region": context.name, "configs": configs, "after": list(context.after)}


def _argument(data: Mapping[str, Any]) -> TensorInput:
    return TensorInput(**{name: _tuples(value) for name, value in data.items()})


def _block(data: Mapping[str, Any]) -> Block:
    return Block(tuple(data["parameters"]), tuple(map(_step, data["steps"])), data["result"])


def _step(data: Mapping[str, Any]) -> Step:
    fields = {name: _tuples(value) for name, value in data.items() if name not in ("parameters", "scope")}
    parameters = tuple((name, _tuples(value)) for name, value in data.get("parameters", {}).items())
    return Step(**fields, parameters=parameters, scope=tuple(map(_context, data.get("scope", ()))))


def _context(data: Mapping[str, Any]) -> Region | Context:
    if "context" in data:
        return Context(data["context"])
    configs = tuple((name, _tuples(value)) for name, value in data["configs"].items())
    return Region(data["region"], configs, tuple(data["after"]))


__all__ = ["VERSION", "ProgramFileError", "from_data", "load", "save", "to_data"]
