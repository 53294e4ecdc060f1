"""Programs as files: readable, versioned JSON that outlives the generator that drew them.

Hypothesis's own database is opaque and bound to the strategy's layout; a program file says what the program is.
"""

from __future__ import annotations

import dataclasses
import json
import keyword
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_regional._errors import RegionalError, RegionalValueError
from pytest_regional._files import write_whole
from pytest_regional.backends.spec import PARTITIONERS
from pytest_regional.fuzz.findings import strict_json
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError
from pytest_regional.fuzz.model.arguments import CONTENT_SOURCES, DTYPES, LAYOUTS, PARTS, TensorInput
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.program import (
    CONTEXT_SOURCES,
    Block,
    Context,
    Parameter,
    Program,
    Region,
    Step,
)
from pytest_regional.fuzz.operators.operator import Operator
from pytest_regional.fuzz.operators.schemas import ARGUMENTS, WORDS
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.settings import BY_NAME

#: Raised when what a file holds changes its meaning; a reader refuses what it does not know.
VERSION = 1

#: How many elements all inputs of a program have at most, so that no file takes a machine's memory.
ELEMENTS = 2**23

# Generated programs stay far below; contexts are ``with`` statements, of which Python nests 20.
_LARGEST, _LARGEST_NUMBER, _RANK, _DEPTH, _ARGUMENTS = 2**20, 10**6, 12, 12, 1000

#: What the parts of a program raise, and eager, where they do not go together.
_UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_CONFIG = r"[a-z]\w*(\.[a-z]\w*)*"
_NAMES = r"\w+(,\w+)*"
#: Settings whose value is a list of names.
_CONFIGS_OF_NAMES = ("max_autotune_gemm_backends", "max_autotune_conv_backends", "max_autotune_gemm_search_space")


class ProgramFileError(RegionalError, ValueError):
    """A program file that cannot be read; the message names file, place and what to do."""


def to_data(program: Program) -> dict[str, Any]:
    """Return ``program`` as plain data."""
    partitioner = {"partitioner": program.partitioner} if program.partitioner else {}
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
        **partitioner,
        **({"settings": dict(program.settings)} if program.settings else {}),
    }


def from_data(data: Any) -> Program:
    """Return the program that plain data describes, built again in eager to see that it still can be.

    Raises:
        ProgramFileError: the data is of another version, or describes no program; names the field.
    """
    try:
        return program_in(Field(data))
    except MalformedError as error:
        raise ProgramFileError(str(error)) from error


def program_in(field: Field) -> Program:
    """Return the program that stands in ``field`` of a document.

    What it says becomes Python source, which is executed: no text gets there but names of tables, and integers.

    Raises:
        MalformedError: there is none, or one of another version.
    """
    version = field.value.get("version") if isinstance(field.value, Mapping) else None
    if type(version) is not int or version != VERSION:
        field.refuse(
            f"the program has version {reprlib.repr(version)}, this pytest-regional reads version {VERSION}: "
            f"replay it with the release that wrote it."
        )
    fields = field.fields(
        ("version", "arguments", "blocks", "steps", "outputs", "training", "dynamic"), ("partitioner", "settings")
    )
    arguments = tuple(_argument(item, index) for index, item in enumerate(fields["arguments"].items(_ARGUMENTS)))
    if sum(math.prod(max(size, 1) for size in argument.shape) for argument in arguments) > ELEMENTS:
        fields["arguments"].refuse(f"more than {ELEMENTS} elements")
    if any(
        argument.alias_of is not None and arguments[argument.alias_of].alias_of is not None for argument in arguments
    ):
        fields["arguments"].refuse("a part of an argument that is a part of another one")
    blocks = tuple(map(_block, fields["blocks"].items()))
    steps = tuple(_step(item, len(blocks)) for item in fields["steps"].items())
    _check_new(fields["steps"], range(len(arguments)), steps)
    outputs = _numbers(fields["outputs"])
    training, dynamic = fields["training"].flag(), fields["dynamic"].or_none(Field.flag)
    partitioner = fields["partitioner"].one_of(PARTITIONERS) if "partitioner" in fields else None
    named = fields["settings"].mapping(100) if "settings" in fields else {}
    settings = tuple((name, _setting(one, name)) for name, one in named.items())
    try:
        program = Program(arguments, steps, outputs, blocks, training, dynamic, partitioner, settings)
        check_buildable(program)
    except _UNFIT as error:
        field.refuse(f"no program: {type(error).__name__}: {error}")
    return program


