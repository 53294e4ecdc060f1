"""The oracles that every program has to keep on every backend, and :func:`check`, which checks a program against them.

Modules, with their oracles: ``parity`` (compiles, parity, configs, inference), ``region_boundary``, ``plan``,
``order`` (region_order, order), ``caching`` (counters, warm, annotations_in_key, uuid_in_key), ``reruns``
(results_kept, retained_backward, determinism, threads). ``example_run`` holds what is computed once for all of them,
``watching`` records what the backend does.
``docs/fuzzing-oracles.md`` states the oracles.
"""

from __future__ import annotations

from pytest_regional.fuzz.oracles.checking import ORACLES, UnknownOracleError, check
from pytest_regional.fuzz.oracles.oracle import CheckResult, Oracle, OracleViolationError
from pytest_regional.harness.parity.report import BadProgramError

__all__ = ["ORACLES", "BadProgramError", "CheckResult", "Oracle", "OracleViolationError", "UnknownOracleError", "check"]
