"""The HTML report in headless Chromium: it opens offline, everything can be clicked, nothing complains.

``PYTEST_REGIONAL_IMAGES=docs/images`` keeps the screenshots of a real run there.
"""

from __future__ import annotations

import os
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest

from pytest_regional.report.outputs import write_report
from tests.report.conftest import keep_picture
from tests.report.test_boxes import layers
from tests.report.test_document import fact, report
from tests.report.test_page import DETAILS, sample
from tests.warm_process import run_module

selenium = pytest.importorskip("selenium", reason="selenium is not installed; pip install 'pytest-regional[dev]'")

from selenium import webdriver  # noqa: E402 - only where it is installed
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

SCRIPTS = Path(__file__).parent / "scripts"
DESKTOP, PHONE = (1280, 1000), (390, 844)

REAL = """
    import pytest, torch
    from pytest_regional import region

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)
            self.norm = torch.nn.LayerNorm(8)

        def forward(self, x):
            h = self.norm(x)
            with region("mlp"):
                h = self.down(torch.nn.functional.gelu(self.up(h)))
            return x + torch.nn.functional.dropout(h, 0.0)

    @pytest.mark.regional_compile
    def test_parity(regional):
        regional.assert_parity(Block().to(regional.device), regional.randn(4, 8, requires_grad=True))

    @pytest.mark.regional_compile
    def test_vacuous(regional):
        regional.assert_parity(torch.sin, regional.randn(4))

    @pytest.mark.regional_compile(requires=("share_identical",))
    def test_two_blocks(regional):
        both = torch.nn.Sequential(Block(), Block()).to(regional.device)
        with regional.expect(region_compiles=2):
            regional.assert_parity(both, regional.randn(4, 8, requires_grad=True), level="close")
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(sample(), path)
    return path


@pytest.fixture(scope="module")
def real_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_block.py").write_text(textwrap.dedent(REAL))
    options = ("--regional-backend=reference,torch", "--regional-device=cpu", "--regional-report=report.html")
    run_module("pytest", ["-p", "no:randomly", "-p", "no:cacheprovider", *options], folder, os.environ)
    return folder / "report.html"


def opened(browser, path, size=DESKTOP):
    browser.set_window_size(*size)
    browser.get(path.as_uri())
    return browser


def complaints(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def open_tests(browser):
    for test in browser.find_elements(By.CSS_SELECTOR, "#list > li:not([hidden]) > details"):
        browser.execute_script("arguments[0].open = true", test)
    return browser.find_elements(By.CSS_SELECTOR, "#list > li:not([hidden])")


def titles_of_tabs(test):
    return [tab.text.partition(" (")[0] for tab in test.find_elements(By.CSS_SELECTOR, "[role=tab]")]


def click(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
    element.click()


@pytest.mark.parametrize("which", ["page", "real_page"])
def test_everything_can_be_opened_without_a_complaint(browser, which, request):
    opened(browser, request.getfixturevalue(which))
    seen = set()
    for test in open_tests(browser):
        for tab in test.find_elements(By.CSS_SELECTOR, "[role=tab]"):
            click(browser, tab)
            panel = browser.find_element(By.ID, tab.get_attribute("aria-controls"))
            assert panel.is_displayed()
            assert len(panel.text) > 20
            seen.add(tab.text.partition(" (")[0])
        for button in test.find_elements(By.CSS_SELECTOR, "[role=tabpanel]:not([hidden]) button")[:6]:
            click(browser, button)
    wanted = {"Graphs", "Code", "Caches and counters", "Errors"} | ({"Findings"} if which == "page" else set())
    assert seen == wanted
    assert complaints(browser) == []


def test_a_complaint_would_be_seen(browser, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text("<script>nothing.there()</script>")
    opened(browser, broken)
    assert complaints(browser)


def test_a_graph_is_drawn_and_moves(browser, page):
    test = next(test for test in open_tests(opened(browser, page)) if "t.py::a" in test.text)
    graph = test.find_element(By.CSS_SELECTOR, "svg.graph")
    nodes = graph.find_elements(By.CSS_SELECTOR, "g.node")
    assert [node.get_attribute("class").split()[1] for node in nodes] == [
        "plain",
        "compiled",
        "eager",
        "compiled",
        "plain",
    ]
    colours = {
        node.find_element(By.TAG_NAME, "rect").get_attribute("fill")
        for node in nodes
        if "compiled" in node.get_attribute("class")
    }
    assert len(colours) == 2
    assert len(graph.find_elements(By.CSS_SELECTOR, ".order")) == 1
    assert len(graph.find_elements(By.CSS_SELECTOR, ".edge")) == 5

    whole = graph.get_dom_attribute("viewBox")
    for label in ("Zoom in", "Zoom out"):
        click(browser, test.find_element(By.XPATH, f".//button[text()='{label}']"))
        assert (graph.get_dom_attribute("viewBox") != whole) == (label == "Zoom in")
    graph.send_keys(Keys.ARROW_RIGHT)
    assert graph.get_dom_attribute("viewBox") != whole
    graph.send_keys("0")
    assert graph.get_dom_attribute("viewBox") == whole
    webdriver.ActionChains(browser).move_to_element(graph).click_and_hold().move_by_offset(40, 20).release().perform()
    assert graph.get_dom_attribute("viewBox") != whole
    click(browser, nodes[3])
    assert "add: aten.add.Tensor; region b, partition 2, compiled; takes x; waits for sin" in test.text


def test_code_is_shown_next_to_its_events(browser, page):
    test = next(test for test in open_tests(opened(browser, page)) if "t.py::a" in test.text)
    click(browser, test.find_element(By.XPATH, ".//button[starts-with(text(), 'Code')]"))
    event = test.find_element(By.XPATH, ".//li/button[contains(text(), 'line 2: extern (aten.mm.default)')]")
    click(browser, event)
    (chosen,) = test.find_elements(By.CSS_SELECTOR, ".code-line.chosen")
    assert chosen.text.strip() == "extern_kernels.mm(arg0, arg1, out=buf0)"
    assert "3 more are not in this file." in test.text


def test_tests_are_chosen_by_name_ending_and_cell(browser, page):
    opened(browser, page)
    total = len(browser.find_elements(By.CSS_SELECTOR, "#list > li"))
    name = browser.find_element(By.ID, "f-name")
    name.send_keys("::b")
    assert browser.find_element(By.ID, "shown").text == f"1 of {total} tests"
    click(browser, browser.find_element(By.CSS_SELECTOR, "button[type=reset]"))
    assert browser.find_element(By.ID, "shown").text == f"{total} of {total} tests"
    click(browser, browser.find_element(By.CSS_SELECTOR, ".cell[aria-label^='it, torch']"))
    shown = browser.find_elements(By.CSS_SELECTOR, "#list > li:not([hidden])")
    assert [test.get_attribute("data-column") for test in shown] == ["torch (cpu)"]


def test_tabs_by_keyboard(browser, page):
    test = next(test for test in open_tests(opened(browser, page)) if "t.py::a" in test.text)
    first, second, *_ = test.find_elements(By.CSS_SELECTOR, "[role=tab]")
    first.send_keys(Keys.ARROW_RIGHT)
    assert second.get_attribute("aria-selected") == "true"
    assert browser.switch_to.active_element == second


@pytest.mark.parametrize("which", ["page", "real_page"])
def test_the_page_is_accessible_to_screen_readers(browser, which, request):
    for test in open_tests(opened(browser, request.getfixturevalue(which))):
        for tab in test.find_elements(By.CSS_SELECTOR, "[role=tab]"):
            click(browser, tab)
    nameless = browser.execute_script((SCRIPTS / "nameless.js").read_text())
    assert nameless == []
    levels = [int(h.tag_name[1]) for h in browser.find_elements(By.CSS_SELECTOR, "h1, h2, h3")]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert browser.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_can_be_read(browser, page, scheme):
    """Contrast of at least 4.5 (WCAG 2.1, level AA) of every text with what is behind it."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    open_tests(opened(browser, page))
    faint = browser.execute_script((SCRIPTS / "faint.js").read_text())
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert faint == []
    assert (dark == "rgb(255, 255, 255)") == (scheme == "light")


