"""The report as one HTML file: whole, offline, and safe whatever texts are in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.report import page
from pytest_regional.report.document import OUTCOMES
from pytest_regional.report.outputs import ENDINGS, outputs_of, write_report
from pytest_regional.report.page import html_of, positions
from tests.report.test_document import fact, report


def node(name, op, inputs=(), *, region=None, partition=None, after=(), source=""):
    return {
        "name": name,
        "op": op,
        "region": region,
        "partition": partition,
        "inputs": list(inputs),
        "after": list(after),
        "source": source,
    }


NODES = [
    node("x", "input"),
    node("mm", "aten.mm.default", [0], region="a", partition=0, source="m.py:1 in f"),
    node("sin", "aten.sin.default", [1]),
    node("add", "aten.add.Tensor", [0], region="b", partition=1, after=[2]),
    node("output", "output", [2, 3]),
]
DETAILS = {
    "graphs": [{"kind": "forward", "whole": False, "size": 5, "nodes": NODES}],
    "code": [
        {
            "graph": "forward",
            "regions": ["a"],
            "loaded": False,
            "text": "def call(args):\n    extern_kernels.mm(arg0, arg1, out=buf0)\n    return (buf0, )\n",
            "events": [
                {"line": 2, "kind": "extern", "ops": "aten.mm.default"},
                {"line": 3, "kind": "return", "ops": ""},
            ],
        }
    ],
    "timeline": [
        {"seconds": 0.1, "counter": "cache_misses", "cause": "AOTAutograd cache"},
        {"seconds": 1.5, "counter": "region_compiles", "cause": "code generation"},
    ],
    "errors": [
        {"where": "output[0]", "candidate": 1e-7, "eager": 2e-7, "allowed": 1e-6},
        {"where": "grad of input 0", "candidate": 0.0, "eager": None, "allowed": 1e-5},
        {"where": "output[1]", "candidate": 1e300, "eager": 1e-9, "allowed": 1e-6},
    ],
    "left_out": {"code": 3},
}
NASTY = "</script><script>alert(1)</script> <b>&amp; \u2028 'quoted' \"twice\""


def sample():
    campaign = {"findings": [{"name": "n", "title": "wrong", "script": "f.py", "text": "import torch\n" + NASTY}]}
    return report(
        {**fact("t.py::a", region_compiles=2), "details": DETAILS, "worst_parity": 0.2},
        {**fact("t.py::b", "failed", backend="torch"), "failure": NASTY, "details": DETAILS},
        {**fact("t.py::c[<i>]", "crashed"), "fuzz": campaign},
        *(fact(f"t.py::{outcome}", outcome) for outcome in OUTCOMES),
    )


class Seen(HTMLParser):
    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self._inside = [], [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self._inside = tag

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self._inside = None

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def test_nothing_comes_from_elsewhere():
    text = html_of(sample())
    seen = Seen(text)
    addresses = [a.get("src") or a.get("href") for _, a in seen.tags if a.get("src") or a.get("href")]
    assert addresses == ["data:,", "#tests"]
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest", text)


def test_texts_stay_texts():
    seen = Seen(html_of(sample()))
    assert len(seen.scripts) == 2
    assert not seen.of("b")
    tests = json.loads(seen.scripts[0])
    assert tests[[test["outcome"] for test in tests].index("failed")]["failure"] == NASTY


def test_every_test_stands_there_the_worst_first():
    seen = Seen(html_of(sample()))
    shown = [(attributes["data-outcome"]) for attributes in seen.of("li") if "data-index" in attributes]
    assert len(shown) == 3 + len(OUTCOMES)
    assert shown == sorted(shown, key=OUTCOMES.index)
    data = json.loads(seen.scripts[0])
    assert [test["outcome"] for test in data] == shown


def test_the_matrix_counts():
    seen = Seen(html_of(sample()))
    said = {attributes["aria-label"].strip() for attributes in seen.of("button") if attributes.get("class") == "cell"}
    assert "it, torch (cpu): 1 failed" in said
    assert any(text.startswith("all, reference (cpu): 2 passed 1 failed 1 error 2 crashed") for text in said)


def test_every_ending_has_a_colour():
    style = html_of(report(fact("a"))).partition("<style>")[2].partition("</style>")[0]
    for outcome in OUTCOMES:
        assert outcome == "skipped" or f".o-{outcome.replace(' ', '-')}" in style


def test_a_run_without_tests_and_one_that_lost_workers():
    assert "No marked test ran." in html_of(report())
    assert "2 workers were lost" in html_of(replace(report(fact("a")), lost_workers=2))


def test_nodes_stand_below_what_they_need():
    places = positions(NODES)
    assert len(set(places)) == len(NODES)
    for index, node in enumerate(NODES):
        for needed in (*node["inputs"], *node["after"]):
            assert places[needed][1] < places[index][1]


def test_an_order_that_values_contradict_is_drawn_all_the_same():
    nodes = [node("x", "input"), node("a", "a", [0], after=[2]), node("b", "b", [1])]
    assert [row for _, row in positions(nodes)] == [0, 1, 2]


def test_edges_do_not_cross_where_they_need_not():
    """Two chains side by side, told in an order that would cross them."""
    nodes = [
        {"inputs": [], "after": []},
        {"inputs": [], "after": []},
        {"inputs": [1], "after": []},
        {"inputs": [0], "after": []},
    ]
    places = positions(nodes)
    assert (places[0][0] < places[1][0]) == (places[3][0] < places[2][0])


@pytest.mark.parametrize("ending", sorted(ENDINGS))
def test_each_ending_is_written(tmp_path, ending):
    path = tmp_path / "new" / f"report{ending}"
    write_report(sample(), path)
    assert path.stat().st_size > 800
    assert outputs_of(str(path), Path(), {}).files == (path,)


def test_another_suffix_is_reported():
    from pathlib import Path

    with pytest.raises(RegionalValueError, match=r"expected a name that ends in \.json, \.html, \.md"):
        outputs_of("a.txt", Path(), {})


def drawn_graphs(nodes):
    graph = {"kind": "forward", "size": len(nodes), "nodes": nodes}
    seen = Seen(html_of(report({**fact("t.py::a"), "details": {**DETAILS, "graphs": [graph]}})))
    return json.loads(seen.scripts[0])[0]["details"]["graphs"]


@pytest.mark.parametrize(("size", "boxed"), [(60, False), (61, True), (900, True)])
def test_large_graphs_are_boxes_and_nothing_is_cut(size, boxed):
    (graph,) = drawn_graphs([node(f"n{i}", "aten.sin.default", [i - 1] if i else []) for i in range(size)])
    assert len(graph["nodes"]) == size
    assert (graph["boxes"] is not None, graph["places"] is None) == (boxed, boxed)


def test_a_page_that_would_be_too_large_says_what_is_not_in_it(monkeypatch):
    monkeypatch.setattr(page, "MOST_DATA", 12_000)
    monkeypatch.setattr(page, "MOST_FAILURES", 50)
    tests = [{**fact(f"t.py::{i:03}", "failed"), "details": DETAILS, "failure": f"E   {i} failed"} for i in range(60)]
    text = html_of(report(*tests))
    seen = Seen(text)
    data = json.loads(seen.scripts[0])
    bare = [test for test in data if test.get("bare")]
    assert 0 < len(bare) < len(tests) == len(data)
    assert [test["test"] for test in data] == [test["test"] for test in tests]
    assert f"findings of {len(bare)} of 60 tests are not in this page" in text
    assert "--regional-report=FILE.json" in text
    assert len(seen.scripts[0]) < 12_000 + 200 * len(bare)
    told = text.count('aria-label="What went wrong">E   ')
    assert 0 < told < 10
    assert text.count("Not in this page, which would be too large") == 60 - told


def test_a_page_of_ordinary_size_says_nothing_of_that():
    assert 'id="bare"' not in html_of(sample())


def test_the_page_has_no_numbers_that_browsers_refuse():
    numbers = [float("nan"), float("inf"), float("-inf")]
    errors = [{"where": str(n), "candidate": n, "eager": None, "allowed": 1.0} for n in numbers]
    seen = Seen(
        html_of(report({**fact("t.py::a"), "details": {**DETAILS, "errors": errors}, "worst_parity": numbers[1]}))
    )

    def refuse(name):
        raise AssertionError(name)

    (test,) = json.loads(seen.scripts[0], parse_constant=refuse)
    assert [one["candidate"] for one in test["details"]["errors"]] == [None, 1e300, -1e300]


def test_the_page_says_that_its_script_has_not_run_until_it_has():
    seen = Seen(html_of(sample()))
    (said,) = [attributes for attributes in seen.of("p") if attributes.get("id") == "script-state"]
    assert "hidden" not in said
    assert seen.scripts[1].rstrip().endswith("state.hidden = true;")


CULPRIT = {
    "sentence": "region 'mlp': lowering of <aten.gelu>: right where that is left out (confirmed)",
    "first_wrong": "gelu (model.py:41)",
    "experiments": [
        {"changed": "", "outcome": "the same", "seconds": 0.25},
        {"changed": "without any lowering", "outcome": "fixed", "seconds": 1.0},
    ],
}


def test_what_is_to_blame_is_in_the_page():
    made = html_of(report({**fact("t.py::t", "failed"), "culprits": [CULPRIT]}, fact("t.py::other")))
    assert made.count("What is to blame: ") == 1
    assert "lowering of &lt;aten.gelu&gt;: right where that is left out (confirmed)" in made
    assert "The first wrong value: gelu (model.py:41)" in made
    assert "<td>nothing</td><td>the same</td><td>0.2</td>" in made
    assert "<td>without any lowering</td><td>fixed</td><td>1.0</td>" in made


def test_generated_code_that_is_kept_is_in_the_page():
    kept = {"path": "/w/kept/<a>/00.py", "line": 98, "what": "kernel cpp_fused_0", "file": "kept/<a>/00.py"}
    temporary = {"path": "/tmp/b/00.py", "line": 7, "what": "the code of the forward graph"}
    text = html_of(report({**fact("a", "failed"), "generated_code": [kept, temporary]}))
    assert "Generated code: <code>kept/&lt;a&gt;/00.py:98</code> kernel cpp_fused_0" in text
    assert text.count("Generated code: ") == 1
