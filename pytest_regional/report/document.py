"""One run as plain data: what ``--regional-report=FILE.json`` holds. The format is described in ``docs/reports.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from pytest_regional._base.documents import DocumentError, decoded, read
from pytest_regional._base.files import dumps
from pytest_regional._base.text import plural
from pytest_regional.backends import registry
from pytest_regional.report.facts import Facts

#: Raised when the meaning of a report changes.
VERSION = 1

#: How tests end, the worst first.
OUTCOMES = (
    "crashed",
    "not finished",
    "error",
    "failed",
    "unexpected pass",
    "known failure",
    "passed",
    "skipped",
)

#: What becomes of a golden in a run. Of several runs, or tests, the first of these that one says.
GOLDEN_STATES = ("changed", "missing", "not written", "written", "same", "removed", "unused")

#: Bytes of the largest report that is read.
_LARGEST = 2**30

#: How tests end, in the order of a table's cells.
SHOWN = ("passed", "failed", "error", "crashed", "not finished", "unexpected pass", "known failure", "skipped")

#: Endings that make a run fail.
BAD = frozenset({"crashed", "not finished", "error", "failed", "unexpected pass"})


@dataclass(frozen=True)
class RunReport:
    """A run, or several that were merged.

    Attributes:
        created: when it ended, in UTC, as ISO 8601.
        versions: of packages, by name.
        machine: the operating system, the processor and the number of its cores.
        options: the settings of the run.
        tests: the facts of each marked test.
        lost_workers: workers of pytest-xdist that died.
        merged_from: how many runs it is made of.
        unfinished: why the run did not end as it should have; empty where it did.
        goldens: each with ``file``, ``test``, ``backend``, ``name``, ``device`` and ``state``, one of
            :data:`GOLDEN_STATES`.
    """

    created: str
    versions: Mapping[str, str]
    machine: Mapping[str, Any]
    options: Mapping[str, Any]
    tests: Sequence[Facts]
    lost_workers: int = 0
    merged_from: int = 1
    unfinished: str = ""
    goldens: Sequence[Mapping[str, str]] = field(default_factory=list)
    version: int = field(default=VERSION, init=False)

    def as_json(self) -> str:
        """Return the text of its file."""
        data = asdict(self)
        for name in ("unfinished", "goldens"):
            if not data[name]:
                del data[name]  # what reads version 1 need not know of it
        return f"{dumps(data, indent=1)}\n"

    @staticmethod
    def read(path: Path) -> RunReport:
        """Return the report in ``path``; of tests, other fields than those of this version may be there and stay.

        It may be cut off, edited, or of another program. What reads it (merging, drawing the page) takes its shape for
        granted.

        Raises:
            DocumentError: no file, no report, or one of a format that this version does not know; says which, and
                where in the file.
        """
        data: Any = read(path, object, "report", most=_LARGEST)
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
        return RunReport(**data)


def column_of(fact: Facts) -> str:
    """Return the heading of a test's column in the matrix of suites and backends."""
    return f"{fact['backend']} ({fact['device']})"


def counter_totals(facts: Iterable[Facts]) -> Counter[str]:
    """Return the counters of all tests together."""
    totals: Counter[str] = Counter()
    for fact in facts:
        totals.update(fact["counters"])
    return totals


def worst_margin(facts: Iterable[Facts]) -> float | None:
    """Return the worst parity margin; what is known to fail, or passed with a failing comparison, is left out."""
    ended_well = ("passed", "skipped", "known failure")
    known = [(fact["worst_parity"], fact["outcome"]) for fact in facts]
    ratios = [ratio for ratio, outcome in known if ratio is not None and (ratio <= 1 or outcome not in ended_well)]
    return max(ratios, default=None)


def merged(reports: Sequence[RunReport]) -> RunReport:
    """Return one report of several runs: of shards, or of machines.

    Where several hold one test, the facts of its worst ending are kept. Versions and settings that differ stand side
    by side, with a comma.
    """
    tests: dict[tuple[str, str, str], Facts] = {}
    goldens: dict[tuple[str, ...], str] = {}
    for report in reports:
        for fact in report.tests:
            # Its node id, the backend and the device.
            identity = (fact["test"], fact["backend"], fact["device"])
            known = tests.setdefault(identity, fact)
            if OUTCOMES.index(fact["outcome"]) < OUTCOMES.index(known["outcome"]):
                tests[identity] = fact
        for one in report.goldens:
            key, state = tuple(one[name] for name in _GOLDEN_KEY), one["state"]
            goldens[key] = min(goldens.get(key, state), state, key=GOLDEN_STATES.index)
    return RunReport(
        created=max(report.created for report in reports),
        versions=_joined(report.versions for report in reports),
        machine=_joined(report.machine for report in reports),
        options=_joined(report.options for report in reports),
        tests=list(tests.values()),
        lost_workers=sum(report.lost_workers for report in reports),
        merged_from=sum(report.merged_from for report in reports),
        goldens=[{**dict(zip(_GOLDEN_KEY, key, strict=True)), "state": state} for key, state in goldens.items()],
    )


