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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import fx_graphs
from pytest_regional._torch.config import INDUCTOR, patched_config
from pytest_regional._torch.dynamo import same_as_reference
from pytest_regional._torch.tracing import dispatch_mode, storage_key, with_memory
from pytest_regional.backends import registry
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.bug_report.known_issues import SILENT
from pytest_regional.fuzz.oracles.oracle import kinds_of
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
    with tempfile.TemporaryDirectory() as caches, answer.open("w", encoding="utf-8") as answers:
        for number, job in enumerate(asked["jobs"]):
            # Scripts take caches as they find them.
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches, str(number)))
            run = _run(Path(job["script"]), job)
            if asked["first"] and _shows(run, asked["raises"]):
                run = _controlled(run, job)
            print(json.dumps(run), file=answers, flush=True)
            if asked["first"] and _shows(run, asked["raises"]):
                break


def _controlled(run: dict[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run; one that shows nothing where the script is not right in eager either."""
    # Not with the backend "eager": Dynamo's own defects stand there.
    eager = _run(Path(job["script"]), {**job, "uncompiled": True})
    if eager["outcome"] == "right":
        return run
    return {**run, "outcome": "not checked", "said": f"in eager it is {eager['outcome']}: {eager['said']}"}


def _shows(run: Mapping[str, Any], raises: str | None) -> bool:
    raised = raises is not None and run["outcome"] == "raises" and raises in run["said"]
    return bool(raised or run["outcome"] == "wrong")


def _run(script: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    began, printed = time.monotonic(), io.StringIO()
    facts: dict[str, Any] = {}
    with contextlib.redirect_stdout(printed):
        with _compile_replaced(asked, facts), _reseeded(asked["seed"]):
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
        _execute(script)
    except _NotCheckedError:
        return "not checked", "", ""
    except _StillFailsError:
        return "wrong", "", SILENT
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises is what became of it
        if asserted_at(error):
            # An assertion of the compiler's is no comparison that failed.
            return "wrong", message_of(error), SILENT
        root, origin = root_of(error), origin_of(error)
        return "raises", f"{type(root).__name__}: {message_of(root)} ({origin})", f"compiles run {origin}"
    return "right", "", ""


class _StillFailsError(RegionalError, AssertionError):
    """A script says that the defect stands."""


class _NotCheckedError(RegionalError):
    """A script says that it cannot tell."""


def _execute(script: Path) -> None:
    """Run a script as the main module.

    Raises:
        _StillFailsError: it ends with the status of what still fails.
        _NotCheckedError: it ends with another status.
    """
    hook = sys.excepthook
    torch.compiler.reset()
    torch.manual_seed(0)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        status = int(ended.code if isinstance(ended.code, int) else bool(ended.code))
        if status not in (0, _WRONG):
            raise _NotCheckedError(f"exit status {status}") from None
        if status:
            raise _StillFailsError(f"exit status {status}") from None
    finally:
        sys.excepthook = hook


@contextlib.contextmanager
def _reseeded(offset: int) -> Iterator[None]:
    """Have every seed be another one."""
    if not offset:
        yield
        return
    seed, generator = torch.manual_seed, torch.Generator
    torch.manual_seed, torch.Generator = lambda number: seed(number + offset), _generators(offset)
    try:
        yield
    finally:
        torch.manual_seed, torch.Generator = seed, generator


def _generators(offset: int) -> type:
    class Generator(torch.Generator):  # type: ignore[misc]  # torch is not typed here
        def manual_seed(self, number: int) -> Any:
            return super().manual_seed(number + offset)

    return Generator


@contextlib.contextmanager
def _compile_replaced(asked: Mapping[str, Any], facts: dict[str, Any]) -> Iterator[None]:
    original = torch.compile
    backend = _backend(asked["backend"]) if asked["backend"] else None

    def replacement(model: Any, **options: Any) -> Any:
        if asked["uncompiled"]:
            return model
        if backend is not None:
            options = {**options, "backend": backend, "mode": None, "options": None}
        facts.setdefault("options", options)
        compiled = original(model, **options)
        return _measured(model, compiled, options, facts, original) if asked["measure"] else compiled

    settings = {"fallback_random": True} if asked["fallback_random"] else {}
    with _torch_compile(replacement), patched_config(INDUCTOR, settings):
        yield


@contextlib.contextmanager
def _torch_compile(replacement: Callable[..., Any]) -> Iterator[None]:
    """Have ``torch.compile``, as a function and as a decorator, call something else.

    Not where PyTorch itself calls it: ``torch.cond`` compiles its branches in eager, too.
    """
    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] == "torch":
            return original(model, **options)
        return replacement(model, **options) if model is not None else functools.partial(compile, **options)

    torch.compile = compile
    try:
        yield
    finally:
        torch.compile = original


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
                _execute(script)

        culprit = culprit_of(harness, check, seconds=seconds)
    return {"culprit": culprit.sentence, "evidence": culprit.evidence}


def _backend(name: str) -> Any:
    return registry.resolve(name).factory()


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
    facts = {"same": _said(lambda: _same(model, compiled, copied))}
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
    dynamic, fullgraph = options.get("dynamic"), bool(options.get("fullgraph"))
    return regional(_spec(options), "cpu", expects_regions=False, dynamic=dynamic, fullgraph=fullgraph)


def _spec(options: Mapping[str, Any]) -> Any:
    backend = options.get("backend", "inductor")
    if isinstance(backend, str):
        return registry.resolve(backend)
    return BackendSpec("script", lambda: backend)


def _same(model: Any, compiled: Any, copied: Callable[[], tuple[Any, Any]]) -> str:
    """Return what PyTorch's own rule says of outputs, and of tensors given as inputs: ``torch._dynamo.utils.same``.

    A float64 run is the reference.
    """
    results = []
    for run, double in ((model, False), (compiled, False), (model, True)):
        arguments, keywords = copied()
        torch.manual_seed(0)
        if double:
            arguments = [_double(one) for one in arguments]
        outputs = run(*arguments, **keywords)
        results.append([outputs, *(one for one in arguments if isinstance(one, torch.Tensor))])
    return "holds" if same_as_reference(*results) else "fails"


def _double(value: Any) -> Any:
    return value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _said(check: Callable[[], str]) -> str:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the report says what was raised
        return _message(error)


def _message(error: Exception) -> str:
    return message_of(root_of(error)) or type(error).__name__


#: Operators of other namespaces are a user's.
_PYTORCHS = ("aten", "prims")

#: From here on the square of a number is infinite in float32.
_LARGE = 1e19


class _Functions(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Takes down the functions of ``torch``, and the methods of tensors, that a program calls."""

    def __init__(self, names: dict[str, None]) -> None:
        super().__init__()
        self._names = names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        # What stands for a property is called __get__.
        named = func.__self__.__name__ if name == "__get__" else name
        self._names[named.strip("_") if named.startswith("__") else named] = None
        return func(*args, **(kwargs or {}))


class _Kernels(dispatch_mode()):  # type: ignore[misc]
    """Takes down the operators that run: ``aten_div_Tensor_mode``, and ``custom_scale`` for one of a user's."""

    #: PyTorch refuses operators that are given a program where a mode does not say that it takes them.
    supports_higher_order_operators = True

    def __init__(self, names: dict[str, None]) -> None:
        super().__init__()
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        namespace, *name = str(func).split(".")
        known = not name or namespace in _PYTORCHS
        self._names["_".join((namespace if known else "custom", *name))] = None
        return func(*with_memory(func, args), **(kwargs or {}))


def operators_of(call: Callable[[], Any]) -> tuple[str, ...]:
    """Return the names of the operators that ``call`` runs in eager, each once, in order of first appearance.

    Raises:
        Exception: what ``call`` raises.
    """
    names: dict[str, None] = {}
    with _Kernels(names), _Functions(names):
        call()
    return tuple(names)


def features_of(tensors: Sequence[torch.Tensor], *, dynamic: bool) -> frozenset[str]:
    """Return the features of a call, as :mod:`pytest_regional.fuzz.findings.folder` names those of a fuzzed program.

    Args:
        tensors: what it is given, and the parameters of its model.
        dynamic: whether sizes are symbols.
    """
    return frozenset(_features(tensors, dynamic))


def _features(tensors: Sequence[torch.Tensor], dynamic: bool) -> Iterator[str]:
    yield from (f"dtype:{tensor.dtype}".replace("torch.", "") for tensor in tensors)
    memories = [key for tensor in tensors if (key := storage_key(tensor)) is not None]
    if len(set(memories)) < len(memories):
        yield "input:alias"
    if dynamic:
        yield "dynamic"
    if any(tensor.requires_grad for tensor in tensors):
        yield "training"
    for tensor in tensors:
        if not tensor.is_floating_point() or tensor.layout is not torch.strided:
            continue
        values = tensor.detach().double()
        if (values.abs() > _LARGE).any():
            yield "large"
        if (~values.isfinite() | (values == 0) & values.signbit()).any():
            yield "input:edges"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
