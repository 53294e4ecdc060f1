"""What a worker process is to do: written by the process that starts it, on the first line of its standard input."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_regional.fuzz.findings.strict_json import Field
from pytest_regional.fuzz.workers.plan import Plan

#: How a worker process ends: it did its part; it cannot fuzz what it is to fuzz; others took it for dead; it has grown
#: so large that a new one is to go on.
DONE, CANNOT, DECLARED_DEAD, GROWN = 0, 2, 3, 4

#: Bytes of memory beyond which a worker is replaced: compilers keep what they compiled.
MOST_BYTES = 3 * 2**30


@dataclass(frozen=True)
class Assignment:
    """What one worker process is to do.

    Attributes:
        store: the URL of the store.
        plan: of the campaign.
        name: of the worker's record.
        place: which of the machine's workers it is.
        environment: the name of its Python environment.
        scratch: a directory of this worker's, for what it writes while it lives.
        seconds: for how long it fuzzes; None for no limit.
        python_path: directories in which modules of backends are found, too.
        memory: bytes of resident memory beyond which it ends after its batch, for a new one to go on.
    """

    store: str
    plan: Plan
    name: str
    place: str
    environment: str
    scratch: Path
    seconds: float | None = None
    python_path: tuple[str, ...] = ()
    memory: int = MOST_BYTES

    def dumps(self) -> str:
        """Return it as a line of JSON."""
        return json.dumps({**dataclasses.asdict(self), "plan": self.plan.to_data(), "scratch": str(self.scratch)})

    @classmethod
    def loads(cls, line: str) -> Assignment:
        """Return the one that a line of JSON describes.

        Raises:
            MalformedError: it describes none.
        """
        data: dict[str, Any] = json.loads(line)
        data["plan"] = Plan.of(Field(data["plan"]))
        return cls(**{**data, "scratch": Path(data["scratch"]), "python_path": tuple(data["python_path"])})

    @property
    def running(self) -> Path:
        """The file that holds the program, reduced or not, while it is checked: what crashed, if the process does."""
        return self.scratch / "running.json"
