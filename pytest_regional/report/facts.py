"""The facts of one marked test, plain data that rides on its report, and the proofs about its kernels, as text.

Documented shape: a dictionary with ``version`` 1, ``test`` (node id), ``suite``, ``backend``, ``device``, ``requires``
(the capabilities that it needs), and, once the test ran, ``counters`` (name to count), ``worst_parity`` (largest error
over allowed error, at most 1e300, or ``None``),
``compile_seconds`` (of all code generations together), ``slowest_compiles`` (the slowest first, each ``seconds`` and
``what``) and ``causes`` (of the counters in :data:`EXPLAINED`: how often what moved them). A fuzz test also has
``fuzz``: see :attr:`pytest_regional.fuzz.fuzz_test.FuzzTest.facts`. Where a report is written, ``details`` holds what
:mod:`pytest_regional.report.details` collects. What went wrong is ``failure``, the end of pytest's own text; ``phase``
is what the test was in when it ended so: ``setup``, ``call`` or ``teardown``. ``runs`` says how often the test was run:
more than once where a plugin runs tests again. The facts are those of the last time. ``culprits``, only under
``--regional-blame=deep``, is what was found to be to blame (:meth:`Culprit.as_data`), one for each failure. ``blame``
is a sentence about the same, where a failed comparison with eager was followed up. ``file`` (relative to the
repository; empty for a test that is not in it) and ``line`` say where the test stands, and once it failed, at which of
its lines. ``message`` is the beginning of the error itself. ``rerun`` is a command that runs the test again, alone; it
is added where the report is written. ``shard`` is which part of a fuzz test it is, from 0. ``generated_code`` names
lines of generated code that the failure concerns (:class:`CodeLine`). ``proofs``, only under ``--regional-verify``, is
what was found out about each kernel. ``new_processes``, only under
``--regional-processes=forkserver``, is how those of ``in_new_process`` started: how many were ``forked``, and by reason
how many ``interpreters`` there were.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypedDict, cast

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.files import LARGEST, dumps
from pytest_regional._base.stash import FUZZ, Target, is_fuzz_test, shard_of
from pytest_regional._base.text import encodable, plural, printable
from pytest_regional.harness.devices.device import device_under_test

if TYPE_CHECKING:
    import pytest

    from pytest_regional.harness.counters import Event
    from pytest_regional.harness.record import GraphRecord
    from pytest_regional.harness.regional import Regional


ATTRIBUTE = "regional_facts"

#: Counters of what is slow or undone, in order of interest; a reader wants to know why they moved.
EXPLAINED = ("fallbacks", "recompiles", "cache_bypasses", "region_cache_bypasses")

#: Of one test, what of its compiles, and of the causes of one counter, is kept.
_KEPT = 5

#: Of what pytest says of a failure; what went wrong stands at its end.
_FAILURE_CHARACTERS = 8_000

#: Of the error, whose first lines say most.
_MESSAGE_CHARACTERS = 4_000


class _SomeCodeLines(TypedDict, total=False):
    """Of a fuzz test: the finding whose program the code is of. In ``--regional-report=DIR/``: the path for others.

    ``file`` is relative to the repository where the directory is in it.
    """

    finding: str
    file: str


class CodeLine(_SomeCodeLines):
    """A line of generated code: the file that is kept, the line from 1, and what is on it."""

    path: str
    line: int
    what: str


class _LaterFacts(TypedDict, total=False):
    """Keys that reports of earlier versions lack."""

    phase: str
    runs: int
    culprits: list[dict[str, Any]]
    blame: str
    file: str
    line: int
    message: str
    rerun: str
    shard: int
    generated_code: list[CodeLine]
    proofs: list[dict[str, Any]]
    new_processes: dict[str, Any]


class Facts(_LaterFacts):
    """See the module's docstring."""

    version: int
    test: str
    suite: str
    backend: str
    device: str
    requires: list[str]
    outcome: str
    counters: dict[str, int]
    worst_parity: float | None
    compile_seconds: float
    slowest_compiles: list[dict[str, Any]]
    causes: dict[str, dict[str, int]]
    fuzz: dict[str, Any] | None
    details: dict[str, Any] | None
    failure: str


#: What names the root of the checkout: to jobs of GitHub and of GitLab.
WORKSPACES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


@cache
def repository_of(folder: Path) -> Path:
    """Return the root of the repository that ``folder`` is in, else ``folder``.

    That is what paths on the pages of GitHub and GitLab are relative to, wherever pytest's own root is.
    """
    workspaces = {Path(os.environ[name]).resolve() for name in WORKSPACES if os.environ.get(name)}
    for one in (folder, *folder.parents):
        if (one / ".git").exists() or one.resolve() in workspaces:
            return one
    return folder


