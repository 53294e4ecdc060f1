"""Findings on disk: a file and a script for each defect, in a shared folder; and the features of their programs.

A finding is two files with one stem: ``NAME.json`` says what was seen and holds the program, reduced and as found;
``NAME.py`` shows it. Files are written beside and renamed, so a campaign that dies leaves no half of one.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta

from pytest_regional._base.documents import DocumentError, decoded, read
from pytest_regional._base.files import write_whole
from pytest_regional.fuzz.caches.findings import EventFields, SequenceFinding
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.files import FindingFields, Provenance, Signature
from pytest_regional.fuzz.findings.scripts import shows, stand_alone, with_harness
from pytest_regional.fuzz.model.claims import interleaved
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles import check
from pytest_regional.fuzz.settings import nearest_mode

if TYPE_CHECKING:
    from pytest_regional.fuzz.campaign import CampaignResult
    from pytest_regional.harness.regional import Regional


#: Raised when the meaning of a finding file changes.
VERSION = 2


@dataclass(frozen=True)
class Finding(Provenance):
    """One distinct defect.

    Attributes:
        signature: what makes another failure the same defect.
        program: the smallest program known to show it.
        original_program: the program that showed it first.
        detail: what was seen, for people.
        region: what is to blame, where that was looked for.
        culprit: the step of the compile that is to blame, in a sentence, and the experiments in lines below it; where
            that was looked for.
    """

    unit: ClassVar[str] = "step"

    signature: Signature
    program: Program
    original_program: Program
    detail: str
    region: str | None = None
    culprit: str | None = None

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
        partitioner = f", partitioner {self.program.partitioner}" if self.program.partitioner else ""
        return f"{self.signature} ({', '.join(self.program.operators)}{partitioner}{blamed})"

    @property
    def text(self) -> str:
        """The program, as Python."""
        return self.program.source

    @property
    def script(self) -> str:
        """Its script, which needs this package."""
        blamed = f"To blame:\n{self.culprit}\n\n" if self.culprit else ""
        return with_harness(self.title, blamed + self.text, self.backend, self.device)

    @property
    def script_with_torch_alone(self) -> str | None:
        """A script that needs nothing but torch; None where the oracle cannot be shown so."""
        return stand_alone(self.program, self.signature.oracle, self.title, self.backend, self.culprit or "")

    def check(self, regional: Regional) -> None:
        """Check the program against the violated oracle again, in its mode, or in the one that this harness can take.

        Raises:
            OracleViolationError: it still does.
            BadProgramError: eager refuses the program.
        """
        check(regional, self.program, mode=nearest_mode(regional, self.mode), oracles=(self.signature.oracle,))

    def to_data(self) -> dict[str, Any]:
        """Return it as plain data, all but version and signature."""
        return {
            "detail": self.detail,
            "region": self.region,
            **({"culprit": self.culprit} if self.culprit else {}),
            **self.provenance(),
            "program": files.to_data(self.program),
            "original_program": files.to_data(self.original_program),
        }


#: A program that violates an oracle, or a sequence that breaks the model of a cache.
AnyFinding: TypeAlias = "Finding | SequenceFinding"


def to_data(finding: AnyFinding) -> dict[str, Any]:
    """Return ``finding`` as plain data."""
    signature = finding.signature
    return {
        "version": VERSION,
        "oracle": signature.oracle,
        "stage": signature.stage,
        "origin": signature.origin,
        "features": sorted(signature.features),
        **finding.to_data(),
    }


class _OfProgram(FindingFields):
    region: str | None
    program: Any
    original_program: Any
    culprit: str | None = None


class _OfSequence(FindingFields):
    sequence: Annotated[list[EventFields], Meta(max_length=10_000)]
    original_sequence: Annotated[list[EventFields], Meta(max_length=10_000)]


def from_data(data: Any) -> AnyFinding:
    """Return the finding that plain data describes: of any origin, as every field is of a stated type.

    Raises:
        DocumentError: it describes none, or one of another version; names the field.
    """
    version = data.get("version") if isinstance(data, Mapping) else None
    if type(version) is not int or version != VERSION:
        shown = reprlib.repr(version)
        raise DocumentError(f"the finding has version {shown}, this pytest-regional reads version {VERSION}")
    if "sequence" in data:
        of = decoded(data, _OfSequence)
        return SequenceFinding(
            signature=of.signature,
            sequence=tuple(event.made() for event in of.sequence),
            original_sequence=tuple(event.made() for event in of.original_sequence),
            detail=of.detail,
            **of.provenance,
        )
    found = decoded(data, _OfProgram)
    return Finding(
        signature=found.signature,
        program=files.from_data(found.program, "program"),
        original_program=files.from_data(found.original_program, "original_program"),
        detail=found.detail,
        region=found.region,
        culprit=found.culprit,
        **found.provenance,
    )


def signature_of(violation: Any, program: Program | None = None) -> Signature:
    """Return the signature of a violated oracle; with the features of ``program``, once that is reduced."""
    signature = Signature(violation.oracle, violation.stage, violation.origin)
    return signature if program is None else signature.with_features(features_of(program))


class FindingsFolder:
    """A folder of findings.

    Args:
        path: where; made when the first finding is saved.
        unreadable: called with the error of each file that :meth:`readable` skips.
    """

    def __init__(self, path: Path, unreadable: Callable[[DocumentError], Any] | None = None) -> None:
        self.path, self._unreadable = path, unreadable

    def __iter__(self) -> Iterator[AnyFinding]:
        for path in self.paths():
            yield self.read(path)

    def readable(self) -> Iterator[AnyFinding]:
        """Yield the findings; files that hold none are skipped."""
        for path in self.paths():
            try:
                yield self.read(path)
            except DocumentError as error:
                if self._unreadable is not None:
                    self._unreadable(error)

    def paths(self) -> list[Path]:
        """Return the finding files, by name."""
        return sorted(self.path.glob("*.json")) if self.path.is_dir() else []

    def read(self, path: Path) -> AnyFinding:
        """Read one finding.

        Raises:
            DocumentError: the file holds none, or cannot be read; names the file, and the field.
        """
        data = read(path, object, "finding")
        try:
            return from_data(data)
        except DocumentError as error:
            raise DocumentError(f"{path} is no finding: {error}") from error

    def save(self, finding: AnyFinding, name: str | None = None) -> Path:
        """Write file and script of ``finding``; return the script's path. A smaller one of the same name stays.

        The script needs torch and nothing else where that can show the finding.

        Args:
            finding: what is saved.
            name: the stem of its files; by default the finding's own name.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        stem = name or finding.name
        data, script = self.path / f"{stem}.json", self.path / f"{stem}.py"
        if self._size_of(data) <= finding.size:
            return script
        _write(script, finding.script_with_torch_alone or finding.script)
        _write(data, json.dumps(to_data(finding), indent=1) + "\n")
        return script

    def _size_of(self, path: Path) -> float:
        """Return the size of the finding in ``path``; without end where there is none, or what cannot be read."""
        try:
            return self.read(path).size
        except DocumentError:
            return float("inf")

    def save_shown(self, finding: AnyFinding, *, run: bool = True) -> Path:
        """Save ``finding``, and run its script: where torch alone does not show it, the script checks with a harness.

        What shows in code for an emulated GPU need not show in C++ code, which is what the script runs.

        Args:
            finding: what is saved.
            run: whether there is time to run the script; if not, it checks with a harness.
        """
        script = self.save(finding)
        # What takes too long has no exception, and a script that would be waited for.
        checked = finding.signature.oracle == "parity" or finding.signature.exception
        if checked and finding.script_with_torch_alone and not (run and shows(script, finding.signature.exception)):
            _write(script, finding.script)
        return script


