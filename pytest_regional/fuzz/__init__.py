"""Programs that nobody thought of: a program model, a table of operators, and what checks the programs."""

from __future__ import annotations

from pytest_regional.fuzz.model.program import Block, Context, Program, ProgramError, Region, Step

__all__ = ["Block", "Context", "Program", "ProgramError", "Region", "Step"]
