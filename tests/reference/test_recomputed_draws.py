"""A checkpoint around a region draws in the backward what it drew in the forward, whoever draws."""

import pytest
import torch
import torch._inductor.config
from torch.utils.checkpoint import checkpoint

from pytest_regional.annotation import region
from pytest_regional.reference import regional


def dropped(x):
    with region("r"):
        h = torch.nn.functional.dropout(x * x, 0.5)
    return h * h


@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
@pytest.mark.parametrize("fallback_random", [False, True])
def test_masks_are_equal(partitioner, fallback_random):
    with torch._inductor.config.patch(fallback_random=fallback_random):
        compiled = torch.compile(
            lambda x: checkpoint(dropped, x, use_reentrant=False),
            backend=regional,
            fullgraph=True,
            options={"partitioner": partitioner},
        )
        x = torch.ones(64, requires_grad=True)
        output = compiled(x)
        output.sum().backward()
    assert 0 < int((output != 0).sum()) < 64
    assert torch.equal(output != 0, x.grad != 0)
