"""What ``--regional-report`` names: files by their endings, directories, and what the page of a CI service shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.report import ci, page, step_summary
from pytest_regional.report.document import RunReport

#: Where GitLab's documentation, and its template, look for code quality.
GITLAB_FILE = "gl-code-quality-report.json"

#: What switches off the outputs that a CI service switches on.
NONE = "none"


@dataclass(frozen=True)
class Outputs:
    """What a run writes.

    Attributes:
        files: reports, each in the format that its name says.
        directories: where each test that ended badly leaves its traces, generated code and failure.
        github: whether to print annotations and to add to the summary of a GitHub job.
    """

    files: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    github: bool = False

    def __bool__(self) -> bool:
        return bool(self.files or self.directories or self.github)

    @property
    def holds_details(self) -> bool:
        """Whether a file shows graphs, code and counters of each test, which take time to collect."""
        return any(ending_of(path) in (".json", ".html") for path in self.files)


def _write_html(report: RunReport, path: Path) -> None:
    page.write(report, path)


_WRITERS: dict[str, Callable[[RunReport, Path], None]] = {
    ".json": RunReport.write,
    ".html": _write_html,
    ".md": step_summary.write,
    ".sarif": ci.write_sarif,
    ".codequality.json": ci.write_code_quality,
    "code-quality-report.json": ci.write_code_quality,
}

#: Endings of names that a report can have.
ENDINGS = tuple(_WRITERS)


def ending_of(path: Path) -> str:
    """Return which of :data:`ENDINGS` the name of ``path`` has, the longest; empty where it has none."""
    return max((ending for ending in ENDINGS if path.name.endswith(ending)), key=len, default="")


def wrong_name(path: Path) -> str:
    """Return what is wrong with the name of a report; nothing where all is well."""
    return "" if ending_of(path) else f"expected a name that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


def write_report(report: RunReport, path: Path) -> None:
    """Write ``report`` to ``path``, whose folder is made and whose ending is one of :data:`ENDINGS`."""
    _WRITERS[ending_of(path)](report, path)


def outputs_of(value: str, root: Path, environment: Mapping[str, str]) -> Outputs:
    """Return what ``value``, a comma-separated list, and the CI service that runs this ask for.

    GitHub and GitLab are known by the variables that they set. A run of pytest in a test of another run is no job's:
    it has ``PYTEST_CURRENT_TEST``, and nothing is switched on for it.

    Args:
        value: names of files, of directories (with a slash at the end), ``github``, ``gitlab``, ``none``.
        root: what names are relative to.
        environment: of the process.

    Raises:
        RegionalValueError: a name that says no format.
    """
    names = dict.fromkeys(name.strip() for name in value.split(",") if name.strip())
    if NONE not in names and "PYTEST_CURRENT_TEST" not in environment:
        names |= dict.fromkeys(_switched_on(root, environment))
    files: dict[Path, None] = {}
    directories = []
    for name in names:
        if name.endswith("/"):
            directories.append(root / name)
        elif name not in ("github", NONE):
            files[root / (GITLAB_FILE if name == "gitlab" else name)] = None
    for path in files:
        if wrong := wrong_name(path):
            raise RegionalValueError(
                f"{path.name}: {wrong}, a directory with a slash at its end, github, gitlab or {NONE}"
            )
    return Outputs(tuple(files), tuple(directories), "github" in names)


def _switched_on(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
    if environment.get("GITHUB_ACTIONS") == "true":
        yield "github"
    # A run that asks for no file does not fail because there is no place for one.
    if environment.get("GITLAB_CI") == "true" and os.access(root, os.W_OK | os.X_OK):
        yield "gitlab"
