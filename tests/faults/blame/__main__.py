"""Which culprit ``regional.blame`` names for faults planted in PyTorch: ``python -m tests.faults.blame``.

The faults are those of ``planted``, of which the wrong step is known. They are planted one after the other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tests.faults.blame.planted import FAULTS, Fault


def planted(fault: Fault, seconds: float) -> dict[str, Any]:
    """Search for the culprit of one planted fault, in this process, and judge it."""
    from pytest_regional.testing import regional

    began = time.monotonic()
    backend = fault.backend() if fault.backend else "inductor"
    with fault.plant(), regional(backend, "cpu", expects_regions=False) as harness:
        inputs = [harness.randn(*fault.shape, requires_grad=fault.grad) for _ in range(fault.inputs)]
        culprit = harness.blame(fault.program, *inputs, seconds=seconds).as_data()
    print(culprit["sentence"], file=sys.stderr)
    return {"bug": fault.name, **judged(fault, culprit), "wall": round(time.monotonic() - began, 1), **culprit}


def judged(fault: Fault, culprit: dict[str, Any]) -> dict[str, bool]:
    """Return whether layer and step are right; of several that are named, one of them has to be."""
    named = [culprit, *culprit["also"]]
    layer = any(one["layer"] in fault.layers for one in named)
    step = any(fault.step in said for one in named for said in (*one["steps"], one["setting"]))
    return {
        "layer_right": layer,
        "step_right": layer and step,
        "wrongly_confirmed": culprit["confidence"] == "confirmed" and not (layer and step),
    }


def table_of_planted(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table, in Markdown, and what it comes to."""
    yield "| fault | culprit | right | experiments | seconds |"
    yield "|---|---|---|---|---|"
    for row in rows:
        right = "yes" if row["step_right"] else "the layer" if row["layer_right"] else "**no**"
        yield f"| `{row['bug']}` | {row['sentence']} | {right} | {len(row['experiments'])} | {row['wall']} |"
    yield ""
    sums = {key: sum(row[key] for row in rows) for key in ("layer_right", "step_right", "wrongly_confirmed")}
    said = f"layer right: {sums['layer_right']} of {len(rows)}; step right: {sums['step_right']}"
    yield f"{said}; wrongly confirmed: {sums['wrongly_confirmed']}; torch {torch.__version__}"


def main() -> None:
    """Search, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of faults")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long one search may take")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.only or fault.name in options.only]
    print("\n".join(table_of_planted([planted(fault, options.seconds) for fault in faults])))


if __name__ == "__main__":
    main()
