"""The law ``determinism``: in fresh caches the same program gives the same plan and, up to names, the same code."""

from __future__ import annotations

import re
from typing import Any

from pytest_regional.fuzz.oracles.law import Law
from pytest_regional.fuzz.oracles.parity import raise_failure
from pytest_regional.fuzz.oracles.trial import Run, Trial
from pytest_regional.harness.record import GeneratedCode


def check_determinism(trial: Trial) -> None:
    """Raise where a second compile plans otherwise or generates other code."""
    trial.regional.reset(keep_code=True)
    again = trial.run(trial.program, calls=1)
    raise_failure(trial, again, "determinism")
    if plan_of(trial.cold) != plan_of(again):
        before, after = plan_of(trial.cold), plan_of(again)
        raise trial.broken(
            "determinism", "compile", f"compiled twice, the plan was {before}, then {after}", origin="another plan"
        )
    if code_of(trial.cold.code) != code_of(again.code):
        raise trial.broken(
            "determinism", "compile", "compiled twice in fresh caches, the code differs", origin="other code"
        )


def plan_of(run: Run) -> list[tuple[str, list[Any], list[str | None]]]:
    """Return kind and partitions of each graph, and the regions in the order of their calls, as plain data."""
    return [
        (graph.kind, [(partition.regions, partition.operators) for partition in graph.partitions], graph.called)
        for graph in run.watched.graphs
    ]


#: Paths, and keys of generated files: what two compiles in different folders may name differently.
_NAMES = re.compile(r"/\S+|\bc[a-z2-7]{50,}\b|\b[0-9a-f]{32,}\b")


def code_of(code: GeneratedCode) -> list[str]:
    """Return the generated sources without comments, and without names of files."""
    return [
        "\n".join(_NAMES.sub("", line) for line in source.text.splitlines() if not line.lstrip().startswith("#"))
        for source in code
    ]


LAWS = (
    Law(
        "determinism",
        "Compiled twice in fresh caches, a program has the same plan and the same code.",
        check_determinism,
        requires=("regions",),
        every=8,
    ),
)
