"""``llms.txt`` names every page by its title; the skill file's front matter, commands and script are right."""

from __future__ import annotations

import argparse
import re
import runpy

import pytest
from docs_runner import run_pytest, write_project
from fenced import DOCS, ROOT, blocks_of

from pytest_regional import cli

yaml = pytest.importorskip("yaml", reason="PyYAML comes with myst-parser")

LLMS = DOCS / "llms.txt"
SKILL = DOCS / "skills" / "pytest-regional" / "SKILL.md"

#: Pages that include others, and nothing else.
INCLUDE_OTHERS = {"index.md", "changelog.md"}

_ITEM = re.compile(r"- \[([^]]+)\]\(([^)]+)\): (.+)")


def faults_of(text):
    """Return what is wrong with ``text`` as an ``llms.txt`` of these pages: heading, summary, sections of links."""
    head, *sections = text.split("\n## ")
    faults = [] if re.match(r"# .+\n\n(> .+\n)+\n", head) else ["it begins with a heading and a quoted summary"]
    lines = [line for section in sections for line in section.splitlines()[1:] if line]
    items = [_ITEM.fullmatch(line) for line in lines]
    faults += [f"no link with a description: {line}" for line, item in zip(lines, items, strict=True) if item is None]
    named = [(item[1], item[2]) for item in items if item]
    paths = [path for _, path in named]
    faults += [f"{path} is no page" for path in paths if not (DOCS / path).is_file()]
    faults += [f"{path} is named twice" for path in set(paths) if paths.count(path) > 1]
    faults += [f"{page} is not named" for page in {one.name for one in DOCS.glob("*.md")} - INCLUDE_OTHERS - {*paths}]
    return faults + [
        f"{path} is called {title_of(path)!r}, not {title!r}"
        for title, path in named
        if (DOCS / path).is_file() and title_of(path) != title
    ]


def title_of(path):
    return re.search(r"^# (.+)$", (DOCS / path).read_text(encoding="utf-8"), re.MULTILINE)[1]


def test_llms_txt_names_every_page():
    assert faults_of(LLMS.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("[Reports](reports.md)", "[Reports](report.md)", "report.md is no page"),
        ("[Reports](reports.md)", "[All reports](reports.md)", "reports.md is called 'Reports', not 'All reports'"),
        ("[Reports](reports.md)", "[Fuzzing](fuzzing.md)", "fuzzing.md is named twice"),
        ("[Reports](reports.md): ", "[Reports](reports.md) ", "reports.md is not named"),
        ("> ", "", "it begins with a heading and a quoted summary"),
    ],
)
def test_a_fault_of_llms_txt_is_noticed(before, after, fault):
    text = LLMS.read_text(encoding="utf-8")
    assert before in text
    assert fault in faults_of(text.replace(before, after))


def test_the_site_has_it(tmp_path):
    """The function that the site's build calls at its end copies it and the pages that it names."""
    conf = pytest.importorskip("sphinx") and runpy.run_path(str(DOCS / "conf.py"))
    builder = argparse.Namespace(format="html")
    conf["_for_agents"](argparse.Namespace(builder=builder, srcdir=DOCS, outdir=tmp_path), None)
    assert (tmp_path / "llms.txt").read_bytes() == LLMS.read_bytes()
    assert (tmp_path / "skills" / "pytest-regional" / "SKILL.md").read_bytes() == SKILL.read_bytes()
    assert (tmp_path / "reports.md").is_file()


def test_the_skill_has_a_name_and_a_description():
    _, front, _ = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    front = yaml.safe_load(front)
    assert set(front) == {"name", "description"}
    assert front["name"] == SKILL.parent.name
    assert len(front["description"]) <= 1024


def test_the_skill_names_commands_that_exist(capsys):
    commands = [
        command.split()[1] for block in blocks_of(SKILL) for command in block.commands if "pytest-regional " in command
    ]
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    there = {line.split()[0] for line in capsys.readouterr().out.splitlines() if re.match(r" {4}[a-z]", line)}
    assert "replay" in there
    assert set(commands) <= there


def test_the_errors_of_the_skill_exist():
    named = re.findall(r"^\| `(\w+Error)` \|", SKILL.read_text(encoding="utf-8"), re.MULTILINE)
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "pytest_regional").rglob("*.py"))
    assert named
    assert [name for name in named if f"class {name}(" not in sources] == []


def test_the_script_of_the_skill_reads_a_report(tmp_path):
    mine = [block for block in blocks_of(SKILL) if block.title]
    project = write_project(mine, tmp_path / "project", "assert_fused => assert_not_fused")
    options = ["--regional-backend=reference", "--regional-device=cpu", "--regional-report=report.json"]
    run_pytest([*options, f"--basetemp={tmp_path / 'kept'}", "test_gated.py"], project)
    failures = runpy.run_path(str(project / "read_report.py"))["failures"]
    ((test, message, _, rerun, lines),) = failures(project / "report.json")
    assert test == "test_gated.py::test_gate_is_one_kernel"
    assert "are fused into one kernel" in message
    assert rerun.startswith("pytest test_gated.py::test_gate_is_one_kernel")
    path, _, number = lines[0].rpartition(":")
    with open(path, encoding="utf-8") as code:
        assert "cpp_fused_mul_sigmoid_0(" in code.readlines()[int(number) - 1]
