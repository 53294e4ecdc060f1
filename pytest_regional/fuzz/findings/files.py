"""Programs as JSON files; and of a finding the provenance, the signature, and the fields that its file has.

Hypothesis's own database is opaque and bound to the strategy's layout; a program file says what the program is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import keyword
import math
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType, ValidationError, convert, structs

from pytest_regional._base.documents import DocumentError, decoded, read
from pytest_regional._base.files import write_whole
from pytest_regional._base.text import plural, without_numbers
from pytest_regional.backends.spec import PARTITIONERS
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
from pytest_regional.fuzz.operators.schemas import ARGUMENTS, WORDS
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.settings import BY_NAME, MODES

if TYPE_CHECKING:
    from pytest_regional.harness.parity.report import BadProgramError


#: Raised when what a file holds changes its meaning; a reader refuses what it does not know.
VERSION = 1

#: How many elements all inputs of a program have at most, so that no file takes a machine's memory.
ELEMENTS = 2**23

#: What the parts of a program raise, and eager, where they do not go together.
_UNFIT = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)

_CONFIG = r"[a-z]\w*(\.[a-z]\w*)*"
_NAMES = r"\w+(,\w+)*"
#: Settings whose value is a list of names.
_CONFIGS_OF_NAMES = ("max_autotune_gemm_backends", "max_autotune_conv_backends", "max_autotune_gemm_search_space")


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
        **({"partitioner": program.partitioner} if program.partitioner else {}),
        **({"settings": dict(program.settings)} if program.settings else {}),
    }


def save(program: Program, path: Path) -> None:
    """Write ``program`` to ``path``."""
    write_whole(path, (json.dumps(to_data(program), indent=1) + "\n").encode())


def load(path: Path) -> Program:
    """Read the program in ``path``.

    Raises:
        DocumentError: it cannot be read, or is no program file of this version.
    """
    data = read(path, object, "program")
    try:
        return from_data(data)
    except DocumentError as error:
        raise DocumentError(f"{path}: {error}") from error


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
        data["scope"] = [
            {"context": context.kind}
            if isinstance(context, Context)
            else {
                "region": context.name,
                "configs": {name: _plain(value) for name, value in context.configs},
                "after": list(context.after),
            }
            for context in step.scope
        ]
    return data


# Reading

#: The number of a value or a block, a size, and an integer that a program may hold.
_Number = Annotated[int, Meta(ge=0, le=10**6)]
_Size = Annotated[int, Meta(ge=0, le=ELEMENTS)]
_Integer = Annotated[int, Meta(ge=-(2**20), le=2**20)]
_Integers = Annotated[list[_Integer], Meta(max_length=12)]
_Line = Annotated[str, Meta(max_length=200)]
_ID = _Line | _Integer

#: How each parameter of the operator table is read, by name; an argument of a schema may be nothing, a flag, a number,
#: a few of them, or a known word.
PARAMETERS: Mapping[str, Any] = {
    **dict.fromkeys(
        ARGUMENTS,
        Literal[tuple(sorted(WORDS))]
        | bool
        | _Integer
        | float
        | Annotated[list[_Integer | float], Meta(max_length=12)]
        | None,
    ),
    "reverse": bool,
    **dict.fromkeys(("high", "low"), int | float),
    **dict.fromkeys(("shape", "sizes", "strides"), _Integers),
    **dict.fromkeys(("first", "length", "second", "shift"), _Integer),
    "size": Annotated[int, Meta(ge=0, le=4096)] | _Integers,  # some operators make a square of it
    "count": Annotated[int, Meta(ge=1, le=64)],
}


class _Argument(Struct, forbid_unknown_fields=True):
    shape: Annotated[tuple[_Size, ...], Meta(max_length=12)]
    dtype: Literal[DTYPES] = "float32"  # type: ignore[valid-type]
    layout: Literal[LAYOUTS] = "dense"  # type: ignore[valid-type]
    content: Literal[tuple(CONTENT_SOURCES)] = "signed"  # type: ignore[valid-type]
    requires_grad: bool = False
    below: Annotated[int, Meta(ge=0, le=2**20)] = 0
    alias_of: _Number | None = None
    part: Literal[PARTS] = "whole"  # type: ignore[valid-type]
    detached: bool = False
    dynamic: Annotated[tuple[_Number, ...], Meta(max_length=12)] = ()

    def __post_init__(self) -> None:
        if any(one >= len(self.shape) for one in self.dynamic):
            raise ValueError(f"dynamic: there are {len(self.shape)} dimensions")


class _Scope(Struct, forbid_unknown_fields=True):
    """A region, or another context."""

    context: Literal[tuple(CONTEXT_SOURCES)] | UnsetType = UNSET  # type: ignore[valid-type]
    region: _ID | UnsetType | None = UNSET
    configs: Annotated[dict[str, bool | int | float | str | None], Meta(max_length=100)] | UnsetType = UNSET
    after: list[_ID] | UnsetType = UNSET

    def __post_init__(self) -> None:
        given = [one is not UNSET for one in (self.region, self.configs, self.after)]
        if any(given) == (self.context is not UNSET) or (any(given) and not all(given)):
            raise ValueError("expected the field 'context', or the fields 'region', 'configs' and 'after'")
        for name, value in self.configs.items() if isinstance(self.configs, dict) else ():
            # No settings that speak to other machines; no texts, which may be paths or commands, but for few settings.
            if not re.fullmatch(_CONFIG, name, re.ASCII) or any(map(keyword.iskeyword, name.split("."))):
                raise ValueError(f"configs: {reprlib.repr(name)} is not the name of a setting")
            if "remote" in name or "upload" in name:
                raise ValueError(f"configs: {name} is a setting that speaks to another machine")
            known = name in _CONFIGS_OF_NAMES
            if isinstance(value, str) and not (known and re.fullmatch(_NAMES, value, re.ASCII)):
                these = ", ".join(_CONFIGS_OF_NAMES)
                raise ValueError(f"configs: {name} is text; only {these} are, names with commas between")
        for line in (self.region, *(self.after or ())):
            if isinstance(line, str) and not line.isprintable():
                raise ValueError(f"{reprlib.repr(line)} is not a line of printable characters")

    def made(self) -> Region | Context:
        if self.context is not UNSET:
            return Context(self.context)
        configs: Any = tuple(self.configs.items()) if isinstance(self.configs, dict) else ()
        after = self.after if isinstance(self.after, list) else ()
        return Region(None if self.region is UNSET else self.region, configs, tuple(after))


class _Step(Struct, forbid_unknown_fields=True):
    operator: _Line
    operands: list[_Number] = []
    parameters: dict[str, Any] = {}
    results: list[_Number] = []
    scope: Annotated[list[_Scope], Meta(max_length=12)] = []
    blocks: list[_Number] = []

    def __post_init__(self) -> None:
        operator = operator_named(self.operator)
        lengths = {"operands": len(operator.operands), "results": operator.results, "blocks": operator.calls}
        for name, length in lengths.items():
            if len(getattr(self, name)) != length:
                raise ValueError(f"{len(getattr(self, name))} {name}, and {operator.name} has {length}")
        if self.parameters.keys() != set(operator.parameter_names):
            raise ValueError(f"{operator.name} needs the parameters {', '.join(operator.parameter_names) or 'none'}")
        for name, value in self.parameters.items():
            self.parameters[name] = _parameter(name, value)

    def made(self) -> Step:
        return Step(
            self.operator,
            tuple(self.operands),
            tuple(self.parameters.items()),
            tuple(self.results),
            tuple(one.made() for one in self.scope),
            tuple(self.blocks),
        )


def _parameter(name: str, value: Any) -> Parameter:
    try:
        read = convert(value, PARAMETERS[name])
    except ValidationError as error:
        raise ValueError(f"parameters: {name}: {error}") from error
    if not isinstance(read, list):
        return cast("Parameter", read)
    if all(isinstance(one, int) for one in read) and math.prod(max(abs(one), 1) for one in read) > ELEMENTS:
        raise ValueError(f"parameters: {name} has more than {ELEMENTS} elements")
    return tuple(read)


def _check_new(known: Iterable[int], steps: Sequence[_Step]) -> set[int]:
    """Return the numbers of all values; each step makes new ones."""
    numbers = set(known)
    for place, step in enumerate(steps):
        if len(set(step.results) - numbers) < len(step.results):
            raise ValueError(f"steps[{place}] makes a value that is there already")
        numbers.update(step.results)
    return numbers


class _Block(Struct, forbid_unknown_fields=True):
    parameters: list[_Number]
    steps: list[_Step]
    result: _Number

    def __post_init__(self) -> None:
        if len(set(self.parameters)) < len(self.parameters):
            raise ValueError("parameters: one number is there twice")
        if any(step.blocks for step in self.steps):
            raise ValueError("a step of a block calls a block")
        if self.result not in _check_new(self.parameters, self.steps):
            raise ValueError(f"result: value {self.result}, which no step makes")

    def made(self) -> Block:
        return Block(tuple(self.parameters), tuple(step.made() for step in self.steps), self.result)


class _Program(Struct, forbid_unknown_fields=True):
    version: int
    arguments: Annotated[list[_Argument], Meta(max_length=1000)]
    blocks: Annotated[list[_Block], Meta(max_length=10_000)]
    steps: Annotated[list[_Step], Meta(max_length=10_000)]
    outputs: Annotated[list[_Number], Meta(max_length=10_000)]
    training: bool
    dynamic: bool | None
    partitioner: Literal[PARTITIONERS] | None = None  # type: ignore[valid-type]
    settings: Annotated[dict[str, bool | int | float], Meta(max_length=100)] = {}

    def __post_init__(self) -> None:
        if sum(math.prod(max(size, 1) for size in argument.shape) for argument in self.arguments) > ELEMENTS:
            raise ValueError(f"arguments: more than {ELEMENTS} elements")
        for index, argument in enumerate(self.arguments):
            if argument.alias_of is None:
                continue
            if argument.alias_of >= index:
                raise ValueError(f"arguments[{index}].alias_of: argument {argument.alias_of} is not an earlier one")
            if self.arguments[argument.alias_of].alias_of is not None:
                raise ValueError("arguments: a part of an argument that is a part of another one")
        if any(index >= len(self.blocks) for step in self.steps for index in step.blocks):
            raise ValueError(f"steps: there are {len(self.blocks)} blocks")
        _check_new(range(len(self.arguments)), self.steps)
        for name, value in self.settings.items():
            if name not in BY_NAME:
                raise ValueError(f"settings: {reprlib.repr(name)} is not a setting that programs are compiled under")
            allowed = BY_NAME[name].values
            # True is 1 to Python, and neither to a setting.
            if not any(type(one) is type(value) and one == value for one in allowed):
                raise ValueError(f"settings: {name}: {value!r} is none of {', '.join(map(repr, allowed))}")

    def made(self) -> Program:
        program = Program(
            tuple(TensorInput(**structs.asdict(one)) for one in self.arguments),
            tuple(one.made() for one in self.steps),
            tuple(self.outputs),
            tuple(one.made() for one in self.blocks),
            self.training,
            self.dynamic,
            self.partitioner,
            tuple(self.settings.items()),
        )
        check_buildable(program)
        return program


def from_data(data: Any, place: str = "") -> Program:
    """Return the program that plain data describes, built again in eager to see that it still can be.

    What it says becomes Python source, which is executed: no text gets there but names of tables, and integers.

    Args:
        data: plain data.
        place: its place in a document, for messages.

    Raises:
        DocumentError: the data is of another version, or describes no program; names the field.
    """
    version = data.get("version") if isinstance(data, Mapping) else None
    if type(version) is not int or version != VERSION:
        raise DocumentError(
            f"{place or 'the document'}: the program has version {reprlib.repr(version)}, this pytest-regional reads "
            f"version {VERSION}: replay it with the release that wrote it."
        )
    read = decoded(data, _Program, place)
    try:
        return read.made()
    except _UNFIT as error:
        raise DocumentError(f"{place or 'the document'}: no program: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a finding was met.

    Attributes:
        backend: the backend, as ``--regional-backend`` takes it.
        device: the device by name.
        mode: the mode that it was found in.
        versions: of torch, and of triton where it is installed.
    """

    backend: str = "reference"
    device: str = "cpu"
    mode: str = "native"
    versions: Mapping[str, str] = field(default_factory=dict)

    def provenance(self) -> dict[str, Any]:
        """Return them as plain data, which are arguments again."""
        names = ("backend", "device", "mode")
        return {**{name: getattr(self, name) for name in names}, "versions": dict(self.versions)}


