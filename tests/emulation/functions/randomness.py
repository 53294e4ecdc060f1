"""Random numbers and dropout."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .case import SINGLE, Case
from .inputs import SQUARE, normal

EAGER_DRAWS = {"fallback_random": True}


def check_dropout(outputs, inputs):
    """Kept elements are scaled; about 70 % are kept; the gradient has the same zeros."""
    (out, *gradients), a = outputs, inputs[0]
    kept = out != 0
    assert abs(kept.float().mean().item() - 0.7) < 0.05, kept.float().mean()
    torch.testing.assert_close(out[kept], (a / 0.7)[kept])
    for gradient in gradients:
        assert torch.equal(gradient != 0, kept), "the backward drops other elements than the forward"


def check_draws(outputs, inputs):
    """Uniform numbers fill [0, 1), normal ones have their moments, integers their range, and no two rows are equal."""
    uniform, gaussian, whole = outputs
    assert abs(uniform.mean() - 0.5) < 0.05
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(gaussian.mean()) < 0.1
    assert abs(gaussian.std() - 1) < 0.1
    assert (whole.min(), whole.max()) == (0, 9)
    assert len(uniform.unique()) > 0.99 * uniform.numel(), "the same numbers are drawn again"


def draws(a):
    return torch.rand_like(a), torch.randn_like(a), torch.randint_like(a, 0, 10)


def shifted() -> tuple[torch.Tensor]:
    return (torch.randn(64, 96) + 5,)


CASES = [
    Case("dropout", lambda a: F.dropout(a, 0.3, True), shifted, check=check_dropout, dtypes=SINGLE, backward=True),
    Case("draws", draws, normal((200, 96)), check=check_draws, dtypes=SINGLE),
    Case(
        "dropout_of_eager",
        lambda a: F.dropout(a, 0.3, True).sin(),
        SQUARE,
        configs=EAGER_DRAWS,
        dtypes=SINGLE,
        backward=True,
        anchored=False,
    ),
    Case(
        "noise_of_eager", lambda a: a + torch.randn_like(a), SQUARE, configs=EAGER_DRAWS, dtypes=SINGLE, anchored=False
    ),
]