@pytest.mark.parametrize(("name", "size"), [("desktop", DESKTOP), ("phone", PHONE)])
def test_screenshots(browser, real_page, tmp_path, name, size):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": name == "phone"},
    )
    test = next(test for test in open_tests(opened(browser, real_page, size)) if "test_parity" in test.text)
    wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", test)
    picture = tmp_path / f"report-{name}.png"
    assert browser.save_screenshot(str(picture))
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= 0, "the page is wider than the screen"
    assert picture.stat().st_size > 15_000, "the picture is empty"
    keep_picture(picture)


@pytest.fixture(scope="module")
def page_of_a_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "report.html"
    nodes = layers(40)
    code = "\n".join(
        [*(f"# line {number}" for number in range(1, 200)), "    extern_kernels.mm(a, b)", "    return ()"]
    )
    details = {
        **DETAILS,
        "graphs": [{"kind": "forward", "size": len(nodes), "nodes": nodes}],
        "code": [{**DETAILS["code"][0], "text": code, "events": [{"line": 200, "kind": "extern", "ops": "aten.mm"}]}],
    }
    failure = "\n".join(
        [*(f"    source line {number}" for number in range(300)), "E   ParityError: wrong", "E    - worst", "x"]
    )
    write_report(report({**fact("t.py::model", "failed"), "details": details, "failure": failure}), path)
    return path


