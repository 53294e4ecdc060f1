"""A backward may keep its graph, first or later: nothing that the backend compiles overwrites what was saved."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional._torch.inductor import interpreting_regions
from pytest_regional.reference import artifacts
from suites.regions.retained import WAYS, two_outputs
from tests.reference.caches import compiled, outcomes


def leaves(size=4):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, size, generator=generator).requires_grad_() for _ in range(2)]


def check(program, way, eager=two_outputs):
    torch.testing.assert_close(way(program, *leaves()), way(eager, *leaves()), msg=way.__name__)


@pytest.mark.parametrize(
    ("before", "outer_cache"), [(False, False), (True, False), (True, True)], ids=["first", "after_another", "cached"]
)
def test_every_way(before, outer_cache):
    """PyTorch's backends refuse a graph that is kept after a first backward was not.

    With the outer cache the backward is compiled before the first one runs.
    """
    program = compiled(two_outputs, options={"outer_cache": outer_cache})
    if before:
        sum(output.sum() for output in program(*leaves())).backward()
    for way in WAYS:
        check(program, way)


def branching(x, w):
    return two_outputs(torch.cond(x.sum() > -100, lambda value: value * 2, lambda value: value.sin(), (x,)), w)


def test_uncacheable_graphs():
    """Its backward is compiled ahead all the same."""
    with outcomes() as seen, interpreting_regions():
        found = WAYS[0](compiled(branching), *leaves())
    assert seen["bypass"] == 1
    torch.testing.assert_close(found, WAYS[0](branching, *leaves()))


def test_artifacts(tmp_path):
    program = artifacts.compile_program(two_outputs, *leaves())
    program.save(tmp_path / "program")
    for one in (program, artifacts.load(tmp_path / "program")):
        for way in WAYS:
            check(one, way)


def saves_a_product(x, w):
    h = x @ w
    return h.sin(), h.cos()


def test_regions_as_files(tmp_path):
    """Inductor makes the backward of the whole, which it could let overwrite what is saved: the product."""
    graph = make_fx(saves_a_product)(*(value.detach() for value in leaves()))
    compiled_region = artifacts.compile_region(graph, *leaves())
    compiled_region.save(tmp_path / "region")
    for one in (compiled_region, artifacts.load(tmp_path / "region")):
        sum(output.sum() for output in one(*leaves())).backward()
        for way in WAYS:
            check(one, way, saves_a_product)


def test_nothing_is_donated_with_subclasses():
    """Metadata within and without a subclass share the list, which is emptied."""
    from torch.testing._internal.two_tensor import TwoTensor

    x, w = (TwoTensor(value.detach(), value.detach()).requires_grad_() for value in leaves())
    with interpreting_regions():
        loss = sum(output.sum() for output in compiled(two_outputs)(x, w))
        loss.backward(retain_graph=True)
        loss.backward()
    plain = leaves()
    (2 * sum(output.sum() for output in two_outputs(*plain))).backward()
    torch.testing.assert_close([x.grad.a, w.grad.b], [value.grad for value in plain])
