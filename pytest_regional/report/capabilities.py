"""What failed tests say of the capabilities that they need: whether one should be declared absent."""

from __future__ import annotations

from collections.abc import Sequence

from .facts import Facts

_FAILED = ("failed", "error", "crashed")


def advice(facts: Sequence[Facts]) -> list[str]:
    """Return a line for each claimed capability whose tests failed.

    Where all tests failed that need a capability it is most likely absent; where some passed, it is there, and what
    failed is a defect.
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
        if failed == len(ran):
            which = "the only test that needs it" if failed == 1 else f"all {failed} tests that need it"
            remedy = f"declare it absent if it is: {_declared(backend, name)}"
        else:
            which, remedy = f"{failed} of {len(ran)} tests that need it", "it is there, with defects"
        lines.append(f"{name} of {backend}: {which} failed; {remedy}")
    return lines


def _declared(backend: str, name: str) -> str:
    return f'[tool.pytest-regional.backends.{backend}] disclaims = {{ {name} = "the reason" }} in pyproject.toml'


__all__ = ["advice"]
