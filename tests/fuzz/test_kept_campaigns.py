"""Findings that are kept: known alarms can be read, scripts have exit statuses, each finding of a campaign a cause."""

from __future__ import annotations

import re
from pathlib import Path

from bench.fuzz_false_alarms import KNOWN, known_alarms

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"
PAGE = FINDINGS / "campaigns.md"


def test_known_alarms_can_be_read_and_name_no_place_of_a_machine():
    assert len({finding.name for finding in known_alarms()}) == len(KNOWN.read_text().splitlines()) > 50
    assert "site-packages" not in KNOWN.read_text()


#: An error that is not the defect ends a script with 2, not with the 1 of a defect that still fails.
NOT_CHECKED = (
    "sys.excepthook = lambda *error: (sys.__excepthook__(*error), sys.stdout.flush(), os._exit(2))  # 2: not checked"
)


def test_a_script_that_cannot_check_does_not_exit_with_1():
    for script in FINDINGS.glob("*.py"):
        before, line, after = script.read_text().partition(f"{NOT_CHECKED}\n")
        assert line, f"{script.name}: put this line after the first imports, before torch's: {NOT_CHECKED}"
        assert not re.search(r"^(import|from) torch", before, re.MULTILINE), f"{script.name}: the line is too late"
        assert "import os\n" in before, script.name
        assert "sys.exit(" in after, script.name


def test_the_table_names_causes_that_are_there():
    causes = re.findall(r"^\| `torch-.*\| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    scripts = {name for cause in causes for name in re.findall(r"`(\w+\.py)`", cause)}

    assert len(causes) > 30
    assert {name for name in scripts if not (FINDINGS / name).exists()} == set()
