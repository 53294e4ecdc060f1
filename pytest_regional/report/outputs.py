"""What ``--regional-report`` names: files by their endings, directories, and what the page of a CI service shows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.files import dumps
from pytest_regional.report import ci, page, step_summary
from pytest_regional.report.document import RunReport

#: Where GitLab's documentation, and its template, look for code quality.
GITLAB_FILE = "gl-code-quality-report.json"


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


#: The text of a report, by the ending of its file's name.
_TEXTS: dict[str, Callable[[RunReport], str]] = {
    ".json": RunReport.as_json,
    ".html": page.html_of,
    ".md": step_summary.summary_of,
    ".sarif": lambda report: f"{dumps(ci.sarif_of(report), indent=1)}\n",
    ".codequality.json": lambda report: f"{dumps(list(ci.issues_of(report)), indent=1)}\n",
    "code-quality-report.json": lambda report: f"{dumps(list(ci.issues_of(report)), indent=1)}\n",
}

#: Endings of names that a report can have.
ENDINGS = tuple(_TEXTS)


def ending_of(path: Path) -> str:
    """Return which of :data:`ENDINGS` the name of ``path`` has, the longest; empty where it has none."""
    return max((ending for ending in ENDINGS if path.name.endswith(ending)), key=len, default="")


def write_report(report: RunReport, path: Path) -> None:
    """Write ``report`` to ``path``, whose folder is made and whose ending is one of :data:`ENDINGS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Of a merged report, which may come from anywhere, texts may hold what has no UTF-8.
    path.write_text(_TEXTS[ending_of(path)](report), encoding="utf-8", errors="backslashreplace")


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
    if "none" not in names and "PYTEST_CURRENT_TEST" not in environment:
        if environment.get("GITHUB_ACTIONS") == "true":
            names["github"] = None
        # A run that asks for no file does not fail because there is no place for one.
        if environment.get("GITLAB_CI") == "true" and os.access(root, os.W_OK | os.X_OK):
            names["gitlab"] = None
    files: dict[Path, None] = {}
    directories = []
    for name in names:
        if name.endswith("/"):
            directories.append(root / name)
        elif name not in ("github", "none"):
            files[root / (GITLAB_FILE if name == "gitlab" else name)] = None
    for path in files:
        if not ending_of(path):
            raise RegionalValueError(
                f"{path.name}: expected a name that ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, a directory "
                "with a slash at its end, github, gitlab or none"
            )
    return Outputs(tuple(files), tuple(directories), "github" in names)
