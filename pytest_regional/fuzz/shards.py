"""What a campaign fuzzes, the shards that its draws are divided into, and what its folder remembers of each.

A shard is 20 programs with a seed of their own, so a campaign draws the same programs on any number of processes and
machines. The folder of findings holds::

    NAME.json, NAME.py                  a finding, named by its content
    crashes/NAME.json, NAME.py          a program that ended its process
    campaigns/ID/campaign.json          what is fuzzed, and the seed
    campaigns/ID/shard-00007.json       how far shard 7 is
    campaigns/ID/checking/00007-PID.json    the program of shard 7 that process PID is checking

A process writes how far its shard is after each program, so whoever kills it loses the program that it was checking,
which the next process checks again. Imports no torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_regional._base.documents import read
from pytest_regional._base.errors import RegionalRuntimeError
from pytest_regional._base.files import write_whole

if TYPE_CHECKING:
    from pytest_regional.fuzz.campaign import CampaignResult

T = TypeVar("T")

#: Programs in a shard.
SIZE = 20

#: Seeds are below, so that every reader of JSON keeps them exactly.
SEEDS = 2**53

#: As many shards as any campaign has.
MOST_SHARDS = 10**8

#: Seconds that a command waits for the processes of one that was killed, which end at once.
LOCK_SECONDS = 30.0

#: Of a program that ends its process twice, no third process checks it.
DEATHS = 2


@dataclass(frozen=True)
class Part:
    """One way of compiling: each shard has programs for one part.

    Attributes:
        backend: as ``--regional-backend`` takes it.
        device: as ``--regional-device`` takes it.
        mode: one of :data:`pytest_regional.fuzz.settings.MODES`.
    """

    backend: str
    device: str
    mode: str

    @property
    def name(self) -> str:
        """What it is called: ``reference, native, cpu``."""
        return f"{self.backend}, {self.mode}, {self.device}"


@dataclass(frozen=True)
class Plan:
    """What is fuzzed.

    Attributes:
        parts: the ways of compiling; shards take turns.
        seed: what all programs are drawn from.
        settings: names of the compiler settings that are drawn.
        limit: seconds of processor time that one program may take.
        audit: whether what a backend disclaims is drawn as well.
        blames: whether the step of the compile that is to blame for a finding is searched for.
    """

    parts: tuple[Part, ...]
    seed: int
    settings: tuple[str, ...] = ()
    limit: float = 120.0
    audit: bool = False
    blames: bool = True

    def part_of(self, shard: int) -> Part:
        """Return how the programs of a shard are compiled."""
        return self.parts[shard % len(self.parts)]

    def seed_of(self, shard: int) -> int:
        """Return what the programs of a shard are drawn from: 63 bits that no other shard has."""
        text = f"{self.seed} {self.part_of(shard).name} {shard}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass
class Progress:
    """How far a shard is, or all shards of a campaign.

    Attributes:
        done: how many programs are done: checked, skipped, or not supported.
        deaths: how many processes ended while they checked the program that is next.
        examples: how many were checked.
        skipped_known: how many were not, since they show a known finding.
        seconds: how long it took.
        refused: by reason, how many programs eager refuses.
        unclaimed: by capability, how many programs need what the backend disclaims.
    """

    done: int = 0
    deaths: int = 0
    examples: int = 0
    skipped_known: int = 0
    seconds: float = 0.0
    refused: dict[str, int] = field(default_factory=dict)
    unclaimed: dict[str, int] = field(default_factory=dict)

    def __add__(self, other: Progress) -> Progress:
        sums: dict[str, Any] = {}
        for name in (one.name for one in dataclasses.fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            sums[name] = Counter(mine) + Counter(theirs) if isinstance(mine, dict) else mine + theirs
        return Progress(**sums)

    def after(self, result: CampaignResult, done: int) -> Progress:
        """Return how far the shard is once ``done`` programs are done, of which ``result`` came."""
        made = self + Progress(
            0, 0, result.examples, result.skipped_known, result.seconds, result.refused, result.unclaimed
        )
        return dataclasses.replace(made, done=done, deaths=self.deaths if done == self.done else 0)


class CampaignFolder:
    """What is remembered of one campaign, in the folder of findings.

    Args:
        findings: the folder of findings.
        identity: of the campaign.
    """

    def __init__(self, findings: Path, identity: str) -> None:
        self.findings, self.identity = findings, identity
        self.path = findings / "campaigns" / identity

    @classmethod
    def begun(cls, findings: Path, plan: Plan, seed: int | None) -> tuple[CampaignFolder, Plan]:
        """Return the folder of a campaign and its plan, with the seed of the command that began it.

        Args:
            findings: the folder of findings.
            plan: what is fuzzed; its seed is taken if the campaign is new.
            seed: the one that was asked for, if any: it makes another campaign.
        """
        text = repr(dataclasses.replace(plan, seed=-1 if seed is None else seed))
        made = cls(findings, hashlib.sha256(text.encode()).hexdigest()[:8])
        file = made.path / "campaign.json"
        if file.exists():
            return made, dataclasses.replace(plan, seed=_read(file, Plan).seed)
        made.path.mkdir(parents=True, exist_ok=True)
        write_whole(made.path.parent / ".gitignore", b"*\n")
        write_whole(file, json.dumps(dataclasses.asdict(plan), indent=1).encode())
        return made, plan

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Be the only command that works on the campaign.

        What is yielded is a file descriptor for the processes that it starts: while one of them lives, also after the
        command was killed, the campaign stays locked.

        Raises:
            RegionalRuntimeError: another command works on it.
        """
        with (self.path / "lock").open("ab") as file:
            until = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise RegionalRuntimeError(
                            f"another command works on this campaign, in {self.path}: wait for its end, or give "
                            "another --seed or --findings"
                        ) from None
                    time.sleep(0.1)
            yield file.fileno()

    def progress(self, shard: int) -> Progress:
        """Return how far a shard is.

        Raises:
            DocumentError: its file is damaged.
        """
        file = self.file(shard)
        return _read(file, Progress) if file.exists() else Progress()

    def write(self, shard: int, progress: Progress) -> None:
        """Remember how far a shard is."""
        write_whole(self.file(shard), json.dumps(dataclasses.asdict(progress)).encode())

    def file(self, shard: int) -> Path:
        """Return the file that says how far a shard is."""
        return self.path / f"shard-{shard:05}.json"

    def total(self) -> Progress:
        """Return how far all shards are together.

        Raises:
            DocumentError: a file is damaged.
        """
        return sum((_read(file, Progress) for file in self.path.glob("shard-*.json")), Progress())

    def left(self, shards: range, programs: int | None) -> Iterator[tuple[int, int]]:
        """Yield the shards that are not finished, and how many programs each has.

        Args:
            shards: these alone.
            programs: how many the whole campaign has; None for no limit.
        """
        last = MOST_SHARDS if programs is None else -(-programs // SIZE)
        for shard in shards[: len(range(shards.start, last, shards.step))]:
            size = SIZE if programs is None else min(SIZE, programs - shard * SIZE)
            if self.progress(shard).done < size:
                yield shard, size


def _read(file: Path, kind: type[T]) -> T:
    return read(file, kind, "file of a campaign", remedy="Delete it")


#: How a process ends: it did its part; it cannot fuzz what it is to fuzz; it has grown, and a new one is to go on.
DONE, CANNOT, GROWN = 0, 2, 4

#: Bytes of memory beyond which a process is replaced: compilers keep what they compiled.
MOST_BYTES = 3 * 2**30


@dataclass(frozen=True)
class Work:
    """What one process is to do.

    Attributes:
        plan: of the campaign.
        identity: of the campaign.
        findings: the folder of findings.
        shards: that it checks.
        programs: how many the campaign has; None for no limit.
        seconds: for how long it checks; None for no limit.
        memory: bytes of resident memory beyond which it ends after its shard, for a new one to go on.
        python_path: directories in which modules of backends are found, too.
        scratch: a directory for what it writes while it lives.
    """

    plan: Plan
    identity: str
    findings: Path
    shards: range
    programs: int | None = None
    seconds: float | None = None
    memory: int = MOST_BYTES
    python_path: tuple[str, ...] = ()
    scratch: Path = Path()
