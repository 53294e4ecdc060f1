"""Public issues of PyTorch that ``assert_parity`` notices by what it compares besides one plain call.

Each stands on torch 2.13 on CPU. A fix in a newer torch shows as a test that does not raise.
"""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint

from pytest_regional import ParityError, torch_matches
from pytest_regional.testing import regional

pytestmark = pytest.mark.skipif(not torch_matches("==2.13.*"), reason="which of them stand was seen on torch 2.13")


def out_of_bounds(x):
    return x.as_strided((10,), (1,), 0) + 1


def cross_entropy(x, target):
    return torch.nn.functional.binary_cross_entropy(x, target)


def embedded(weight, indices):
    return torch.nn.functional.embedding(indices, weight)


@pytest.mark.parametrize(
    ("program", "inputs", "raises", "said"),
    [
        (lambda x: 1 - x, (torch.tensor([True, False]),), RuntimeError, "compiled raised nothing"),
        (out_of_bounds, (torch.ones(4),), RuntimeError, "compiled raised nothing"),
        (cross_entropy, (torch.tensor([0.5, 0.2]), torch.tensor([2.0, 0.0])), RuntimeError, "compiled raised nothing"),
        (embedded, (torch.ones(4, 4), torch.tensor([-1])), IndexError, "index out of bounds"),
    ],
    ids=["195674", "195665", "193757", "183608"],
)
def test_what_eager_refuses(program, inputs, raises, said):
    with regional("inductor", expects_regions=False) as r, pytest.raises(ParityError, match=said):
        r.assert_parity(program, *inputs, raises=raises)


def test_a_list_of_tensors_added_to_itself_reversed():
    """Issue 198033."""

    def program(x):
        torch._foreach_add_([x], [x.flip(0)])
        return x.sum()

    with regional("inductor", expects_regions=False) as r, pytest.raises(ParityError, match="mutated in place"):
        r.assert_parity(program, torch.arange(8.0))


def test_random_slopes_in_a_checkpoint():
    """Issue 193671: the noise that the backward reads is not that of the forward."""

    def program(x):
        return torch.utils.checkpoint.checkpoint(
            lambda y: torch.nn.functional.rrelu(y.sin(), training=True), x, use_reentrant=False
        )

    with regional("inductor", expects_regions=False) as r, pytest.raises(ParityError, match="grad of input 0"):
        r.assert_parity(program, r.randn(32, 32, requires_grad=True))
