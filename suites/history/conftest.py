"""The report of a run of this suite: which known bugs the backend under test has, by class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print one line for each class, with the bugs that stand."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for backend, kind, bug, state in _outcomes(terminalreporter):
        found[backend, kind][bug] = state
    if not found:
        return
    terminalreporter.section("known bugs of torch.compile")
    for (backend, kind), states in sorted(found.items()):
        standing = [bug for bug, state in states.items() if state == "stands"]
        line = f"{backend}, {kind}: {len(standing)} of {len(states)} stand"
        terminalreporter.write_line(line + (": " + ", ".join(standing) if standing else ""))


def _outcomes(terminalreporter: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield backend, class, bug and state of each test that checked a bug."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            facts = dict(getattr(report, "user_properties", ()))
            if "known_bug" in facts and getattr(report, "when", "") == "call":
                yield (
                    facts.get("regional_backend", "?"),
                    facts["known_bug_class"],
                    facts["known_bug"],
                    facts["known_bug_state"],
                )
