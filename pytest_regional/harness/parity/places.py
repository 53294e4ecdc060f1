"""The lines of generated code that make what a comparison found wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_regional.harness.codegen.places import CodePlace, Source, places_of_results
from pytest_regional.harness.parity.captured import Captured
from pytest_regional.harness.parity.report import ParityReport

#: What a comparison finds that no line of code writes.
_NOT_WRITTEN = ("exception", "draws", "distribution")


def wrong_places(
    sources: Sequence[Source], report: ParityReport, outputs: Sequence[tuple[str, Any]], regions: Sequence[str]
) -> tuple[CodePlace, ...]:
    """Return the lines of ``sources`` that make what ``report`` finds wrong.

    Args:
        sources: the code of the program.
        report: of the comparison.
        outputs: path and leaf of what the program returns.
        regions: those to blame; empty if none is known.
    """
    where = {mismatch.where.rpartition(": ")[2] for mismatch in report.mismatches if mismatch.kind not in _NOT_WRITTEN}
    if not where:
        return ()
    tensors = [path for path, leaf in outputs if isinstance(leaf, Captured)]
    wrong = [number for number, path in enumerate(tensors) if path in where]
    backward = all(one.startswith("grad of ") for one in where)
    return places_of_results(sources, backward=backward, regions=regions, wrong=wrong, outputs=len(tensors))
