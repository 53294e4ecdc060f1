"""Every fenced block of README.md and docs/ is run, or checked where it cannot be (a network, another machine)."""

from __future__ import annotations

import configparser
import re

import pytest
from docs_runner import Batch, check_command, check_console, is_run_by_pytest, run_of, run_pytest
from fenced import PAGES, Block, all_blocks, blocks_of, name_of

from pytest_regional.backends.registry import ProjectFile, tomllib
from pytest_regional.harness.devices.device import device_under_test
from pytest_regional.harness.devices.emulated import check_emulation
from pytest_regional.plugin.options import OPTIONS

BLOCKS = all_blocks()


def _marks(fast):
    return [pytest.mark.slow("an example that takes seconds", fast=fast)] if fast else []


def _chosen(condition):
    chosen = [block for block in BLOCKS if condition(block)]
    return [pytest.param(block, id=block.where, marks=_marks(block.directives.get("slow"))) for block in chosen]


def _runs():
    runs = sorted({run_of(block) for block in BLOCKS if is_run_by_pytest(block)})
    return [pytest.param(run, id=" ".join(filter(None, run)), marks=_marks(run[1])) for run in runs]


@pytest.fixture(scope="module")
def _self_tested():
    """Test the emulated GPU once: the processes of the examples are told so."""
    check_emulation(device_under_test("cuda-emulated"))


@pytest.fixture(scope="module")
def batch(tmp_path_factory, _self_tested):
    return Batch(BLOCKS, tmp_path_factory.mktemp("docs") / "project")


@pytest.fixture(scope="module")
def pytest_help(tmp_path_factory):
    return run_pytest(["--help"], tmp_path_factory.mktemp("help")).stdout


@pytest.mark.parametrize("run", _runs())
def test_python_blocks_do_what_their_pages_say(run: tuple[str, str], batch):
    """All of one set of options in one process, and in one test: several xdist workers would each run them."""
    for block in BLOCKS:
        if is_run_by_pytest(block) and run_of(block) == run:
            batch.check(block)


@pytest.mark.parametrize("block", _chosen(lambda b: b.language == "console" and "run" in b.directives))
@pytest.mark.usefixtures("_self_tested")
def test_console_block_prints_what_the_page_shows(block: Block, tmp_path):
    check_console(block, BLOCKS, tmp_path / "project")


def test_python_blocks_parse():
    for block in BLOCKS:
        if block.language == "python":
            compile(block.text, block.where, "exec")


def test_commands_exist(pytest_help):
    for block in (block for block in BLOCKS if block.language in ("console", "yaml")):
        commands = block.commands
        if block.language == "yaml":  # steps of a workflow, and lines of a script
            commands = re.findall(r"(?<=run: ).+|(?<= - )(?:pip|pytest) .+", block.text)
        assert commands, f"{block.where} holds no command"
        for command in commands:
            check_command(command, block.where, pytest_help)


@pytest.mark.parametrize("block", _chosen(lambda b: b.language == "ini"))
def test_configuration_keys_exist(block: Block):
    parser = configparser.ConfigParser()
    parser.read_string(block.text)
    _check_keys({key for section in parser.sections() for key in parser[section]}, block)


@pytest.mark.parametrize("block", _chosen(lambda b: b.language == "toml"))
def test_keys_of_a_project_file_exist(block: Block, tmp_path):
    """Our own section is read as a repository's is, which refuses what it does not know."""
    (tmp_path / "pyproject.toml").write_text(block.text)
    ProjectFile.read(tmp_path)
    tool = tomllib.loads(block.text).get("tool", {})
    _check_keys(tool.get("pytest", {}).get("ini_options", {}), block)


def _check_keys(keys, block):
    ours = {key for key in keys if key.startswith("regional_")}
    assert ours <= {option.ini for option in OPTIONS}, block.where


def test_links_lead_to_files():
    links = {(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())}
    broken = [(name_of(page), link) for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


def test_pages_are_written():
    for page in PAGES:
        text = page.read_text()
        assert len(text.split()) > 50 or "```{eval-rst}" in text or "```{include}" in text, name_of(page)
        blocks_of(page)
