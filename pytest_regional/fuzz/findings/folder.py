"""Findings on disk: a readable file and a script for each distinct defect, in a folder that campaigns share.

A finding is two files with one stem: ``NAME.json`` says what was seen and holds the program, reduced and as found;
``NAME.py`` shows it. Files are written beside and renamed, so a campaign that dies leaves no half of one.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from pytest_regional._errors import RegionalError
from pytest_regional._files import write_whole
from pytest_regional.fuzz.caches.findings import HistoryFinding
from pytest_regional.fuzz.features import features_of
from pytest_regional.fuzz.findings import files, strict_json
from pytest_regional.fuzz.findings.provenance import CIRCUMSTANCES, Circumstances, Signature, circumstances_of
from pytest_regional.fuzz.findings.scripts import Case, shows, stand_alone, with_harness
from pytest_regional.fuzz.findings.strict_json import Field, MalformedError
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.modes import nearest_lane

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

if TYPE_CHECKING:
    from pytest_regional.fuzz.campaign import CampaignResult
    from pytest_regional.fuzz.findings.provenance import Signature


#: Raised when the meaning of a finding file changes.
VERSION = 1


class FindingError(RegionalError, ValueError):
    """A finding file that cannot be read."""


@dataclass(frozen=True)
class Finding(Circumstances):
    """One distinct defect.

    Attributes:
        signature: what makes another failure the same defect.
        program: the smallest program known to show it.
        found: the program that showed it first.
        detail: what was seen, for people.
        region: what is to blame, where that was looked for.
    """

    unit: ClassVar[str] = "step"

    signature: Signature
    program: Program
    found: Program
    detail: str
    region: str | None = None

    @property
    def name(self) -> str:
        """The stem of its files."""
        return f"{self.backend.rpartition(':')[2]}-{self.signature.name}"

    @property
    def features(self) -> frozenset[str]:
        """The features that a program has to have to show it, as far as the reduced one tells."""
        return features_of(self.program)

    @property
    def size(self) -> int:
        """How many steps the program has."""
        return len(self.program.steps)

    @property
    def title(self) -> str:
        """One line that says what happens."""
        # Of several regions none is to blame: they fail together.
        blamed = f", {self.region}" if self.region and self.region.startswith("region '") else ""
        return f"{self.signature} ({', '.join(self.program.operators)}{blamed})"

    @property
    def text(self) -> str:
        """The program, as Python."""
        return self.program.source

    @property
    def script(self) -> str:
        """Its script, which needs this package."""
        return with_harness(self.title, self.text, self.backend, self.device)

    @property
    def script_with_torch_alone(self) -> str | None:
        """A script that needs nothing but torch; None where the law cannot be shown so."""
        return stand_alone(Case(self.program, self.signature.law, self.title, self.backend))

    def judge(self, regional: Regional) -> None:
        """Judge the program again by the law that it broke, in its lane, or in the one that this harness can take.

        Raises:
            LawBrokenError: it still does.
            BadProgramError: eager refuses the program.
        """
        from pytest_regional.fuzz.oracles import judge

        judge(regional, self.program, lane=nearest_lane(regional, self.lane), laws=(self.signature.law,))

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, all but version and signature."""
        return {
            "detail": self.detail,
            "region": self.region,
            **self.circumstances(),
            "program": files.to_data(self.program),
            "found": files.to_data(self.found),
        }

    @classmethod
    def from_fields(cls, signature: Signature, fields: Mapping[str, Field]) -> Finding:
        """Return the finding that the fields of a document describe.

        Raises:
            MalformedError: one does not hold what it has to.
        """
        return cls(
            signature,
            files.program_in(fields["program"]),
            files.program_in(fields["found"]),
            fields["detail"].text(),
            fields["region"].or_none(Field.text),
            **circumstances_of(fields),
        )


#: A program that breaks a law, or a history that breaks the model of a cache.
AnyFinding: TypeAlias = "Finding | HistoryFinding"


def to_data(finding: AnyFinding) -> dict[str, Any]:
    """Return ``finding`` as plain data."""
    signature = finding.signature
    return {
        "version": VERSION,
        "law": signature.law,
        "stage": signature.stage,
        "origin": signature.origin,
        "features": sorted(signature.features),
        **finding.to_data(),
    }


_SIGNATURE = ("version", "law", "stage", "origin", "features")
_OF_PROGRAM = (*_SIGNATURE, "detail", "region", *CIRCUMSTANCES, "program", "found")
_OF_HISTORY = (*_SIGNATURE, "detail", *CIRCUMSTANCES, "history", "found")


def from_data(data: Any) -> AnyFinding:
    """Return the finding that plain data describes: of any origin, as every field is of a stated type.

    Raises:
        FindingError: it describes none, or one of another version; names the field.
    """
    version = data.get("version") if isinstance(data, Mapping) else None
    if type(version) is not int or version != VERSION:
        shown = reprlib.repr(version)
        raise FindingError(f"the finding has version {shown}, this pytest-regional reads version {VERSION}")
    try:
        if "history" in data:
            fields = Field(data).fields(_OF_HISTORY)
            return HistoryFinding.from_fields(_signature(fields), fields)
        fields = Field(data).fields(_OF_PROGRAM)
        return Finding.from_fields(_signature(fields), fields)
    except MalformedError as error:
        raise FindingError(f"no finding: {error}") from error


