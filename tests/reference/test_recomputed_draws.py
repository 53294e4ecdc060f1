"""A checkpoint around a region draws in the backward what it drew in the forward, whoever draws."""

import pytest
import torch
import torch._functorch.config
import torch._inductor.config
from torch.utils.checkpoint import checkpoint

from pytest_regional import region
from pytest_regional._torch.inductor import interpreting_regions
from pytest_regional.reference import gradients, regional


def dropped(x):
    with region("r"):
        h = torch.nn.functional.dropout(x * x, 0.5)
    return h * h


@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
def test_no_generator_is_seeded_once_and_for_all(monkeypatch, partitioner):
    """What a GPU would draw is asked of the setting: it has no effect on a CPU."""
    seen = []
    original = gradients.partition_function(partitioner)

    def partition(*args, **kwargs):
        seen.append(torch._functorch.config.graphsafe_rng_functionalization)
        return original(*args, **kwargs)

    monkeypatch.setattr(gradients, "partition_function", lambda name: partition)
    compiled = torch.compile(dropped, backend=regional, fullgraph=True, options={"partitioner": partitioner})
    with interpreting_regions():
        compiled(torch.ones(8, requires_grad=True)).sum().backward()
    assert seen == [False]
    assert torch._functorch.config.graphsafe_rng_functionalization


@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
@pytest.mark.parametrize("draw", [torch.rand_like, lambda x: torch.rand(4, 4)], ids=["like a value", "of a size"])
def test_a_region_reads_what_the_backward_draws_again(partitioner, draw):
    """The partitioners leave no fake value on a draw that the backward repeats; a region has to know its input's."""

    def noisy(x):
        with region("r"):
            return ((x + draw(x)) ** 2).sin()

    def checkpointed(x):
        return checkpoint(noisy, x, use_reentrant=False)

    options = {"partitioner": partitioner}
    compiled = torch.compile(checkpointed, backend=regional, fullgraph=True, options=options)
    results = []
    for function in (checkpointed, compiled):
        leaf = torch.ones(4, 4, requires_grad=True)
        torch.manual_seed(1)
        with interpreting_regions(), torch._inductor.config.patch(fallback_random=True):
            output = function(leaf)
            output.sum().backward()
        results.append((output, leaf.grad))
    torch.testing.assert_close(*results)
