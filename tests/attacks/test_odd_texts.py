"""Texts and values that cannot be sent or written as they are: the report has them, and the run goes on."""

from __future__ import annotations

import json
from types import SimpleNamespace
from xml.etree import ElementTree

import execnet
import pytest

from pytest_regional._base.text import encodable
from pytest_regional.plugin.workers import ReportingErrors, WorkerHooks
from pytest_regional.report.facts import ATTRIBUTE, read

from .runs import run

#: What a test does, and what the report has to hold of it; all of these fail.
FAILS = {
    "raise": ("raise ValueError('\\udc80 raise')", "\\udc80 raise"),
    "bytes": ("raise ValueError(b'\\xff bytes')", "bytes"),
    "nul": ("raise ValueError('\\x00 \\x1b[31m \\x07 <script>')", "<script>"),
    "str_raises": ("class E(Exception):\n        def __str__(self): 1 / 0\n    raise E", "locals>.E"),
    "no_module": ("class E(Exception): __module__ = None\n    raise E('nowhere')", "nowhere"),
    "printed": ("print('\\udc80 printed'); assert False, 'out'", "out"),
    "large": ("raise ValueError('x' * 2_000_000 + 'the end')", "the end"),
}
SOURCE = """
@marked
def test_{name}(regional):
    {body}
"""
OTHERS = """
class Odd:
    def __str__(self): raise RuntimeError("\\udc80")
    __repr__ = __str__

@pytest.fixture
def fails():
    raise ValueError("\\udc80 in a fixture")

@marked
def test_setup(fails, regional):
    pass

@marked
@pytest.mark.xfail(reason="\\udc80 known")
def test_known(regional):
    raise ValueError("\\udc80")
"""
#: Of these pytest-xdist can send no report; without workers it is pytest that writes them.
NOT_SENT = """
@marked
def test_property(regional, record_property):
    record_property("it", [object(), {1: Odd()}, {2, 3}, "\\udc80"])
    record_property("n", torch.ones(1).numpy()[0])

def test_of_somebody_else(record_property):
    record_property("it", object())
    assert False, "\\udc80 of somebody else"
"""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            (), marks=pytest.mark.slow("a run of many failures", fast="test_a_failure_of_a_report_is_written")
        ),
        pytest.param(
            ("-n2",),
            marks=pytest.mark.slow(
                "starts two workers", fast="test_a_worker_sends_texts_in_place_of_what_cannot_be_sent"
            ),
        ),
    ],
    ids=["serial", "n2"],
)
def test_the_run_goes_on_and_every_file_is_whole(tmp_path, options):
    tests = "".join(SOURCE.format(name=name, body=body) for name, (body, _) in FAILS.items())
    ended = run(tmp_path, tests + OTHERS + (NOT_SENT if options else ""), *options, "-l", "-v")
    outcomes = {f"test_{name}": "failed" for name in FAILS} | {"test_setup": "error", "test_known": "known failure"}
    assert ended.ended == outcomes | ({"test_property": "passed"} if options else {})
    assert ended.status == 1
    assert "INTERNALERROR" not in ended.printed
    assert "regional reporting errors" not in ended.printed
    failures = {fact["test"].partition("::test_")[2]: fact["failure"] for fact in ended.report["tests"]}
    assert {name: failures[name] for name, (_, said) in FAILS.items() if said not in failures[name]} == {}
    json.dumps(ended.report, ensure_ascii=False).encode()
    ElementTree.parse(ended.folder / "junit.xml")
    assert len(ended.in_junit) == len(ended.ended) + len(options)
    assert all(name in ended.page for name in ended.ended)
    assert "\0" not in ended.page
    assert ended.merge()[0] == 0


def test_a_failure_of_a_report_is_written():
    report = pytest.TestReport("test_it.py::test", ("test_it.py", 1, "test"), {}, "failed", "\udc80 raise", "call")
    setattr(report, ATTRIBUTE, {})
    fact = read(report)
    json.dumps(fact, ensure_ascii=False).encode()
    assert (fact["failure"], fact["message"]) == ("\\udc80 raise", "\\udc80 raise")


def test_a_worker_sends_texts_in_place_of_what_cannot_be_sent(tmp_path):
    config = SimpleNamespace(workerinput={})
    hooks = WorkerHooks(SimpleNamespace(config=config, errors=ReportingErrors(), scratch_dir=tmp_path))
    sending = hooks.pytest_report_to_serializable()
    next(sending)
    with pytest.raises(StopIteration) as done:
        sending.send({"properties": [{1: object()}, {2, 3}, "\udc80"], "outcome": "passed"})
    assert execnet.dumps(done.value.value)
    assert done.value.value["outcome"] == "passed"
    assert done.value.value["properties"][2] == "\\udc80"


@pytest.mark.parametrize("text", ["", "é", "\udc80", "a\ud800b", "😀", "\x00"])
def test_encodable(text):
    assert encodable(text).encode().decode("utf-8") == text.encode(errors="backslashreplace").decode()
