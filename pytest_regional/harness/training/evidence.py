"""Whether a training shows what it seems to: every parameter has a gradient, no copy uses the original's parameters."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch

from pytest_regional._text import plural, unknown_name
from pytest_regional.harness.training.copying import REMEDY
from pytest_regional.harness.training.errors import BadTrainingError, LostAnchorWarning
from pytest_regional.harness.training.judging import NOTHING_TO_REFINE
from pytest_regional.harness.training.report import StepReport

AllowUnused: TypeAlias = bool | str | Sequence[str]


class OriginalUntouched:
    """Notice in the body that a copy of ``model`` computes with the parameters of ``model`` itself.

    No copying of callables finds every way in which one can refer to a module; a gradient that arrives does.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.parameters = dict(model.named_parameters())

    def __enter__(self) -> OriginalUntouched:
        self.gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        return self

    def __exit__(self, *exception: object) -> None:
        for name, parameter in self.parameters.items():
            parameter.grad = self.gradients[name]

    def check(self) -> None:
        """Raise what a copy that shares parameters with the model is: no training of its own.

        Raises:
            BadTrainingError: a gradient has arrived at the model itself.
        """
        reached = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        if reached:
            raise BadTrainingError(
                f"gradients arrive at {_listed(reached)} of the model itself, not of its copies: something in a copy "
                f"still refers to the original's modules, so that all trainings share them. {REMEDY}"
            )


def unused_parameters(model: torch.nn.Module, with_gradient: Collection[str]) -> tuple[str, ...]:
    """Return the names of the parameters that should train and are not among those that got a gradient."""
    return tuple(name for name, one in model.named_parameters() if one.requires_grad and name not in with_gradient)


class AllowedUnused:
    """Which parameters may stay without a gradient: all, or those whose names match a pattern as of a shell.

    Raises:
        ValueError: a pattern that matches no parameter of the model.
    """

    def __init__(self, allowed: AllowUnused, model: torch.nn.Module) -> None:
        everything = ["*"] if allowed is True else []
        patterns = everything if isinstance(allowed, bool) else [allowed] if isinstance(allowed, str) else allowed
        self.patterns = tuple(patterns)
        names = [name for name, _ in model.named_parameters()]
        for pattern in self.patterns:
            if names and not fnmatch.filter(names, pattern):
                raise ValueError(f"allow_unused: {unknown_name('parameter', pattern, names)}")

    def check(self, unused: Sequence[str]) -> None:
        """Refuse parameters that nothing was compared of.

        Raises:
            BadTrainingError: names them, and says what to do.
        """
        left = [name for name in unused if not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)]
        if left:
            raise BadTrainingError(
                f"{plural(len(left), 'trainable parameter')} got no gradient in any step of eager: {_listed(left)}; "
                f"nothing of {'it' if len(left) == 1 else 'them'} was compared. Use a loss that depends on every "
                f"parameter, freeze what does not train with requires_grad_(False), or allow it: allow_unused=True, or "
                f"allow_unused=('{left[0]}',), where * stands for any characters"
            )


def warn_of_lost_anchors(steps: Sequence[StepReport]) -> None:
    """Say once that steps were judged without float64, and why; not where the program is in float64 itself."""
    lost = lost_anchors(steps)
    if lost:
        warnings.warn(
            f"no float64 anchor {in_steps(lost)}: {lost[0].anchor_unavailable_reason}. Judged by the defaults of "
            f"torch.testing.assert_close, which know nothing of this program's rounding",
            LostAnchorWarning,
            stacklevel=2,
        )


def lost_anchors(steps: Sequence[StepReport]) -> list[StepReport]:
    """Return the steps for which a float64 run was to be had and was not."""
    return [step for step in steps if step.anchor_unavailable_reason not in (None, NOTHING_TO_REFINE)]


def in_steps(steps: Sequence[StepReport]) -> str:
    """Return ``in steps 2 to 5``, or the numbers one by one where some are left out."""
    numbers = [step.number for step in steps]
    if len(numbers) == 1:
        return f"in step {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"in steps {numbers[0]} to {numbers[-1]}"
    return f"in steps {', '.join(map(str, numbers))}"


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
