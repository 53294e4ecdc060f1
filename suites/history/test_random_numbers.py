"""Random numbers: how often is drawn, in which order, and what is drawn in Python."""

from __future__ import annotations

import random

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from pytest_regional import ParityError, torch_matches

from .checks import next_draw, parity, same
from .known_bugs import BugClass, BugNoticedError, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("random numbers", needs=("rng",))

#: The bugs of AOTAutograd's default partitioner; these backends use the other one.
MIN_CUT = {"aot_eager": None, "inductor": None, "reference": None}


@bugs(
    197085,
    layer="dynamo",
    torch=">=2.15",
    notices="second call",
    in_region=False,
    requires=("dynamic_shapes",),
    fullgraph=False,
)
def shuffle_in_python(regional):
    """``random.shuffle`` in a compiled function gives one permutation for ever."""

    def program(x):
        order = list(range(8))
        random.shuffle(order)
        return x[order]

    compiled, x = regional.compile(program), torch.arange(8, device=regional.device)
    found = {tuple(compiled(x).tolist()) for _ in range(6)}
    if len(found) == 1:
        raise BugNoticedError("second call", f"six calls returned {found}")


@bugs(
    196437,
    layer="dynamo",
    torch="<2.15",
    notices="second call",
    in_region=False,
    requires=("dynamic_shapes",),
    fullgraph=False,
    dynamic=True,
)
def python_random_after_a_guard(regional):
    """A ``random.Random`` is drawn from, then a size is specialized: later calls get a stale number."""

    def program(x, generator):
        number = generator.random()
        assert x.shape[0] == 4
        return x * number

    ours, theirs = random.Random(3), random.Random(3)
    compiled, x = regional.compile(program), regional.randn(4, 2)
    for _ in range(3):
        same("second call", compiled(x, ours), program(x, theirs))


@bugs(192635, layer="inductor", torch="<2.12", notices="value", in_region=False, requires=("backward",))
def order_of_dropouts(regional):
    """Memory is saved by another order of two dropouts, which then draw each other's numbers."""

    def program(x, y):
        first = F.dropout(torch.cat([x, x, x]).sin(), 0.5)
        second = F.dropout(y, 0.5)
        return second.sum(), first.sum() + second.mean(), first @ first.t()

    try:
        regional.assert_parity(program, regional.randn(64, 8, requires_grad=True), regional.randn(64))
    except ParityError as error:
        # A generator in another state is the bug `dropout_draws_again`.
        if any(mismatch.kind != "draws" for mismatch in error.report.mismatches):
            raise


@bugs(layer="inductor", notices="value")
def bernoulli_draws_otherwise(regional):
    """``bernoulli`` draws other numbers than eager, where eager's are asked for."""

    def program(x):
        return torch.bernoulli(x)

    parity(regional, program, torch.full((3, 3), 0.5, dtype=torch.float64, device=regional.device))


@bugs(layer="inductor", torch=">=2.13", notices="value", in_region=False, requires=("mutation",))
def draws_behind_transposed_write(regional):
    """``rand_like`` of an input that was written through its transpose draws by columns."""

    def program(x):
        x.mT.add_(1.0)
        return torch.rand_like(x)

    regional.assert_parity(program, torch.zeros(2, 2, device=regional.device))


@bugs(layer="inductor", torch=">=2.15", notices="value")
def permutation_is_drawn_twice(regional):
    """``p = randperm(n)``, then ``p[p]``: two permutations are drawn, and one is indexed by the other."""
    if torch_matches("<2.15"):
        pytest.skip("before torch 2.15 the program does not compile (index_by_permutation)")

    def program(x):
        p = torch.randperm(6, device=x.device)
        return p, p[p]

    parity(regional, program, regional.randn(4))


def noisy(x):
    return x + torch.rand_like(x)


@bugs(layer="inductor", notices="value", in_region=False, requires=("backward", "higher_order_operators"))
def unused_checkpoint_drops_draws(regional):
    """The draws of a checkpoint whose result nothing uses are dropped: later draws are not eager's."""

    def program(x):
        checkpoint(noisy, x, use_reentrant=False)
        return noisy(x)

    regional.assert_parity(program, torch.ones(4, requires_grad=True, device=regional.device))


@bugs(layer="aot_autograd", torch=">=2.13", notices="exception", in_region=False, requires=("backward",))
def checkpoint_draws_without_gradient(regional):
    """A draw in a checkpoint to which no gradient comes, though an input wants one, does not compile."""

    def program(x, y):
        return checkpoint(noisy, y, use_reentrant=False)

    regional.assert_parity(
        program, torch.ones(3, requires_grad=True, device=regional.device), torch.ones(3, device=regional.device)
    )


@bugs(layer="inductor", notices="random state", in_region=False, requires=("backward",), but={"torch": ""})
def backward_draws_for_nothing(regional):
    """The backward draws again what it does not need."""

    def program(x):
        return torch.rand(4, 4), torch.ceil(x)

    def trained(function):
        return lambda: function(torch.ones((), requires_grad=True, device=regional.device))[1].backward()

    with torch._inductor.config.patch(fallback_random=True):
        compiled = next_draw(trained(regional.compile(program)))
    same("random state", compiled, next_draw(trained(program)))


@bugs(layer="aot_autograd", notices="random state", in_region=False, requires=("backward",), but=MIN_CUT)
def dropout_draws_again(regional):
    """A dropout behind another operator draws a second time in the backward."""

    def program(x, w):
        return F.dropout(x @ w, 0.5)

    def trained(function):
        x, w = (torch.ones(8, 8, requires_grad=True, device=regional.device) for _ in range(2))
        return lambda: function(x, w).sum().backward()

    with torch._inductor.config.patch(fallback_random=True):
        compiled = next_draw(trained(regional.compile(program)))
    same("random state", compiled, next_draw(trained(program)))


@bugs(layer="aot_autograd", notices="exception", in_region=False, requires=("backward",), but=MIN_CUT)
def unused_dropout(regional):
    """A dropout whose result nothing uses breaks the split into forward and backward."""

    def program(x):
        F.dropout(x, 0.25)
        return F.dropout(x, 0.25)

    regional.assert_parity(program, regional.randn(8, requires_grad=True))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