def within_repository(path: Path, root: Path) -> str:
    """Return ``path`` relative to the repository that ``root`` is in; empty where it is not in it, or installed."""
    try:
        inside = path.resolve().relative_to(repository_of(root).resolve())
    except ValueError:
        return ""
    return "" if "site-packages" in inside.parts else inside.as_posix()


def place_of(item: pytest.Item, error: pytest.ExceptionInfo[BaseException] | None = None) -> dict[str, str | int]:
    """Return ``file`` and ``line`` of a test: of the line that failed, else of its definition.

    What fails is most often a line of the harness or of the compiler. People look for it in the test: it is the
    innermost line of the test's own file. A test that is not in the repository has an empty ``file``.
    """
    file = within_repository(item.path, item.config.rootpath)
    failed = [frame.lineno + 1 for frame in error.traceback if Path(frame.path) == item.path] if error else []
    return {"file": file, "line": failed[-1] if failed else (item.location[1] or 0) + 1}


def of(item: pytest.Item, target: Target, regional: Regional | None) -> dict[str, Any]:
    """Return the facts of ``item``."""
    known: dict[str, Any] = {
        "version": 1,
        "test": item.nodeid,
        "suite": suite_of(item.nodeid),
        "backend": target.spec.name,
        "device": target.device,
        "requires": list(target.mark.requires),
        "counters": {},
        "worst_parity": None,
        "compile_seconds": 0.0,
        "slowest_compiles": [],
        "causes": {},
        "fuzz": item.stash[FUZZ].facts if FUZZ in item.stash else None,
        "details": None,
        **place_of(item),
        **({"shard": shard_of(item)} if is_fuzz_test(item) else {}),
    }
    if regional is None:
        # What `auto` means here, unless it is not on this machine, which is why the test was skipped.
        with contextlib.suppress(RegionalValueError):
            known["device"] = device_under_test(target.device).name
        return known
    compiles = sorted(regional.observer.compile_times, key=lambda compiled: -compiled.seconds)
    # JSON has no infinity, which is how far off a NaN is.
    ratios = [one.worst_ratio if one.worst_ratio <= LARGEST else LARGEST for one in regional._parity_reports]
    known |= {
        "device": regional.device_under_test.name,
        "counters": dict(regional.counters),
        "worst_parity": max(ratios, default=None),
        "compile_seconds": round(sum(one.seconds for one in compiles), 3),
        "slowest_compiles": [{"seconds": round(one.seconds, 3), "what": one.what} for one in compiles[:_KEPT]],
        "causes": _causes(regional.observer.log.since()),
    }
    if regional.verification is not None:
        known["proofs"] = [
            {
                "kernel": kernel.kernel,
                "config": dict(kernel.config),
                "digest": kernel.digest,
                "seconds": round(kernel.seconds, 3),
                "outcomes": [
                    {"property": one.property, "verdict": one.verdict, "reason": one.reason} for one in kernel.outcomes
                ],
            }
            for kernel in regional.verification.known()
        ]
    started = regional._new_processes
    if started is not None and (started.forked or started.interpreters):
        known["new_processes"] = {"forked": started.forked, "interpreters": dict(started.interpreters)}
    if regional.culprits:
        known["culprits"] = [one.as_data() for one in regional.culprits]
    return known


def plain(known: dict[str, Any]) -> dict[str, Any]:
    """Return ``known`` in the types of JSON and no others: what pytest-xdist cannot send ends its worker."""
    return cast("dict[str, Any]", json.loads(dumps(known, ensure_ascii=False).encode(errors="replace")))


