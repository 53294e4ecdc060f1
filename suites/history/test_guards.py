"""Guards of Dynamo: what changes between two calls and is not looked at, and recompiles for nothing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.traceback import annotate

from .checks import same, same_later
from .known_bugs import BugClass, BugNoticedError, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("guards")


@bugs(197860, layer="dynamo", notices="second call", in_region=False)
def code_of_a_bound_method(regional):
    """The code of a method is replaced: the call computes what the old code said."""

    class Scale:
        def apply(self, x):
            return x * 2

    def times_three(self, x):
        return x * 3

    compiled, x = regional.compile(lambda scale, x: scale.apply(x)), regional.randn(3)
    compiled(Scale(), x)
    Scale.apply.__code__ = times_three.__code__
    same("second call", compiled(Scale(), x), x * 3)


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight


@bugs(197859, layer="dynamo", notices="second call", in_region=False, requires=("backward",))
def parameter_in_the_shadow_of_an_attribute(regional):
    """An attribute in a module's ``__dict__`` hides a parameter: the call goes on with the parameter."""
    model, x = Weighted().to(regional.device), regional.randn(3)
    compiled = regional.compile(model)
    compiled(x)
    model.__dict__["weight"] = torch.full((3,), 3.0, device=regional.device)
    same("second call", compiled(x), model(x))


def applying(method):
    def program(x):
        return method(x)

    return program


@bugs(197811, layer="dynamo", notices="second call", in_region=False)
def method_in_a_closure(regional):
    """Two closures hold different methods of ``torch.Tensor``: the second computes with the first's."""
    x = regional.randn(3)
    for method in (torch.Tensor.sin, torch.Tensor.cos):
        same("second call", regional.compile(applying(method))(x), method(x))


@bugs(layer="dynamo", notices="recompile", in_region=False, but={"inductor": None, "reference": None})
def number_not_finite(regional):
    """A float64 input without dimensions is compiled again when a value comes that is not finite."""
    compiled = regional.compile(lambda x: torch.sin(x))
    for number in (1.0, 2.0, float("nan"), float("inf")):
        compiled(regional.tensor(number, dtype=torch.float64))
    if regional.counters.graphs > 1:
        raise BugNoticedError("recompile", f"{regional.counters.graphs} graphs")


@bugs(197889, layer="aot_autograd", notices="second call", in_region=False)
def scale_factor_in_the_cache(regional):
    """A float that became a symbol is a number in what the cache holds: ``interpolate`` with another scale gets it."""

    def program(x, scale):
        return F.interpolate(x, scale_factor=scale, mode="bilinear", recompute_scale_factor=False)

    x = regional.randn(1, 2, 4, 8)
    for scales in ((1.1, 1.2), (1.3, 1.5)):
        regional.restart()
        same_later(regional, program, *((x, scale) for scale in scales))


@bugs(layer="dynamo", notices="exception", in_region=False)
def integer_in_annotation(regional):
    """An integer argument in an annotation is an internal error at its second value."""

    def program(x, layer):
        with annotate({"compile_with_inductor": {"inductor_region": layer}}):
            return x.sin()

    x = torch.ones(3, device=regional.device)
    same_later(regional, program, (x, 1), (x, 2))


@pytest.mark.quick
@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
