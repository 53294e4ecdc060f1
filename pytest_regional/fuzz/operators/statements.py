"""Statements that compute nothing."""

from __future__ import annotations

from pytest_regional.fuzz.operators.operator import Operator

OPERATORS = (Operator("nothing", "statement", "pass", (), lambda: (), results=0),)
