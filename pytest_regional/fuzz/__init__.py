"""Fuzzing: a program model, a table of operators, random programs, oracles that check them, and findings.

``Program`` is a program as data, ``check`` holds it against the oracles, ``Campaign`` draws and checks many. May
import: ``harness``, ``backends``, ``_torch``, ``_base``.
"""

from __future__ import annotations

from pytest_regional.fuzz.model.program import Block, Context, Program, ProgramError, Region, Step

__all__ = ["Block", "Context", "Program", "ProgramError", "Region", "Step"]