def _causes(events: Iterable[Event]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for event in events:
        if event.counter in EXPLAINED:
            found.setdefault(event.counter, Counter())[event.cause.strip().partition("\n")[0][:200]] += 1
    return {name: dict(causes.most_common(_KEPT)) for name, causes in found.items()}


def suite_of(nodeid: str) -> str:
    """Return the suite of a test: its file below ``suites/`` (or below the working folder) without ``test_``."""
    path = PurePosixPath(nodeid.partition("::")[0])
    parts = path.parts
    if "suites" in parts:
        parts = parts[len(parts) - parts[::-1].index("suites") :]
    return "/".join([*parts[:-1], path.stem.removeprefix("test_")])


def read(report: pytest.TestReport) -> Facts | None:
    """Return the facts on ``report`` with its outcome, or ``None`` for an unmarked test."""
    raw: Any = getattr(report, ATTRIBUTE, None)
    if raw is None:
        return None
    # What pytest-rerunfailures calls an ending that does not count: the test begins again.
    outcome = "not finished" if report.outcome == "rerun" else str(report.outcome)  # type: ignore[comparison-overlap]
    if hasattr(report, "wasxfail"):
        outcome = "known failure" if report.outcome == "skipped" else "unexpected pass"
    elif report.outcome == "failed" and report.when != "call":
        outcome = "error"
    known = {**raw, "outcome": outcome, "failure": ""}
    if report.failed:
        # The beginning of what the error says, without the source lines that pytest shows around it.
        crash = getattr(report.longrepr, "reprcrash", None)
        said = str(crash.message if crash is not None else report.longrepr)
        known |= {"phase": report.when, "message": encodable(said[:_MESSAGE_CHARACTERS])}
        known["failure"] = encodable(report.longreprtext[-_FAILURE_CHARACTERS:])
    return cast("Facts", known)


def failed_at(item: pytest.Item, error: pytest.ExceptionInfo[BaseException]) -> dict[str, str | int]:
    """Return where ``item`` failed with ``error``, and in a sentence what is to blame, as far as it is known."""
    # An exception of the test's may run code for any attribute.
    ours = str(type(error.value).__module__).startswith("pytest_regional.")
    blame = getattr(error.value, "blame", None) if ours else None
    return {**place_of(item, error), **({"blame": blame} if isinstance(blame, str) else {})}


#: Graphs and operators that are named; of a fuzz test there are thousands.
_GRAPHS, _OPERATORS = 8, 12


def plan_of(graphs: Sequence[GraphRecord]) -> str:
    """Return one paragraph for each of the last graphs; empty where there are none."""
    left_out = len(graphs) - _GRAPHS
    lines = [f"({plural(left_out, 'earlier graph')} left out)"] if left_out > 0 else []
    for graph in graphs[-_GRAPHS:]:
        lines.append(f"{graph.kind} graph of {plural(len(graph.ops), 'op')}{'' if graph.regions else ', no regions'}")
        for region in graph.regions:
            ops = ", ".join(region.ops[:_OPERATORS]) + (", ..." if len(region.ops) > _OPERATORS else "")
            configs = f" with {region.configs}" if region.configs else ""
            partitions, count = plural(region.partitions, "partition"), plural(len(region.ops), "op")
            lines.append(f"  region {region.name}{configs}: {partitions} of {count} ({ops})")
    return "\n".join(lines)


Proof = dict[str, Any]

#: The worst verdict of a kernel's outcomes counts.
_VERDICTS = ("refuted", "unknown", "proved")

#: Reasons for what is unknown that are shown.
_SHOWN = 5


def proof_table(proofs: Sequence[Proof]) -> str:
    """Return a table of the kernels of one test: a line each, with what is not proved below it."""
    lines = []
    for proof in proofs:
        sizes = ", ".join(f"{name}={value}" for name, value in proof["config"].items())
        names = dict.fromkeys(one["property"] for one in proof["outcomes"])
        verdicts = ", ".join(f"{name} {_verdict(proof, name)}" for name in names)
        lines.append(f"{proof['kernel']}{f' ({sizes})' if sizes else ''}: {verdicts}, {proof['seconds']:.2f} s")
        lines += dict.fromkeys(
            printable(f"    {one['property']} {one['verdict']}: {one['reason']}")
            for one in proof["outcomes"]
            if one["verdict"] != "proved"
        )
    return "\n".join(lines)


def _verdict(proof: Proof, name: str) -> str:
    """Return the verdict of a property of a kernel; empty where that has none."""
    found = {one["verdict"] for one in proof["outcomes"] if one["property"] == name}
    return next((verdict for verdict in _VERDICTS if verdict in found), "")


def proof_totals(facts: Sequence[Facts]) -> list[str]:
    """Return the lines of the terminal about all kernels of a run; none where none was verified."""
    proofs = [proof for fact in facts for proof in fact.get("proofs", [])]
    if not proofs:
        return []
    distinct = list({proof["digest"] or id(proof): proof for proof in proofs}.values())
    lines = [
        f"{plural(len(distinct), 'distinct kernel')} verified, each with its configurations (values are not verified):"
    ]
    for name in dict.fromkeys(one["property"] for proof in distinct for one in proof["outcomes"]):
        counts = Counter(_verdict(proof, name) for proof in distinct)
        shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(_VERDICTS) if counts[verdict])
        lines.append(f"  {name}: {shown}")
    seconds = [proof["seconds"] for proof in distinct]
    lines.append(f"  seconds for a kernel: median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}")
    reasons = Counter(
        printable(one["reason"])[:120] for proof in distinct for one in proof["outcomes"] if one["verdict"] == "unknown"
    )
    lines += [f"  {count:4} unknown: {reason}" for reason, count in reasons.most_common(_SHOWN)]
    return lines
