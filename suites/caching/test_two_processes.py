"""Two real processes: a new one finds on disk what this one compiled, and nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint

from pytest_regional import region

from .lookups import NEEDS, look_up
from .programs import Model, annotated, mlp, pair

pytestmark = pytest.mark.regional_compile(
    requires=(*NEEDS, "backward", "mutation"), dynamic=False, expects_regions=False
)


def with_constant(x, w):
    """A region with a tensor among its constants."""
    with region("r"):
        return x @ w[:2, :2] @ torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=x.device)


def mutating(x, w):
    """A region that writes into an input."""
    with region("r"):
        x.addmm_(w, w)
    return x.view(-1)


def recomputed(x, w):
    """A region that the backward computes again."""
    return torch.utils.checkpoint.checkpoint(mlp, x, w, use_reentrant=False) @ w


class Scaled(torch.autograd.Function):
    """A product whose gradient for ``x`` is not what autograd would make of it."""

    @staticmethod
    def forward(context, x, w):
        """Multiply, in a region."""
        context.save_for_backward(x, w)
        with region("r"):
            return x @ w

    @staticmethod
    def backward(context, gradient):
        """Multiply, three times as much as autograd would."""
        x, w = context.saved_tensors
        return 3 * gradient @ w.t(), x.t() @ gradient


def functional(x, w):
    """A function with a backward of its own."""
    return Scaled.apply(x, w)


def cases(regional):
    """Yield name, program, inputs and options; all sizes differ, so that no two share an entry by mistake."""
    yield "inference", mlp, pair(regional, 8), {}
    yield "training", mlp, pair(regional, 9, training=True), {"training": True}
    yield "symbolic", mlp, pair(regional, 10), {"dynamic": True}
    yield "model", Model(11).to(regional.device), (regional.randn(3, 11),), {"training": True}
    yield "constant", with_constant, (regional.randn(2, 2), regional.randn(12, 12)), {}
    yield "mutation", mutating, pair(regional, 13), {}
    yield "checkpoint", recomputed, pair(regional, 14, training=True), {"training": True}
    yield "function", functional, pair(regional, 15, training=True), {"training": True}


def look_up_multiplied(regional, outcome, factor):
    """Look a model up whose weights depend on ``factor``: its output is that of the weights here, wherever compiled."""
    x, model = regional.randn(4, 16), Model(16).to(regional.device)
    with torch.no_grad():
        model.linear.weight.mul_(factor)
    (output,) = look_up(regional, outcome, model, (x,))
    torch.testing.assert_close(output, x @ model.linear.weight.detach().t())


def compile_all(regional, outcomes, factor):
    """Compile each case, whose lookup shall end as ``outcomes`` says by name; return outputs and gradients."""
    torch.manual_seed(regional.seed)
    look_up_multiplied(regional, outcomes["model"], factor)
    return {
        name: look_up(regional, outcomes[name], program, inputs, **options)
        for name, program, inputs, options in cases(regional)
        if name in outcomes
    }


def outcomes(regional, outcome):
    """Return the cases that the backend takes, and what each lookup shall be."""
    needs = {"symbolic": "dynamic_shapes", "function": "outer_cache_of_training"}
    names = [name for name, *_ in cases(regional) if regional.supports(needs.get(name, "outer_cache"))]
    return dict.fromkeys(names, outcome)


def test_cold_and_warm(regional):
    cold, counted = compile_all(regional, outcomes(regional, "miss"), 1), regional.counters
    warm = regional.in_new_process(compile_all, outcomes(regional, "hit"), 2)

    assert (counted.cache_hits, warm.counters.cache_misses) == (0, 0)
    assert (warm.counters.region_compiles, warm.counters.graphs, warm.counters.cache_saves) == (0, 0, 0)
    assert cold.keys() == warm.value.keys()
    for name, values in cold.items():
        assert all(map(torch.equal, values, warm.value[name])), name


OTHERS = {
    "none": None,
    "another id": {"name": "b"},
    "a config": {"name": "a", "configs": {"epilogue_fusion": False}},
}


def look_up_others(regional):
    """Look up programs that differ in annotations alone, and in nothing; return the regions of each."""
    inputs, regions = pair(regional), {}
    for name, keywords in {**OTHERS, "the same": {"name": "a"}}.items():
        before = regional.counters
        look_up(regional, "hit" if name == "the same" else "miss", annotated(first=keywords), inputs)
        regions[name] = (regional.counters - before).regions
    return regions


@pytest.mark.regional_compile(requires=(*NEEDS, "regions", "region_ids", "region_configs"))
def test_other_annotations_in_another_process(regional):
    look_up(regional, "miss", annotated(first={"name": "a"}), pair(regional))
    regions = regional.in_new_process(look_up_others).value
    assert regions == {"none": 0, "another id": 1, "a config": 1, "the same": 0}
