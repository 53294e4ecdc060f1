"""Runs scripts in separate processes, under changes (backend, seeds, PyTorch), and makes a subject of a failed test."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.bug_report.scripts import Subject, checks_of, may_read_regions, short_script, words_for
from pytest_regional.fuzz.findings.scripts import backend_source
from pytest_regional.harness.process import interpreter_environment, run_interpreter

_MODULE = "pytest_regional.bug_report._script_run"

#: The outcome of a script that did not end in time.
TOO_SLOW = "too slow"


@dataclass(frozen=True)
class ScriptRun:
    """What became of a script.

    Attributes:
        outcome: ``right``, ``wrong``, ``raises``, ``died`` (its process ended), ``too slow`` or ``not checked``.
        said: the message of its exception, or why its process ended.
        printed: what it printed.
        seconds: how long it took, without the import of PyTorch.
        facts: what was measured, where it was asked for: ``same`` and ``parity`` (``holds``, or what they say),
            ``culprit`` and ``evidence``.
    """

    outcome: str
    said: str = ""
    printed: str = ""
    seconds: float = 0.0
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shows(self) -> bool:
        """Whether it shows a defect."""
        return self.outcome in ("wrong", "raises", "died")

    @property
    def sentence(self) -> str:
        """Outcome, and the first line of what was said."""
        first = next((line for line in self.said.splitlines() if line.strip()), "")
        return f"{self.outcome}: {first}" if first else self.outcome


@dataclass(frozen=True)
class Changes:
    """Under what a script runs.

    Attributes:
        backend: what ``torch.compile`` is given in place of the script's; empty for the script's.
        seed: added to every seed of the script.
        fallback_random: Inductor draws the same random numbers as eager.
        uncompiled: ``torch.compile`` returns what it is given.
        measure: compare with eager by PyTorch's rule and by the harness's as well.
        blame_seconds: how long to search for the culprit; 0 to leave that out.
    """

    backend: str = ""
    seed: int = 0
    fallback_random: bool = False
    uncompiled: bool = False
    measure: bool = False
    blame_seconds: float = 0.0


class ScriptRunner:
    """Runs scripts with one interpreter.

    Args:
        folder: for files of its own.
        python: the interpreter; this package is installed there.
        seconds: how long a process may take, without the search for culprits.
    """

    def __init__(self, folder: Path, python: Path | str = sys.executable, seconds: float = 240.0) -> None:
        self._folder, self._python, self._seconds = folder, python, seconds
        self._numbers = itertools.count()
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, script: str, changes: Changes | None = None, *, trace: Path | None = None) -> ScriptRun:
        """Run one script.

        Args:
            script: its text.
            changes: under what.
            trace: where PyTorch is to write its structured trace (``TORCH_TRACE``).
        """
        return self._in_one_process([(script, changes or Changes())], trace)[0]

    def run_each(self, script: str, changes: Sequence[Changes]) -> list[ScriptRun]:
        """Run one script under several changes, in one process as long as that lives.

        A run that takes too long is the last one: those after it are not checked.
        """
        runs: list[ScriptRun] = []
        while len(runs) < len(changes):
            runs += self._in_one_process([(script, one) for one in changes[len(runs) :]], None)
            if runs[-1].outcome == TOO_SLOW:
                after = ScriptRun("not checked", "an earlier run of the script took too long")
                runs += [after] * (len(changes) - len(runs))
        return runs

    def run_until_one_shows(self, scripts: Sequence[str], raises: str | None = None) -> list[ScriptRun]:
        """Run scripts one after the other, up to the first that is wrong, or that raises what contains ``raises``."""
        return self._in_one_process([(script, Changes()) for script in scripts], None, first=True, raises=raises)

    def _in_one_process(
        self,
        jobs: Sequence[tuple[str, Changes]],
        trace: Path | None,
        *,
        first: bool = False,
        raises: str | None = None,
    ) -> list[ScriptRun]:
        """Return what became of the jobs that the process came to, of one at least."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        files = [folder / str(number) / "script.py" for number in range(len(jobs))]
        for file, (script, _) in zip(files, jobs, strict=True):
            file.parent.mkdir()
            file.write_text(script, encoding="utf-8")
        asked = {
            "jobs": [{"script": str(file), **vars(one)} for file, (_, one) in zip(files, jobs, strict=True)],
            "first": first,
            "raises": raises,
        }
        request, answer = folder / "request.json", folder / "answer.json"
        request.write_text(json.dumps(asked), encoding="utf-8")
        traced = {} if trace is None else {"TORCH_TRACE": str(trace)}
        environment = interpreter_environment("TORCH_TRACE", "TORCHINDUCTOR_CACHE_DIR", **traced)
        seconds = self._seconds + sum(one.blame_seconds for _, one in jobs)
        done = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            done = run_interpreter(_MODULE, [str(request), str(answer)], environment, seconds, self._python)
        # The process has written one line of JSON for each run.
        lines = answer.read_text(encoding="utf-8").splitlines() if answer.exists() else []
        runs = [ScriptRun(**json.loads(line)) for line in lines]
        if done is None:
            return [*runs, ScriptRun(TOO_SLOW, f"it took longer than {seconds:g} s")]
        stopped = first and bool(runs) and runs[-1].shows
        if len(runs) < len(jobs) and not stopped:  # also where a script ends its process with status 0
            last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
            # A negative status is the number of the signal that ended the process.
            outcome = "died" if done.returncode < 0 else "not checked"
            runs.append(ScriptRun(outcome, f"exit status {done.returncode}; last line: {last}"))
        return runs


