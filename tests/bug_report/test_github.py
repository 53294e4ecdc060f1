"""The Markdown of a report: every field stands in it, and no text breaks its tables or blocks."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from pytest_regional.bug_report.gathering import BugReport, as_markdown
from pytest_regional.bug_report.known_issues import Known, KnownIssue
from pytest_regional.bug_report.running import ScriptRun
from pytest_regional.bug_report.scripts import Subject

SCRIPT = "import torch\n\nprint('```')\n"


@pytest.fixture
def report():
    subject = Subject("a.json", "torch.compile: wrong values", "What eager gives.", "", ("sin",), {}, source="Found")
    wrong = ScriptRun("wrong", "AssertionError: a | b <c>\nmore", "printed\n" * 100)
    return BugReport(
        subject,
        "inductor",
        SCRIPT,
        wrong,
        {"eager": ScriptRun("right"), "inductor": wrong},
        [ScriptRun("right"), wrong],
        "fails",
        "holds",
        "pass remove_noop_ops: right where that is left out (confirmed)\nfixed  0.1 s  without it",
        [Known(KnownIssue(198031, "clone", "a clone is dropped", ""), 1.0)],
        "PyTorch version: 2.13.0",
        {"2.11.0": ScriptRun("right"), "2.13.0": wrong},
        "First bad release: 2.13.0.",
        "report.trace.zip",
    )


def test_every_field_stands_in_it(report):
    text = as_markdown(report)

    for expected in (
        "# torch.compile: wrong values\n",
        SCRIPT.strip(),
        "What eager gives.",
        "| `eager` | right |",
        "| `inductor` | wrong: AssertionError: a \\| b &lt;c> |",
        "| outputs, inputs afterwards: `torch._dynamo.utils.same`, with a float64 run as the reference | fails |",
        "| outputs, inputs afterwards, gradients: error of the compiled run against eager's, both measured from float64"
        " | holds |",
        "| other seeds (2), `fallback_random=True` | wrong",
        "pass remove_noop_ops: right where that is left out (confirmed)",
        "fixed  0.1 s  without it",
        "[#198031](https://github.com/pytorch/pytorch/issues/198031): a clone is dropped (likeness 1.00)",
        "| 2.11.0 | right |",
        "First bad release: 2.13.0.",
        "`report.trace.zip`",
        "PyTorch version: 2.13.0",
    ):
        assert expected in text, expected
    assert text.count("printed") < 50


def test_it_is_sound_markdown(report):
    tokens = MarkdownIt().enable("table").parse(as_markdown(report))

    code = [token.content for token in tokens if token.type == "fence"]
    rows = sum(token.type == "tr_open" for token in tokens)
    assert code[0] == SCRIPT
    assert rows == 3 + 5 + 3  # with the heads


def test_what_was_not_measured_is_said(report):
    subject = report.subject
    bare = BugReport(subject, "", SCRIPT, report.shown, {"eager": ScriptRun("right")})
    text = as_markdown(bare)

    assert "Not searched." in text
    assert "Other releases were not tried." in text
    assert "None in the index" in text
    assert "None" not in text.replace("None in the index", "")
