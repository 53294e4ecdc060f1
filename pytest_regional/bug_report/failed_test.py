"""Makes a script of a test that fails: of the program and the inputs of its ``assert_parity``."""

from __future__ import annotations

import json
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from pytest_regional.bug_report.scripts import ScriptParts, checks_of, may_read_regions
from pytest_regional.bug_report.subjects import Subject, SubjectError, words_for
from pytest_regional.fuzz.findings.scripts import backend_source
from pytest_regional.harness.process import interpreter_environment, run_interpreter

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
        SubjectError: the test passes, cannot be found, takes too long or fails otherwise than by ``assert_parity``,
            its program cannot be written as one graph, or the options have a quote without its end.
    """
    try:
        given = shlex.split(options)
    except ValueError as error:
        raise SubjectError(f'--options="{options}" cannot be read: {error}. Quote as in a shell.') from error
    with tempfile.TemporaryDirectory(prefix="pytest-regional-report-", ignore_cleanup_errors=True) as folder:
        answer = Path(folder, "answer.json")
        arguments = [test, "-p", _PLUGIN, "-n0", "-q", "-p", "no:randomly", "--full-trace", *given]
        environment = interpreter_environment("PYTEST_ADDOPTS", **{ANSWER_VARIABLE: str(answer)})
        try:
            done = run_interpreter("pytest", arguments, environment, _SECONDS)
        except subprocess.TimeoutExpired as error:
            raise SubjectError(
                f"{test} did not end within {_SECONDS:g} s, with the reduction of its program. Give a smaller test, or "
                f"write a script that fails and give that."
            ) from error
        if not answer.exists():
            last = (done.stdout.strip().splitlines() or ["nothing"])[-1]
            raise SubjectError(f"{test} does not fail here (exit status {done.returncode}); pytest says: {last}")
        data = json.loads(answer.read_text(encoding="utf-8"))
    if "refused" in data:
        raise SubjectError(f"{test} cannot be made a script: {data['refused']}. Reduce it by hand and give the script.")
    return _subject(test, data)


def _subject(test: str, data: dict[str, Any]) -> Subject:
    origin = data["origin"]
    kinds = [kind.strip().partition(" (")[0] for kind in origin.split(",")]
    checks = ("raises",) if data["raises"] else dict.fromkeys(one for kind in kinds for one in checks_of(kind))
    options = f", dynamic={data['dynamic']}" if data["dynamic"] is not None else ""
    scripts = {}
    for backend in dict.fromkeys(("inductor", "torch", data["backend"])):
        given, before = backend_source(backend)
        program = data["program" if may_read_regions(backend) else "plain"]
        scripts[backend] = tuple(
            ScriptParts(program, inputs, given, check, options=options, before=before).text
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
