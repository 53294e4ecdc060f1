"""The checks of the documentation can fail: each is shown a page that is wrong in one way."""

from __future__ import annotations

import fenced
import pytest
import test_tables
from docs_runner import Batch, check_command, check_console
from fenced import DocsError, blocks_of, table

PASSING = "def test_one():\n    pass\n"
FAILING = "def test_one():\n    assert 1 == 2\n"


def page(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(text)
    return blocks_of(path)


def block(info, text, comment=None):
    directive = f"<!-- {comment} -->\n" if comment else ""
    return f"{directive}```{info}\n{text}```\n"


def test_an_example_that_fails_and_one_that_passes(tmp_path):
    right = block('python title="test_right.py"', PASSING, "run: -v; outcome: passed=1")
    wrong = block('python title="test_wrong.py"', FAILING, "run: -v; outcome: passed=1")
    blocks = page(tmp_path, right + wrong)
    batch = Batch(blocks, tmp_path / "project")
    batch.check(blocks[0])
    with pytest.raises(AssertionError, match=r"page\.md:7: expected \{'passed': 1\}, got \{'failed': 1\}"):
        batch.check(blocks[1])


def test_a_script_that_raises(tmp_path):
    blocks = page(tmp_path, block("python", "raise ValueError('wrong')\n") + block("python", "assert True\n"))
    batch = Batch(blocks, tmp_path / "project")
    with pytest.raises(AssertionError, match="ValueError: wrong"):
        batch.check(blocks[0])
    batch.check(blocks[1])


def test_output_that_is_not_printed(tmp_path):
    file = block('python title="test_right.py"', PASSING)
    blocks = page(tmp_path, file + block("console", "$ pytest test_right.py\n...\n*2 passed*\n", "run"))
    with pytest.raises(pytest.fail.Exception, match="2 passed"):
        check_console(blocks[1], blocks, tmp_path / "project")


PROJECT = block('python title="program.py"', "value = 1\n") + block(
    'python title="tests/test_it.py"', "from program import value\n\n\ndef test_it():\n    assert value\n"
)
FOUND = block('toml title="pyproject.toml"', '[tool.pytest.ini_options]\npythonpath = ["."]\n')


@pytest.mark.parametrize(
    ("project", "command", "said"),
    [
        (PROJECT, "pytest tests", "No module named 'program'"),
        (PROJECT, "python -m pytest tests", "1 passed"),
        (FOUND + PROJECT, "pytest tests", "1 passed"),
        (FOUND + PROJECT, "python -m pytest tests", "1 passed"),
    ],
)
def test_the_command_pytest_is_not_the_module(tmp_path, project, command, said):
    """A reader types ``pytest``, which does not look for modules where it is started."""
    blocks = page(tmp_path, project + block("console", f"$ {command}\n...{said}...\n", "run"))
    check_console(blocks[-1], blocks, tmp_path / "project")


def test_a_replacement_that_finds_nothing(tmp_path):
    file = block('python title="test_right.py"', PASSING)
    blocks = page(tmp_path, file + block("console", "$ pytest\n1 passed\n", "run; replace: absent => present"))
    with pytest.raises(DocsError, match="finds nothing"):
        check_console(blocks[1], blocks, tmp_path / "project")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("pytest --regional-backends=torch", "no option"),
        ("make confirmance", "no target"),
        ("curl example.org", "none of"),
    ],
)
def test_a_command_that_does_not_exist(command, message):
    with pytest.raises(AssertionError, match=message):
        check_command(command, "page.md:1", "  --regional-backend=[NAMES]\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (block("bash", "ls\n"), "'bash' is not checked"),
        ("```python\n", "never closed"),
        (block("python", "", "dance: now"), "'dance' is not understood"),
    ],
)
def test_a_page_that_cannot_be_checked(tmp_path, text, message):
    with pytest.raises(DocsError, match=message):
        page(tmp_path, text)


def test_two_files_of_one_name(tmp_path):
    blocks = page(tmp_path, block('python title="test_a.py"', PASSING) * 2)
    with pytest.raises(DocsError, match="another block with the title"):
        Batch(blocks, tmp_path / "project")


def test_a_file_without_an_outcome(tmp_path):
    blocks = page(tmp_path, block('python title="test_a.py"', PASSING, "run: -v"))
    with pytest.raises(DocsError, match="say the outcome"):
        Batch(blocks, tmp_path / "project").check(blocks[0])


def test_a_table_that_is_not_there():
    with pytest.raises(DocsError, match="no heading 'Nowhere'"):
        table("README.md", "Nowhere")


@pytest.mark.parametrize(
    ("page", "row", "check"),
    [
        ("docs/options.md", "| `--regional-seed=N`", test_tables.test_command_line_options),
        ("docs/options.md", "| `fake_pg`", test_tables.test_fixtures),
        ("docs/counters.md", "| `recompiles`", test_tables.test_counters_and_their_definitions),
        ("docs/backends.md", "| `rng`", test_tables.test_capabilities_and_their_sentences),
    ],
)
def test_a_table_that_lost_a_row(tmp_path, monkeypatch, page, row, check):
    lines = (fenced.ROOT / page).read_text().splitlines()
    kept = [line for line in lines if not line.startswith(row)]
    assert len(kept) == len(lines) - 1
    (tmp_path / page).parent.mkdir(exist_ok=True)
    (tmp_path / page).write_text("\n".join(kept))
    check()
    monkeypatch.setattr(fenced, "ROOT", tmp_path)
    with pytest.raises(AssertionError):
        check()
