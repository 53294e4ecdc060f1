"""The shape of report files, as ``docs/reports.md`` documents it; they may be cut off, edited, or of another program.

``pytest-regional merge`` reads files that other machines wrote, and everything behind the reader (merging, drawing the
page) takes this shape for granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from pytest_regional._documents import DocumentError, decoded
from pytest_regional.report.document import GOLDEN_STATES, OUTCOMES, VERSION

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]

#: What an option, or a fact of a machine, can be.
Scalar = str | bool | Number | list[str] | None


class _Node(Struct):
    name: str
    op: str
    region: str | None
    partition: Count | None
    inputs: list[Count]
    after: list[Count]
    source: str


class _Graph(Struct):
    kind: str
    size: Count
    nodes: list[_Node]
    whole: bool = True

    def __post_init__(self) -> None:
        # What the page draws: values flow down, and an order may be asked for in any direction.
        for number, node in enumerate(self.nodes):
            if any(one >= number for one in node.inputs) or any(one >= len(self.nodes) for one in node.after):
                raise ValueError(f"nodes[{number}] names a node that is not there, or comes later")


class _Event(Struct):
    line: Count
    kind: str
    ops: str


class _Code(Struct):
    graph: str
    regions: list[str]
    loaded: bool
    text: str
    events: list[_Event]


class _Moment(Struct):
    seconds: Number
    counter: str
    cause: str


class _Error(Struct):
    where: str
    candidate: Number
    eager: Number | None
    allowed: Number


class _Details(Struct):
    graphs: list[_Graph]
    code: list[_Code]
    timeline: list[_Moment]
    errors: list[_Error]
    left_out: dict[str, Count]


class _Finding(Struct):
    name: str
    title: str
    script: str
    text: str = ""
    file: str = ""
    oracle: str = ""
    rule: str = ""
    size: Count = 0


class _Fuzz(Struct):
    findings: list[_Finding]
    hits: dict[str, Count] = {}
    unit: str = ""


class _Experiment(Struct):
    changed: str
    outcome: str
    seconds: Number


class _Culprit(Struct):
    sentence: str
    first_wrong: str
    experiments: list[_Experiment]


class _Compile(Struct):
    seconds: Number
    what: str


class _CodeLine(Struct):
    path: str
    line: Count
    what: str
    finding: str = ""
    file: str = ""


class _Processes(Struct):
    forked: Count
    interpreters: dict[str, Count]


class _Test(Struct):
    version: Count
    test: str
    suite: str
    backend: str
    device: str
    requires: list[str]
    outcome: Literal[OUTCOMES]  # type: ignore[valid-type]
    counters: dict[str, Count]
    worst_parity: Number | None
    compile_seconds: Number
    slowest_compiles: list[_Compile]
    causes: dict[str, dict[str, Count]]
    fuzz: _Fuzz | None
    details: _Details | None
    failure: str
    culprits: list[_Culprit] = []
    phase: str = ""
    blame: str = ""
    file: str = ""
    line: Count = 0
    message: str = ""
    rerun: str = ""
    shard: Count = 0
    generated_code: list[_CodeLine] = []
    new_processes: _Processes | None = None


class _Golden(Struct):
    file: str
    test: str
    backend: str
    name: str
    device: str
    state: Literal[GOLDEN_STATES]  # type: ignore[valid-type]


class _Run(Struct, forbid_unknown_fields=True):
    created: str
    versions: dict[str, str]
    machine: dict[str, Scalar]
    options: dict[str, Scalar]
    tests: list[_Test]
    lost_workers: Count = 0
    merged_from: Count = 1
    unfinished: str = ""
    goldens: list[_Golden] = []


def checked_run(data: Any, path: Path) -> Mapping[str, Any]:
    """Return the fields of a report; of tests, other fields may be there and stay.

    Raises:
        DocumentError: with the first flaw and its place.
    """
    if not isinstance(data, dict) or not isinstance(data.get("tests"), list):
        raise DocumentError(f"{path} is no report: --regional-report=FILE.json writes one")
    if data.pop("version", None) != VERSION:
        raise DocumentError(f"{path} has a format that this version does not know: it reads version {VERSION}")
    try:
        run = decoded(data, _Run)
    except DocumentError as error:
        raise DocumentError(f"{path} is no report: {error}") from error
    seen = set()
    for number, test in enumerate(run.tests):
        key = (test.test, test.backend, test.device)
        if key in seen:
            raise DocumentError(f"{path} is no report: tests[{number}] is a duplicate: {ascii(test.test)[:60]}")
        seen.add(key)
    return data
