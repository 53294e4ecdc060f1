"""The summary of a job as a reviewer sees it: a real run, its Markdown rendered, in headless Chromium."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.report.conftest import keep_picture
from tests.report.test_step_summary import rendered
from tests.warm_process import run_module

pytest.importorskip("selenium", reason="selenium is not installed; pip install 'pytest-regional[dev]'")

from selenium.webdriver.common.by import By

TESTS = """
    import pytest, torch
    from pytest_regional import region

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

        def forward(self, x):
            with region("mlp"):
                h = self.down(torch.nn.functional.gelu(self.up(x)))
            return x + h

    class Drifting(Block):
        def forward(self, x):
            return super().forward(x) * (1.001 if torch.compiler.is_compiling() else 1.0)

    @pytest.mark.regional_compile
    @pytest.mark.parametrize("model", [Block, Drifting])
    def test_parity(regional, model):
        regional.assert_parity(model().to(regional.device), regional.randn(4, 8, requires_grad=True))

    @pytest.mark.regional_compile
    def test_compiles_once(regional):
        with regional.expect(region_compiles=1, recompiles=0):
            compiled = regional.compile(Block())
            compiled(regional.randn(4, 8))
            compiled(regional.randn(6, 8))
"""

FUZZ = """
    from torch._dynamo.backends.debugging import aot_eager
    import pytest
    from pytest_regional.fuzz.model.arguments import TensorInput
    from pytest_regional.fuzz.model.program import Program, Step

    def programs(seed):
        while True:
            steps = Step("neg", (0,), (), (1,)), Step("sin", (1,), (), (2,))
            yield Program((TensorInput((4,)),), steps, (2,), training=False)

    def faulty(gm, inputs):
        compiled = aot_eager(gm, inputs)
        return lambda *args: tuple(-value for value in compiled(*args))

    @pytest.mark.regional_compile(backend="test_fuzz:faulty", expects_regions=False)
    def test_programs(regional_fuzz):
        regional_fuzz.run("native", draw=programs, oracles=("parity",))
"""

#: As much of GitHub's style as shows how the summary is laid out there.
FRAME = Path(__file__).parent / "step_summary.html"


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in {"test_block.py": TESTS, "test_fuzz.py": FUZZ}.items():
        (folder / name).write_text(textwrap.dedent(text))
    job = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ("--regional-backend=reference,torch", "--regional-device=cpu", "--regional-fuzz=2")
    run_module("pytest", ["-p", "no:randomly", "-p", "no:cacheprovider", *options], folder, {**outer, **job})
    page = folder / "summary.html"
    text = rendered((folder / "summary.md").read_text(encoding="utf-8"))
    page.write_text(FRAME.read_text(encoding="utf-8").replace("SUMMARY", text), encoding="utf-8")
    return page


def test_the_page_of_a_pull_request_shows_table_findings_and_failures(browser, summary, tmp_path):
    browser.set_window_size(1080, 1400)
    browser.get(summary.as_uri())
    assert browser.find_element(By.TAG_NAME, "h2").text == "Regional conformance: 5 of 7 tests failed"
    cells = [cell.text for cell in browser.find_elements(By.TAG_NAME, "td")]
    assert cells.count("1 passed, 2 failed") == 4  # of two backends, in a suite and in all
    failures = browser.find_elements(By.TAG_NAME, "details")
    assert [failure.text.partition(" on ")[0] for failure in failures] == [
        "test_block.py::test_compiles_once[reference]",
        "test_block.py::test_compiles_once[torch]",
        "test_block.py::test_parity[reference-Drifting]",
        "test_block.py::test_parity[torch-Drifting]",
        "test_fuzz.py::test_programs[shard0]",
    ]
    failures[2].find_element(By.TAG_NAME, "summary").click()
    assert "To blame: " in failures[2].text
    assert "pytest 'test_block.py::test_parity[reference-Drifting]'" in failures[2].text
    wide = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, "the page is wider than the screen"
    picture = tmp_path / "step-summary.png"
    assert browser.save_screenshot(str(picture))
    assert picture.stat().st_size > 15_000, "the picture is empty"
    keep_picture(picture)
