"""Reports that are cut off, edited, emptied, or something else: one error that names the file, and no traceback."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import pytest_regional
from pytest_regional.cli import main
from pytest_regional.report.document import RunReport
from pytest_regional.report.outputs import write_report
from pytest_regional.report.page import html_of
from tests.report.test_document import fact
from tests.report.test_page import sample

#: What takes the place of a value.
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**400, 2**63, 1e308, float("nan"), float("-inf"), "", "x", "\ud800", "\x1b[2J",
    "é" * 5000, [], [None], ["x"], [[]], {}, {"x": 1}, {"x": {"y": {}}}, {"": ""}, "1e999",
)  # fmt: skip


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.json"
    write_report(sample(), path)
    return path


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command: no exception leaves it, and where it refuses there is one line and no traceback."""

    def run(*arguments: object) -> tuple[int, str]:
        status = main([str(one) for one in arguments])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        assert len(said.err.splitlines()) == (status == 2)
        assert len(said.err) < 1000
        return status, said.err

    return run


def _places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for name, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield from _places(value, (*path, name))


def _with(data: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    changed = copy.deepcopy({"": data})
    place: Any = changed
    for name in ("", *path)[:-1]:
        place = place[name]
    change(place, ("", *path)[-1])
    return changed.get("")


def _mutations(text: str, rng: random.Random) -> Iterator[str]:
    data = json.loads(text)
    visits: Counter[tuple[Any, ...]] = Counter()
    for path in _places(data):
        general = tuple("*" if isinstance(part, int) else part for part in path)
        visits[general] += 1
        if visits[general] > 2:
            continue
        value = rng.choice(VALUES)
        yield json.dumps(_with(data, path, lambda place, name, value=value: place.__setitem__(name, value)))
        if path:
            yield json.dumps(_with(data, path, lambda place, name: place.__delitem__(name)))


def test_one_value_is_another(good: Path, tmp_path: Path, says: Callable[..., tuple[int, str]]) -> None:
    """Each value of a report, and two of each kind in lists: taken away, or something else. It is read, or refused."""
    bad, refused, read = tmp_path / "bad.json", 0, 0
    for text in _mutations(good.read_text(), random.Random(1)):
        bad.write_text(text)
        status, said = says("merge", bad, good, "-o", tmp_path / "out.json")
        assert status in (0, 2)
        assert status != 2 or str(bad) in said
        refused, read = refused + (status == 2), read + (status != 2)
        if status != 2:  # what is read can be merged and drawn
            merged = RunReport.read(tmp_path / "out.json")
            assert merged.tests
            assert html_of(merged)
    assert refused > 150
    assert read > 25


CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b'{"version": 1, "tests": ["\xff"]}',
    "nested": b"[" * 100_000 + b"]" * 100_000,
    "another program's": b'{"results": []}',
    "another version": b'{"version": 2, "tests": []}',
    "the page": b"<!doctype html><html></html>",
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_another_file(good: Path, tmp_path: Path, content: bytes, says: Callable[..., tuple[int, str]]) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    for reports in ((good, bad), (bad, good), (bad,)):
        status, said = says("merge", *reports, "-o", tmp_path / "out.json")
        assert status == 2
        assert str(bad) in said


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: None])
def test_no_file(
    good: Path, tmp_path: Path, make: Callable[[Path], None], says: Callable[..., tuple[int, str]]
) -> None:
    bad = tmp_path / "bad.json"
    make(bad)
    status, said = says("merge", good, bad, "-o", tmp_path / "out.json")
    assert status == 2
    assert f"{bad} cannot be read" in said or f"{bad} is not a regular file" in said


def test_written_files_are_standard_json(tmp_path: Path) -> None:
    report = sample()
    report.tests[0]["compile_seconds"] = float("nan")
    write_report(report, tmp_path / "report.json")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads((tmp_path / "report.json").read_text(), parse_constant=refuse)


def test_reports_and_commands_write_json_through_one_function() -> None:
    package = Path(pytest_regional.__file__).parent
    sources = [path for folder in ("report", "cli") for path in (package / folder).rglob("*.py")]
    assert len(sources) > 10
    assert [path.name for path in sources if "json.dump" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("lone", ["\ud800", "a\udfffb"])
def test_half_a_pair_of_surrogates_is_read_and_drawn(
    tmp_path: Path, lone: str, says: Callable[..., tuple[int, str]]
) -> None:
    path = tmp_path / "report.json"
    data = json.loads(json.dumps(asdict(sample())))
    data["tests"][0]["failure"] = data["tests"][0]["test"] = lone
    path.write_text(json.dumps(data))
    assert says("merge", path, "-o", tmp_path / "out.html")[0] == 0
    assert "\N{REPLACEMENT CHARACTER}" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_a_test_that_stands_twice_hides_no_failure(tmp_path: Path, says: Callable[..., tuple[int, str]]) -> None:
    path = tmp_path / "report.json"
    data = json.loads(json.dumps(asdict(sample())))
    data["tests"] = [fact("a", "failed"), fact("a")]
    path.write_text(json.dumps(data))
    assert says("merge", path, "-o", tmp_path / "out.json")[0] == 2
