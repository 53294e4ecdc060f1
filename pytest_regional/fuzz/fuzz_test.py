"""Fuzz tests under pytest: the ``regional_fuzz`` fixture, shards, and what rides on their reports."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._base.errors import CampaignError, RegionalWarning
from pytest_regional._base.limits import crash_marker, noted_interrupts
from pytest_regional._base.stash import FUZZ, TARGET, shards
from pytest_regional._base.text import plural, printable
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.caches.campaign import CacheSequences
from pytest_regional.fuzz.campaign import Campaign, Programs, quiet_logs
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import VARIANTS, random_programs, with_other_annotations
from pytest_regional.fuzz.findings.files import too_many
from pytest_regional.fuzz.findings.folder import FindingsFolder
from pytest_regional.fuzz.model.claims import disclaimed
from pytest_regional.fuzz.oracles import ORACLES
from pytest_regional.fuzz.settings import settings_of_mode

if TYPE_CHECKING:
    from pytest_regional._base.documents import DocumentError
    from pytest_regional.fuzz.campaign import CampaignResult, Subject
    from pytest_regional.fuzz.model.program import Program
    from pytest_regional.harness.regional import Regional
    from pytest_regional.plugin.session import RegionalSession

#: Seconds that checking one program may take, unless ``--regional-timeout`` says otherwise.
EXAMPLE_SECONDS = 120.0

#: As many programs as one sequence takes the time of.
SEQUENCE_COST = 5


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
        name: the test, as people know it.
        limit: seconds of processor time that one program may take.
        audit: whether what the backend disclaims is drawn as well.
        settings: names of the compiler settings that are drawn.
        blames: whether the step of the compile that is to blame for a finding is searched for.
        shards: how many shards there are.
        result: what came of it, once it ran.
        mode: the mode that it ran in.
        unit: what it checked: programs or sequences.
    """

    regional: Regional
    budget: Budget
    run_seed: int
    shard: int
    backend: str
    folder: Path
    name: str = "fuzzing"
    limit: float = EXAMPLE_SECONDS
    audit: bool = False
    settings: tuple[str, ...] = ()
    blames: bool = True
    shards: int = 1
    result: CampaignResult | None = None
    mode: str = ""
    unit: str = "program"

    def run(
        self,
        mode: str,
        *,
        draw: Callable[[int], Iterator[Program]] | None = None,
        oracles: Collection[str] | None = None,
    ) -> CampaignResult:
        """Run a campaign in ``mode`` and return its result.

        Args:
            mode: ``"aten"``, ``"graph"``, ``"interpret"``, ``"emulated"`` or ``"native"``.
            draw: yields programs for a seed; by default programs that need nothing that the backend disclaims. Of other
                draws, programs that do are skipped.
            oracles: names of the oracles to check; all that the mode can by default.

        Raises:
            CampaignError: with a line for each defect that is not among the known findings. What AOTAutograd breaks
                without the backend is kept as a finding of ``aot_eager``, and is no reason to fail another backend.
                It is raised as well when eager refuses more than a few of a hundred programs; fewer are skipped.
        """
        self.mode = mode
        folder = self._made_folder()
        drawn = draw or self._programs

        def varied(seed: int) -> Iterator[Program]:
            """Yield programs and, since it costs less than to draw one, each with other annotations as well."""
            return with_other_annotations(drawn(seed), VARIANTS, seed, self.without)

        programs = Programs.of(
            self.regional,
            self.backend,
            mode,
            drawn=varied if mode == "aten" else drawn,
            blames=self.blames,
            oracles=oracles,
            without=self.without,
            limit=self.limit,
            running=crash_marker(folder, f"{mode}-{self.shard}"),
        )
        return self._campaign(programs, self.budget, folder)

    def run_sequences(self, mode: str, *, processes: bool = True) -> CampaignResult:
        """Run a campaign of cache operations in ``mode``, against a model of the cache, and return its result.

        Args:
            mode: ``"interpret"``, ``"emulated"`` or ``"native"``.
            processes: whether some compiles happen in new processes, which take seconds; not in mode ``interpret``.

        Raises:
            CampaignError: with a line for each defect that is not among the known findings.
        """
        self.mode = mode
        sequences = CacheSequences(self.regional, self.backend, mode, processes, everything=self.audit)
        return self._campaign(sequences, self.budget.part(SEQUENCE_COST), self._made_folder())

    def _campaign(self, subject: Subject[Any], budget: Budget, folder: Path) -> CampaignResult:
        self.unit = subject.unit
        campaign = Campaign(subject, budget, self.seed, FindingsFolder(folder, _warn))
        if self._shares_programs:
            campaign.part, campaign.parts = self.shard, self.shards
        with quiet_logs(), noted_interrupts(raised=True) as interrupts:
            campaign.stopped = lambda: bool(interrupts)
            self.result = campaign.run()
        self._report(self.result)
        return self.result

    @property
    def without(self) -> frozenset[str]:
        """The capabilities that programs do without: what the backend disclaims, unless the run is an audit."""
        return frozenset() if self.audit else disclaimed(self.regional._spec)

    def _programs(self, seed: int) -> Iterator[Program]:
        drawn = tuple(setting for setting in settings_of_mode(self.mode) if setting.name in self.settings)
        return random_programs(seed, options=Options(without=self.without, settings=drawn))

    @property
    def seed(self) -> int:
        """What this shard draws from."""
        return self.run_seed * 1009 + (self.shard if not self._shares_programs else 0)

    @property
    def _shares_programs(self) -> bool:
        """Whether the shards check parts of the same programs: so a number of programs means the same ones in each run.

        Not for a time, in which each shard draws as fast as it can.
        """
        return self.budget.examples is not None

    @property
    def interrupted(self) -> bool:
        """Whether somebody ended the campaign before its time."""
        return self.result is not None and self.result.interrupted

    def _made_folder(self) -> Path:
        """Make the folder of findings now: the first finding comes late, and is not to be lost."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise pytest.fail.Exception(
                f"--regional-findings: {self.folder} cannot be written: {error.strerror}. What a fuzz test finds is "
                f"kept there: name another folder with --regional-findings=DIR",
                pytrace=False,
            ) from None
        return self.folder

    def _report(self, result: CampaignResult) -> None:
        if not result.examples and not result.interrupted:
            missing = ", ".join(sorted(result.unclaimed))
            more = f"all need what the backend disclaims ({missing})" if missing else "give --regional-fuzz more"
            raise CampaignError(f"the campaign checked no {self.unit}: {more}")
        own = [finding for finding in result.findings if finding.backend == self.backend]
        if own:
            lines = [f"{finding.title}\n    {result.scripts[finding.name]}" for finding in own]
            raise CampaignError(
                f"{plural(len(lines), 'new finding')} in {plural(result.examples, self.unit)} "
                f"(--regional-seed={self.run_seed}):\n  " + "\n  ".join(lines),
                {finding.name: result.code.get(finding.name, ()) for finding in own},
            )
        if wrong := too_many(result.refused, result.examples):
            raise CampaignError(f"{wrong}\n--regional-seed={self.run_seed} draws the same")

    @property
    def facts(self) -> dict[str, Any] | None:
        """What the summary needs, as plain data that crosses processes; None before it ran."""
        result = self.result
        if result is None:
            return None
        # Sequences of cache operations have oracles that programs have not.
        rules = {name: oracle.summary for name, oracle in ORACLES.items()}
        return {
            "mode": self.mode,
            "unit": self.unit,
            "shard": self.shard,
            "seed": self.seed,
            "examples": result.examples,
            "skipped_known": result.skipped_known,
            "refused": dict(result.refused),
            "unclaimed": dict(result.unclaimed),
            "unconfirmed": dict(result.unconfirmed),
            "interrupted": result.interrupted,
            "seconds": result.seconds,
            "reducing": result.reducing,
            "hits": dict(result.hits),
            "findings": [
                {
                    "name": finding.name,
                    "oracle": finding.signature.oracle,
                    "rule": rules.get(finding.signature.oracle, ""),
                    "title": finding.title,
                    "size": finding.size,
                    "discovered_at": result.discovered_at[finding.name],
                    "script": result.scripts[finding.name],
                }
                for finding in result.findings
            ],
        }


def _warn(error: DocumentError) -> None:
    warnings.warn(RegionalWarning(printable(str(error))), stacklevel=2)


def fuzz_test(item: pytest.Item, session: RegionalSession, regional: Regional, shard: int) -> FuzzTest:
    """Return what the fixture gives to ``item``."""
    settings = session.settings
    assert settings.fuzz is not None, "only without this package there is no budget"
    test = FuzzTest(
        regional,
        settings.fuzz.share(shard, shards(item.config)),
        session.fuzz_seed,
        shard,
        item.stash[TARGET].backend,
        settings.findings,
        item.name,
        settings.timeout or EXAMPLE_SECONDS,
        settings.audit,
        settings.fuzz_settings,
        settings.blame is None or settings.blame.startswith("deep"),
        shards(item.config),
    )
    item.stash[FUZZ] = test
    return test
