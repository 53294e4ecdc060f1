"""``tools/gpu``: what it checks, what it makes of pytest's report, and where it writes it."""

from __future__ import annotations

import argparse
import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "tools" / "gpu"
OPTIONS = argparse.Namespace(backend="reference", device="cuda", record=None)
MACHINE = {
    "date": "2026-01-02",
    "Python": "3.12.1",
    "torch": "2.13.0+cu130",
    "triton": "3.7.1",
    "device": "NVIDIA H200",
}


@pytest.fixture
def gpu():
    loader = SourceFileLoader("tools_gpu", str(SCRIPT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("tools_gpu", loader))
    loader.exec_module(module)
    return module


def test_old_and_absent_packages_are_named(gpu, monkeypatch):
    assert gpu.missing() == []
    versions = {"torch": "2.10.1", "pytest": "8.0.0", "numpy": "1.26.4", "hypothesis": "6.100.0"}
    monkeypatch.setattr(gpu, "version", lambda name: versions.get(name, ""))
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    assert gpu.missing() == ["torch>=2.11 is needed, 2.10.1 is installed", "triton>=3.6 is not installed"]


@pytest.mark.parametrize(
    ("text", "found"), [("2.13.0+cu130", (2, 13)), ("2.15.0a0+git", (2, 15)), ("3.7rc1.post", (3, 71)), ("8.4", (8, 4))]
)
def test_versions(gpu, text, found):
    assert gpu.numbers(text) == found


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a GPU")
def test_without_a_gpu_nothing_runs(gpu, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu"])
    monkeypatch.setattr(gpu, "run", lambda *_: pytest.fail("it ran"))
    assert gpu.main() == 2
    assert "finds no usable GPU here" in capsys.readouterr().err


REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase file="suites/regions/test_strides.py" name="test_one"/>
<testcase file="suites/regions/test_strides.py" name="test_two[a]"><failure message="no"/></testcase>
<testcase file="suites/models/test_llama.py" name="test_three"><skipped type="pytest.skip" message="why"/></testcase>
<testcase file="suites/models/test_llama.py" name="test_four"><skipped type="pytest.xfail" message="known"/></testcase>
<testcase classname="suites.models.test_llama" name="test_five"><error message="setup"/></testcase>
<testcase time="0.2"/>
</testsuite></testsuites>"""


def test_a_report_becomes_a_table(gpu, tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    text = gpu.block(MACHINE, OPTIONS, gpu.read(tmp_path / "report.xml"))
    assert text.startswith("### 2026-01-02: torch 2.13.0+cu130 on NVIDIA H200\n")
    assert "| regions | 1 | 0 | 0 | 1 |\n| models | 0 | 1 | 1 | 1 |\n| all | 1 | 1 | 1 | 2 |\n" in text
    assert "Failures:\n\n- `regions`: `test_two[a]`\n- `models`: `test_five`\n" in text


def test_the_newest_result_stands_first(gpu, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# GPU\n\n{gpu.BEGIN}\n\nNo run yet.\n\n{gpu.END}\n\nMore.\n")
    gpu.record(page, "### first\n\nNo failures.\n")
    gpu.record(page, "### second\n\nNo failures.\n")
    assert page.read_text() == (
        f"# GPU\n\n{gpu.BEGIN}\n\n### second\n\nNo failures.\n\n### first\n\nNo failures.\n\n{gpu.END}\n\nMore.\n"
    )


def test_a_page_without_markers_is_left_alone(gpu, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# GPU\n")
    with pytest.raises(SystemExit, match="between which results go"):
        gpu.record(page, "### first\n")
    assert page.read_text() == "# GPU\n"


def test_the_page_of_this_repository_has_the_markers(gpu):
    text = (SCRIPT.parents[1] / "docs" / "gpu.md").read_text()
    assert text.index(gpu.BEGIN) < text.index(gpu.END)


class Started:
    """Processes that end with these results of ``wait()``, one after the other."""

    def __init__(self, monkeypatch, gpu, *results) -> None:
        self.asked, self.results = [], list(results)
        monkeypatch.setattr(gpu.subprocess, "Popen", self.start)

    def start(self, command, **how):
        self.asked.append((command, how))
        return self

    def wait(self):
        result = self.results.pop(0)
        if isinstance(result, int):
            return result
        raise result


def test_an_interrupted_run_is_waited_for_and_not_recorded(gpu, monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"{gpu.BEGIN}\n\nNo run yet.\n\n{gpu.END}\n")
    Started(monkeypatch, gpu, KeyboardInterrupt(), gpu.INTERRUPTED)
    monkeypatch.setattr("sys.argv", ["gpu", "--device=cuda-emulated", f"--record={page}"])
    monkeypatch.setattr(gpu.Path, "exists", lambda path: True)
    monkeypatch.setattr(gpu, "read", lambda report: [("models", "test_one", "passed")])
    assert gpu.main() == pytest.ExitCode.INTERRUPTED
    shown = capsys.readouterr()
    assert "| models | 1 |" in shown.out
    assert "interrupted" in shown.err
    assert "No run yet." in page.read_text()


@pytest.mark.parametrize(("arguments", "paths"), [(["-x"], ["suites"]), ([str(SCRIPT)], [])])
def test_what_pytest_is_asked(gpu, monkeypatch, arguments, paths):
    started = Started(monkeypatch, gpu, 0)
    assert gpu.run(OPTIONS, arguments, Path("report.xml")) == 0
    ((command, how),) = started.asked
    assert "--regional-device=cuda" in command
    assert command[-len(arguments + paths) :] == [*arguments, *paths]
    assert how["env"]["PYTHONPATH"].startswith(str(SCRIPT.parents[1]))


def test_requirements_on_the_page_are_those_there_are():
    from pytest_regional.harness.devices.device import FEATURES, QUANTITIES

    lines = (SCRIPT.parents[1] / "docs" / "gpu.md").read_text().splitlines()
    shown = {line.split("`")[1]: line.split(" | ")[1].removesuffix(" |") for line in lines if line.startswith("| `")}
    assert {name: shown[name] for name in FEATURES} == {name: told for name, (told, _) in FEATURES.items()}
    assert [name for name in QUANTITIES if not any(row.startswith(name) for row in shown)] == []
