"""The workflow and the GitLab job of the documentation, run step by step in a scratch repository."""

from __future__ import annotations

import fnmatch
import importlib.util
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


@pytest.mark.regional_compile
def test_golden(regional):
    regional.assert_golden(block, regional.randn(4, 8), regional.randn(8, 8))
"""

#: The golden that the repository has, with an operator that the program has no more.
GOLDEN = """\
=== test_golden
--- reference | from torch 2.11 | cpu
regions
  inference, mlp: 1 op, 1 partition
  inference, outside: 1 op
ops
  inference
    mlp: aten.bmm.default
    aten.sin.default
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
        "tests/__goldens__/test_block.txt": GOLDEN,
        "pytest.ini": "[pytest]\npythonpath = .\n",
    }.items():
        (tmp_path / "model" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / path).write_text(text)
    return tmp_path / "model"


def run_step(command, folder, job, workers):
    """Run a step; return what it printed."""
    program, *arguments = shlex.split(command)
    assert program == "pytest"
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    # As many workers, whatever the machine has.
    arguments = [{"auto": workers}.get(one, one) for one in arguments]
    done = run_module("pytest", ["-p", "no:randomly", *arguments], folder, {**outer, **job})
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    return done.stdout.splitlines()


def run_job(steps, folder, scratch):
    """Run the ``run`` steps in order, with the variables of GitHub's runner; return what was printed, and those files.

    An installation is not repeated: the environment of these tests stands for it, and has to have what it installs.
    """
    printed, files = [], {}
    for number, step in enumerate(step for step in steps if "run" in step):
        if step["run"].startswith("pip install "):
            assert importlib.util.find_spec("torch")
            assert importlib.util.find_spec("pytest_regional")
            continue
        files = {name: scratch / f"{name}-{number}" for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT", "GITHUB_ENV")}
        for file in files.values():
            file.touch()
        job = {"CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(folder), "GITHUB_RUN_ID": "1"}
        printed += run_step(step["run"], folder, {**job, **{name: str(file) for name, file in files.items()}}, "1")
    return printed, files


#: The options that name files which a run writes.
WRITES = ("--regional-report", "--junit-xml")


def uploaded(steps):
    """Return the patterns of the files that ``uses`` steps upload."""
    uploads = [step["with"] for step in steps if "/upload-" in step.get("uses", "")]
    return [one.get("path") or one["sarif_file"] for one in uploads]


def not_written(steps, folder):
    """Return those of which no step wrote a file."""
    return [pattern for pattern in uploaded(steps) if not any(folder.glob(pattern))]


def test_the_workflow_is_valid():
    check(workflow("name: regional"), published(GITHUB_WORKFLOW))


def test_an_invalid_workflow_is_noticed():
    broken = workflow("name: regional")
    broken["jobs"]["regional"]["steps"].append({"uses": 1})
    with pytest.raises(AssertionError, match="steps"):
        check(broken, published(GITHUB_WORKFLOW))


def test_what_the_workflow_uploads_is_what_its_commands_name():
    steps = workflow("name: regional")["jobs"]["regional"]["steps"]
    options = [one.partition("=") for step in steps for one in shlex.split(step.get("run", ""))]
    named = [file for name, _, value in options if name in WRITES for file in value.split(",")]
    assert [pattern for pattern in uploaded(steps) if not fnmatch.filter(named, pattern)] == []
    assert len(uploaded(steps)) == 2


@pytest.mark.slow("runs the workflow of the page", fast="test_what_the_workflow_uploads_is_what_its_commands_name")
def test_the_workflow_shows_failures_on_the_page_and_writes_what_it_uploads(repository, tmp_path):
    path = repository / ".github" / "workflows" / "regional.yml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(workflow("name: regional")))
    steps = yaml.safe_load(path.read_text())["jobs"]["regional"]["steps"]
    golden = repository / "tests" / "__goldens__" / "test_block.txt"

    printed, files = run_job(steps, repository, tmp_path)
    wrong, other = sorted(
        map(read, (one for one in printed if one.startswith("::"))), key=lambda one: one["start_line"]
    )
    for annotation, begins in ((wrong, "regional.assert_parity(changes"), (other, "regional.assert_golden(block")):
        check(annotation, ANNOTATION)
        line = (repository / annotation["path"]).read_text().splitlines()[annotation["start_line"] - 1]
        assert line.strip().startswith(begins)
        assert "rerun: " in annotation["message"]
    assert "aten.bmm.default became aten.mm.default in region mlp" in other["message"]
    assert golden.read_text() == GOLDEN
    assert "2 of 3 tests failed" in files["GITHUB_STEP_SUMMARY"].read_text(encoding="utf-8")

    assert not_written(steps, repository) == []
    assert sorted(file.name for file in repository.glob("report.*")) == ["report.html", "report.json"]
    check(json.loads((repository / "findings.sarif").read_text()), published(SARIF))
    assert "rerun: " in (repository / "junit.xml").read_text()


def test_an_upload_that_no_step_writes_is_noticed(repository):
    steps = workflow("name: regional")["jobs"]["regional"]["steps"]
    assert not_written(steps, repository) == ["findings.sarif", "report.*"]
    (repository / "findings.sarif").touch()
    assert not_written(steps, repository) == ["report.*"]


def test_the_gitlab_job_is_valid_and_writes_what_it_uploads(repository):
    job = workflow("regional:")
    check(job, published(GITLAB_CI))
    *_, command = job["regional"]["script"]
    # In one process: the runs of the workflow above have workers.
    run_step(command, repository, {"GITLAB_CI": "true", "CI_PROJECT_DIR": str(repository)}, "0")
    artifacts = job["regional"]["artifacts"]
    for name in (*artifacts["paths"], *artifacts["reports"].values()):
        assert (repository / name).is_file()
    issues = json.loads((repository / artifacts["reports"]["codequality"]).read_text())
    check(issues, SCHEMA)
    assert [issue["location"]["path"] for issue in issues] == ["tests/test_block.py"] * 2
