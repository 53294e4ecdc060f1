"""One compile, ten sets of weights and inputs: outputs and all gradients, in float32 and under autocast."""

from __future__ import annotations

import contextlib

import pytest
import torch

from .models import CASES, each_trained

pytestmark = pytest.mark.regional_compile

SEEDS = 10


def assert_parity_of_ten(regional, case, model, program):
    for seed in range(SEEDS):
        torch.manual_seed(regional.seed + seed)
        model.load_state_dict(case.build().state_dict())
        with regional.no_compile() if seed else contextlib.nullcontext():
            report = regional.assert_parity(program, kwargs={**case.inputs(regional), **case.call})
        assert report.anchored


@each_trained(CASES)
def test_float32(regional, case, model):
    assert_parity_of_ten(regional, case, model, model)


@each_trained(CASES, "autocast")
def test_bfloat16_autocast(regional, case, model):
    def program(**inputs):
        with torch.autocast(regional.device.type, torch.bfloat16):
            return model(**inputs)

    assert_parity_of_ten(regional, case, model, program)