def _write(path: Path, text: str) -> None:
    write_whole(path, text.encode())


def installed_versions() -> dict[str, str]:
    """Return the versions that a finding depends on."""
    found = {}
    for package in ("torch", "triton"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def merge(source: Path, into: Path, unreadable: Callable[[DocumentError], Any] | None = None) -> list[str]:
    """Copy the findings and crashes of one folder into another, which keeps the smallest of each name.

    Args:
        source: the folder that is read.
        into: the folder that is written to.
        unreadable: called with the error of each file that holds no finding, which is not copied.

    Returns:
        the names that were not there before.
    """
    new = []
    for below in ("", "crashes"):
        folder, target = FindingsFolder(source / below), FindingsFolder(into / below)
        for path in folder.paths():
            try:
                size = folder.read(path).size
            except DocumentError as error:
                if unreadable is not None:
                    unreadable(error)
                continue
            there = target.path / path.name
            if target._size_of(there) <= size:
                continue
            if not there.exists():
                new.append(path.stem)
            target.path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                write_whole(there.with_suffix(".py"), path.with_suffix(".py").read_bytes())
            write_whole(there, path.read_bytes())
    return new


class FindingStore:
    """The findings of one campaign, each once.

    Args:
        elsewhere: returns what is known outside of this campaign; called again before a failure is taken for new.
        result: where new findings are entered.
        keep: called with each new finding.
    """

    def __init__(
        self,
        elsewhere: Callable[[], Iterable[AnyFinding]],
        result: CampaignResult,
        keep: Callable[[AnyFinding], Any],
    ) -> None:
        self._elsewhere, self._result, self._keep = elsewhere, result, keep
        self.known = list(elsewhere())

    def explanation(self, signature: Signature, *possible: frozenset[str]) -> AnyFinding | None:
        """Return the finding that a failure with ``signature`` of what has one of the ``possible`` features may be."""

        def explains(finding: AnyFinding) -> bool:
            return any(finding.signature.covers(signature, features) for features in possible)

        known = next(filter(explains, self.known), None)
        if known is not None:
            return known
        # What other shards found since is only asked for where nothing else explains a failure.
        names = {finding.name for finding in self.known}
        new = [finding for finding in self._elsewhere() if finding.name not in names]
        self.known += new
        return next(filter(explains, new), None)

    def enter(self, finding: AnyFinding) -> AnyFinding:
        """Enter ``finding``, or return the one of its name that is known."""
        known = next((one for one in self.known if one.name == finding.name), None)
        if known is not None:
            return known
        self.known.append(finding)
        self._result.findings.append(finding)
        self._result.discovered_at[finding.name] = self._result.examples
        self._keep(finding)
        return finding


def features_of(program: Program) -> frozenset[str]:
    """Return the features of ``program``: ``op:mul``, ``family:pointwise``, ``dtype:bfloat16``, ``region:nested``, ...

    A reduced program keeps those that its failure needs: whatever can be taken away, the reducer took.
    """
    return frozenset({*_of_inputs(program), *_of_steps(program), *_of_regions(program), *_of_outputs(program)})


def _of_inputs(program: Program) -> Iterator[str]:
    for argument in program.arguments:
        if argument.alias_of is not None:
            yield "input:alias"
            yield f"part:{argument.part}"
            continue
        if argument.dtype != "float32":
            yield f"dtype:{argument.dtype}"
        if argument.layout != "dense":
            yield f"layout:{argument.layout}"
        if argument.content in ("nonfinite", "whole", "places", "large", "edges"):
            yield f"input:{argument.content}"
        if argument.dynamic:
            yield "input:dynamic"
        if 0 in argument.shape:
            yield "input:empty"
        if 1 in argument.shape:
            yield "input:size one"
    if program.training and any(argument.requires_grad for argument in program.arguments):
        yield "training"
    if program.dynamic:
        yield "dynamic"
    if program.partitioner == "min_cut":
        yield "partitioner:min_cut"
    for name, _ in program.settings:
        yield f"setting:{name}"


def _of_steps(program: Program) -> Iterator[str]:
    for step in program.all_steps():
        operator = operator_named(step.operator)
        yield f"op:{operator.name}"
        yield f"family:{operator.family}"
        if operator.writes:
            yield "writes"
            if any(step.operands[position] < len(program.arguments) for position in operator.writes):
                yield "writes:input"
        if operator.uses_rng:
            yield "draws"
        for context in step.contexts:
            yield f"context:{context.kind}"
    if any(step.region for block in program.blocks for step in block.steps):
        yield "region:in a block"


def _of_regions(program: Program) -> Iterator[str]:
    steps = program.steps
    if program.regions:
        yield "region"
    if len(program.regions) > 1:
        yield "region:several"
    if any(len(step.regions) > 1 for step in steps):
        yield "region:nested"
    if any(region.configs for region in program.regions):
        yield "region:configs"
    if any(region.after for region in program.regions):
        yield "region:after"
    if interleaved(step.region for step in steps if step.region is not None):
        yield "region:interleaved"
    made = {number: step.region for step in steps for number in step.results}
    if any(
        step.region is not None and made.get(number) not in (None, step.region)
        for step in steps
        for number in step.operands
    ):
        yield "region:feeds a region"
    if any(region.name is None for region in program.regions):
        yield "region:default"
    if any(step.operator == "nothing" for step in steps):
        yield "region:empty"
    runs = [(region, list(run)) for region, run in itertools.groupby(steps, lambda step: step.region)]
    if max(Counter(region for region, _ in runs if region is not None).values(), default=0) > 1:
        yield "region:entered again"
    repeated = Counter(
        tuple(step.operator for step in run) for region, run in runs if region is not None and len(run) > 1
    )
    if max(repeated.values(), default=0) > 1:
        yield "region:near duplicates"
    calls = [(index, step.region is not None) for step in program.steps for index in step.blocks]
    if max(Counter(index for index, _ in calls).values(), default=0) > 1:
        yield "block:called several times"
    if any((index, not inside) in calls for index, inside in calls):
        yield "block:inside and outside a region"


def _of_outputs(program: Program) -> Iterator[str]:
    if any(number < len(program.arguments) for number in program.outputs):
        yield "output:input"
    if len(set(program.outputs)) < len(program.outputs):
        yield "output:duplicate"
    used = {number for step in program.steps for number in step.operands}
    if any(number not in used and number not in program.outputs for step in program.steps for number in step.results):
        yield "output:unused value"
