"""The page of a shared campaign: what it says, its curves, and that texts of a store cannot do anything there."""

import dataclasses
import html.parser
import itertools
import re
from pathlib import Path

import pytest

from pytest_regional.fuzz.store import open_store
from pytest_regional.fuzz.workers.plan import joined
from pytest_regional.fuzz.workers.records import Totals, WorkerRecord
from pytest_regional.fuzz.workers.status import StatusReader
from pytest_regional.report.campaign_page import campaign_page, charts_of, ticks, write_campaign_page
from pytest_regional.report.campaign_words import summary_line
from tests.report.campaigns import PLAN, filled

HOSTILE = "<script>alert(1)</script>\x1b[31m\"'><img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path):
    return open_store(tmp_path / "store")


def status_of(store):
    return StatusReader(store, PLAN).read()


class Elements(html.parser.HTMLParser):
    """Counts elements, and checks that each is closed."""

    VOID = ("meta", "link", "br", "img", "input", "line", "polyline")

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.wrong = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def elements(page):
    parser = Elements()
    parser.feed(page)
    assert (parser.open, parser.wrong) == ([], [])
    return parser.seen


def test_it_says_what_the_campaign_has_come_to(store):
    filled(store)

    page = campaign_page(status_of(store), live=True)

    seen = elements(page)
    assert "7000 programs" in page
    assert "<td>15 (0.4%)</td>" in page  # refused
    assert "inductor: parity (run): stride of output" in page  # is being reduced
    assert "ended by SIGSEGV" in page
    assert "batch 400, program 8" in page
    assert (seen.count("svg"), seen.count("circle")) == (2, 40)
    assert len(page) < 200_000


def test_the_newest_finding_is_the_first_one(store):
    filled(store, findings=3)

    found = re.findall(r"inductor-parity-run-0000000\d\.py", campaign_page(status_of(store), live=False))

    assert found == [f"inductor-parity-run-0000000{number}.py" for number in (2, 1, 0)]


@pytest.mark.parametrize("live", [True, False], ids=["live", "over"])
def test_it_loads_itself_again_while_the_campaign_goes_on(store, tmp_path, live):
    filled(store, findings=0)
    write_campaign_page(status_of(store), tmp_path / "page.html", live=live)

    assert ('http-equiv="refresh"' in (tmp_path / "page.html").read_text()) == live


def test_many_refused_programs_are_a_warning(store):
    filled(store, refused=3)
    assert 'role="alert"' not in campaign_page(status_of(store), live=False)
    record = WorkerRecord("2.13", "host", 1, "x", totals={"inductor, native": Totals(examples=10)})
    record.totals["inductor, native"].refused["RuntimeError: sizes"] = 500
    store.write("workers", "another", record.to_data(), version=0)

    page = campaign_page(status_of(store), live=False)

    assert 'role="alert">eager refuses 530 of 7010 programs' in page


def test_a_campaign_that_has_just_begun(store):
    joined(store, PLAN)

    page = campaign_page(status_of(store), live=True)

    elements(page)
    assert "No batch is done yet." in page
    assert "<p>None.</p>" in page


def test_what_a_stranger_writes_into_the_store_is_text(store):
    filled(store, findings=0, workers=0)
    data = {"finding": {}, "script": "", "title": HOSTILE, "size": 1, "environment": "2.13", "found": 1e9}
    store.write("findings", "a", data, version=0)
    claim = {"holder": "x", "signature": HOSTILE, "part": 0, "program": {}, "attempts": 0, "claimed": 0.0}
    store.write("claims", "b", claim, version=0)
    crash = {"program": {}, "part": 0, "kind": "batch", "environment": "2.13", "ending": HOSTILE}
    store.write("crashes", "c", crash, version=0)

    page = campaign_page(status_of(store), live=False)

    assert not {"script", "img"} & set(elements(page))
    assert "\x1b" not in page


@pytest.mark.parametrize("when", [1e300, -1e300, -5.0])
def test_times_that_no_clock_shows_are_passed_over(store, when):
    filled(store, findings=1)
    done = {"holder": None, "done": True, "finished": when, "examples": 1, "keys": [], "part": 0}
    store.write("batches", "2.13-junk", done, version=0)
    record = WorkerRecord("2.13", "host", 1, "x", begun=when)
    store.write("workers", "junk", record.to_data(), version=0)

    assert "junk" not in campaign_page(status_of(store), live=False)


def test_curves_end_where_the_campaign_is(store):
    filled(store, seconds=600.0, findings=2)
    rate, coverage = charts_of(status_of(store))

    assert coverage.points.split()[0] == f"{coverage.left}.0,{coverage.bottom}.0"
    assert coverage.points.split()[-1].startswith(f"{coverage.right}.0,")
    assert int(coverage.rows[-1][1]) == status_of(store).keys
    assert all(rate.top <= float(point.split(",")[1]) <= rate.bottom for point in rate.points.split())
    assert len(coverage.marks) == 2


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (0, [0, 1]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (7, [0, 2, 4, 6, 8]),
        (764, [0, 200, 400, 600, 800]),
        (50, [0, 10, 20, 30, 40, 50]),
    ],
    ids=str,
)
def test_lines_of_a_grid_are_round_numbers(highest, expected):
    assert ticks(highest) == pytest.approx(expected)


def test_the_page_needs_nothing_else(store):
    filled(store)

    assert not re.search(r"""(src|href)=["'](?!data:,|#)""", campaign_page(status_of(store), live=True))


def test_a_page_that_cannot_be_written(store):
    filled(store, findings=0)

    with pytest.raises(OSError, match="No such file"):
        write_campaign_page(status_of(store), Path("/no/such/directory/page.html"), live=True)


def test_who_checks_again_counts_what_is_left_and_no_new_programs(store):
    filled(store, findings=2)
    store.write("postponed", "a", {}, version=0)
    status = dataclasses.replace(status_of(store), plan=dataclasses.replace(PLAN, programs=0))

    assert summary_line(status) == "2 findings, 1 program still to be checked"


def test_findings_are_points_on_the_curve(store):
    filled(store, findings=40)

    _, coverage = charts_of(status_of(store))

    corners = [tuple(map(float, corner.split(","))) for corner in coverage.points.split()]
    assert len(coverage.marks) == 40
    for mark in coverage.marks:
        (left, low), (right, high) = next(
            pair for pair in itertools.pairwise(corners) if pair[0][0] <= mark.x <= pair[1][0]
        )
        height = low + (high - low) * (mark.x - left) / ((right - left) or 1)
        assert mark.y == pytest.approx(height, abs=0.5)
