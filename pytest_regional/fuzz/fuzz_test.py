"""Fuzz tests under pytest: the ``regional_fuzz`` fixture, shards, and what rides on their reports."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._errors import RegionalError, RegionalWarning
from pytest_regional._limits import Interrupts, RegionalTimeoutError, time_limit
from pytest_regional._stash import FUZZ, TARGET
from pytest_regional._text import plural, printable
from pytest_regional.fuzz.budget import Budget, note_for
from pytest_regional.fuzz.findings.provenance import too_many

if TYPE_CHECKING:
    from pytest_regional._session import RegionalSession
    from pytest_regional.fuzz.caches.campaign import CacheCampaign
    from pytest_regional.fuzz.campaign import Campaign, CampaignResult
    from pytest_regional.fuzz.findings.folder import AnyFinding, FindingError
    from pytest_regional.fuzz.model.program import Program
    from pytest_regional.fuzz.oracles import LawBrokenError
    from pytest_regional.harness.regional import Regional
    from pytest_regional.report.progress import ProgressFile

#: Seconds that judging one program may take, unless ``--regional-timeout`` says otherwise.
EXAMPLE_SECONDS = 120.0

#: The fixture that makes each fuzz test as many items as processes share it.
SHARD_ARGUMENT = "_regional_fuzz_shard"


#: As many programs as one history takes the time of.
HISTORY = 5


class FindingsWarning(RegionalWarning):
    """A file in the folder of findings that holds none; what it told is not known to a campaign."""


class NewFindingsError(RegionalError, AssertionError):
    """A campaign met defects that no finding in the folder of findings explains."""


class RefusedProgramsError(RegionalError, AssertionError):
    """Eager refuses so many of a campaign's programs that their generator is at fault."""


