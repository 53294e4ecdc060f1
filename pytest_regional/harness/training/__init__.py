"""Several optimizer steps of a compiled model, every one judged by what eager makes of the same step.

``copying`` makes the models that are trained; ``trainer`` takes steps; ``judging`` compares one; ``report`` tells of
them; ``check`` is the flow.
"""

from pytest_regional.harness.training.check import assert_training_parity
from pytest_regional.harness.training.report import (
    BadTrainingError,
    Drift,
    NoFp64ReferenceWarning,
    StepReport,
    TrainingMismatch,
    TrainingParityError,
    TrainingReport,
)
from pytest_regional.harness.training.trainer import TrainingRun, TrainingStep, train

__all__ = [
    "BadTrainingError",
    "Drift",
    "NoFp64ReferenceWarning",
    "StepReport",
    "TrainingMismatch",
    "TrainingParityError",
    "TrainingReport",
    "TrainingRun",
    "TrainingStep",
    "assert_training_parity",
    "train",
]