#: Oracles of which the origin of a violation is enough: an exception and the place that raised it, or the change that
#: the cache overlooked. Violations of the others differ by what the program computes, too.
_BY_ORIGIN = (
    *("annotations_in_key", "compiles", "configs", "counters", "determinism", "integer_twin", "plan", "refused"),
    *("region_order", "results_kept", "threads", "uuid_in_key", "verified"),
)

#: Features that name a defect; the rest says how the program that met it happens to look.
_DEFECTS = (
    *("op:", "dtype:", "layout:", "region:", "input:", "output:", "context:", "training", "dynamic", "partitioner:"),
    *("event:", "changed:", "key:"),  # of sequences of cache operations
)


@dataclass(frozen=True)
class Signature:
    """The identity of a defect, as far as one can tell from outside.

    Attributes:
        oracle: the oracle that is violated; see ``docs/fuzzing-oracles.md``.
        stage: ``"compile"``, ``"run"``, ``"backward"`` or ``"restart"``.
        origin: exception type and innermost frame, or the kinds of mismatch.
        features: what the reduced program has that matters; empty before it is reduced.
    """

    oracle: str
    stage: str
    origin: str
    features: frozenset[str] = frozenset()

    def with_features(self, features: frozenset[str]) -> Signature:
        """Return the signature of a program with ``features``, those kept that name a defect."""
        kept = (f for f in features if self.oracle not in _BY_ORIGIN and f.startswith(_DEFECTS))
        return Signature(self.oracle, self.stage, self.origin, frozenset(kept))

    def covers(self, other: Signature, features: frozenset[str]) -> bool:
        """Whether a failure with signature ``other`` of a program with ``features`` may be this defect again."""
        same = (self.oracle, self.stage, self.origin) == (other.oracle, other.stage, other.origin)
        return same and self.features <= features

    @property
    def name(self) -> str:
        """A short name that is a file name: oracle, stage, and eight digits that tell it from others."""
        digits = hashlib.sha256(repr((self.origin, sorted(self.features))).encode()).hexdigest()[:8]
        return f"{self.oracle}-{self.stage}-{digits}"

    @property
    def exception(self) -> str:
        """The name of the exception that the origin begins with; empty where it is none."""
        name, at, _ = self.origin.partition(" at ")
        return name if at else ""

    def __str__(self) -> str:
        return f"{self.oracle} ({self.stage}): {self.origin}"


