"""What ``--regional-report`` names, and what GitHub and GitLab switch on."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.report.outputs import ENDINGS, Outputs, ending_of, outputs_of

GITHUB, GITLAB = {"GITHUB_ACTIONS": "true"}, {"GITLAB_CI": "true"}
QUALITY = Path("/r/gl-code-quality-report.json")


@pytest.mark.parametrize(
    ("value", "environment", "expected"),
    [
        ("", {}, Outputs()),
        ("a.json, b/c.html", {}, Outputs(files=(Path("/r/a.json"), Path("/r/b/c.html")))),
        ("out/,/abs/x/", {}, Outputs(directories=(Path("/r/out"), Path("/abs/x")))),
        ("a.md,a.sarif", {}, Outputs(files=(Path("/r/a.md"), Path("/r/a.sarif")))),
        ("github", {}, Outputs(github=True)),
        ("gitlab,gl-code-quality-report.json", {}, Outputs(files=(QUALITY,))),
        ("", GITHUB, Outputs(github=True)),
        ("a.json", GITHUB, Outputs(files=(Path("/r/a.json"),), github=True)),
        ("none", GITHUB | GITLAB, Outputs()),
        ("none,github", GITHUB | GITLAB, Outputs(github=True)),
        ("", {"GITHUB_ACTIONS": "false", "GITLAB_CI": ""}, Outputs()),
        ("a.json", GITHUB | {"PYTEST_CURRENT_TEST": "t.py::a (call)"}, Outputs(files=(Path("/r/a.json"),))),
    ],
)
def test_what_is_written(value, environment, expected):
    assert outputs_of(value, Path("/r"), environment) == expected
    assert bool(expected) is (expected != Outputs())


def test_gitlab_gets_its_file_where_there_is_a_place_for_it(tmp_path):
    assert outputs_of("", tmp_path, GITLAB) == Outputs(files=(tmp_path / "gl-code-quality-report.json",))
    assert outputs_of("", tmp_path / "nowhere", GITLAB) == Outputs()


@pytest.mark.parametrize("value", ["a.txt", "a", "githup", "a.json,codequality.yml"])
def test_a_name_that_says_no_format_is_an_error(value):
    with pytest.raises(RegionalValueError, match=r"expected a name that ends in \.json, .*github, gitlab or none"):
        outputs_of(value, Path("/r"), {})


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.json", ".json"),
        ("a.codequality.json", ".codequality.json"),
        ("gl-code-quality-report.json", "code-quality-report.json"),
        ("code-quality.json", ".json"),
        ("a.sarif.json", ".json"),
        ("a.txt", ""),
    ],
)
def test_the_longest_ending_counts(name, ending):
    assert ending_of(Path(name)) == ending


def test_details_are_collected_for_what_shows_them():
    shown = {ending for ending in ENDINGS if Outputs(files=(Path(f"x{ending}"),)).holds_details}
    assert shown == {".json", ".html"}
    assert not Outputs(directories=(Path("x"),), github=True).holds_details
