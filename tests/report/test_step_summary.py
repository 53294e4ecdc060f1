"""The summary as Markdown: rendered as GitHub does, texts stay texts, and it is never larger than what is shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from pytest_regional.report.outputs import write_report
from pytest_regional.report.step_summary import LIMIT, append_summary, summary_of
from tests.report.ci_sample import NASTY, failed, finding, fuzzed, sample
from tests.report.test_document import fact, report


def rendered(text):
    """Return the HTML of GitHub's kind of Markdown."""
    markdown_it = pytest.importorskip("markdown_it", reason="markdown-it-py comes with myst-parser")
    return markdown_it.MarkdownIt("gfm-like", {"linkify": False}).render(text)


class Page(HTMLParser):
    """The text of each element by its tag; tags that are not closed are noticed."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.texts, self.open = {}, []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag not in ("br", "hr", "input"):
            self.open.append(tag)
        self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data


def page(*tests, **about):
    found = Page(rendered(summary_of(report(*tests, **about))))
    assert found.open == []
    return found


def test_the_summary_says_what_a_reviewer_needs():
    found = Page(rendered(summary_of(sample())))
    assert found.texts["h2"] == ["Regional conformance: 5 of 7 tests failed"]
    assert found.texts["h3"] == ["2 findings", "5 failures", "Slowest compiles"]
    assert found.texts["th"][:2] == ["suite", "reference (cpu)"]
    assert "1 passed, 4 failed, 1 crashed, 1 known failure" in found.texts["td"]
    assert found.texts["summary"][0] == "tests/test_block.py::test_dies on reference (cpu): crashed"
    assert len(found.texts["details"]) == 5
    assert "To blame: fusion of buf0 and buf1" in found.texts["details"][-1]
    assert "python/tests/test_block.py, line 12" in found.texts["details"][0]
    assert "pytest tests/test_block.py::test_dies --regional-backend=reference" in found.texts["pre"][1]
    assert found.texts["li"][1].startswith("reference-parity-run-6b3fbda6, 4 hits: regional-findings/reference-parity")


def test_a_run_that_is_well_is_short():
    found = page(fact("a"), fact("b"))
    assert found.texts["h2"] == ["Regional conformance: 2 tests, none failed"]
    assert "details" not in found.texts


@pytest.mark.parametrize("about", [{"unfinished": "SIGTERM ended it"}, {"lost_workers": 2}], ids=str)
def test_a_run_that_is_not_whole_says_so(about):
    text = " ".join(page(fact("a"), **about).texts["p"])
    assert "The run did not finish: SIGTERM ended it" in text or "2 workers died" in text


def test_texts_stay_texts():
    odd = finding("<b>n</b>", title=NASTY, file=NASTY)
    tests = [failed(f"test[{NASTY}]", message=NASTY, blame=NASTY, rerun=NASTY, file=NASTY, suite=NASTY), fuzzed(odd)]
    tests[0]["slowest_compiles"] = [{"seconds": 1.0, "what": NASTY}]
    found = page(*tests, unfinished=NASTY)
    assert {"b", "em", "i", "a"}.isdisjoint(found.texts)
    assert found.texts["h3"] == ["1 finding", "2 failures", "Slowest compiles"]
    assert sum("<b>bold</b>" in text for text in found.texts["pre"]) == 2  # what went wrong, and the command
    assert sum("100%: <b>bold</b> | `a` *b* _c_ [d](e) @all #1 $x$" in text for text in found.texts["code"]) >= 4
    assert len(found.texts["tr"]) == 4 + 2


def test_a_mention_or_reference_is_none():
    raw = summary_of(report(failed("test_a", blame="@all #1")))
    outside = re.sub(r"^```.*?^```", "", raw, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"@all|(?<!&)#1", outside)


def test_it_fits_and_says_what_is_cut():
    tests = [failed(f"test_{number}", message="x" * 4_000) for number in range(400)]
    text = summary_of(report(*tests, fuzzed(finding("n"))))
    assert len(text.encode()) <= LIMIT
    missing = int(re.search(r"no more room: (\d+) failures\. The JSON report", text)[1])
    assert text.count("<details>") + missing == 401
    assert Page(rendered(text)).open == []
    assert "regional-findings/n.py" in text


def test_what_another_step_or_tool_wrote_is_kept_and_counts(tmp_path):
    path = tmp_path / "summary.md"
    for before in (0, LIMIT - 2_000, LIMIT - 100):
        path.write_text("a" * before)
        append_summary(sample(), {"GITHUB_STEP_SUMMARY": str(path)})
        text = path.read_text(encoding="utf-8")
        assert text.startswith("a" * before)
        assert len(text.encode()) <= LIMIT
        assert ("Regional conformance" in text) is (before < LIMIT - 100)


def test_it_can_be_a_file(tmp_path):
    write_report(sample(), tmp_path / "new" / "summary.md")
    assert (tmp_path / "new" / "summary.md").read_text(encoding="utf-8") == summary_of(sample())