def save(program: Program, path: Path) -> None:
    """Write ``program`` to ``path``."""
    write_whole(path, (json.dumps(to_data(program), indent=1) + "\n").encode())


def load(path: Path) -> Program:
    """Read the program in ``path``.

    Raises:
        ProgramFileError: the file is no program file of this version.
        OSError: it cannot be read.
    """
    try:
        return from_data(strict_json.read(path))
    except MalformedError as error:
        raise ProgramFileError(f"{path} {error}") from error
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


# Reading


def _numbers(field: Field) -> tuple[int, ...]:
    """Return numbers of values, or of blocks."""
    return tuple(item.integer(0, _LARGEST_NUMBER) for item in field.items())


def _setting(field: Field, name: str) -> bool | int | float:
    """Return the value of a setting that programs may have; it is one of the table's."""
    if name not in BY_NAME:
        field.refuse("no setting that programs are compiled under")
    allowed = BY_NAME[name].values
    # True is 1 to Python, and neither to a setting.
    value = next((one for one in allowed if type(one) is type(field.value) and one == field.value), None)
    if value is None:
        field.refuse(f"{reprlib.repr(field.value)} is none of {', '.join(map(repr, allowed))}")
    return value


_OF_AN_ARGUMENT = tuple(field.name for field in dataclasses.fields(TensorInput) if field.name != "shape")


def _argument(field: Field, index: int) -> TensorInput:
    """Return argument ``index``, which may be a view of an earlier one."""
    fields = field.fields(("shape",), _OF_AN_ARGUMENT)
    shape = tuple(item.integer(0, ELEMENTS) for item in fields["shape"].items(_RANK))
    read: dict[str, Callable[[Field], Any]] = {
        "dtype": lambda one: one.one_of(DTYPES),
        "layout": lambda one: one.one_of(LAYOUTS),
        "content": lambda one: one.one_of(CONTENT_SOURCES),
        "requires_grad": Field.flag,
        "below": lambda one: one.integer(0, _LARGEST),
        "alias_of": lambda one: one.or_none(lambda number: number.integer(0, index - 1)),
        "part": lambda one: one.one_of(PARTS),
        "detached": Field.flag,
        "dynamic": lambda one: tuple(item.integer(0, len(shape) - 1) for item in one.items(_RANK)),
    }
    return TensorInput(shape, **{name: read[name](one) for name, one in fields.items() if name != "shape"})


def _block(field: Field) -> Block:
    fields = field.fields(("parameters", "steps", "result"))
    parameters = _numbers(fields["parameters"])
    steps = tuple(_step(item, 0) for item in fields["steps"].items())
    if len(set(parameters)) < len(parameters):
        fields["parameters"].refuse("one number stands twice")
    known = _check_new(fields["steps"], parameters, steps)
    result = fields["result"].integer(0, _LARGEST_NUMBER)
    if result not in known:
        fields["result"].refuse(f"value {result}, which no step makes")
    return Block(parameters, steps, result)


def _check_new(field: Field, known: Iterable[int], steps: Sequence[Step]) -> set[int]:
    """Return the numbers of all values; each step makes new ones.

    Raises:
        MalformedError: one is made twice.
    """
    numbers = set(known)
    for item, step in zip(field.items(), steps, strict=True):
        if len(set(step.results) - numbers) < len(step.results):
            item.refuse("it makes a value that is there already")
        numbers.update(step.results)
    return numbers


def _step(field: Field, blocks: int) -> Step:
    """Return a step of a program that has so many ``blocks``."""
    fields = field.fields(("operator",), ("operands", "parameters", "results", "scope", "blocks"))
    operator = _operator(fields["operator"])
    operands = _of_length(fields, field, "operands", len(operator.operands))
    results = _of_length(fields, field, "results", operator.results)
    called = _of_length(fields, field, "blocks", operator.calls)
    if any(index >= blocks for index in called):
        fields["blocks"].refuse(f"there are {blocks} blocks")
    given = fields["parameters"].fields(operator.parameter_names) if "parameters" in fields else {}
    if len(given) < len(operator.parameter_names):
        field.refuse(f"{operator.name} needs {', '.join(operator.parameter_names)} in the field 'parameters'")
    parameters = tuple((name, PARAMETERS[name](one)) for name, one in given.items())
    scope = tuple(map(_context, fields["scope"].items(_DEPTH))) if "scope" in fields else ()
    return Step(operator.name, operands, parameters, results, scope, called)