_GOLDEN_KEY = ("file", "test", "backend", "name", "device")


def _joined(several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {}
    for values in several:
        for name, value in values.items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return {name: values[0] if len(values) == 1 else ", ".join(map(str, values)) for name, values in found.items()}


#: A name and, for each column, the outcomes that there are, with how many of each.
Row = tuple[str, list[list[tuple[str, int]]]]


def matrix_of(facts: Sequence[Facts]) -> tuple[list[str], list[Row]]:
    """Return the headings of the columns, and a row of all tests, then of each suite."""
    columns = sorted({column_of(fact) for fact in facts})
    suites = sorted({fact["suite"] for fact in facts})
    counts = Counter((suite, column_of(fact), fact["outcome"]) for fact in facts for suite in (fact["suite"], None))
    rows = []
    for suite in (None, *suites):
        cells = [
            [(outcome, counts[suite, column, outcome]) for outcome in SHOWN if counts[suite, column, outcome]]
            for column in columns
        ]
        rows.append(("all" if suite is None else suite, cells))
    return columns, rows


def rows_of(facts: Sequence[Facts]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return what :func:`matrix_of` does, with each cell as text and the row of all tests at the end."""
    columns, (everything, *suites) = matrix_of(facts)
    shown = [
        (name, [", ".join(f"{count} {outcome}" for outcome, count in cell) or "-" for cell in cells])
        for name, cells in (*suites, everything)
    ]
    return columns, shown


def totals_of(facts: Sequence[Facts]) -> str:
    """Return the counters of all tests in a line."""
    totals, margin = counter_totals(facts), worst_margin(facts)
    worst = "" if margin is None else f"; worst parity margin {margin:.2g} of what is allowed"
    # A backend that Inductor has no part in compiles graphs, and never a region.
    regions = totals["region_compiles"] or totals["region_cache_hits"]
    graphs = "" if regions else f"{plural(totals['graphs'], 'graph')}, "
    return (
        f"{graphs}{totals['region_compiles']} region compiles, {totals['region_cache_hits']} region loads, "
        f"{totals['cache_hits']} cache hits, {totals['cache_misses']} misses, {totals['cache_bypasses']} bypasses, "
        f"{totals['recompiles']} recompiles{worst}"
    )


def slowest_of(facts: Sequence[Facts], most: int) -> list[tuple[float, str, str]]:
    """Return seconds, name and test of the slowest code generations."""
    compiles = [(one["seconds"], one["what"], fact["test"]) for fact in facts for one in fact["slowest_compiles"]]
    return sorted(compiles, reverse=True)[:most]


_FAILED = ("failed", "error", "crashed")


def advice(facts: Sequence[Facts]) -> list[str]:
    """Return a line for each claimed capability, or set of them, for want of which tests may have failed.

    A test that needs several says nothing against those that another test shows to work. What remains is charged
    together. Where several tests failed for want of one capability and none passed, it is most likely absent; one test
    is no evidence of that. Where some passed the capability is there. What a built-in backend claims is not the user's
    to take back: there it is a defect in any case.
    """
    passed = Counter(
        (fact["backend"], name) for fact in facts if fact["outcome"] == "passed" for name in fact["requires"]
    )
    failed: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for fact in facts:
        backend, needed = fact["backend"], tuple(dict.fromkeys(fact["requires"]))
        lacking = tuple(sorted(name for name in needed if not passed[backend, name]))
        # Each of several that work elsewhere is there: the failure says nothing about one of them.
        charged = lacking or (needed if len(needed) == 1 else ())
        if fact["outcome"] in _FAILED and charged:
            failed[backend, charged] += 1
    return [
        _line(backend, names, count, count + (passed[backend, names[0]] if len(names) == 1 else 0))
        for (backend, names), count in sorted(failed.items())
    ]


def _line(backend: str, names: tuple[str, ...], failed: int, ran: int) -> str:
    them = "it" if len(names) == 1 else "them"
    if failed < ran:
        which = f"{failed} of {ran} tests that need {them}"
        remedy = "others pass, so it is there: a defect, or the tests ask for more than it says"
    else:
        which = f"the only test that needs {them}" if failed == 1 else f"all {failed} tests that need {them}"
        if registry.origin(backend) == "built in":
            remedy = "the backend is built in and claims it, so this is a defect to report"
        elif failed == 1:
            remedy = "one test does not say whether it is absent or has a defect"
        elif len(names) > 1:
            remedy = "no test shows which of them is absent, if one is"
        else:
            section = f"[tool.pytest-regional.backends.{backend}]"
            remedy = (
                f'declare it absent if it is: {section} disclaims = {{ {names[0]} = "the reason" }} in pyproject.toml'
            )
            if names == ("region_counts",):
                remedy += "; or report what is compiled with pytest_regional.report_region"
    return f"{' and '.join(names)} of {backend}: {which} failed; {remedy}"


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
