"""A worker of a campaign that writes into a file which programs it checks and which findings it keeps.

``BENCH_JOURNAL`` names the file. Lines are ``checks BATCH POSITION IDENTITY`` and ``keeps NAME``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pytest_regional._files import append_line
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.workers import member, worker


def journaled(path: Path) -> None:
    """Have this process's worker write into ``path``."""
    publish, keep = worker.Worker._publish, member.Member.keep

    def publishing(self: worker.Worker, program: Program) -> None:
        publish(self, program)
        batch = self._task.batch
        if batch is not None:
            append_line(path, f"checks {batch.number} {batch.begin} {program.identity}".encode())

    def keeping(self: member.Member, name: str, data: Any) -> None:
        append_line(path, f"keeps {name}".encode())
        keep(self, name, data)

    worker.Worker._publish, member.Member.keep = publishing, keeping  # type: ignore[method-assign]


if __name__ == "__main__":
    journaled(Path(os.environ["BENCH_JOURNAL"]))
    sys.exit(worker.main())
