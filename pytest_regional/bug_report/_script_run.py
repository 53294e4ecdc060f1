"""Runs scripts in a process of their own: ``python -m pytest_regional.bug_report._script_run REQUEST ANSWER``.

``torch.compile`` is replaced while a script runs: it takes another backend, and compares with eager by two rules, where
it is asked to. So any script that compiles with ``torch.compile`` can be run under another backend, as it is.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import fx_graphs
from pytest_regional._torch.config import INDUCTOR, patched_config
from pytest_regional._torch.dynamo import same_as_reference
from pytest_regional._torch.patching import Patch, applied
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.bug_report.known_issues import SILENT, features_of, operators_of
from pytest_regional.fuzz.oracles.example_run import kinds_of
from pytest_regional.harness.blame.reproducing import culprit_of
from pytest_regional.harness.parity.compare import compare
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.inputs import copy_inputs
from pytest_regional.harness.parity.report import ParityError
from pytest_regional.harness.raised import asserted_at, message_of, origin_of, root_of
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional

#: So many calls of a compiled program are compared.
_CALLS = 5

#: The exit status of a script where the defect stands.
_WRONG = 1


def main(request: Path, answer: Path) -> None:
    """Run the jobs of a request, a JSON file; write what became of each, one line of JSON."""
    asked = json.loads(request.read_text(encoding="utf-8"))

    def shows(run: Mapping[str, Any]) -> bool:
        raised = asked["raises"] is not None and run["outcome"] == "raises" and asked["raises"] in run["said"]
        return bool(asked["first"] and (raised or run["outcome"] == "wrong"))

    with tempfile.TemporaryDirectory() as caches, answer.open("w", encoding="utf-8") as answers:
        for number, job in enumerate(asked["jobs"]):
            # Scripts take caches as they find them.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches, str(number)))
            run = _run(Path(job["script"]), job)
            if shows(run):
                # It shows nothing where the script is not right in eager either. Not with the backend "eager": Dynamo's
                # own defects stand there.
                eager = _run(Path(job["script"]), {**job, "uncompiled": True})
                if eager["outcome"] != "right":
                    said = f"in eager it is {eager['outcome']}: {eager['said']}"
                    run = {**run, "outcome": "not checked", "said": said}
            print(json.dumps(run), file=answers, flush=True)
            if shows(run):
                break


def _run(script: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    began, printed = time.monotonic(), io.StringIO()
    facts: dict[str, Any] = {}
    original = torch.compile

    def replacement(model: Any, **options: Any) -> Any:
        if asked["uncompiled"]:
            return model
        if backend is not None:
            options = {**options, "backend": backend, "mode": None, "options": None}
        facts.setdefault("options", options)
        compiled = original(model, **options)
        return _measured(model, compiled, options, facts, original) if asked["measure"] else compiled

    settings = {"fallback_random": True} if asked["fallback_random"] else {}
    with contextlib.redirect_stdout(printed):
        backend = registry.resolve(asked["backend"]).factory() if asked["backend"] else None
        with _torch_compile(replacement), patched_config(INDUCTOR, settings), _reseeded(asked["seed"]):
            outcome, said, fails = _outcome_of(script)
        seconds = time.monotonic() - began
        if asked["blame_seconds"] and outcome in ("wrong", "raises"):
            facts.update(_culprit(script, facts, asked["blame_seconds"]))
    facts.pop("options", None)
    if asked["measure"] and fails:
        # A comparison of what the program leaves says more.
        facts.setdefault("fails", fails)
    return {
        "outcome": outcome,
        "said": _without_paths(said, script),
        "printed": _without_paths(printed.getvalue(), script),
        "seconds": round(seconds, 2),
        "facts": {name: _without_paths(str(value), script) for name, value in facts.items()},
    }


def _without_paths(text: str, script: Path) -> str:
    """Return ``text`` without the directories of this machine."""
    packages = str(Path(torch.__file__).parents[1])
    return text.replace(str(script), "script.py").replace(f"{packages}{os.sep}", "")


def _outcome_of(script: Path) -> tuple[str, str, str]:
    """Return what became of a script, what it says, and what fails, as the signature of a finding says it."""
    try:
        status = _execute(script)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is what became of it
        if asserted_at(error):
            # An assertion of the compiler's is no comparison that failed.
            return "wrong", message_of(error), SILENT
        root, origin = root_of(error), origin_of(error)
        return "raises", f"{type(root).__name__}: {message_of(root)} ({origin})", f"compiles run {origin}"
    return {0: ("right", "", ""), _WRONG: ("wrong", "", SILENT)}.get(status, ("not checked", "", ""))


def _execute(script: Path) -> int:
    """Run a script as the main module; return its exit status."""
    hook = sys.excepthook
    torch.compiler.reset()
    torch.manual_seed(0)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        return int(ended.code if isinstance(ended.code, int) else bool(ended.code))
    finally:
        sys.excepthook = hook
    return 0


def _reseeded(offset: int) -> AbstractContextManager[None]:
    """Have every seed be another one."""
    seed = torch.manual_seed

    class Generator(torch.Generator):  # type: ignore[misc]  # torch is not typed here
        def manual_seed(self, number: int) -> Any:
            return super().manual_seed(number + offset)

    changed = [Patch(torch, "manual_seed", lambda number: seed(number + offset)), Patch(torch, "Generator", Generator)]
    return applied(changed)


def _torch_compile(replacement: Callable[..., Any]) -> AbstractContextManager[None]:
    """Have ``torch.compile``, as a function and as a decorator, call something else.

    Not where PyTorch itself calls it: ``torch.cond`` compiles its branches in eager, too.
    """
    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] == "torch":
            return original(model, **options)
        return replacement(model, **options) if model is not None else functools.partial(compile, **options)

    return applied([Patch(torch, "compile", compile)])


def _culprit(script: Path, facts: Mapping[str, Any], seconds: float) -> dict[str, str]:
    """Return what a script's failure comes from: the script itself is the check."""
    options = facts.get("options")
    if options is None:
        return {}
    original = torch.compile
    with _harness(options) as harness:

        def check() -> None:
            def compiled(model: Any, **options: Any) -> Any:
                # The harness compiles with torch.compile, too.
                with _torch_compile(original):
                    return harness.compile(model)

            with _torch_compile(compiled):
                status = _execute(script)
            if status:
                raise (AssertionError if status == _WRONG else RegionalError)(f"exit status {status}")

        culprit = culprit_of(harness, check, seconds=seconds)
    return {"culprit": culprit.sentence, "evidence": culprit.evidence}


