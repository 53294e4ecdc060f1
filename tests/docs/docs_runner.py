"""Run the blocks of the documentation: files together in few pytest processes, console blocks one by one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from fenced import ROOT, Block, DocsError

from pytest_regional.harness.devices.emulated import SELF_TESTED
from tests import warm_process

TOOLS = ("pytest", "pytest-regional", "make", "pip", "python")
EXECUTED = ("pytest", "pytest-regional")
QUIET = ("-p", "no:randomly", "-p", "no:cacheprovider")
SCRIPT_OPTIONS = "--regional-backend=aot_eager"
#: Neither scripts nor tests of other harnesses use ours, so what that saves of a compile's time is saved here.
#: Hypothesis draws the same examples each time, and does not measure how long that takes.
CONFTEST = """\
import pytest
from hypothesis import HealthCheck, settings

from pytest_regional._torch.dynamo import guards_untimed
from pytest_regional.harness.kernel_store import kernels_kept

slow = [HealthCheck.too_slow]
settings.register_profile("examples", deadline=None, derandomize=True, suppress_health_check=slow)
settings.load_profile("examples")


@pytest.fixture(scope="session", autouse=True)
def compiles_are_short():
    with kernels_kept(), guards_untimed():
        yield
"""


#: The program ``pytest``: unlike ``python -m pytest`` it does not look for modules in the working directory.
PLAIN_PYTEST = """\
import os
import sys

sys.path.remove(os.getcwd())
os.chdir({folder!r})

import pytest

sys.exit(pytest.main())
"""


def run_pytest(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the command ``pytest`` in ``folder`` as a reader would."""
    with tempfile.TemporaryDirectory(prefix="plain-") as scratch:
        Path(scratch, "plain_pytest.py").write_text(PLAIN_PYTEST.format(folder=str(folder)))
        return run_module("plain_pytest", [*QUIET, *arguments], Path(scratch).resolve())


