"""What kernels access, proved for all sizes that a graph's guards allow: every program, element and loaded index.

A kernel is run once by the emulator's interpreter, with a builder that writes expressions down instead of computing.
What is to be proved of it becomes questions to z3. Needs ``pip install pytest-regional[verify]``.

* ``symbols``: expressions, what is known of their variables, marks for what z3 is not asked directly, symbolic sizes.
* ``builder``: what Triton's operations and loops do with expressions.
* ``kernels``: one kernel run on symbols; ``question``: how z3 is asked about it.
* ``properties``: what is asked for each property of a kernel.
* ``wrappers``: the code that launches kernels, run on symbolic sizes.
* ``replay``: a refutation run by the emulator on tensors.
* ``outcomes``: what was found out, and is kept for other processes; ``verifier``: all of it, graph by graph.

May import: ``emulation``, ``_torch``, ``_base``.
"""

from __future__ import annotations

from pytest_regional.verify.outcomes import PROVED, REFUTED, UNKNOWN, Counterexample, NotVerifiableError, Outcome
from pytest_regional.verify.verifier import Verification, Verified, verify_graph, verifying

__all__ = [
    "PROVED",
    "REFUTED",
    "UNKNOWN",
    "Counterexample",
    "NotVerifiableError",
    "Outcome",
    "Verification",
    "Verified",
    "verify_graph",
    "verifying",
]
