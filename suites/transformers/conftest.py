"""The model of a test's ``case``, with its classes annotated for as long as the test runs."""

from __future__ import annotations

import pytest


@pytest.fixture
def model(regional, case):
    """Return a new model on the device under test."""
    from .models import annotated

    with annotated(case):
        yield case.build().to(regional.device)
