"""What failed tests say of the capabilities that they need: whether one should be declared absent."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_regional.backends import registry
from pytest_regional.report.facts import Facts

_FAILED = ("failed", "error", "crashed")


def advice(facts: Sequence[Facts]) -> list[str]:
    """Return a line for each claimed capability whose tests failed.

    Where several tests need a capability and all failed it is most likely absent. One test is no evidence of that;
    where some passed the capability is there, and what failed is a defect. What a built-in backend claims is not the
    user's to take back: there it is a defect in any case.
    """
    outcomes: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        for name in fact["requires"]:
            outcomes.setdefault((fact["backend"], name), []).append(fact["outcome"])
    lines = []
    for (backend, name), ended in sorted(outcomes.items()):
        ran = [outcome for outcome in ended if outcome in (*_FAILED, "passed")]
        failed = sum(outcome in _FAILED for outcome in ran)
        if not failed:
            continue
        which = _which(failed, len(ran))
        lines.append(f"{name} of {backend}: {which} failed; {_remedy(backend, name, failed, len(ran))}")
    return lines


def _which(failed: int, ran: int) -> str:
    if failed < ran:
        return f"{failed} of {ran} tests that need it"
    return "the only test that needs it" if failed == 1 else f"all {failed} tests that need it"


def _remedy(backend: str, name: str, failed: int, ran: int) -> str:
    if failed < ran:
        return "it is there, with defects"
    if registry.origin(backend) == "built in":
        return "the backend is built in and claims it, so this is a defect to report"
    if failed == 1:
        return "one test does not say whether it is absent or has a defect"
    return f"declare it absent if it is: {_declared(backend, name)}"


def _declared(backend: str, name: str) -> str:
    return f'[tool.pytest-regional.backends.{backend}] disclaims = {{ {name} = "the reason" }} in pyproject.toml'


__all__ = ["advice"]