def _operator(field: Field) -> Operator:
    name = field.line()
    try:
        return operator_named(name)
    except RegionalValueError as error:
        field.refuse(str(error))


def _of_length(fields: Mapping[str, Field], step: Field, name: str, length: int) -> tuple[int, ...]:
    numbers = _numbers(fields[name]) if name in fields else ()
    if len(numbers) != length:
        step.refuse(f"{len(numbers)} {name} where the operator has {length}")
    return numbers


def _integer(field: Field) -> int:
    return field.integer(-_LARGEST, _LARGEST)


def _size(field: Field) -> int | tuple[int, ...]:
    # Some operators make a square of it.
    return _integers(field) if isinstance(field.value, list) else field.integer(0, 4096)


def _integers(field: Field) -> tuple[int, ...]:
    items = tuple(item.integer(-_LARGEST, _LARGEST) for item in field.items(_RANK))
    if math.prod(max(abs(item), 1) for item in items) > ELEMENTS:
        field.refuse(f"more than {ELEMENTS} elements")
    return items


def _argument_of_aten(field: Field) -> Parameter:
    """Return what an argument of a schema may be: nothing, a flag, a number, a few of them, or a known word."""
    if isinstance(field.value, list):
        return tuple(map(_number, field.items(_RANK))) if _has_floats(field.value) else _integers(field)
    if field.value is None or isinstance(field.value, bool):
        return field.value
    return field.one_of(WORDS) if isinstance(field.value, str) else _number(field)


def _has_floats(items: Sequence[Any]) -> bool:
    return any(isinstance(item, float) for item in items)


def _number(field: Field) -> int | float:
    return _integer(field) if isinstance(field.value, int) else field.number()


#: How each parameter of the operator table is read, by name.
PARAMETERS: Mapping[str, Callable[[Field], Parameter]] = {
    **dict.fromkeys(ARGUMENTS, _argument_of_aten),
    **dict.fromkeys(("reverse",), Field.flag),
    **dict.fromkeys(("high", "low"), Field.number),
    **dict.fromkeys(("shape", "sizes", "strides"), _integers),
    **dict.fromkeys(("first", "length", "second", "shift"), _integer),
    "size": _size,
    "count": lambda field: field.integer(1, 64),
}


def _context(field: Field) -> Region | Context:
    if "context" in field.mapping():
        kind: Any = field.fields(("context",))["context"].one_of(CONTEXT_SOURCES)
        return Context(kind)
    fields = field.fields(("region", "configs", "after"))
    configs = tuple((_config_name(one, name), _config(one)) for name, one in fields["configs"].mapping(100).items())
    after = tuple(map(_region_id, fields["after"].items()))
    return Region(fields["region"].or_none(_region_id), configs, after)


def _region_id(field: Field) -> str | int:
    return field.line() if isinstance(field.value, str) else field.integer(-_LARGEST, _LARGEST)


def _config_name(field: Field, name: str) -> str:
    """Return the name of a setting of Inductor's; those that speak to other machines are not for a finding to make."""
    if not re.fullmatch(_CONFIG, name, re.ASCII) or any(map(keyword.iskeyword, name.split("."))):
        field.refuse("no name of a setting")
    if "remote" in name or "upload" in name:
        field.refuse("a setting that speaks to another machine")
    return name


def _config(field: Field) -> bool | int | float | str | None:
    """Return the value of a setting: text may be a path, or a command, so that it stands for few settings alone."""
    if isinstance(field.value, str):
        if field.place.rpartition(".")[2] not in _CONFIGS_OF_NAMES or not re.fullmatch(_NAMES, field.value, re.ASCII):
            field.refuse(f"text, which stands for {', '.join(_CONFIGS_OF_NAMES)} alone, as names with commas between")
        return field.value
    return field.value if field.value is None or isinstance(field.value, bool) else field.number()


__all__ = ["PARAMETERS", "VERSION", "ProgramFileError", "from_data", "load", "program_in", "save", "to_data"]
