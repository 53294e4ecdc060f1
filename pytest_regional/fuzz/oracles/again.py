"""The laws ``results_kept`` and ``retained_backward``: what was handed out stays, and a kept graph serves again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_regional._torch.pytree import flatten
from pytest_regional.fuzz.oracles.errors import kinds_of
from pytest_regional.fuzz.oracles.law import Law, NoClaim
from pytest_regional.fuzz.oracles.parity import raise_failure
from pytest_regional.fuzz.oracles.trial import Case, Trial
from pytest_regional.fuzz.refusals import reason_of
from pytest_regional.harness.parity.compare import BadProgramError, compare
from pytest_regional.harness.parity.execution import random_cotangent


def check_results_kept(trial: Trial) -> None:
    """Raise where the second call overwrites what the first returned, or its gradients."""
    run = trial.cold
    if len(run.executions) < 2:
        raise NoClaim("there was no second call")
    if run.overwritten:
        raise trial.broken(
            "results_kept",
            "run",
            f"after a second call: {'; '.join(map(str, run.overwritten[:4]))}",
            origin=kinds_of(run.overwritten),
        )


# Retained backwards


def check_retained_backward(trial: Trial) -> None:
    """Raise where backwards with ``retain_graph`` fail, or do not add up to eager's gradients."""
    if not trial.trains:
        raise NoClaim("no backward is compiled")
    case = _case(trial)
    # The very first backward is to be one that keeps its graph: it decides how the backward compiles.
    trial.regional.reset(keep_code=True)
    run = trial.run(trial.program, calls=1, around=_backpropagating)
    raise_failure(trial, run, "retained_backward", "backward")
    mismatches = compare(case.eager, run.executions[0], case.anchor).mismatches
    wrong = [mismatch for mismatch in mismatches if "grad" in mismatch.where]
    if wrong:
        raise trial.broken(
            "retained_backward",
            "backward",
            f"after a backward with retain_graph, one from the first output alone, and a last one: "
            f"{'; '.join(map(str, wrong[:4]))}",
            origin=kinds_of(wrong),
        )


def _case(trial: Trial) -> Case:
    """Return what eager and float64 make of the same backwards on the first inputs."""
    try:
        return trial.case_of(_backpropagating(trial.program.function), trial.cases[0].inputs)
    except BadProgramError as error:
        raise NoClaim(f"eager refuses a second backward: {reason_of(error)}") from error


def _backpropagating(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with backwards behind it that keep the graph for another one; gradients add up."""

    def call(*inputs: Any) -> Any:
        output = fn(*inputs)
        roots = list({id(leaf): leaf for leaf in flatten(output)[0] if _wants_gradient(leaf)}.values())
        cotangents = [random_cotangent(root, 0, index) for index, root in enumerate(roots)]
        if roots:
            torch.autograd.backward(roots, cotangents, retain_graph=True)
            torch.autograd.backward(roots[:1], cotangents[:1], retain_graph=True)
        return output

    return call


def _wants_gradient(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


LAWS = (
    Law(
        "results_kept",
        "A second call leaves what the first one gave, gradients included, as it is.",
        check_results_kept,
        requires=("results_kept",),
    ),
    Law(
        "retained_backward",
        "A backward that keeps its graph may be the first, and be run again, whole or from one output.",
        check_retained_backward,
        requires=("backward",),
        every=4,
    ),
)
