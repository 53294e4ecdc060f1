"""What this suite does to ``transformers`` is undone after each test."""

from __future__ import annotations

import pytest

from .models import CASES, annotated, classes


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_patched_classes_are_restored(case):
    before = {cls: cls.__dict__["forward"] for cls in classes(case)}
    with annotated(case):
        assert all(cls.__dict__["forward"] is not before[cls] for cls in before)
    assert {cls: cls.__dict__["forward"] for cls in classes(case)} == before
