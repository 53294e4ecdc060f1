"""Where a finding was met: on which backend and device, in which mode, with which versions."""

from __future__ import annotations

import hashlib
import keyword
import re
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from pytest_regional._base.text import plural, without_numbers
from pytest_regional.fuzz.modes import MODES

if TYPE_CHECKING:
    from pytest_regional.harness.parity.report import BadProgramError


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
        return {
            "backend": self.backend,
            "device": self.device,
            "mode": self.mode,
            "versions": dict(self.versions),
        }


#: Oracles whose violations differ by what the program computes. For the others the origin is enough: an exception and
#: the place that raised it, or the change that the cache overlooked.
_BY_FEATURES = (
    *("parity", "region_boundary", "inference", "warm", "order", "caches"),
    *("alias_probe", "further_calls", "input_forms", "own_random", "retained_backward", "rewrites"),
)

#: Features that name a defect; the rest says how the program that met it happens to look.
_OF_PROGRAMS = (
    "op:",
    "dtype:",
    "layout:",
    "region:",
    "input:",
    "output:",
    "context:",
    "training",
    "dynamic",
    "partitioner:",
)
#: The same of sequences of cache operations.
_OF_SEQUENCES = ("event:", "changed:", "key:")


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
        kept = (
            frozenset(f for f in features if f.startswith(_OF_PROGRAMS + _OF_SEQUENCES))
            if self.oracle in _BY_FEATURES
            else frozenset()
        )
        return Signature(self.oracle, self.stage, self.origin, kept)

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


_Line = Annotated[str, Meta(max_length=200)]
#: The name of an oracle or a stage, of this release or an earlier one; file names are made of it.
_Word = Annotated[str, Meta(max_length=60, pattern=r"\A[a-z][a-z_]*\Z")]
_BACKEND = r"[A-Za-z0-9_][A-Za-z0-9_.+ -]*"


class FindingFields(Struct, forbid_unknown_fields=True):
    """The fields that the file of every finding has."""

    version: int
    oracle: _Word
    stage: _Word
    origin: str
    features: Annotated[list[_Line], Meta(max_length=10_000)]
    detail: str
    backend: _Line
    device: Annotated[str, Meta(max_length=200, pattern=r"\A[a-z][a-z0-9_-]*(:[a-z0-9_.-]+)?\Z")]
    mode: Literal[MODES]  # type: ignore[valid-type]
    versions: Annotated[dict[Annotated[str, Meta(pattern=r"\A(?a:[\w.-]{1,100})\Z")], _Line], Meta(max_length=100)]

    def __post_init__(self) -> None:
        """Check what no type says: texts are printed, and file names and imports are made of the backend's name."""
        for line in (self.backend, *self.features, *self.versions.values()):
            if not line.isprintable():
                raise ValueError(f"{reprlib.repr(line)} is not a line of printable characters")
        module, colon, attribute = self.backend.partition(":")
        names = (*module.split("."), *attribute.split("."))
        if not (all(map(_is_identifier, names)) if colon else re.fullmatch(_BACKEND, module)):
            raise ValueError(f"backend: {self.backend!r} is neither a name nor package.module:attribute")

    @property
    def signature(self) -> Signature:
        """What makes another failure the same defect."""
        return Signature(self.oracle, self.stage, self.origin, frozenset(self.features))

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it was met, as arguments of :class:`Provenance`."""
        return {name: getattr(self, name) for name in ("backend", "device", "mode", "versions")}


def _is_identifier(text: str) -> bool:
    # Python takes compatible characters for equal, keywords among them.
    return text.isidentifier() and text == unicodedata.normalize("NFKC", text) and not keyword.iskeyword(text)


#: Of the programs of a campaign, the share that eager may refuse.
REFUSED_AT_MOST = 0.01

#: That many refused programs say nothing of a generator yet, however short the campaign.
REFUSED_BY_CHANCE = 2


def reason_of(error: BadProgramError) -> str:
    """Return why eager refuses a program, in words that are the same for other programs."""
    exception = error.execution.exception
    return f"{error.execution.stage}: {type(exception).__name__}: {without_numbers(str(exception))}"


def too_many(refused: Mapping[str, int], examples: int) -> str:
    """Return what is wrong with a generator whose programs eager refuses so often; empty where nothing is."""
    count = sum(refused.values())
    if count <= max(REFUSED_BY_CHANCE, REFUSED_AT_MOST * examples):
        return ""
    reasons = "".join(f"\n  {number} times: {reason}" for reason, number in sorted(refused.items(), key=_often_first))
    return (
        f"eager refuses {count} of {plural(examples, 'program')}, more than {REFUSED_AT_MOST:.0%}: "
        f"the generator is to be fixed, or the programs that draw= gives{reasons}"
    )


def _often_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