def run_module(module: str, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``python -m module`` in ``folder``, free of what the outer pytest put into the environment."""
    inner = ("PYTEST_", "TORCHINDUCTOR_", "TRITON_")
    kept = (SELF_TESTED, "TORCHINDUCTOR_COMPILE_THREADS")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(inner) or k in kept}
    environment["COLUMNS"] = "200"
    return warm_process.run_module(module, arguments, folder, environment)


def write_project(blocks: Sequence[Block], folder: Path, replace: str = "") -> Path:
    """Write every titled block to its file below ``folder``; ``replace`` is ``A => B`` or nothing.

    Raises:
        DocsError: two blocks with one title, or a replacement that finds nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not any(block.title == "pyproject.toml" for block in blocks):
        (folder / "pytest.ini").write_text("[pytest]\n")
    old, _, new = replace.partition(" => ")
    replaced = 0
    for block in blocks:
        if block.title is None:
            continue
        path = folder / block.title
        if path.exists():
            raise DocsError(f"{block.where}: there is another block with the title {block.title!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        replaced += bool(old) and old in block.text
        path.write_text(block.text.replace(old, new) if old else block.text)
    if old and not replaced:
        raise DocsError(f"the replacement {replace!r} finds nothing")
    return folder


def script_name(block: Block) -> str:
    """Return the name of the test file that runs an untitled Python block."""
    return f"test_script_{re.sub('[^a-z]', '_', Path(block.page).stem.lower())}_{block.line}.py"


def write_script(block: Block, folder: Path) -> None:
    """Write an untitled Python block, and a test that runs it."""
    script = folder / "scripts" / script_name(block).removeprefix("test_")
    script.parent.mkdir(exist_ok=True)
    script.write_text(block.text)
    # Dynamo remembers modules by name for as long as the process lives, so no two scripts may have one name.
    test = f"import runpy\n\n\ndef test_script():\n    runpy.run_path({str(script)!r}, run_name={script.stem!r})\n"
    (folder / script_name(block)).write_text(test)


class Batch:
    """All files and scripts of some pages, run once for each set of options, slow ones apart."""

    def __init__(self, blocks: Sequence[Block], folder: Path) -> None:
        self.folder = write_project(blocks, folder)
        (folder / "conftest.py").write_text(CONFTEST)
        self._outcomes: dict[str, Counter[str]] = {}
        self._output: dict[tuple[str, str], str] = {}
        self._files: dict[tuple[str, str], list[str]] = {}
        for block in blocks:
            if is_script(block):
                write_script(block, folder)
            if is_run_by_pytest(block):
                self._files.setdefault(run_of(block), []).append(file_of(block))

    def check(self, block: Block) -> None:
        """Assert that ``block`` had the outcome that it announces."""
        run = run_of(block)
        if run not in self._output:
            self._run(run)
        expected = outcome_of(block)
        actual = dict(self._outcomes.get(file_of(block), {}))
        assert actual == expected, f"{block.where}: expected {expected}, got {actual}\n{self._output[run]}"

    def _run(self, run: tuple[str, str]) -> None:
        result = self.folder / f"result-{len(self._output)}.xml"
        done = run_pytest([*shlex.split(run[0]), *self._files[run], f"--junit-xml={result}", "-rs"], self.folder)
        self._output[run] = done.stdout + done.stderr
        if result.exists():
            for case in ElementTree.parse(result).getroot().iter("testcase"):
                self._outcomes.setdefault(_file_of_case(case), Counter())[_outcome_of_case(case)] += 1


def _file_of_case(case: ElementTree.Element) -> str:
    """Return ``tests/test_x.py`` for the class name ``tests.test_x`` or ``tests.test_x.SomeCase``."""
    parts = case.attrib["classname"].split(".")
    module = next((i for i, part in enumerate(parts) if part.startswith("test_")), len(parts) - 1)
    return "/".join(parts[: module + 1]) + ".py"


def _outcome_of_case(case: ElementTree.Element) -> str:
    for child in case:
        if child.tag == "skipped":
            return "xfailed" if child.get("type") == "pytest.xfail" else "skipped"
        if child.tag in ("failure", "error"):
            return {"failure": "failed", "error": "errors"}[child.tag]
    return "passed"


def is_script(block: Block) -> bool:
    """Say whether ``block`` is Python that is no file."""
    return block.language == "python" and block.title is None


def is_run_by_pytest(block: Block) -> bool:
    """Say whether ``block`` is Python that a batch runs: a script, or a test file with a ``run`` directive."""
    return block.language == "python" and (block.title is None or "run" in block.directives)


def file_of(block: Block) -> str:
    """Return the file that pytest runs for ``block``."""
    return block.title or script_name(block)


def options_of(block: Block) -> str:
    """Return the command line options under which ``block`` is run."""
    return SCRIPT_OPTIONS if is_script(block) else block.directives["run"]


def run_of(block: Block) -> tuple[str, str]:
    """Return what blocks of one process have in common: options, and of slow blocks the faster test."""
    return options_of(block), block.directives.get("slow", "")


def outcome_of(block: Block) -> dict[str, int]:
    """Return the announced outcome such as ``{"passed": 2}``."""
    announced = block.directives.get("outcome", "passed=1" if is_script(block) else "")
    if not announced:
        raise DocsError(f"{block.where}: say the outcome, such as 'outcome: passed=1'")
    return {name: int(count) for name, _, count in (part.partition("=") for part in announced.split())}


def check_console(block: Block, blocks: Sequence[Block], folder: Path) -> None:
    """Execute a console block and compare what it prints."""
    write_project(blocks, folder, block.directives.get("replace", ""))
    assert len(block.commands) == 1, f"{block.where}: an executed console block holds one command"
    as_module = block.commands[0].startswith("python -m ")
    program, *arguments = shlex.split(block.commands[0].removeprefix("python -m "))
    assert program in EXECUTED, f"{block.where}: only {' and '.join(EXECUTED)} can be executed, not {program}"
    assert block.output, f"{block.where}: an executed console block shows output"
    if as_module or program == "pytest-regional":
        done = run_module(program.replace("-", "_"), [*(QUIET if program == "pytest" else ()), *arguments], folder)
    else:
        done = run_pytest(arguments, folder)
    printed = [_normal(line) for line in (done.stdout + done.stderr).splitlines()]
    patterns = [_normal(line).replace("[", "[[]").replace("...", "*") for line in block.output]
    pytest.LineMatcher(printed).fnmatch_lines(patterns)


def _normal(line: str) -> str:
    """Make widths of tables and rulers irrelevant."""
    return " ".join(re.sub("={3,}", "===", line).split())


def check_command(command: str, where: str, known_options: str) -> None:
    """Assert that ``command`` uses a known tool, options that exist, and make targets that exist."""
    program, *arguments = shlex.split(command.removeprefix("python -m "))
    assert program in TOOLS, f"{where}: {program!r} is none of {TOOLS}"
    if program == "make":
        targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        unknown = [argument for argument in arguments if "=" not in argument and argument not in targets]
        assert not unknown, f"{where}: the Makefile has no target {unknown}"
    if program == "pytest":
        flags = [_flag(argument) for argument in arguments if argument.startswith("-")]
        unknown = [flag for flag in flags if not re.search(rf"(^|[\s,]){re.escape(flag)}(?![\w-])", known_options)]
        assert not unknown, f"{where}: pytest has no option {unknown}"


def _flag(argument: str) -> str:
    """Return ``--name`` of ``--name=value``, and ``-r`` of ``-rsx``."""
    return argument.partition("=")[0] if argument.startswith("--") else argument[:2]
