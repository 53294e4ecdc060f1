"""Goldens of a run: where those of a test are, which are used, and writing them, in the process that has all reports.

Workers of pytest-xdist write nothing: what is to be written rides on the report of each test. A golden counts as unused
only if all tests of its file ran to their end, none was left out, and no worker died.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from _pytest.unittest import TestCaseFunction

from pytest_regional._base.files import write_whole
from pytest_regional._base.stash import HARNESS, TARGET
from pytest_regional._base.text import plural
from pytest_regional.harness.devices.device import device_under_test
from pytest_regional.harness.goldens.file import GoldenFile, GoldenFileError, GoldenKey, GoldensOfTest, device_class
from pytest_regional.plugin.session import RegionalSession
from pytest_regional.report.document import GOLDEN_STATES
from pytest_regional.report.facts import within_repository

if TYPE_CHECKING:
    from pytest_regional.harness.goldens.file import UsedGolden
    from pytest_regional.plugin.endings import EndingHooks
    from pytest_regional.plugin.workers import WorkerHooks

DIRECTORY = "__goldens__"

#: What the goldens of a test are called on its report, and what a worker has collected in its output.
ATTRIBUTE = "regional_goldens"

SECTION = "regional: golden, line by line"


def path_of(test_file: Path) -> Path:
    """Return the file of the goldens of a test file."""
    return test_file.parent / DIRECTORY / f"{test_file.name.removesuffix('.py')}.txt"


def name_of(item: pytest.Item) -> str:
    """Return the name of a test without the file, and without the backend and the device in brackets."""
    name = _full_name(item)
    if isinstance(item, TestCaseFunction):
        return name.partition("[")[0]
    params = item.callspec.params if hasattr(item, "callspec") else {}
    base, _, labels = name.partition("[")
    for argument in ("regional_backend", "regional_device"):
        if argument in params:
            label = re.escape(RegionalSession.short_name(params[argument]))
            labels = re.sub(rf"(^|-){label}(-|(?=\]$))", lambda found: found[1] if found[2] else "", labels, count=1)
    return f"{base}[{labels}" if labels not in ("", "]") else base


def _full_name(item: pytest.Item) -> str:
    """Return the name with the classes around the test; pytest-xdist adds the group of a test to its node id."""
    return "::".join(node.name for node in item.listchain() if isinstance(node, pytest.Class | pytest.Item))


def goldens_of(item: pytest.Item, *, update: bool) -> GoldensOfTest:
    """Return where the goldens of a marked test are."""
    path = path_of(item.path)
    return GoldensOfTest(path, _shown(path, item.config), name_of(item), update)


def _shown(path: Path, config: pytest.Config) -> str:
    root = config.rootpath
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


@dataclass
class Collected:
    """What one process has collected of the files that have goldens.

    Attributes:
        tests: of each file of goldens, the tests: node id, name, and backend (empty for one without the marker).
        left_out: files of goldens of which tests were left out.
        ownerless: files of goldens whose test file is gone.
    """

    tests: dict[str, list[list[str]]] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    ownerless: list[str] = field(default_factory=list)


class _Place(NamedTuple):
    """Where a golden is: file, key, and class of devices; without a device on all, with an empty key the whole file."""

    path: str
    key: GoldenKey
    device: str = ""


@dataclass
class _Test:
    """What is known of one test from its reports."""

    ended: bool = False
    passed: bool = True
    used: list[dict[str, Any]] = field(default_factory=list)


class GoldenHooks:
    """Hooks that know which goldens are used, and write."""

    def __init__(self, session: RegionalSession, endings: EndingHooks, workers: WorkerHooks) -> None:
        self._config = session.config
        self._settings = session.settings
        self._backends = {session.spec(name).name for name in session.settings.backends}
        self._errors = session.errors
        self._endings = endings
        self._workers = workers
        self._collected: list[Collected] = []
        self._own = Collected()
        self._tests: dict[str, _Test] = {}
        self._lines: list[tuple[str, bool]] = []
        self._written: set[_Place] = set()
        #: Goldens that no test uses, and whether they are gone or only reported.
        self._unused_states: dict[_Place, str] = {}

    # Collection

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, Any, Any]:
        """Note which tests there are, and which of them other plugins leave out."""
        before = _names_by_file(items)
        result = yield
        with self._errors.kept("noting which tests have goldens"):
            after = _names_by_file(items)
            is_a_part = self._config.getoption("lf", False) or any("::" in one for one in self._config.args)
            for file, names in before.items():
                golden = path_of(file)
                if golden.exists():
                    of_file = [(item, item.stash.get(TARGET, None)) for item in items if item.path == file]
                    self._own.tests[str(golden)] = [
                        [item.nodeid, name_of(item), target.spec.name if target else ""] for item, target in of_file
                    ]
                    if names != after.get(file) or is_a_part:
                        self._own.left_out.append(str(golden))
            for directory in dict.fromkeys(file.parent for file in before):
                for path in sorted((directory / DIRECTORY).glob("*.txt")):
                    if not (directory / f"{path.stem}.py").exists() and not (directory / path.stem).exists():
                        self._own.ownerless.append(str(path))
        return result

    # Tests

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, Any, pytest.TestReport]:
        """Put the goldens that a test used on its report, and all differences where they are asked for."""
        report: pytest.TestReport = yield
        regional = item.stash.get(HARNESS, None)
        if report.when != "call" or regional is None or regional.goldens is None:
            return report
        with self._errors.kept(f"noting the goldens of {item.nodeid}"):
            used = regional.goldens.used.values()
            setattr(report, ATTRIBUTE, [_plain(one, regional.goldens.path) for one in used])
            in_full = getattr(call.excinfo.value, "in_full", "") if call.excinfo else ""
            if in_full and self._config.get_verbosity() > 0:
                report.sections.append((SECTION, in_full))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended, and which goldens it used; the last time counts."""
        with self._errors.kept(f"noting how {report.nodeid} ended"):
            if report.when == "setup":
                self._tests[report.nodeid] = _Test()
            test = self._tests.setdefault(report.nodeid, _Test())
            test.passed &= report.outcome == "passed"
            test.used += getattr(report, ATTRIBUTE, [])
            test.ended |= report.when == "teardown"

    # The end

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take what a worker has collected; one that died leaves nothing."""
        with self._errors.kept(f"reading which tests worker {node.gateway.id} collected"):
            output = getattr(node, "workeroutput", {}).get(ATTRIBUTE)
            if output is not None:
                self._collected.append(Collected(**output))

    def finish(self) -> None:
        """Write goldens, or note which no test uses, once it is known whether the run is complete."""
        self._collected.append(self._own)
        pending: dict[str, list[dict[str, Any]]] = {}
        failed = 0
        for test in self._tests.values():
            new = [one for one in test.used if one["text"] is not None]
            if not (test.passed and test.ended):
                failed += len(new)
                continue
            for one in new:
                pending.setdefault(one["path"], []).append(one)
        if failed:
            self._lines.append((f"{plural(failed, 'golden')} not written: the test did not pass", False))
        for name in dict.fromkeys([*pending, *(name for one in self._collected for name in one.tests)]):
            with self._errors.kept(f"writing {name}"):
                self._finish_file(Path(name), pending.get(name, []))
        is_removed = self._settings.update and not self._is_cut_short()
        what = "removed" if is_removed else "--regional-update removes it"
        with self._errors.kept("writing goldens"):
            for path in map(Path, dict.fromkeys(name for one in self._collected for name in one.ownerless)):
                if is_removed:
                    path.unlink(missing_ok=True)
                self._unused_states[_Place(str(path), GoldenKey("", ""))] = "removed" if is_removed else "unused"
                self._lines.append((f"{_shown(path, self._config)} is of a test file that is gone; {what}", False))

    def states(self) -> list[dict[str, str]]:
        """Return what a report holds of goldens: what became of each that a test used, or that none uses."""
        found = dict(self._unused_states)
        for test in self._tests.values():
            for one in test.used:
                place = _Place(one["path"], GoldenKey(*one["key"]), one["device"])
                written = "written" if place in self._written else "not written"
                state = one["state"] if one["text"] is None else written
                found[place] = min(found.get(place, state), state, key=GOLDEN_STATES.index)
        return [
            {
                "file": within_repository(Path(path), self._config.rootpath) or _shown(Path(path), self._config),
                "test": key.test,
                "backend": key.backend,
                "name": key.name,
                "device": device,
                "state": state,
            }
            for (path, key, device), state in found.items()
        ]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail the run in which goldens could not be written; a worker sends what it collected."""
        if hasattr(session.config, "workerinput"):
            session.config.workeroutput[ATTRIBUTE] = vars(self._own)  # type: ignore[attr-defined]
        if any(failed for _, failed in self._lines):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

    def _finish_file(self, path: Path, pending: list[dict[str, Any]]) -> None:
        try:
            file = GoldenFile.read(path)
        except GoldenFileError as error:
            self._lines.append((f"no golden was written or counted: {error}", self._settings.update))
            return
        unused = list(self._unused(path, file))
        if not self._settings.update:
            self._note_unused(path, unused, "unused", "--regional-update removes what no test uses")
            return
        for one in pending:
            file.put(GoldenKey(*one["key"]), one["device"], tuple(one["version"]), tuple(one["text"]))
        for key, device in unused:
            file.remove(key, device)
        try:
            if file.goldens and (pending or unused):
                path.parent.mkdir(exist_ok=True)
                write_whole(path, str(file).encode())
            elif unused:
                path.unlink()
        except OSError as error:
            self._lines.append((f"{path} could not be written: {error.strerror or error}", True))
            return
        if pending:
            self._lines.append((f"{plural(len(pending), 'golden')} written in {_shown(path, self._config)}", False))
        self._written |= {_Place(str(path), GoldenKey(*one["key"]), one["device"]) for one in pending}
        self._note_unused(path, unused, "removed", "removed")

    def _note_unused(self, path: Path, unused: list[tuple[GoldenKey, str | None]], state: str, what: str) -> None:
        self._unused_states |= {_Place(str(path), key, device or ""): state for key, device in unused}
        if unused:
            names = ", ".join(str(key) + (f" on {device}" if device else "") for key, device in unused)
            self._lines.append((f"unused in {_shown(path, self._config)}: {names}; {what}", False))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print what was written, and what is unused."""
        for line, failed in self._lines:
            terminalreporter.write_line(f"regional goldens: {line}", **({"red": True} if failed else {}))

    # What is to be written, and what no test uses

    def _unused(self, path: Path, file: GoldenFile) -> Iterator[tuple[GoldenKey, str | None]]:
        """Yield goldens that no test uses, and on which device; ``None`` for all, where there is no such test."""
        known = [one for one in self._collected if str(path) in one.tests]
        tests = [test for one in known for test in one.tests[str(path)]]
        if self._is_cut_short() or not tests or any(str(path) in one.left_out for one in known):
            return
        # Only where all tests of a file ran to their end it is known what is unused.
        if not all(nodeid in self._tests and self._tests[nodeid].ended for nodeid, _, _ in tests):
            return
        used = {(tuple(one["key"]), one["device"]) for test in self._tests.values() for one in test.used}
        for key in list(file.goldens):
            if key.backend not in self._backends:
                continue
            own = {nodeid for nodeid, name, backend in tests if (name, backend) == (key.test, key.backend)}
            if not own:
                yield key, None
            elif all(self._tests[nodeid].passed for nodeid in own):
                devices = {one["device"] for nodeid in own for one in self._tests[nodeid].used}
                devices = devices or {device_class(device_under_test(name)) for name in self._settings.devices}
                yield from ((key, one) for one in file.goldens[key] if one in devices and (key, one) not in used)

    def _is_cut_short(self) -> bool:
        return bool(self._workers.lost or self._endings.reason)


def _names_by_file(items: list[pytest.Item]) -> dict[Path, set[str]]:
    """Return the tests of each file; a method of unittest, of which the plugin makes one for each backend, once."""
    found: dict[Path, set[str]] = {}
    for item in items:
        name = name_of(item) if isinstance(item, TestCaseFunction) else _full_name(item)
        found.setdefault(item.path, set()).add(name)
    return found


def _plain(used: UsedGolden, path: Path) -> dict[str, Any]:
    """Return a used golden as plain data, which crosses processes."""
    return {
        "path": str(path),
        "key": list(used.key),
        "device": used.device,
        "version": list(used.version),
        "text": None if used.text is None else list(used.text),
        "state": used.state,
    }