def _measured(
    model: Any, compiled: Any, options: Mapping[str, Any], facts: dict[str, Any], compile: Callable[..., Any]
) -> Any:
    """Return the compiled model, whose calls are compared with eager as well, the first by two rules.

    The harness compiles with ``compile``: its programs are none of the script's.
    """
    calls = 0

    @functools.wraps(getattr(model, "forward", model))
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if "same" not in facts:
            facts["same"] = ""
            torch.compiler.reset()
            with _torch_compile(compile):
                facts.update(_compared(model, compiled, args, kwargs, options))
            torch.compiler.reset()
        elif calls <= _CALLS and "fails" not in facts:
            fails = _difference(model, compiled, args, kwargs)
            if fails:
                facts["fails"] = f"{'parity' if calls == 1 else 'further_calls'} run {fails}"
                facts.update(_observed(model, *_copied(args, kwargs)(), options))
        return compiled(*args, **kwargs)

    return call


def _difference(model: Any, compiled: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return what is not as in eager, in a call of what may have been compiled for another one; empty for nothing."""
    eager = execute(model, args, kwargs=kwargs)
    if eager.exception is not None:
        return ""
    found = execute(compiled, args, kwargs=kwargs, state_of=model)
    return (
        origin_of(found.exception)
        if found.exception is not None
        else kinds_of(compare(eager, found, own_draws=True).mismatches)
    )


def _compared(model: Any, compiled: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether two rules hold, PyTorch's and the harness's, and what the program is."""
    copied = _copied(args, kwargs)
    facts = {}
    try:
        facts["same"] = _same(model, compiled, copied)
    except Exception as error:  # noqa: BLE001 - the report says what was raised
        facts["same"] = _message(error)
    with _harness(options) as harness:
        arguments, keywords = copied()
        try:
            harness.assert_parity(model, *arguments, kwargs=keywords)
            facts["parity"] = "holds"
        except Exception as error:  # noqa: BLE001 - the report says what was raised
            facts["parity"] = _message(error)
            facts["fails"] = _fails(error)
    return {**facts, **_observed(model, *copied(), options)}


def _copied(args: Any, kwargs: Any) -> Callable[[], tuple[Any, Any]]:
    kept = copy_inputs(args, kwargs=kwargs)

    def copied() -> tuple[Any, Any]:
        copy = copy_inputs(kept.arguments, kwargs=kept.keywords)
        return copy.arguments, copy.keywords

    return copied


def _observed(model: Any, arguments: Any, keywords: Any, options: Mapping[str, Any]) -> dict[str, str]:
    """Return features and operators of a call in eager, which may write to its arguments."""
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    tensors = [one for one in fx_graphs.leaves_of([arguments, keywords, parameters]) if isinstance(one, torch.Tensor)]
    features = features_of(tensors, dynamic=bool(options.get("dynamic")))
    operators = operators_of(lambda: model(*arguments, **keywords))
    return {"features": " ".join(sorted(features)), "operators": " ".join(operators)}


def _fails(error: Exception) -> str:
    """Return what fails, where and how, as the signature of a finding says it."""
    if not isinstance(error, ParityError):
        return f"compiles run {origin_of(error)}"
    if error.__cause__ is not None:
        in_backward = any(one.where.endswith("backward") for one in error.report.mismatches)
        return f"compiles {'backward' if in_backward else 'run'} {origin_of(error.__cause__)}"
    kinds = kinds_of(error.report.mismatches)
    first_call = any(not kind.endswith("(second call)") for kind in kinds.split(", "))
    return f"{'parity' if first_call else 'further_calls'} run {kinds}"


def _harness(options: Mapping[str, Any]) -> AbstractContextManager[Regional]:
    """Return a harness that compiles as a script does."""
    backend = options.get("backend", "inductor")
    spec = registry.resolve(backend) if isinstance(backend, str) else BackendSpec("script", lambda: backend)
    dynamic, fullgraph = options.get("dynamic"), bool(options.get("fullgraph"))
    return regional(spec, "cpu", expects_regions=False, dynamic=dynamic, fullgraph=fullgraph)


def _same(model: Any, compiled: Any, copied: Callable[[], tuple[Any, Any]]) -> str:
    """Return what PyTorch's own rule says of outputs, and of tensors given as inputs: ``torch._dynamo.utils.same``.

    A float64 run is the reference.
    """
    results = []
    for run, double in ((model, False), (compiled, False), (model, True)):
        arguments, keywords = copied()
        torch.manual_seed(0)
        if double:
            arguments = [
                one.detach().double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one
                for one in arguments
            ]
        outputs = run(*arguments, **keywords)
        results.append([outputs, *(one for one in arguments if isinstance(one, torch.Tensor))])
    return "holds" if same_as_reference(*results) else "fails"


def _message(error: Exception) -> str:
    return message_of(root_of(error)) or type(error).__name__


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
