"""What can be wrong with a training: the compiled program's fault, or the test's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_regional.harness.training.report import TrainingReport


class TrainingParityError(AssertionError):
    """The compiled model trains differently from eager; ``report`` holds every difference of every step."""

    def __init__(self, report: TrainingReport) -> None:
        super().__init__(report.describe())
        self.report = report


class BadTrainingError(Exception):
    """The training itself is at fault, not the compiler: it fails in eager, or could not show anything."""


class LostAnchorWarning(UserWarning):
    """A comparison at level ``close`` had no float64 run to go by, and fell back to ``assert_close`` defaults."""
