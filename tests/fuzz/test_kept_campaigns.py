"""The findings of campaigns that are kept in ``docs/findings/campaigns``: each can be read, and its cause is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.fuzz_false_alarms import KNOWN, known_alarms
from pytest_regional.fuzz.findings.folder import FindingsFolder

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"
CAMPAIGNS = FINDINGS / "campaigns"
PAGE = CAMPAIGNS / "README.md"
FOLDERS = sorted(path for path in CAMPAIGNS.iterdir() if path.is_dir())


def rows(version: str) -> dict[str, str]:
    """Return cause by finding, as the table of ``version`` says."""
    section = PAGE.read_text().partition(f"## {version}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \|.*\| ([^|]+) \|$", section, re.MULTILINE))


def test_known_alarms_can_be_read_and_name_no_place_of_a_machine():
    assert len({finding.name for finding in known_alarms()}) == len(KNOWN.read_text().splitlines()) > 50
    assert "site-packages" not in KNOWN.read_text()


#: An error that is not the defect ends a script with 2, not with the 1 of a defect that still fails.
NOT_CHECKED = (
    "sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked"
)


@pytest.mark.parametrize("script", sorted(FINDINGS.glob("*.py")), ids=lambda script: script.stem)
def test_a_script_that_cannot_check_does_not_exit_with_1(script):
    before, line, after = script.read_text().partition(f"{NOT_CHECKED}\n")
    assert line, f"put this line behind the first imports, before torch's: {NOT_CHECKED}"
    assert not re.search(r"^(import|from) torch", before, re.MULTILINE), (
        "the line has to stand before torch is imported"
    )
    assert "import os\n" in before
    assert "sys.exit(" in after


def test_there_are_campaigns():
    assert {"torch-2.13.0", "torch-2.15.0"} <= {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_finding_can_be_read_and_has_its_script(folder):
    kept = list(FindingsFolder(folder))

    assert kept
    assert {path.stem for path in folder.glob("*.py")} == {finding.name for finding in kept}
    version = folder.name.removeprefix("torch-")
    assert {finding.versions["torch"].partition("+")[0] for finding in kept} == {version}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_script_is_what_is_written_today(folder):
    """What is fixed in the scripts of new findings is fixed in the kept ones, too."""
    old = [
        finding.name
        for finding in FindingsFolder(folder)
        if (folder / f"{finding.name}.py").read_text() not in (finding.script, finding.script_with_torch_alone)
    ]
    assert old == [], "write them again"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_table_names_each_finding_and_a_cause_that_is_there(folder):
    causes = rows(folder.name)

    assert set(causes) == {path.stem for path in FindingsFolder(folder).paths()}
    scripts = {name for cause in causes.values() for name in re.findall(r"`(\w+\.py)`", cause)}
    assert scripts
    assert {name for name in scripts if not (FINDINGS / name).exists()} == set()
