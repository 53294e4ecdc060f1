"""The search: layer after layer, each by experiment.

What Dynamo captured runs eagerly; then what AOTAutograd made of it does, with either partitioner; then steps of
Inductor's are left out, all of a kind and then few of them; last come settings that take something out of code
generation. Where two kinds mend a failure, the one nearer to it comes first: a rewrite is part of a pass, and without a
lowering there is nothing to fuse.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional._torch.vetoes import Application, vetoing
from pytest_regional.harness.blame.culprit import SAID, Culprit, Layer
from pytest_regional.harness.blame.experiments import Change, Experiments, OutOfTimeError
from pytest_regional.harness.blame.search import few_that_mend

#: Kinds of steps, in the order in which they are left out, and the layer that each is of.
ORDER: Mapping[str, Layer] = {
    "rewrite": "rewrite",
    "pre_grad_pass": "pass",
    "joint_graph_pass": "pass",
    "post_grad_pass": "pass",
    "fusion": "fusion",
    "decomposition": "decomposition",
    "lowering": "lowering",
}


def culprit_of(
    experiments: Experiments,
    applied: Sequence[Application],
    *,
    captures: Mapping[str, Any],
    settings: Mapping[str, Callable[[], Any]],
) -> Culprit:
    """Return where the failure comes from.

    Args:
        experiments: makes experiments with it.
        applied: the steps of the compile that failed.
        captures: backends that only capture: ``"dynamo"``, ``"aot_autograd"``, and ``"partitioner"`` with the other
            partitioner; those that are not there are not tried.
        settings: contexts that take something out of code generation, by what they are called in a sentence.
    """
    try:
        found = _search(experiments, applied, captures, settings)
    except OutOfTimeError:
        found = Culprit("unknown")
    return replace(found, experiments=tuple(experiments.made))


def _search(
    experiments: Experiments,
    applied: Sequence[Application],
    captures: Mapping[str, Any],
    settings: Mapping[str, Callable[[], Any]],
) -> Culprit:
    if experiments.outcome_of(Change()) != "the same":
        return Culprit("nothing")
    if captured := _captured(experiments, captures):
        return captured
    for kind, layer in ORDER.items():
        steps = [step for step in applied if step.kind == kind]
        if steps and experiments.mends(_without_kind(kind)):
            return _few(experiments, steps, layer)
    for name, context in settings.items():
        if experiments.mends(Change(name, within=context)):
            return Culprit("setting", setting=name, confidence="confirmed")
    return Culprit("unknown")


def _captured(experiments: Experiments, captures: Mapping[str, Any]) -> Culprit | None:
    """Return a culprit where no code of the backend has to run for the failure."""
    if "dynamo" in captures and _fails_with(experiments, captures["dynamo"], "Dynamo's graph run eagerly"):
        return Culprit("dynamo", confidence="confirmed")
    alone = "AOTAutograd's graphs run eagerly"
    if "aot_autograd" not in captures or not _fails_with(experiments, captures["aot_autograd"], alone):
        return None
    other = captures.get("partitioner")
    if other is not None and not _fails_with(experiments, other, f"{alone}, with the other partitioner"):
        return Culprit("partitioner", confidence="confirmed")
    return Culprit("aot_autograd", confidence="confirmed")


def _fails_with(experiments: Experiments, backend: Any, sentence: str) -> bool:
    return experiments.outcome_of(Change(sentence, backend=backend)) == "the same"


def _few(experiments: Experiments, steps: Sequence[Application], layer: Layer) -> Culprit:
    def mends(some: Sequence[Application]) -> bool:
        return experiments.mends(_without(some))

    left = experiments.most - len(experiments.made)
    found = few_that_mend(steps, mends, left)
    alone = len(found.steps) == 1 and found.is_minimal
    return Culprit(layer, found.steps, confidence="confirmed" if alone else "necessary")


def _without_kind(kind: str) -> Change:
    return Change(f"without any {SAID[kind].removesuffix(' of')}", within=functools.partial(vetoing, (), (kind,)))


def _without(steps: Sequence[Application]) -> Change:
    names = ", ".join(step.what for step in steps)
    return Change(f"without {SAID[steps[0].kind]} {names}", within=functools.partial(vetoing, tuple(steps)))
