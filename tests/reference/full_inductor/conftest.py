"""The warning about numerics is for users; the tests of it ask for it."""

import warnings

import pytest

from pytest_regional.reference import NumericsWarning


@pytest.fixture(autouse=True)
def _without_the_warning():
    warnings.filterwarnings("ignore", category=NumericsWarning)