def test_a_large_graph_is_boxes_that_open(browser, page_of_a_model):
    (test,) = open_tests(opened(browser, page_of_a_model))
    (overview,) = test.find_elements(By.CSS_SELECTOR, "svg.graph")
    boxes = overview.find_elements(By.CSS_SELECTOR, "g.node")
    assert [box.text for box in boxes[:4]] == ["inputs: 1 value", "eager: 1 node", "mlp, 1: 3 nodes", "eager: 2 nodes"]
    assert "region mlp, partition 1: compiled, 3 nodes" in test.find_element(By.CSS_SELECTOR, "ul.key").text
    assert "eager, not compiled: 80 nodes" in test.find_element(By.CSS_SELECTOR, "ul.key").text

    browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('click', {bubbles: true}))", boxes[2])
    (section,) = test.find_elements(By.CSS_SELECTOR, ".opened")
    assert "region mlp, partition 1, compiled: 3 nodes" in section.text
    inside = section.find_elements(By.CSS_SELECTOR, "g.node")
    styles = [one.get_attribute("class").split()[1] for one in inside]
    assert styles == ["plain", "compiled", "compiled", "compiled", "plain"]

    click(browser, test.find_element(By.XPATH, ".//summary[text()='The 83 boxes as a list']"))
    button = test.find_elements(By.CSS_SELECTOR, ".boxes button")[2]
    assert button.get_attribute("aria-expanded") == "true"
    button.send_keys(Keys.ENTER)  # without a mouse
    assert test.find_elements(By.CSS_SELECTOR, ".opened") == []
    assert complaints(browser) == []


def test_a_failure_opens_at_its_error_lines_and_code_at_its_first_event(browser, page_of_a_model):
    (test,) = open_tests(opened(browser, page_of_a_model))

    def is_seen(element, inside):
        box, line = inside.rect, element.rect
        return box["y"] <= line["y"] < box["y"] + box["height"]

    failure = test.find_element(By.CSS_SELECTOR, ".failure")
    errors = test.find_elements(By.CSS_SELECTOR, ".error-line")
    assert [error.text.strip() for error in errors] == ["E   ParityError: wrong", "E    - worst"]
    assert is_seen(errors[0], failure)
    assert not is_seen(failure.find_element(By.TAG_NAME, "span"), failure)
    click(browser, test.find_element(By.XPATH, ".//button[starts-with(text(), 'Code')]"))
    code = test.find_element(By.CSS_SELECTOR, "[role=tabpanel]:not([hidden]) pre")
    assert is_seen(code.find_element(By.CSS_SELECTOR, ".event"), code)


def test_a_backend_without_regions_is_not_said_to_leave_graphs_eager(browser, tmp_path):
    nodes = [{**one, "region": None, "partition": None} for one in DETAILS["graphs"][0]["nodes"]]
    details = {**DETAILS, "graphs": [{**DETAILS["graphs"][0], "whole": True, "nodes": nodes}]}
    write_report(report({**fact("t.py::whole"), "details": details}), tmp_path / "report.html")
    (test,) = open_tests(opened(browser, tmp_path / "report.html"))
    key = test.find_element(By.CSS_SELECTOR, "ul.key").text
    assert "handed to the backend as one graph: 3 nodes" in key
    assert "eager" not in key


def test_a_script_that_ran_says_nothing(browser, page):
    assert not opened(browser, page).find_element(By.ID, "script-state").is_displayed()


@pytest.mark.parametrize(
    ("broken", "by", "said"),
    [
        ('id="data">[', 'id="data">[NaN,', "failed, and what it draws is missing: Uncaught SyntaxError"),
        ('"use strict";', '"use strict"; }', "has not run"),
        ("state.hidden = true;", "throw new Error('so late');", "missing: Uncaught Error: so late"),
        ("details.left_out[kind]", "details.nothing[kind]", "missing: Uncaught TypeError"),
    ],
)
def test_a_script_that_fails_says_so(browser, page, tmp_path, broken, by, said):
    text = page.read_text(encoding="utf-8")
    assert broken in text
    (tmp_path / "broken.html").write_text(text.replace(broken, by), encoding="utf-8")
    opened(browser, tmp_path / "broken.html")
    for test in browser.find_elements(By.CSS_SELECTOR, "#list > li")[:5]:
        click(browser, test.find_element(By.TAG_NAME, "summary"))
    state = browser.find_element(By.ID, "script-state")
    assert state.is_displayed()
    complaints(browser)  # they are meant to be there
    assert said in state.text
    assert "The results are complete" in state.text
