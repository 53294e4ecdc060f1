"""What a report is about: a finding of the fuzzer, or a script."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_regional._base.documents import DocumentError
from pytest_regional._base.errors import RegionalError
from pytest_regional._base.files import text_of
from pytest_regional.bug_report.known_issues import fails_of
from pytest_regional.bug_report.scripts import scripts_of, without_scaffold
from pytest_regional.fuzz.findings.folder import Finding, FindingsFolder

#: What each kind of difference is called in a title.
_SEEN = {
    "value": "wrong values",
    "nan": "NaN or infinity otherwise than in eager",
    "stride": "other strides than eager",
    "alias": "results share memory otherwise than in eager",
    "dtype": "another dtype than eager",
    "shape": "another shape than eager",
    "missing-grad": "a gradient is missing",
    "draws": "other random numbers than eager",
}
_PLACES = {"grad": "gradients", "input": "inputs afterwards"}

#: Oracles of what one or two calls leave, which a short script can compare with eager.
COMPARED = ("compiles", "parity", "further_calls", "rewrites", "integer_twin")

#: Operators that are given a program.
_CALLERS = (
    *("cond", "while_loop", "scan", "associative_scan", "nested_compile_region", "checkpoint"),
    *("vmap", "jvp", "vjp", "jacfwd", "jacrev", "hessian", "flex_attention"),
)

#: So many scripts are tried for one backend: each is a compile or two.
_MOST_SCRIPTS = 9


class SubjectError(RegionalError):
    """What a report is to be about cannot be read; the message says what to give."""


@dataclass(frozen=True)
class Subject:
    """What a report is about.

    Attributes:
        name: of its file or its test, to say where it comes from.
        title: one sentence: what happens.
        expected: what would be right.
        fails: what fails, where and how, as the signature of a finding says it; empty where that is not known.
        operators: the names of the operators that take part.
        scripts: by backend, scripts that may show it, the plainest first.
        raises: the class of the exception that shows it, empty for any; ``None`` where something is computed wrong.
        culprit: what is known of it before the report is made.
        source: where the scripts come from, in a sentence.
        features: of the program, as far as they are known.
    """

    name: str
    title: str
    expected: str
    fails: str
    operators: tuple[str, ...]
    scripts: dict[str, tuple[str, ...]]
    raises: str | None = None
    culprit: str = ""
    source: str = ""
    features: frozenset[str] = frozenset()


def subject_of(path: Path) -> Subject:
    """Return what a finding's ``.json``, or a script, is about.

    Raises:
        SubjectError: it can be read as neither.
    """
    try:
        if path.suffix == ".py":
            return of_script(path.name, text_of(path))
        finding = FindingsFolder(path.parent).read(path)
    except (DocumentError, OSError, UnicodeDecodeError) as error:
        raise SubjectError(f"{path} cannot be read: {error}") from error
    if not isinstance(finding, Finding):
        raise SubjectError(f"{path} is a sequence of compiles, no program: give its script, {path.stem}.py")
    return _of_finding(path.name, finding)


def of_script(name: str, text: str) -> Subject:
    """Return what a script is about: its docstring says it.

    Raises:
        SubjectError: it is no Python.
    """
    try:
        title = ast.get_docstring(ast.parse(text)) or name
    except SyntaxError as error:
        raise SubjectError(f"{name} is no Python: {error}") from error
    first = title.partition("\n\n")[0].replace("\n", " ")
    shortened = without_scaffold(text)
    return Subject(name, first, "What eager does.", "", _callers_in(text), {"": (shortened,)}, raises="")


def _callers_in(text: str) -> tuple[str, ...]:
    """Return which operators that are given a program a script names: what runs in eager does not show them."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.id for node in nodes if isinstance(node, ast.Name)}
    return tuple(name for name in _CALLERS if name in names)


def _of_finding(name: str, finding: Finding) -> Subject:
    origin = finding.signature.origin
    raises = origin.partition(" at ")[0].split(":")[0] if finding.signature.oracle == "compiles" else None
    kinds = tuple(dict.fromkeys(kind.strip().partition(" (")[0] for kind in origin.split(",")))
    # The stage with the least is the plainest.
    first = ("aot_eager",) if finding.backend == "aot_eager" else ()
    backends = dict.fromkeys((*first, "inductor", "torch", finding.backend))
    whole = finding.script_with_torch_alone or finding.script
    scripts = {
        backend: tuple(_scripts(finding, backend)) + ((whole,) if backend == finding.backend else ())
        for backend in backends
    }
    operators = finding.program.operators
    shown = ", ".join(dict.fromkeys(operator.removeprefix("aten_").strip("_") for operator in operators[:4]))
    return Subject(
        name,
        f"{words_for(kinds, raises)} ({shown})",
        "The same call in eager raises nothing." if raises else "What eager gives.",
        fails_of(finding),
        operators,
        scripts,
        raises,
        finding.culprit or "",
        "The program was found by a fuzzer and made smaller until nothing could go",
        finding.features,
    )


def _scripts(finding: Finding, backend: str) -> Iterator[str]:
    if finding.signature.oracle not in COMPARED:
        return
    parts = scripts_of(finding.program, finding.signature.origin, backend)
    yield from (one.text for one in itertools.islice(parts, _MOST_SCRIPTS))


def words_for(kinds: Sequence[str], raises: str | None) -> str:
    """Return in words what is seen: kinds of difference, or the class of an exception."""
    if raises:
        return f"torch.compile raises {raises}"
    seen = []
    for kind in kinds:
        what, _, where = kind.partition(" of ")
        place = next((words for prefix, words in _PLACES.items() if where.startswith(prefix)), "outputs")
        seen.append(f"{_SEEN.get(what, what)} in {place}")
    return f"torch.compile: {', '.join(dict.fromkeys(seen))}"
