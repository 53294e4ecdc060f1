"""Report files as they come from elsewhere: cut off, edited, of another program. What is wrong is one error.

``python -m pytest_regional compare`` and ``merge`` read files that other machines wrote, and everything behind the
reader (comparing, merging, drawing the page) takes the shape that ``docs/reports.md`` documents for granted.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pytest_regional._errors import RegionalError
from pytest_regional._files import bytes_of

#: The largest count, and the largest number, that a report holds.
MOST, LARGEST = 2**63 - 1, 1e300

#: What becomes of a golden in a run. Of several runs, or tests, the first of these that one says.
GOLDEN_STATES = ("changed", "missing", "not written", "written", "same", "removed", "unused")

#: How deep lists and tables stand in each other, at most, in what ``json`` gives: a report needs eight levels.
_DEPTH = 40


class ReportError(RegionalError, ValueError):
    """A report file that cannot be read; the message names the file, the place in it, and what is wrong there."""


class _Flaw(ValueError):
    """What is wrong in the data, and where."""


#: Raises :class:`_Flaw` for a value of another shape; the second argument is its place.
_Shape = Callable[[Any, str], None]


def read_json(path: Path) -> Any:
    """Return what the JSON file ``path`` holds. Halves of surrogate pairs, which no file can hold, become ``\ufffd``.

    Raises:
        ReportError: no regular file, not readable, not UTF-8, no JSON, a number that is none, or too deep.
    """
    try:
        text = bytes_of(path).decode("utf-8")
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ReportError(f"{path} is not JSON: byte {error.start} is not UTF-8") from error
    if not text.strip():
        raise ReportError(f"{path} is empty: the run that should have written it ended before")
    try:
        data = json.loads(text, parse_constant=_no_number)
        _check_depth(data)
        return _without_halves(data) if _HALF.search(text) else data
    except RecursionError as error:
        raise ReportError(f"{path} is no report: lists or tables stand too deep in each other") from error
    except ValueError as error:
        raise ReportError(f"{path} is not JSON: {error}") from error


def check_run(data: Mapping[str, Any], outcomes: Collection[str], path: Path) -> None:
    """Check all that a report holds, by the shapes in ``docs/reports.md``; of tests, other keys may stand there.

    Args:
        data: a report without its ``version``.
        outcomes: how tests can end.
        path: for messages.

    Raises:
        ReportError: with the first flaw and its place.
    """
    try:
        _RUN(data, "")
        _check_tests(data["tests"], outcomes)
    except _Flaw as flaw:
        raise ReportError(f"{path} is no report: {flaw}") from flaw


def _check_tests(tests: Sequence[Mapping[str, Any]], outcomes: Collection[str]) -> None:
    seen = set()
    for number, test in enumerate(tests):
        where = f"tests[{number}]"
        if test["outcome"] not in outcomes:
            _wrong(f"{where}.outcome", test["outcome"], "one of the endings")
        key = (test["test"], test["backend"], test["device"])
        if key in seen:
            raise _Flaw(f"{where} stands there twice: {_shown(test['test'])}")
        seen.add(key)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def _check_depth(data: Any) -> None:
    level = [data]
    for _ in range(_DEPTH):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (list, dict)))
        level = [child for one in inside for child in one]
        if not level:
            return
    raise RecursionError


def _without_halves(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_without_halves(one) for one in value]
    if isinstance(value, dict):
        return {_without_halves(k): _without_halves(v) for k, v in value.items()}
    return value


def _wrong(where: str, value: Any, expected: str) -> NoReturn:
    raise _Flaw(f"{where or 'the whole'} is {_shown(value)}, expected {expected}")


def _shown(value: Any) -> str:
    text = ascii(value) if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        _wrong(where, value, "a text")


def _flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        _wrong(where, value, "true or false")


def _count(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        _wrong(where, value, "a whole number from 0 to 2**63 - 1")


def _number(value: Any, where: str) -> None:
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
    if not fits or math.isnan(value):
        _wrong(where, value, "a number, at most 1e300")


def _seconds(value: Any, where: str) -> None:
    _number(value, where)
    if value < 0:
        _wrong(where, value, "seconds, 0 or more")


def _scalar(value: Any, where: str) -> None:
    """Take what an option or a fact of a machine can be."""
    if isinstance(value, list):
        _list(_text)(value, where)
    elif not isinstance(value, (str, bool, type(None))):
        _number(value, where)


def _state(value: Any, where: str) -> None:
    if value not in GOLDEN_STATES:
        _wrong(where, value, f"one of {', '.join(GOLDEN_STATES)}")


def _maybe(shape: _Shape) -> _Shape:
    return lambda value, where: None if value is None else shape(value, where)


def _list(shape: _Shape) -> _Shape:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list):
            _wrong(where, value, "a list")
        for number, one in enumerate(value):
            shape(one, f"{where}[{number}]")

    return check


def _table(shape: _Shape) -> _Shape:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            _wrong(where, value, "a table")
        for name, one in value.items():
            shape(one, f"{where}.{_shown(name)[1:-1]}")

    return check


def _record(optional: Collection[str] = (), /, **shapes: _Shape) -> _Shape:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            _wrong(where, value, "a table")
        missing = sorted(shapes.keys() - value.keys() - set(optional))
        if missing:
            raise _Flaw(f"{where or 'the whole'} lacks {', '.join(missing)}")
        for name, shape in shapes.items():
            if name in value:
                shape(value[name], f"{where}.{name}".lstrip("."))

    return check


def _graph(value: Any, where: str) -> None:
    _GRAPH(value, where)
    # What the page draws: values flow down, and an order may be asked for in any direction.
    for number, node in enumerate(value["nodes"]):
        for name, most in (("inputs", number), ("after", len(value["nodes"]))):
            for one in node[name]:
                if one >= most:
                    _wrong(f"{where}.nodes[{number}].{name}", one, f"numbers of nodes below {most}")


_NODE = _record(
    name=_text,
    op=_text,
    region=_maybe(_text),
    partition=_maybe(_count),
    inputs=_list(_count),
    after=_list(_count),
    source=_text,
)
_GRAPH = _record(("whole",), kind=_text, whole=_flag, size=_count, nodes=_list(_NODE))
_EVENT = _record(line=_count, kind=_text, ops=_text)
_CODE = _record(graph=_text, regions=_list(_text), loaded=_flag, text=_text, events=_list(_EVENT))
_DETAILS = _record(
    graphs=_list(_graph),
    code=_list(_CODE),
    timeline=_list(_record(seconds=_number, counter=_text, cause=_text)),
    errors=_list(_record(where=_text, candidate=_number, eager=_maybe(_number), allowed=_number)),
    left_out=_table(_count),
)
_FINDING = _record(
    ("text", "file", "oracle", "rule", "size"),
    name=_text,
    title=_text,
    script=_text,
    text=_text,
    file=_text,
    oracle=_text,
    rule=_text,
    size=_count,
)
_EXPERIMENT = _record(changed=_text, outcome=_text, seconds=_number)
_CULPRIT = _record(sentence=_text, first_wrong=_text, experiments=_list(_EXPERIMENT))
#: How long the phases of a test's compiles took.
_ON_A_CLOCK = {"phases": _table(_seconds), "regions": _table(_table(_seconds))}
_COMPILE_TIMES = _record(("cpu",), **_ON_A_CLOCK, cpu=_record(**_ON_A_CLOCK), not_measured=_list(_text))
_CODE_LINE = _record(("finding", "file"), path=_text, line=_count, what=_text, finding=_text, file=_text)
_TEST = _record(
    (
        *("culprits", "phase", "blame", "file", "line", "message", "rerun", "shard", "compile_times", "generated_code"),
        "new_processes",
    ),
    version=_count,
    test=_text,
    suite=_text,
    backend=_text,
    device=_text,
    requires=_list(_text),
    outcome=_text,
    counters=_table(_count),
    worst_parity=_maybe(_number),
    compile_seconds=_number,
    slowest_compiles=_list(_record(seconds=_number, what=_text)),
    causes=_table(_table(_count)),
    fuzz=_maybe(_record(("hits", "unit"), findings=_list(_FINDING), hits=_table(_count), unit=_text)),
    details=_maybe(_DETAILS),
    failure=_text,
    culprits=_list(_CULPRIT),
    phase=_text,
    blame=_text,
    file=_text,
    line=_count,
    message=_text,
    rerun=_text,
    shard=_count,
    generated_code=_list(_CODE_LINE),
    compile_times=_COMPILE_TIMES,
    new_processes=_record(forked=_count, interpreters=_table(_count)),
)
_GOLDEN = _record(file=_text, test=_text, backend=_text, name=_text, device=_text, state=_state)
_RUN = _record(
    ("lost_workers", "merged_from", "goldens"),
    created=_text,
    versions=_table(_text),
    machine=_table(_scalar),
    options=_table(_scalar),
    tests=_list(_TEST),
    lost_workers=_count,
    merged_from=_count,
    goldens=_list(_GOLDEN),
)
