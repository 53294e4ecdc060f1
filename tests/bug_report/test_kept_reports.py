"""The reports in docs/findings/reports: every field is filled, and their scripts are short and need torch alone."""

from __future__ import annotations

import ast
import re
import statistics
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "findings" / "reports"
REPORTS = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")

FIELDS = (
    "Describe the bug",
    "With each stage of the compiler",
    "Is it rounding, or chance?",
    "Culprit",
    "Releases",
    "Possible duplicates",
    "Versions",
)


def script_in(text):
    return text.partition("```python\n")[2].partition("```")[0]


def faults_of(text):
    """Return what a report lacks."""
    parts = re.split(r"^#{2,3} (?:🐛 )?", text, flags=re.MULTILINE)
    title, sections = parts[0], {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts[1:]}
    faults = [] if title.startswith("# torch.compile") else ["title"]
    faults += [field for field in FIELDS if not sections.get(field)]
    stages = sections.get("With each stage of the compiler", "")
    faults += ["eager is not right"] * ("| `eager` | right |" not in stages)
    faults += ["no stage is wrong"] * (not re.search(r"`\w+` \| (wrong|raises)", stages))
    faults += ["no culprit"] * sections.get("Culprit", "").startswith("Not searched")
    faults += ["fewer than three releases"] * (len(re.findall(r"^\| 2\.\d+", sections.get("Releases", ""), re.M)) < 3)
    faults += ["no environment"] * ("PyTorch version: " not in sections.get("Versions", ""))
    faults += ["needs more than torch"] * ("pytest_regional" in script_in(text))
    return faults


def test_there_are_ten():
    assert len(REPORTS) >= 10


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.stem)
def test_every_field_is_filled(report):
    text = report.read_text(encoding="utf-8")

    assert faults_of(text) == []
    ast.parse(script_in(text))


def test_scripts_are_short():
    lengths = [
        sum(bool(line.strip()) for line in script_in(report.read_text(encoding="utf-8")).splitlines())
        for report in REPORTS
    ]
    assert statistics.median(lengths) <= 15


def test_an_empty_report_lacks_everything():
    assert len(faults_of("")) == 1 + len(FIELDS) + 4
    text = REPORTS[0].read_text(encoding="utf-8")
    assert faults_of(text.replace("| `eager` | right |", "| `eager` | wrong |")) == ["eager is not right"]
    assert faults_of(text.replace("import torch", "import torch, pytest_regional", 1)) == ["needs more than torch"]
