"""The page on semantics cites cases that exist, and its table of options is that of the code."""

from __future__ import annotations

import dataclasses
import re

import pytest
from fenced import ROOT, table

from pytest_regional.reference.options import BackendOptions

QUESTIONS = table("docs/semantics.md", "Questions that were open")


@pytest.mark.parametrize("case", [row[2] for row in QUESTIONS])
def test_cited_case_exists(case):
    path, _, name = case.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE)


def test_options_and_their_defaults():
    shown = {row[0]: row[1] for row in table("docs/semantics.md", "Failure and options")}
    assert shown == {field.name: repr(field.default) for field in dataclasses.fields(BackendOptions)}
