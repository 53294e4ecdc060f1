"""Fuzzing: a program model, a table of operators, random programs, oracles that check them, and findings."""

from __future__ import annotations

from pytest_regional.fuzz.model.program import Block, Context, Program, ProgramError, Region, Step

__all__ = ["Block", "Context", "Program", "ProgramError", "Region", "Step"]
