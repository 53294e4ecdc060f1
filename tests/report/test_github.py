"""Annotations: read back by the rules of GitHub's runner, within its limits, the worst first.

Workflow commands have no published schema. What the runner makes of one is an annotation of a check run; the schema
here was written from knowledge of GitHub's REST documentation, which states its fields and limits.
"""

from __future__ import annotations

import re

import pytest

from pytest_regional.report.ci import MOST, annotations_of
from pytest_regional.report.step_summary import append_summary
from tests.report.ci_sample import NASTY, failed, sample
from tests.report.schemas import check
from tests.report.test_document import fact, report

ANNOTATION = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["message", "title", "annotation_level"],
    "dependencies": {"path": ["start_line"]},
    "properties": {
        "path": {"type": "string", "pattern": "^[^/]"},
        "start_line": {"type": "integer", "minimum": 1},
        "annotation_level": {"enum": ["notice", "warning", "failure"]},
        "title": {"type": "string", "minLength": 1, "maxLength": 255},
        "message": {"type": "string", "minLength": 1, "maxLength": 64 * 1024},
    },
}


def read(line):
    """Return the annotation that GitHub's runner makes of ``line``: ``::command name=value,...::message``."""
    command, properties, message = re.fullmatch(r"::(\w+)(?: ([^\n\r]*?))?::([^\n\r]*)", line).groups()
    values = dict(one.split("=", 1) for one in properties.split(","))
    plain = {name: unescaped(value, {"%3A": ":", "%2C": ","}) for name, value in values.items()}
    place = {"path": plain["file"], "start_line": int(plain["line"])} if "file" in plain else {}
    level = {"error": "failure", "warning": "warning", "notice": "notice"}[command]
    return {**place, "title": plain["title"], "message": unescaped(message), "annotation_level": level}


def unescaped(text, more=()):
    for code, char in {"%0D": "\r", "%0A": "\n", **dict(more), "%25": "%"}.items():
        text = text.replace(code, char)
    return text


def test_annotations_are_valid_and_the_worst_stands_first():
    found = [read(line) for line in annotations_of(sample().tests)]
    for annotation in found:
        check(annotation, ANNOTATION)
    assert [one["title"].partition("::")[2] for one in found] == [
        "test_dies on reference (cpu): crashed",
        "test_elsewhere on reference (cpu): failed",
        "test_fuzz[shard0] on reference (cpu): failed",
        "test_fuzz[shard1] on reference (cpu): failed",
        "test_nasty[<i>|x] on reference (cpu): failed",
    ]


def test_an_annotation_beyond_a_limit_is_noticed():
    annotation = read(next(annotations_of(sample().tests)))
    with pytest.raises(AssertionError, match="title"):
        check({**annotation, "title": "x" * 256}, ANNOTATION)


def test_an_annotation_stands_at_the_line_and_says_what_is_wrong_to_blame_and_to_do():
    (found,) = map(
        read, annotations_of([failed("test_a", message="wrong: 100%, really\n  twice", blame="region 'mlp'")])
    )
    assert (found["path"], found["start_line"]) == ("python/tests/test_block.py", 12)
    assert found["message"].splitlines() == [
        "wrong: 100%, really",
        "  twice",
        "to blame: region 'mlp'",
        "rerun: pytest tests/test_block.py::test_a --regional-backend=reference --regional-seed=1 -n0",
    ]


CODE = [
    {"path": "/w/kept/a/00.py", "line": 98, "what": "kernel cpp_fused_0 computes aten.sin", "file": "kept/a/00.py"},
    {"path": "/tmp/b/00.py", "line": 7, "what": "the code of the forward graph"},
]


def test_an_annotation_names_generated_code_that_is_kept():
    (found,) = map(read, annotations_of([failed("test_a", generated_code=CODE)]))
    check(found, ANNOTATION)
    assert "generated code: kept/a/00.py:98: kernel cpp_fused_0 computes aten.sin\nrerun: " in found["message"]
    assert "/tmp" not in found["message"]


def test_of_a_test_outside_of_the_repository_no_place_is_named():
    (found,) = map(read, annotations_of([failed("test_a", file="")]))
    assert "path" not in found


def test_no_text_ends_a_command_or_begins_one():
    (line,) = annotations_of([failed("test[a,b%0A:c]", message=NASTY + "\x1b[31m\x07", blame=NASTY)])
    assert line.isprintable()
    found = read(line)
    check(found, ANNOTATION)
    assert found["title"].startswith("tests/test_block.py::test[a,b%0A:c] on")
    assert "100%: <b>bold</b>" in found["message"]


def test_long_failures_are_cut():
    (found,) = map(read, annotations_of([failed("test_" + "a" * 300, message="\n".join(["x" * 9_000] * 300))]))
    check(found, ANNOTATION)
    assert "rerun: pytest" in found["message"]


@pytest.mark.parametrize(("count", "said"), [(MOST, ""), (MOST + 1, "1 more failure"), (MOST + 5, "5 more failures")])
def test_as_many_as_github_shows_and_the_summary_says_how_many_more(tmp_path, count, said):
    tests = [failed(f"test_{number:02}") for number in range(count)]
    assert len(list(annotations_of(tests))) == MOST
    append_summary(report(*tests), {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")})
    text = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert ("annotations of a step" in text) is bool(said)
    assert said in text


def test_outside_of_a_job_there_is_no_summary(tmp_path):
    append_summary(sample(), {})
    assert list(tmp_path.iterdir()) == []
    assert list(annotations_of([fact("a"), fact("b", "known failure")])) == []
