"""``bisect-version``: check a finding with several releases of PyTorch, each in an environment of its own."""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pytest_regional._base.text import printable
from pytest_regional.cli.targets import UsageError

_DISTRIBUTION = "pytest-regional"

#: Written into an environment once everything is installed: what was interrupted is made again.
_COMPLETE = "installed"

#: Seconds that the check of one finding may take.
_SECONDS = 600

#: Exit statuses of ``replay`` and of a finding's script, and what they say.
_FIXED, _FAILS = 0, 1


@dataclass(frozen=True)
class Checked:
    """One release.

    Attributes:
        version: of PyTorch.
        status: the exit status: 0 fixed, 1 still fails, all else not checked.
        said: the last line of what it printed.
    """

    version: str
    status: int
    said: str

    @property
    def outcome(self) -> str:
        """What the status means."""
        return {_FIXED: "right", _FAILS: "wrong"}.get(self.status, "not checked")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        f"{parser.description} Each release gets a virtual environment with this package, which is kept. Exit status "
        "0: no release is wrong; 1: one is; 2: one could not be checked. A script is run as it is: run only what you "
        "trust."
    )
    parser.add_argument("finding", metavar="FINDING", type=Path, help="a finding's .json, or a script (.py)")
    parser.add_argument("--torch", metavar="VERSIONS", required=True, help="releases, comma-separated: 2.11.0,2.13.0")
    add_environments(parser)
    parser.add_argument("--backend", metavar="NAME", help="as for replay")


def add_environments(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how environments are made."""
    parser.add_argument(
        "--wheels", metavar="DIR", type=Path, help="directory of wheels that pip looks into first, for nightly builds"
    )
    parser.add_argument(
        "--environments",
        metavar="DIR",
        type=Path,
        help="where the environments are kept (default: pytest-regional/environments in the user's cache directory)",
    )


def run(asked: argparse.Namespace) -> int:
    """Check the finding with each release and print the table; return the exit status."""
    finding, releases = asked.finding.absolute(), versions(asked.torch)
    if not finding.is_file() or finding.suffix not in (".json", ".py"):
        raise UsageError(f"{asked.finding} is no finding: give a finding's .json file or a script")
    if asked.wheels is not None and not asked.wheels.is_dir():
        raise UsageError(f"{asked.wheels} is no directory of wheels")
    checked = []
    for version in releases:
        checked.append(_check(environment(asked, version), finding, version, asked.backend))
        print(printable(f"{version:<12} {checked[-1].outcome:<12} {checked[-1].said}"), flush=True)
    print(conclusion(checked))
    statuses = {one.status for one in checked}
    return 2 if statuses - {_FIXED, _FAILS} else max(statuses)


def conclusion(checked: Sequence[Checked]) -> str:
    """Return in a sentence between which releases the finding came or went; releases are in order."""
    known = [one for one in checked if one.status in (_FIXED, _FAILS)]
    changes = [
        f"came with {after.version} (not in {before.version})"
        if after.status == _FAILS
        else f"is gone since {after.version} (still in {before.version})"
        for before, after in itertools.pairwise(known)
        if before.status != after.status
    ]
    if not known:
        return "no release could be checked"
    if changes:
        first = next(one.version for one in known if one.status == _FAILS)
        earlier = " or earlier" if known[0].status == _FAILS else ""
        return f"first bad release: {first}{earlier}. It " + ", and ".join(changes)
    return "all releases that were checked are " + ("wrong" if known[0].status == _FAILS else "right")


def environment(asked: argparse.Namespace, version: str) -> Path:
    """Return the interpreter of an environment with one release of PyTorch and this package, made if missing."""
    kept = asked.environments
    if kept is None:
        cache = os.environ.get("XDG_CACHE_HOME", "")
        kept = Path(cache if os.path.isabs(cache) else "~/.cache").expanduser() / _DISTRIBUTION / "environments"
    folder = kept.absolute() / f"torch-{version}"
    python: Path = folder / "bin" / "python"
    if (folder / _COMPLETE).exists():
        return python
    print(f"{version:<12} installing into {folder}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    found = ["--find-links", str(asked.wheels.absolute())] if asked.wheels else []
    # PyTorch first, and exactly: a range would bring the newest release.
    for packages in ([f"torch=={version}"], [*_this_package(), f"torch=={version}"]):
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *found, *packages]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="backslashreplace", check=False)
        if done.returncode:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise UsageError(f"torch {version} cannot be installed into {folder}: {last}")
    (folder / _COMPLETE).touch()
    return python


def _this_package() -> list[str]:
    """Return what pip is to install: the source tree that is installed here (PEP 610), else this release."""
    here = importlib.metadata.distribution(_DISTRIBUTION)
    origin = json.loads(here.read_text("direct_url.json") or "{}")
    path = unquote(urlsplit(origin.get("url", "")).path)
    if path and origin.get("dir_info", {}).get("editable"):
        return ["-e", path]
    return [path if path and Path(path).exists() else f"{_DISTRIBUTION}=={here.version}"]


def _check(python: Path, finding: Path, version: str, backend: str | None) -> Checked:
    replay = ["-m", "pytest_regional", "replay", str(finding), *(["--backend", backend] if backend else [])]
    command = [str(python), *([str(finding)] if finding.suffix == ".py" else replay)]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="backslashreplace", check=False, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Checked(version, 2, f"it took longer than {_SECONDS} s")
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()[-1:]
    # The last line of replay counts the findings; the one before it is about this one.
    said = lines[-2] if finding.suffix == ".json" and len(lines) > 1 else (lines or ["nothing"])[-1]
    return Checked(version, done.returncode, said)


def versions(text: str) -> list[str]:
    """Return the releases that an option names."""
    named = [version.strip() for version in text.split(",")]
    for version in named:
        if not re.fullmatch(r"\d+\.\d+[\w.+]*", version):
            raise UsageError(f"--torch={text}: {version!r} is no release; give them as 2.11.0,2.13.0")
    return named
