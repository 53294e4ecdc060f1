"""Findings on disk: a readable file and a script for each distinct defect, in a folder that campaigns share.

A finding is two files with one stem: ``NAME.json`` says what was seen and holds the program, reduced and as found;
``NAME.py`` shows it. Files are written beside and renamed, so a campaign that dies leaves no half of one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pytest_regional.fuzz import files
from pytest_regional.fuzz.circumstances import Circumstances, circumstances_of
from pytest_regional.fuzz.features import features_of
from pytest_regional.fuzz.history_findings import HistoryFinding
from pytest_regional.fuzz.lanes import nearest_lane
from pytest_regional.fuzz.program import Program
from pytest_regional.fuzz.script_check import shows
from pytest_regional.fuzz.scripts import Case, stand_alone, with_harness
from pytest_regional.fuzz.signature import Signature

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional

#: Raised when the meaning of a finding file changes.
VERSION = 1


class FindingError(ValueError):
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
    def from_data(cls, signature: Signature, data: Mapping[str, Any]) -> Finding:
        """Return the finding that plain data describes.

        Raises:
            ProgramFileError: what it holds is no program.
        """
        return cls(
            signature,
            files.from_data(data["program"]),
            files.from_data(data["found"]),
            data["detail"],
            data["region"],
            **circumstances_of(data),
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


def from_data(data: Any) -> AnyFinding:
    """Return the finding that plain data describes.

    Raises:
        FindingError: it describes none, or one of another version.
    """
    version = data.get("version") if isinstance(data, Mapping) else None
    if version != VERSION:
        raise FindingError(f"the finding has version {version!r}, this pytest-regional reads version {VERSION}")
    kind = HistoryFinding if "history" in data else Finding
    try:
        signature = Signature(data["law"], data["stage"], data["origin"], frozenset(data["features"]))
        return kind.from_data(signature, data)
    except (KeyError, TypeError) as error:
        raise FindingError(f"no finding: {type(error).__name__}: {error}") from error
    except files.ProgramFileError as error:
        raise FindingError(str(error)) from error


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
            FindingError: the file holds none; names the file.
        """
        try:
            return from_data(json.loads(path.read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FindingError(f"{path} is no JSON: {error}") from error
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
        except (FindingError, FileNotFoundError):
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
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


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
