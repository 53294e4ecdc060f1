"""What becomes of each kind, in a process of its own."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from dataclasses import dataclass

from pytest_regional.testing import regional
from tests.faults.leaks.kinds import KEPT, KINDS, Kind


@dataclass(frozen=True)
class Found:
    """What became of one kind: whether the next test sees it, by which names it was told, whether it ends a worker."""

    seen: bool
    named: tuple[str, ...]
    ends_the_worker: bool
    error: str = ""

    @property
    def verdict(self) -> str:
        """Say it in a few words."""
        if self.error:
            return "error"
        if self.ends_the_worker:
            return "ends the worker"
        told = "named" if self.named else "not named"
        return f"seen by the next test, {told}" if self.seen else f"put back, {told}"


def trial(leaking: Kind) -> Found:
    """Leak within one test's harness and look afterwards; for a process that ends then."""
    before = leaking.look()
    with regional("aot_eager", expects_regions=False) as harness:
        leaking.leak()
    named = tuple(leak.name for leak in harness.leaks)
    return Found(leaking.look() != before, named, any(getattr(leak, "unrestorable", False) for leak in harness.leaks))


def in_a_fork(leaking: Kind, seconds: float = 60) -> Found:
    """Run :func:`trial` in a fork of this process, which has imported everything."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = trial(leaking)
        except BaseException as error:  # noqa: BLE001 - told to the parent
            found = Found(True, (), False, f"{type(error).__name__}: {error}")
        finally:
            os.write(writer, json.dumps(vars(found)).encode()[:60_000])
            for process in KEPT:
                if isinstance(process, subprocess.Popen):
                    process.kill()
            os._exit(0)
    os.close(writer)
    if not select.select([reader], [], [], seconds)[0]:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return Found(**json.loads(text)) if text else Found(True, (), False, "its process died or did not end")


def warm_up() -> None:
    """Do once what the first harness of a process does: imports, and settings that it reads."""
    with regional("aot_eager", expects_regions=False):
        pass


def main() -> None:
    """Print what becomes of each kind, and the counts."""
    warm_up()
    counts: dict[str, int] = {}
    for leaking in KINDS.values():
        found = in_a_fork(leaking)
        counts[found.verdict] = counts.get(found.verdict, 0) + 1
        print(f"{leaking.name:40} {found.verdict:32} {found.error or ', '.join(found.named)}"[:160], flush=True)
    print(f"\n{len(KINDS)} kinds: {', '.join(f'{number} {verdict}' for verdict, number in sorted(counts.items()))}")
