"""The workflow and the GitLab job of the documentation, run step by step in a scratch repository."""

from __future__ import annotations

import json
import os
import shlex

import pytest
from fenced import DOCS, blocks_of

from tests.report.schemas import GITHUB_WORKFLOW, GITLAB_CI, SARIF, check, published
from tests.report.test_code_quality import SCHEMA
from tests.report.test_github import ANNOTATION, read
from tests.warm_process import run_module

yaml = pytest.importorskip("yaml", reason="PyYAML comes with myst-parser")

BLOCK = """
import torch
from torch.fx.traceback import annotate


def block(x, w):
    with annotate({"compile_with_inductor": {"inductor_region": "mlp"}}):
        h = x @ w
    return torch.sin(h)
"""

TESTS = """
import pytest
import torch
from block import block


@pytest.mark.regional_compile
def test_right(regional):
    regional.assert_parity(block, regional.randn(4, 8), regional.randn(8, 8))


@pytest.mark.regional_compile
def test_wrong(regional):
    def changes(x, w):
        return block(x, w) + torch.compiler.is_compiling()

    regional.assert_parity(changes, regional.randn(4, 8), regional.randn(8, 8))
"""


def workflow(title):
    """Return the YAML block of the page that begins with ``title``."""
    page = blocks_of(DOCS / "continuous-integration.md")
    (text,) = (block.text for block in page if block.language == "yaml" and block.text.startswith(title))
    return yaml.safe_load(text.replace("\non: ", '\n"on": '))  # YAML 1.1 reads `on` as true


@pytest.fixture
def repository(tmp_path):
    """A downstream repository with the workflow of the page; without its installations, which need a network."""
    for path, text in {
        "block.py": BLOCK,
        "tests/test_block.py": TESTS,
        "pytest.ini": "[pytest]\npythonpath = .\n",
    }.items():
        (tmp_path / "model" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / path).write_text(text)
    return tmp_path / "model"


def run_step(command, folder, job):
    """Run a step; return what it printed."""
    program, *arguments = shlex.split(command)
    assert program == "pytest"
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # Two workers, whatever the machine has.
    arguments = [{"auto": "2"}.get(one, one) for one in arguments]
    done = run_module("pytest", ["-p", "no:randomly", *arguments], folder, {**outer, **job})
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    return done.stdout.splitlines()


def test_the_workflow_is_valid():
    check(workflow("name: regional"), published(GITHUB_WORKFLOW))


def test_an_invalid_workflow_is_noticed():
    broken = workflow("name: regional")
    broken["jobs"]["regional"]["steps"].append({"uses": 1})
    with pytest.raises(AssertionError, match="steps"):
        check(broken, published(GITHUB_WORKFLOW))


def test_the_workflow_shows_failures_on_the_page_and_writes_what_it_uploads(repository, tmp_path):
    path = repository / ".github" / "workflows" / "regional.yml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(workflow("name: regional")))
    steps = yaml.safe_load(path.read_text())["jobs"]["regional"]["steps"]
    job = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(repository)}
    job |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    (command,) = (step["run"] for step in steps if not step.get("run", "pip").startswith("pip"))

    printed = run_step(command, repository, job)
    (annotation,) = map(read, (line for line in printed if line.startswith("::")))
    check(annotation, ANNOTATION)
    line = (repository / annotation["path"]).read_text().splitlines()[annotation["start_line"] - 1]
    assert line.strip().startswith("regional.assert_parity(changes")
    assert "1 of 2 tests failed" in (tmp_path / "summary.md").read_text(encoding="utf-8")

    uploads = [step["with"] for step in steps if "upload" in step.get("uses", "")]
    assert [sorted(file.name for file in repository.glob(one.get("path") or one["sarif_file"])) for one in uploads] == [
        ["findings.sarif"],
        ["report.html", "report.json"],
    ]
    check(json.loads((repository / "findings.sarif").read_text()), published(SARIF))
    assert "rerun: " in (repository / "junit.xml").read_text()


def test_the_gitlab_job_is_valid_and_writes_what_it_uploads(repository):
    job = workflow("regional:")
    check(job, published(GITLAB_CI))
    *_, command = job["regional"]["script"]
    run_step(command, repository, {"GITLAB_CI": "true", "CI_PROJECT_DIR": str(repository)})
    artifacts = job["regional"]["artifacts"]
    for name in (*artifacts["paths"], *artifacts["reports"].values()):
        assert (repository / name).is_file()
    (issue,) = json.loads((repository / artifacts["reports"]["codequality"]).read_text())
    check([issue], SCHEMA)
    assert issue["location"]["path"] == "tests/test_block.py"
