"""Optimizer steps with the loss of the model itself, with and without activation checkpointing."""

from __future__ import annotations

import pytest

from .models import CASES, each_trained

pytestmark = pytest.mark.regional_compile(requires=("backward",))

CHECKPOINTED = [case for case in CASES if case.checkpoints]
WHOLE = [case for case in CHECKPOINTED if not case.breaks_when_checkpointed]
BROKEN = [case for case in CHECKPOINTED if case.breaks_when_checkpointed]

ALL = each_trained(CASES)


def squares(output, target):
    hidden = output.last_hidden_state
    return (hidden - target).square().mean()


def assert_trains(regional, case, model):
    if case.labels is None:
        batches = [{**case.inputs(regional), "target": regional.randn(1)} for _ in range(2)]
        options = {"loss": squares}
    else:
        batches = [{**case.inputs(regional), "labels": case.labels(regional)} for _ in range(2)]
        options = {}
    report = regional.assert_training_parity(model, batches, kwargs=case.call, **options)
    assert report.anchored
    assert report.unused == ()


def checkpointed(model):
    """Switch activation checkpointing on, by the name that the installed version has for it."""
    switch = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    switch()
    return model


@ALL
def test_steps(regional, case, model):
    assert_trains(regional, case, model)


@each_trained(WHOLE, "checkpointed")
def test_steps_with_checkpointing(regional, case, model):
    assert_trains(regional, case, checkpointed(model))


@pytest.mark.regional_compile(fullgraph=False)
@each_trained(BROKEN, "checkpointed")
def test_steps_with_checkpointing_in_several_graphs(regional, case, model):
    """These set ``requires_grad`` of a tensor while they run, which Dynamo does not trace."""
    assert_trains(regional, case, checkpointed(model))


@pytest.mark.regional_compile(requires=("backward", "regions"))
@ALL
def test_each_region_is_compiled_in_both_directions(regional, case, model):
    output = regional.run(model, kwargs={**case.inputs(regional), **case.call})

    found = {(region.name, region.graph) for region in output.regions}
    assert found == {(name, graph) for name in case.regions.values() for graph in ("forward", "backward")}
