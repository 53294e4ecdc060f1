"""What a run writes at its end: reports, directories of failed tests, what the page of a CI service shows.

With each failure goes a command that runs the test again, alone, from the directory that pytest was started in. It is
made where the run was started: workers of pytest-xdist have options of their own. The test's id is kept as it is, since
inputs depend on it, so all backends and devices of the run are named.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _pytest.pathlib import bestrelpath

from pytest_regional._base.text import encodable, masked_urls
from pytest_regional.plugin import options
from pytest_regional.plugin.evidence import Evidence, add_text
from pytest_regional.plugin.session import RegionalSession
from pytest_regional.report import ci, step_summary
from pytest_regional.report.document import BAD
from pytest_regional.report.facts import Facts
from pytest_regional.report.outputs import write_report
from pytest_regional.report.this_run import CollectedFacts, report_of

if TYPE_CHECKING:
    import pytest

    from pytest_regional.plugin.endings import EndingHooks
    from pytest_regional.plugin.goldens import GoldenHooks
    from pytest_regional.plugin.session import RegionalSession
    from pytest_regional.plugin.workers import WorkerHooks


class RunOutputs:
    """Writes what ``--regional-report`` asks for, in the process that was started."""

    def __init__(
        self,
        session: RegionalSession,
        collected: CollectedFacts,
        endings: EndingHooks,
        workers: WorkerHooks,
        evidence: Evidence,
        goldens: GoldenHooks,
    ) -> None:
        self._session, self._collected = session, collected
        self._endings, self._workers, self._evidence = endings, workers, evidence
        self._goldens = goldens
        self._rerun = RerunCommands(session)
        self._unwritten: list[str] = []

    def __bool__(self) -> bool:
        """Whether something could not be written."""
        return bool(self._unwritten)

    def add_rerun(self, report: pytest.TestReport) -> None:
        """Add the command that runs a failed test again to its report."""
        fact = self._collected.of(report.nodeid) if report.failed else None
        if fact is None:
            return
        with self._session.errors.kept(f"adding how to run {report.nodeid} again"):
            add_text(report, "regional", f"rerun: {self._rerun.of(fact)}")

    def _facts(self) -> list[Facts]:
        facts = self._collected.facts
        for fact in facts:
            if fact["outcome"] in BAD:
                fact["rerun"] = self._rerun.of(fact)
        return facts

    def write(self) -> None:
        """Write all but what is printed."""
        outputs, errors = self._session.settings.reports, self._session.errors
        if not outputs:
            return
        with errors.kept("writing the report"):
            report = report_of(
                self._session.settings,
                self._session.config.rootpath,
                self._facts(),
                self._goldens.states(),
                self._workers.lost,
                self._endings.reason,
            )
            for path in outputs.files:
                with errors.kept(f"writing {path}"):
                    self._try(path, partial(write_report, report, path))
            for directory in outputs.directories:
                with errors.kept(f"writing {directory}"):
                    self._try(directory, lambda: self._evidence.write(report.tests))
            if outputs.github:
                with errors.kept("writing the summary of the job"):
                    name = os.environ.get("GITHUB_STEP_SUMMARY", "")
                    self._try(Path(name), lambda: step_summary.append_summary(report, os.environ))

    def _try(self, path: Path, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._unwritten.append(f"--regional-report: {path} could not be written: {error.strerror or error}")

    def print(self, terminalreporter: Any) -> None:
        """Print annotations, and what could not be written."""
        if self._session.settings.reports.github:
            terminalreporter.ensure_newline()
            for line in ci.annotations_of(self._facts()):
                terminalreporter.write_line(line)
        for line in self._unwritten:
            terminalreporter.write_line(line, red=True)


#: Options of pytest and Hypothesis that decide what a test does; each is repeated as it was given.
_KEPT = (
    ("-p",),
    ("-c", "--config-file"),
    ("-o", "--override-ini"),
    ("-W", "--pythonwarnings"),
    ("--rootdir",),
    ("--confcutdir",),
    ("--import-mode",),
    ("--hypothesis-profile",),
    ("--hypothesis-seed",),
)

#: Settings of this plugin that are said in another way, or that change no outcome.
_OWN = ("backends", "devices", "seed", "reports")

#: How many findings are named one by one.
_FINDINGS = 3


class RerunCommands:
    """Makes the commands of one run."""

    def __init__(self, session: RegionalSession) -> None:
        self._session = session
        self._config = session.config
        from_environment = shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
        arguments = [*from_environment, *map(str, session.config.invocation_params.args)]
        options.give_bare_options_their_values(arguments)
        # It is printed on pages that many people read.
        self._given = [masked_urls(one) for one in _repeated(arguments)]

    def of(self, fact: Facts) -> str:
        """Return the command for a test: of a fuzz test the one that checks its findings again."""
        findings = (fact["fuzz"] or {}).get("findings", ())
        return encodable(shlex.join(self._replayed(fact, findings) if findings else self._tested(fact)))

    def _tested(self, fact: Facts) -> list[str]:
        settings, config = self._session.settings, self._config
        root, here = config.rootpath, config.invocation_params.dir
        # Ids begin at pytest's root. A test of an installed package is named as a module.
        file, colons, name = fact["test"].partition("::")
        if config.option.pyargs and not (root / file).exists():
            ours = file.startswith("suites/") and importlib.util.find_spec("pytest_regional.suites") is not None
            module = file.removesuffix(".py").replace("/", ".")
            test = ["--pyargs", f"{'pytest_regional.' if ours else ''}{module}{colons}{name}"]
        else:
            test = [bestrelpath(here, root / file) + colons + name]
        # What `auto` means is another device on another machine.
        devices = settings.devices if settings.devices != ("auto",) else (fact["device"],)
        seed = self._session.fuzz_seed if "shard" in fact else settings.seed
        command = [
            # How pytest was started: `python -m pytest` finds modules in the working directory, too.
            *(["python", "-m", "pytest"] if os.path.basename(sys.argv[0]) == "__main__.py" else ["pytest"]),
            *test,
            f"--regional-backend={','.join(settings.backends)}",
            f"--regional-device={','.join(devices)}",
            f"--regional-seed={seed}",
            *self._given,
        ]
        # Without a file of settings, pytest would take another root for a single test.
        if config.inipath is None and root != here and not any(one.startswith("--rootdir") for one in self._given):
            command.append(f"--rootdir={bestrelpath(here, root)}")
        if config.pluginmanager.hasplugin("xdist"):
            # No workers, unless one's part of a fuzz test is not there without the others.
            command.append(f"-n{len(config.option.tx)}" if fact.get("shard") else "-n0")
        return command

    def _replayed(self, fact: Facts, findings: Sequence[dict[str, Any]]) -> list[str]:
        paths = [Path(one["script"]).with_suffix(".json") for one in findings]
        if len(paths) > _FINDINGS:
            paths = [paths[0].parent]
        named = [name for name in self._session.settings.backends if ":" in name]
        backend = [f"--backend={name}" for name in named if self._session.spec(name).name == fact["backend"]]
        return [
            "pytest-regional",
            "replay",
            *(bestrelpath(self._config.invocation_params.dir, path) for path in paths),
            *backend,
        ]


def _repeated(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the options among ``arguments`` that decide what a test does; those of the ini file apply by themselves."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for names in _KEPT:
        parser.add_argument(*names, action="append", dest=names[0], default=[])
    own = [option for option in options.OPTIONS if option.on_command_line and option.setting not in _OWN]
    for option in own:
        if option.metavar is None:
            parser.add_argument(option.flag, dest=option.flag, action="store_true")
        else:
            nargs = None if option.bare is None else "?"
            parser.add_argument(option.flag, dest=option.flag, nargs=nargs, const=option.bare)
    given = vars(parser.parse_known_args(arguments)[0])
    for option in own:
        if given[option.flag]:
            yield option.flag if given[option.flag] is True else f"{option.flag}={given[option.flag]}"
    for name, *_ in _KEPT:
        for value in dict.fromkeys(given[name]):
            yield from (f"{name}={value}",) if name.startswith("--") else (name, value)
