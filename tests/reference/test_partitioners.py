"""Programs that AOTAutograd's own partitioners do not split, or split across a border."""

import pytest
import torch
from torch._inductor import config as inductor_config

from pytest_regional._region import region
from tests.reference.backends import Structure


def dropped_dropout(x):
    """The first dropout is used by nobody, and draws all the same."""
    with region("r"):
        torch.nn.functional.dropout(x, 0.25)
        return torch.nn.functional.dropout(x, 0.25)


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_an_unused_dropout_draws_as_in_eager(partition):
    with inductor_config.patch(fallback_random=True):
        x = torch.randn(64, requires_grad=True)
        torch.manual_seed(0)
        expected = dropped_dropout(x)
        torch.manual_seed(0)
        actual = Structure(partition).compile(dropped_dropout)(x)
        assert torch.equal(actual, expected)
        actual.sum().backward()


def dropped_product(x, w):
    """The mask is saved for the backward, its product is not."""
    with region("r"):
        return torch.nn.functional.dropout(x @ w, 0.25)


@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_a_backward_does_not_draw_again(partition):
    structure = Structure(partition)
    with inductor_config.patch(fallback_random=True):
        inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
        output = structure.compile(dropped_product)(*inputs)
        after_forward = torch.get_rng_state()
        output.backward(torch.ones(8, 8))
    assert torch.equal(torch.get_rng_state(), after_forward)
