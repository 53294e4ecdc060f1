"""What a program runs and is given, in words."""

from __future__ import annotations

import pytest
import torch

from pytest_regional.bug_report.known_issues import features_of, operators_of


@torch.library.custom_op("regional_observing::scale", mutates_args=())
def scale(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_operators_are_named_as_functions_and_as_kernels():
    def program(x):
        x.mul_(2)
        return torch.div(x, 0.1, rounding_mode="floor").mT[0], scale(x)

    names = operators_of(lambda: program(torch.ones(2, 3)))

    assert {"mul_", "aten_mul__Tensor", "div", "aten_div_Tensor_mode", "mT", "getitem", "custom_scale_default"} <= {
        *names
    }
    assert len(set(names)) == len(names)


def test_operators_that_are_given_a_program():
    def program(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    names = operators_of(lambda: program(torch.ones(3)))

    assert names[-1] == "cond"


def test_an_exception_of_the_program_goes_through():
    with pytest.raises(RuntimeError, match="must match"):
        operators_of(lambda: torch.ones(2) + torch.ones(3))


ONES = torch.ones(4)
ZEROS_WITH_SIGN = torch.tensor([-0.0])


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ([], set()),
        ([ONES], {"dtype:float32"}),
        ([ONES.long(), torch.ones(4, requires_grad=True)], {"dtype:int64", "dtype:float32", "training"}),
        ([ONES, ONES[1:]], {"dtype:float32", "input:alias"}),
        ([ZEROS_WITH_SIGN], {"dtype:float32", "input:edges"}),
        ([ONES * torch.inf], {"dtype:float32", "input:edges", "large"}),
        ([ONES * 1e20], {"dtype:float32", "large"}),
        ([ONES.to_sparse()], {"dtype:float32"}),
    ],
    ids=["nothing", "plain", "training", "alias", "negative zero", "infinite", "large", "sparse"],
)
def test_features(tensors, words):
    assert features_of(tensors, dynamic=False) == words
    assert features_of(tensors, dynamic=True) == {*words, "dynamic"}
