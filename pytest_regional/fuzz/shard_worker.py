"""Checks shards, in a process that :mod:`~pytest_regional.fuzz.processes` starts."""

from __future__ import annotations

import contextlib
import itertools
import resource
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from pytest_regional._base.limits import MOST_SECONDS, crash_marker
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import Campaign, CampaignResult, Programs, quiet_logs
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import VARIANTS, random_programs, with_other_annotations
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import FindingsFolder
from pytest_regional.fuzz.model.claims import disclaimed
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.settings import settings_of_mode
from pytest_regional.fuzz.shards import DONE, GROWN, CampaignFolder, Part, Work
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

#: Seconds that a finding is reduced. Where a process died of its program, it is neither reduced nor blamed.
REDUCE_SECONDS = 60.0


class Worker:
    """Checks shards.

    Args:
        work: what it is to do.
        stop: set when it is to end.
    """

    def __init__(self, work: Work, stop: threading.Event) -> None:
        self._work, self._plan, self._stop = work, work.plan, stop
        self._folder = CampaignFolder(work.findings, work.identity)
        self._until = time.monotonic() + (MOST_SECONDS if work.seconds is None else work.seconds)
        self._hits: defaultdict[Part, Counter[str]] = defaultdict(Counter)
        self._harness: tuple[Part, Regional] | None = None
        self._harnesses = contextlib.ExitStack()

    def run(self) -> int:
        """Check the shards that are not finished, until all are or the time is over; return the exit status."""
        with quiet_logs(), self._harnesses:
            for number, (shard, size) in enumerate(self._folder.left(self._work.shards, self._work.programs)):
                if self._stop.is_set() or time.monotonic() >= self._until:
                    break
                if number and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > self._work.memory:
                    return GROWN
                self._check(shard, size)
        return DONE

    def _check(self, shard: int, size: int) -> None:
        part, before = self._plan.part_of(shard), self._folder.progress(shard)
        marker = crash_marker(self._folder.path, f"{shard:05}")
        subject = self._programs(part, marker, blames=self._plan.blames and not before.deaths)
        campaign = Campaign(
            subject,
            Budget(seconds=max(self._until - time.monotonic(), 0.001)),
            self._plan.seed_of(shard),
            FindingsFolder(self._work.findings),
            reduce_seconds=0.0 if before.deaths else REDUCE_SECONDS,
            stopped=self._stop.is_set,
        )
        campaign.result.hits.update(self._hits[part])
        done, current = before.done, None

        def drawn() -> Iterator[Program]:
            nonlocal done, current
            for current in itertools.islice(subject.draw(campaign.seed), before.done, size):
                yield current
                done += 1  # asked for the next one

        def checked(result: CampaignResult, clock: object) -> None:
            self._folder.write(shard, before.after(result, done + 1))

        campaign.progress = checked
        try:
            result = campaign.check(drawn())
        except Exception:
            if current is not None:
                files.save(current, marker)  # the parent reports it
            raise
        self._hits[part] = result.hits
        kept = self._folder.progress(shard)
        if done > kept.done:  # those after the last one that was checked were skipped
            self._folder.write(shard, before.after(result, done))

    def _programs(self, part: Part, marker: Path, *, blames: bool) -> Programs:
        if self._harness is None or self._harness[0] != part:
            self._harness = None
            self._harnesses.close()
            opened = self._harnesses.enter_context(regional(part.backend, part.device, expects_regions=False))
            self._harness = part, opened
        harness = self._harness[1]
        without = frozenset() if self._plan.audit else disclaimed(harness._spec)
        settings = tuple(one for one in settings_of_mode(part.mode) if one.name in self._plan.settings)

        def drawn(seed: int) -> Iterator[Program]:
            programs = random_programs(seed, options=Options(without=without, settings=settings))
            if part.mode == "aten":  # other annotations cost less than to draw another program
                return with_other_annotations(programs, VARIANTS, seed, without)
            return programs

        return Programs.of(
            harness,
            part.backend,
            part.mode,
            drawn=drawn,
            blames=blames,
            without=without,
            limit=self._plan.limit,
            running=marker,
        )
