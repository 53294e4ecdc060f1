"""What was proved of the kernels of marked tests, for the terminal and the report.

Documented shape, of a kernel with one configuration: ``kernel`` (its name), ``config`` (block sizes), ``digest`` (equal
for equal kernels), ``seconds``, and ``outcomes``, each with ``property`` (``memory``, ``races``, ``coverage``,
``buffers``), ``verdict`` (``proved``, ``refuted``, ``unknown``) and ``reason``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_regional._base.text import plural, printable

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional
    from pytest_regional.report.facts import Facts

Proof = dict[str, Any]

#: The worst verdict of a kernel's outcomes counts.
_VERDICTS = ("refuted", "unknown", "proved")

#: Reasons for what is unknown that are shown.
_SHOWN = 5


def proofs_of(regional: Regional | None) -> dict[str, Any]:
    """Return what to add to the facts of a test: nothing where no kernel is verified."""
    if regional is None or regional.verification is None:
        return {}
    return {
        "proofs": [
            {
                "kernel": kernel.kernel,
                "config": dict(kernel.config),
                "digest": kernel.digest,
                "seconds": round(kernel.seconds, 3),
                "outcomes": [
                    {"property": one.property, "verdict": one.verdict, "reason": one.reason} for one in kernel.outcomes
                ],
            }
            for kernel in regional.verification.known()
        ]
    }


def table_of(proofs: Sequence[Proof]) -> str:
    """Return a table of the kernels of one test: a line each, with what is not proved below it."""
    lines = []
    for proof in proofs:
        sizes = ", ".join(f"{name}={value}" for name, value in proof["config"].items())
        names = dict.fromkeys(one["property"] for one in proof["outcomes"])
        verdicts = ", ".join(f"{name} {_verdict(proof, name)}" for name in names)
        lines.append(f"{proof['kernel']}{f' ({sizes})' if sizes else ''}: {verdicts}, {proof['seconds']:.2f} s")
        missing = dict.fromkeys(_line(one) for one in proof["outcomes"] if one["verdict"] != "proved")
        lines += [f"    {line}" for line in missing]
    return "\n".join(lines)


def _line(outcome: dict[str, str]) -> str:
    return printable(f"{outcome['property']} {outcome['verdict']}: {outcome['reason']}")


def _verdict(proof: Proof, name: str) -> str:
    found = {one["verdict"] for one in proof["outcomes"] if one["property"] == name}
    return next(verdict for verdict in _VERDICTS if verdict in found)


def totals_of(facts: Sequence[Facts]) -> list[str]:
    """Return the lines of the terminal about all kernels of a run; none where none was verified."""
    proofs = [proof for fact in facts for proof in fact.get("proofs", [])]
    if not proofs:
        return []
    distinct = list({proof["digest"] or id(proof): proof for proof in proofs}.values())
    lines = [
        f"{plural(len(distinct), 'distinct kernel')} verified, each with its configurations (values are not verified):"
    ]
    for name in dict.fromkeys(one["property"] for proof in distinct for one in proof["outcomes"]):
        counts = Counter(_verdict(proof, name) for proof in distinct if _has(proof, name))
        shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in reversed(_VERDICTS) if counts[verdict])
        lines.append(f"  {name}: {shown}")
    seconds = [proof["seconds"] for proof in distinct]
    lines.append(f"  seconds for a kernel: median {statistics.median(seconds):.2f}, longest {max(seconds):.2f}")
    reasons = Counter(
        printable(one["reason"])[:120] for proof in distinct for one in proof["outcomes"] if one["verdict"] == "unknown"
    )
    lines += [f"  {count:4} unknown: {reason}" for reason, count in reasons.most_common(_SHOWN)]
    return lines


def _has(proof: Proof, name: str) -> bool:
    return any(one["property"] == name for one in proof["outcomes"])
