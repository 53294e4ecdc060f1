"""The laws that every program has to keep on every backend, and :func:`judge`, which judges by them.

Modules, by law: ``parity`` (compiles, parity, configs, inference), ``region_boundary`` (borders), ``plan``, ``order``
(region_order, order), ``caching`` (counters, warm, annotations_in_key, uuid_in_key), ``reruns`` (results_kept,
retained_backward, determinism, threads). ``example_run`` holds what is computed once for all of them, ``watching`` sees
what the backend does.
``docs/fuzzing-laws.md`` states the laws.
"""

from __future__ import annotations

from pytest_regional.fuzz.oracles.checking import LAWS, UnknownLawError, judge
from pytest_regional.fuzz.oracles.oracle import Judgement, Law, LawBrokenError
from pytest_regional.harness.parity.report import BadProgramError

__all__ = ["LAWS", "BadProgramError", "Judgement", "Law", "LawBrokenError", "UnknownLawError", "judge"]
