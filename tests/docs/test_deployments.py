"""The files for SLURM and GitHub: their commands are understood, and what can run here runs."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import time

import pytest
from fenced import DOCS

from pytest_regional.cli import main
from tests.report.schemas import GITHUB_WORKFLOW, check, published

yaml = pytest.importorskip("yaml", reason="PyYAML comes with myst-parser")

FILES = DOCS / "deployment"


class Parsed(Exception):
    """Ends the command once its arguments are understood."""


def parsed(arguments):
    """Return what ``pytest-regional`` understands of a command's arguments."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(parser, given):
        raise Parsed(parse(parser, given))

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Parsed) as ended:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
        main(arguments)
    return ended.value.args[0]


def workflow():
    text = (FILES / "github-workflow.yml").read_text()
    return yaml.safe_load(text.replace("\non:\n", '\n"on":\n'))  # YAML 1.1 reads `on` as true


@pytest.fixture
def command(tmp_path):
    """A directory with a ``pytest-regional`` that writes its arguments, waits for SIGTERM if told to, and ends."""
    script = tmp_path / "bin" / "pytest-regional"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/bash\n"
        f'printf "%s\\n" "$@" > {tmp_path}/arguments\n'
        f"trap 'echo stopped >> {tmp_path}/arguments; exit 0' TERM\n"
        "for _ in $(seq ${WAITS:-0}); do sleep 0.05; done\n"
        "exit ${STATUS:-0}\n"
    )
    script.chmod(0o755)
    return script.parent


def sbatch(command, tmp_path, **variables):
    """Start the script as SLURM does."""
    path = f"{command}{os.pathsep}{os.environ['PATH']}"
    environment = {
        "PATH": path,
        "SLURM_CPUS_PER_TASK": "16",
        "SLURM_ARRAY_TASK_ID": "7",
        "REGIONAL_SHARED": str(tmp_path),
        **variables,
    }
    return subprocess.Popen(["bash", str(FILES / "slurm.sh")], env=environment, stderr=subprocess.PIPE)


def test_the_slurm_script_starts_a_worker_for_each_core(command, tmp_path):
    assert sbatch(command, tmp_path).wait(10) == 0

    asked = parsed((tmp_path / "arguments").read_text().splitlines())
    assert (asked.workers, asked.seed, asked.findings) == (16, 7, tmp_path / "findings")


def test_the_slurm_script_fails_as_the_campaign_does(command, tmp_path):
    assert sbatch(command, tmp_path, STATUS="2").wait(10) == 2


def test_the_slurm_script_passes_its_warning_on(command, tmp_path):
    job = sbatch(command, tmp_path, WAITS="400")
    until = time.monotonic() + 10
    while not (tmp_path / "arguments").exists() and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.1)
    job.send_signal(signal.SIGTERM)

    job.wait(10)
    assert (tmp_path / "arguments").read_text().splitlines()[-1] == "stopped"


def test_the_slurm_script_says_what_is_missing(command, tmp_path):
    job = sbatch(command, tmp_path, REGIONAL_SHARED="")

    assert "the directory that all nodes share" in job.communicate(timeout=10)[1].decode()
    assert job.returncode != 0


def test_the_workflow_is_valid_and_its_commands_are_understood():
    check(workflow(), published(GITHUB_WORKFLOW))
    steps = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    commands = [shlex.split(step) for step in steps if step.startswith("pytest-regional ")]

    asked = [parsed(arguments) for _, *arguments in commands]

    assert [one.budget for one in asked[:2]] == ["100", "2h"]
    assert len(asked[2].paths) == len(workflow()["jobs"]["night"]["strategy"]["matrix"]["machine"])


def test_an_option_that_does_not_exist_is_noticed(capsys):
    with pytest.raises(SystemExit):
        parsed(["fuzz", "--no-such-option"])


def test_every_file_is_on_the_page_and_names_no_place_of_this_machine():
    page = (DOCS / "campaigns.md").read_text()

    for path in FILES.iterdir():
        assert f"(deployment/{path.name})" in page
        assert not re.search(r"/(home|root|work|tmp)/", path.read_text())