def _signature(fields: Mapping[str, Field]) -> Signature:
    features = frozenset(item.line() for item in fields["features"].items())
    return Signature(_word(fields["law"]), _word(fields["stage"]), fields["origin"].text(), features)


def _word(field: Field) -> str:
    """Return the name of a law or a stage, of this release or an earlier one; file names are made of it."""
    word = field.line(60)
    if not re.fullmatch("[a-z][a-z_]*", word):
        field.refuse(f"{word!r} is no word of letters")
    return word


def signature_of(broken: Any, program: Program | None = None) -> Signature:
    """Return the signature of a broken law; with the features of ``program``, once that is reduced."""
    signature = Signature(broken.law, broken.stage, broken.origin)
    return signature if program is None else signature.with_features(features_of(program))


class FindingsFolder:
    """A folder of findings.

    Args:
        path: where; made when the first finding is saved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[AnyFinding]:
        for path in self.paths():
            yield self.read(path)

    def readable(self, unreadable: Callable[[FindingError], Any]) -> Iterator[AnyFinding]:
        """Yield the findings; files that hold none are told to ``unreadable``."""
        for path in self.paths():
            try:
                yield self.read(path)
            except FindingError as error:
                unreadable(error)

    def paths(self) -> list[Path]:
        """Return the finding files, by name."""
        return sorted(self.path.glob("*.json")) if self.path.is_dir() else []

    def read(self, path: Path) -> AnyFinding:
        """Read one finding.

        Raises:
            FindingError: the file holds none, or cannot be read; names the file, and the field.
        """
        try:
            return from_data(strict_json.read(path))
        except MalformedError as error:
            raise FindingError(f"{path} {error}") from error
        except OSError as error:
            raise FindingError(f"{path} cannot be read: {error.strerror}") from error
        except FindingError as error:
            raise FindingError(f"{path}: {error}") from error

    def save(self, finding: AnyFinding) -> Path:
        """Write file and script of ``finding``; return the script's path. A smaller one of the same name stays.

        The script needs torch and nothing else where that can show the finding.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        data, script = self.path / f"{finding.name}.json", self.path / f"{finding.name}.py"
        if self._size_of(data) <= finding.size:
            return script
        _write(script, finding.script_with_torch_alone or finding.script)
        _write(data, json.dumps(to_data(finding), indent=1) + "\n")
        return script

    def _size_of(self, path: Path) -> float:
        """Return the size of the finding in ``path``; without end where there is none, or what cannot be read."""
        try:
            return self.read(path).size
        except FindingError:
            return float("inf")

    def save_shown(self, finding: AnyFinding) -> Path:
        """Save ``finding``, and run its script: where torch alone does not show it, the script judges with a harness.

        What shows in code for an emulated GPU need not show in C++ code, which is what the script runs.
        """
        script = self.save(finding)
        # What takes too long has no exception, and a script that would be waited for.
        checked = finding.signature.law == "parity" or finding.signature.exception
        if checked and finding.script_with_torch_alone and not shows(script, finding.signature.exception):
            _write(script, finding.script)
        return script


def _write(path: Path, text: str) -> None:
    write_whole(path, text.encode())


def installed_versions() -> dict[str, str]:
    """Return the versions that a finding depends on."""
    import importlib.metadata

    found = {}
    for package in ("torch", "triton"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def merged(findings: Sequence[AnyFinding]) -> list[AnyFinding]:
    """Return one finding for each name, the smallest of each: what several shards found together."""
    smallest: dict[str, AnyFinding] = {}
    for finding in findings:
        known = smallest.get(finding.name)
        if known is None or finding.size < known.size:
            smallest[finding.name] = finding
    return list(smallest.values())


F = TypeVar("F", bound="AnyFinding")


class Ledger(Generic[F]):
    """The findings of one campaign.

    Args:
        elsewhere: gives what is known outside of this campaign; asked again before a failure is taken for new.
        result: where new findings are entered.
        found: called with each new finding.
    """

    def __init__(
        self, elsewhere: Callable[[], Iterable[F]], result: CampaignResult, found: Callable[[F], Any] | None
    ) -> None:
        self._elsewhere, self._result, self._found = elsewhere, result, found
        self.known = list(elsewhere())

    def explanation(self, signature: Signature, *possible: frozenset[str]) -> F | None:
        """Return the finding that a failure with ``signature`` of what has one of the ``possible`` features may be."""
        for finding in chain(self.known, self._of_others()):
            if any(finding.signature.covers(signature, features) for features in possible):
                return finding
        return None

    def _of_others(self) -> Iterator[F]:
        """Yield what other shards found since; only asked where nothing else explains a failure."""
        names = {finding.name for finding in self.known}
        new = [finding for finding in self._elsewhere() if finding.name not in names]
        self.known += new
        yield from new

    def enter(self, finding: F) -> F:
        """Enter ``finding``, or return the one of its name that is known."""
        known = next((one for one in self.known if one.name == finding.name), None)
        if known is not None:
            return known
        self.known.append(finding)
        self._result.findings.append(finding)
        self._result.first_seen[finding.name] = self._result.examples
        if self._found is not None:
            self._found(finding)
        return finding