_ProvenanceLine = Annotated[str, Meta(max_length=200)]
#: The name of an oracle or a stage, of this release or an earlier one; file names are made of it.
_Word = Annotated[str, Meta(max_length=60, pattern=r"\A[a-z][a-z_]*\Z")]
_BACKEND = r"[A-Za-z0-9_][A-Za-z0-9_.+ -]*"


class FindingFields(Struct, forbid_unknown_fields=True):
    """The fields that the file of every finding has."""

    version: int
    oracle: _Word
    stage: _Word
    origin: str
    features: Annotated[list[_ProvenanceLine], Meta(max_length=10_000)]
    detail: str
    backend: _ProvenanceLine
    device: Annotated[str, Meta(max_length=200, pattern=r"\A[a-z][a-z0-9_-]*(:[a-z0-9_.-]+)?\Z")]
    mode: Literal[MODES]  # type: ignore[valid-type]
    versions: Annotated[
        dict[Annotated[str, Meta(pattern=r"\A(?a:[\w.-]{1,100})\Z")], _ProvenanceLine], Meta(max_length=100)
    ]

    def __post_init__(self) -> None:
        """Check what no type says: texts are printed, and file names and imports are made of the backend's name."""
        for line in (self.backend, *self.features, *self.versions.values()):
            if not line.isprintable():
                raise ValueError(f"{reprlib.repr(line)} is not a line of printable characters")
        module, colon, attribute = self.backend.partition(":")
        names = (*module.split("."), *attribute.split("."))
        # Python takes compatible characters for equal, keywords among them.
        identifiers = all(
            one.isidentifier() and one == unicodedata.normalize("NFKC", one) and not keyword.iskeyword(one)
            for one in names
        )
        if not (identifiers if colon else re.fullmatch(_BACKEND, module)):
            raise ValueError(f"backend: {self.backend!r} is neither a name nor package.module:attribute")

    @property
    def signature(self) -> Signature:
        """What makes another failure the same defect."""
        return Signature(self.oracle, self.stage, self.origin, frozenset(self.features))

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it was met, as arguments of :class:`Provenance`."""
        return {name: getattr(self, name) for name in ("backend", "device", "mode", "versions")}


#: Of the programs of a campaign, the share that eager may refuse, and how many, however short the campaign.
REFUSED_AT_MOST, REFUSED_BY_CHANCE = 0.01, 2


def reason_of(error: BadProgramError) -> str:
    """Return why eager refuses a program, in words that are the same for other programs."""
    exception = error.execution.exception
    return f"{error.execution.stage}: {type(exception).__name__}: {without_numbers(str(exception))}"


def too_many(refused: Mapping[str, int], examples: int) -> str:
    """Return what is wrong with a generator whose programs eager refuses so often; empty where nothing is."""
    count = sum(refused.values())
    if count <= max(REFUSED_BY_CHANCE, REFUSED_AT_MOST * examples):
        return ""
    reasons = "".join(
        f"\n  {number} times: {reason}"
        for reason, number in sorted(refused.items(), key=lambda item: (-item[1], item[0]))
    )
    return (
        f"eager refuses {count} of {plural(examples, 'program')}, more than {REFUSED_AT_MOST:.0%}: "
        f"the generator is to be fixed, or the programs that draw= gives{reasons}"
    )
