"""What cannot be cached is compiled, each time, and the reason is told."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CounterExpectationError, region

from .lookups import NEEDS, look_up, run
from .programs import mlp, pair

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False)


def reasons(regional, program, inputs, **options):
    """Return what a failed expectation prints of bypasses, of a program that is bypassed twice, and right."""
    for _ in range(2):
        values = look_up(regional, "bypass", program, inputs, **options)
        torch.testing.assert_close(values, run(program, inputs))
    regional.restart()
    with pytest.raises(CounterExpectationError) as failure, regional.expect(cache_bypasses=0):
        run(regional.compile(program, **options), inputs)
    text = str(failure.value)
    return text[text.index("cache_bypasses = 1") :].partition("cache_saves")[0]  # zero counters are left out


@torch._dynamo.allow_in_graph
def untraced(x):
    """Dynamo does not look inside."""
    return x @ x


def test_a_function_that_is_not_traced(regional):
    def program(x, w):
        return mlp(x, w) + untraced(x)

    assert "untraced" in reasons(regional, program, pair(regional))


def test_a_condition(regional):
    def marked(x, w):
        with region("r"):
            return x @ w

    def program(x, w):
        return torch.cond(x.sum() > 0, marked, lambda x, w: w @ x, (x, w))

    assert "cond" in reasons(regional, program, pair(regional))


@pytest.mark.parametrize("place", ["post_grad_custom_post_pass", "joint_custom_pre_pass"])
def test_a_custom_pass_without_a_uuid(regional, place):
    def nameless(graph):
        """Do nothing, under no name."""

    told = reasons(regional, mlp, pair(regional), inductor_configs={place: nameless})
    assert "pass" in told


class Named(torch._inductor.custom_graph_pass.CustomGraphPass):
    """A pass that does nothing, under a name."""

    def __init__(self, name):
        self.name = name

    def __call__(self, graph):
        """Do nothing."""

    def uuid(self):
        """Return the name."""
        return self.name


def test_a_custom_pass_with_a_uuid(regional):
    inputs = pair(regional)
    for outcome, name in [("miss", "v1"), ("hit", "v1"), ("miss", "v2"), ("hit", "v1")]:
        look_up(regional, outcome, mlp, inputs, inductor_configs={"post_grad_custom_post_pass": Named(name)})
    look_up(regional, "miss", mlp, inputs)


def test_a_bypass_is_an_error_where_the_user_asks_for_one(regional):
    def program(x, w):
        return mlp(x, w) + untraced(x)

    inputs = pair(regional)
    with torch._functorch.config.patch(strict_autograd_cache=True):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="untraced"):
            run(regional.compile(program), inputs)
        look_up(regional, "miss", mlp, inputs)
        look_up(regional, "hit", mlp, inputs)