def shards(config: pytest.Config) -> int:
    """Return how many processes share the fuzz tests: the xdist workers, or this one."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    return int(worker.get("workercount", 1))


@dataclass
class FuzzTest:
    """What the ``regional_fuzz`` fixture gives: :meth:`run` spends the test's share of ``--regional-fuzz``.

    Attributes:
        regional: the harness of this test.
        budget: this shard's share.
        run_seed: what all fuzz tests of the run draw from, as ``--regional-seed`` takes it.
        shard: its number, from 0.
        backend: the backend as the command line names it.
        folder: the folder of findings.
        scratch: a folder for notes that survive a crash of this process.
        name: the test, as people know it.
        limit: seconds that one program may take.
        audit: whether what the backend disclaims is drawn as well.
        result: what came of it, once it ran.
        lane: the lane that it ran in.
        unit: what it judged: programs or histories.
    """

    regional: Regional
    budget: Budget
    run_seed: int
    shard: int
    backend: str
    folder: Path
    scratch: Path
    name: str = "fuzzing"
    limit: float = EXAMPLE_SECONDS
    audit: bool = False
    result: CampaignResult | None = None
    lane: str = ""
    unit: str = "program"
    scripts: dict[str, str] = field(default_factory=dict)

    def run(
        self,
        lane: str,
        *,
        draw: Callable[[int], Iterator[Program]] | None = None,
        laws: Collection[str] | None = None,
    ) -> CampaignResult:
        """Run a campaign in ``lane`` and return its result.

        Args:
            lane: ``"structure"``, ``"fast"`` or ``"full"``.
            draw: yields programs for a seed; by default what :func:`pytest_regional.strategies.programs` draws without
                what the backend disclaims. Of other draws programs that need such a capability are passed over.
            laws: names of the laws to judge by; all that the lane can by default.

        Raises:
            NewFindingsError: with a line for each defect that is not among the known findings. What AOTAutograd breaks
                without the backend is kept as a finding of ``aot_eager``, and is no reason to fail another backend.
            RefusedProgramsError: eager refuses more than a few of a hundred programs; fewer are passed over.
        """
        from pytest_regional.fuzz.campaign import CAPTURE, Campaign
        from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder
        from pytest_regional.report.progress import ProgressFile

        __tracebackhide__ = True
        self.lane = lane
        folder = FindingsFolder(self._made_folder())
        campaign = Campaign(
            judge=self._judge,
            draw=draw or self._programs,
            budget=self.budget,
            seed=self.seed,
            backend=self.backend,
            device=self.regional.device_under_test.name,
            lane=lane,
            laws=laws,
            without=self.without,
            known=lambda: [
                finding
                for finding in folder.readable(_warn)
                if isinstance(finding, Finding) and finding.backend in (self.backend, CAPTURE)
            ],
            running=note_for(self.folder, f"{lane}-{self.shard}"),
            found=lambda finding: self._found(folder, finding),
            progress=(progress := ProgressFile(self._note("progress"), self.name, self.unit)),
        )
        return self._through(campaign, progress)

    def run_histories(self, lane: str, *, processes: bool = True) -> CampaignResult:
        """Play histories of caches in ``lane``, against a model of what has to answer, and return the result.

        Args:
            lane: ``"structure"``, ``"fast"`` or ``"full"``.
            processes: whether some compiles happen in new processes, which take seconds; not in lane ``structure``.

        Raises:
            NewFindingsError: with a line for each defect that is not among the known findings.
        """
        from pytest_regional.fuzz.caches.campaign import CacheCampaign
        from pytest_regional.fuzz.caches.findings import HistoryFinding
        from pytest_regional.fuzz.findings.folder import FindingsFolder
        from pytest_regional.report.progress import ProgressFile

        __tracebackhide__ = True
        self.lane, self.unit = lane, "history"
        folder = FindingsFolder(self._made_folder())
        campaign = CacheCampaign(
            self.regional,
            self.budget.part(HISTORY),
            self.seed,
            self.backend,
            lane,
            processes=processes,
            everything=self.audit,
            known=lambda: [
                finding
                for finding in folder.readable(_warn)
                if isinstance(finding, HistoryFinding) and finding.backend == self.backend
            ],
            found=lambda finding: self._found(folder, finding),
            progress=(progress := ProgressFile(self._note("progress"), self.name, self.unit)),
        )
        return self._through(campaign, progress)

    def _through(self, campaign: Campaign | CacheCampaign, progress: ProgressFile) -> CampaignResult:
        __tracebackhide__ = True
        with _quiet_logs(), contextlib.closing(progress), Interrupts() as interrupts:
            campaign.stopped = lambda: interrupts.came
            self.result = campaign.run()
        self._check(self.result)
        return self.result

    @property
    def without(self) -> frozenset[str]:
        """The capabilities that programs do without: what the backend disclaims, unless the run is an audit."""
        from pytest_regional.fuzz.model.claims import disclaimed

        return frozenset() if self.audit else disclaimed(self.regional._spec)

    def _programs(self, seed: int) -> Iterator[Program]:
        from pytest_regional.fuzz.draw.random_rows import drawn
        from pytest_regional.strategies import programs

        return drawn(programs(without=self.without), seed)

    @property
    def seed(self) -> int:
        """What this shard draws from."""
        return self.run_seed * 1009 + self.shard

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the campaign before its time."""
        return self.result is not None and self.result.interrupted

    def _made_folder(self) -> Path:
        """Make the folder of findings now: the first finding comes late, and is not to be lost."""
        __tracebackhide__ = True
        wrong = ""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            wrong = str(error.strerror)
        if wrong:
            pytest.fail(
                f"--regional-findings: {self.folder} cannot be written: {wrong}. What a fuzz test finds is kept there: "
                f"name another folder with --regional-findings=DIR",
                pytrace=False,
            )
        return self.folder

    def _judge(
        self, program: Program, *, laws: Collection[str] | None, blame: bool, known: Callable[[LawBrokenError], bool]
    ) -> None:
        from pytest_regional.fuzz.oracles import LawBrokenError, judge

        try:
            with time_limit(self.limit):
                judge(self.regional, program, lane=self.lane, laws=laws, blame=blame, known=known)
        except RegionalTimeoutError as late:
            raise LawBrokenError(
                "compiles", "compile", str(late), origin="longer than the time that one program may take"
            ) from None

    def _note(self, kind: str) -> Path:
        self.scratch.mkdir(parents=True, exist_ok=True)
        return self.scratch / f"{kind}-{self.lane}-{self.shard}-{os.getpid()}.json"

    def _found(self, folder: Any, finding: AnyFinding) -> None:
        self.scripts[finding.name] = str(folder.save_shown(finding))

    def _check(self, result: CampaignResult) -> None:
        __tracebackhide__ = True
        if not result.examples and not result.interrupted:
            missing = ", ".join(sorted(result.unclaimed))
            more = f"all need what the backend disclaims ({missing})" if missing else "give --regional-fuzz more"
            raise NewFindingsError(f"the campaign judged no {self.unit}: {more}")
        own = [finding for finding in result.findings if finding.backend == self.backend]
        if own:
            lines = [f"{finding.title}\n    {self.scripts[finding.name]}" for finding in own]
            raise NewFindingsError(
                f"{plural(len(lines), 'new finding')} in {plural(result.examples, self.unit)} "
                f"(--regional-seed={self.run_seed}):\n  " + "\n  ".join(lines)
            )
        if wrong := too_many(result.refused, result.examples):
            raise RefusedProgramsError(f"{wrong}\n--regional-seed={self.run_seed} draws the same")

    @property
    def facts(self) -> dict[str, Any] | None:
        """What the summary needs, as plain data that crosses processes; None before it ran."""
        result = self.result
        if result is None:
            return None
        return {
            "lane": self.lane,
            "unit": self.unit,
            "shard": self.shard,
            "seed": self.seed,
            "examples": result.examples,
            "passed_over": result.passed_over,
            "refused": dict(result.refused),
            "unclaimed": dict(result.unclaimed),
            "interrupted": result.interrupted,
            "seconds": result.seconds,
            "reducing": result.reducing,
            "met": dict(result.met),
            "findings": [self._finding_facts(finding) for finding in result.findings],
        }

    def _finding_facts(self, finding: AnyFinding) -> dict[str, Any]:
        result = self.result
        return {
            "name": finding.name,
            "title": finding.title,
            "size": finding.size,
            "first_seen": result.first_seen[finding.name] if result else 0,
            "script": self.scripts[finding.name],
        }


def _warn(error: FindingError) -> None:
    warnings.warn(FindingsWarning(printable(str(error))), stacklevel=2)


@contextlib.contextmanager
def _quiet_logs() -> Iterator[None]:
    """Keep out of pytest's captured log what compilers say about programs that fail: megabytes in a campaign."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def is_fuzz_test(item: pytest.Item) -> bool:
    """Tell whether ``item`` spends a budget of its own, program by program."""
    return SHARD_ARGUMENT in getattr(item, "fixturenames", ())


def fuzz_test(item: pytest.Item, session: RegionalSession, regional: Regional, shard: int) -> FuzzTest:
    """Return what the fixture gives to ``item``."""
    settings = session.settings
    test = FuzzTest(
        regional,
        settings.fuzz.share(shard, shards(item.config)),
        session.fuzz_seed,
        shard,
        item.stash[TARGET].backend,
        settings.findings,
        session.scratch_dir,
        item.name,
        settings.timeout or EXAMPLE_SECONDS,
        settings.audit,
    )
    item.stash[FUZZ] = test
    return test
