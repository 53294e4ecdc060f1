"""The oracle ``verified``: no kernel of the program is refuted, for any size that the guards allow."""

from __future__ import annotations

from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle


def check_verified(example: ExampleRun) -> None:
    """Raise where a property of a kernel is refuted; the refutation was replayed by the emulator."""
    verification = example.regional.verification
    if verification is None:
        raise NoClaim("kernels are verified with --regional-verify only")
    kernels = verification.taken()
    refuted = [(kernel, outcome) for kernel in kernels for outcome in kernel.outcomes if outcome.verdict == "refuted"]
    if refuted:
        told = "; ".join(f"{kernel.kernel}: {outcome.property}: {outcome.reason}" for kernel, outcome in refuted[:4])
        raise example.violation("verified", "compile", told, origin=", ".join(sorted({o.property for _, o in refuted})))
    if not kernels:
        raise NoClaim("no kernel was generated")


ORACLES = (
    Oracle(
        "verified",
        "No kernel is refuted for any size that the guards allow: accesses, races, elements left out.",
        check_verified,
        modes=("emulated",),
    ),
)