def render_trace(trace: Path) -> None:
    """Have ``tlparse``, where it is installed, write the pages of a structured trace into its folder."""
    command = shutil.which("tlparse")
    logs = sorted(trace.glob("*.log"))
    if command is not None and logs:
        options = ["-o", str(trace / "tlparse"), "--overwrite", "--no-browser"]
        subprocess.run([command, str(logs[0]), *options], capture_output=True, check=False)


_PLUGIN = "pytest_regional.bug_report._failing_call"

#: Says to the plugin where its answer goes.
ANSWER_VARIABLE = "PYTEST_REGIONAL_FAILING_CALL"

#: How long the test, and making its program smaller, may take.
_SECONDS = 600.0


def subject_of_test(test: str, options: str = "") -> Subject:
    """Return what a failing test is about.

    Args:
        test: its node id.
        options: of pytest, as the test's rerun line has them.

    Raises:
        RegionalValueError: the test passes, cannot be found, takes too long, or fails in another way than a failed
            ``assert_parity``; its program cannot be written as one graph, or the options have a quote without its end.
    """
    try:
        given = shlex.split(options)
    except ValueError as error:
        raise RegionalValueError(f'--options="{options}" cannot be read: {error}. Quote as in a shell.') from error
    with tempfile.TemporaryDirectory(prefix="pytest-regional-report-", ignore_cleanup_errors=True) as folder:
        answer = Path(folder, "answer.json")
        arguments = [test, "-p", _PLUGIN, "-n0", "-q", "-p", "no:randomly", "--full-trace", *given]
        environment = interpreter_environment("PYTEST_ADDOPTS", **{ANSWER_VARIABLE: str(answer)})
        try:
            done = run_interpreter("pytest", arguments, environment, _SECONDS)
        except subprocess.TimeoutExpired as error:
            raise RegionalValueError(
                f"{test} did not end within {_SECONDS:g} s, with the reduction of its program. Give a smaller test, or "
                f"write a script that fails and give that."
            ) from error
        if not answer.exists():
            last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
            raise RegionalValueError(f"{test} does not fail here (exit status {done.returncode}); pytest says: {last}")
        data = json.loads(answer.read_text(encoding="utf-8"))
    if "refused" in data:
        raise RegionalValueError(
            f"{test} cannot be made a script: {data['refused']}. Reduce it by hand and give the script."
        )
    origin = data["origin"]
    kinds = [kind.strip().partition(" (")[0] for kind in origin.split(",")]
    checks = ("raises",) if data["raises"] else dict.fromkeys(one for kind in kinds for one in checks_of(kind))
    dynamic = f", dynamic={data['dynamic']}" if data["dynamic"] is not None else ""
    scripts = {}
    for backend in dict.fromkeys(("inductor", "torch", data["backend"])):
        source, before = backend_source(backend)
        program = data["program" if may_read_regions(backend) else "plain"]
        scripts[backend] = tuple(
            short_script(program, inputs, source, check, options=dynamic, before=before)
            for check in checks
            for inputs in data["inputs"]
        )
    return Subject(
        test,
        f"{words_for(kinds, data['raises'])} ({', '.join(data['operators'][:4])})",
        "What eager gives.",
        f"parity run {origin}",
        tuple(data["operators"]),
        scripts,
        data["raises"] or None,
        source="The program is that of a test, made smaller while the compiled program stays wrong",
    )
