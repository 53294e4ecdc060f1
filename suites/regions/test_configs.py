"""Each region compiles with exactly its own configs, in the forward and in the backward."""

from __future__ import annotations

import pytest
import torch
import torch._inductor

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("region_configs",))


def noting(monkeypatch, read):
    """Return a list of what ``read`` says of Inductor's settings when a region compiles.

    Noted at the seam that every regional backend calls.
    """
    original, noted = torch._inductor.standalone_compile, []

    def spy(gm, *arguments, **keywords):
        noted.append(read(torch._inductor.config))
        return original(gm, *arguments, **keywords)

    monkeypatch.setattr(torch._inductor, "standalone_compile", spy)
    return noted


@pytest.fixture
def seen(monkeypatch):
    """Note which setting each region's compile saw."""
    return noting(monkeypatch, lambda config: config.epilogue_fusion)


def pair(regional, **options):
    return regional.randn(4, 8, **options), regional.randn(8, 8, **options)


@pytest.mark.quick
def test_configs_hold_in_forward_and_backward_and_not_afterwards(regional, seen):
    def program(x, w):
        with in_region("tuned", epilogue_fusion=False):
            h = x @ w
        return h.sin()

    record = regional.run(program, *pair(regional, requires_grad=True))

    assert seen == [False, False]
    assert torch._inductor.config.epilogue_fusion is True
    assert [r.configs for r in record.regions] == [{"epilogue_fusion": False}] * 2


@pytest.mark.regional_compile(requires=("region_configs", "region_ids"))
def test_two_regions_each_see_their_own_configs_in_both_directions(regional, seen):
    def program(x, w):
        with in_region("untuned", epilogue_fusion=True):
            h = x @ w
        with in_region("tuned", epilogue_fusion=False):
            return h @ w.T

    regional.run(program, *pair(regional, requires_grad=True))

    # The order of a backward's regions is the backend's; what each of them sees is not.
    assert seen[:2] == [True, False]
    assert sorted(seen[2:]) == [False, True]


@pytest.mark.quick
def test_all_configs_of_a_region_hold(regional, monkeypatch):
    noted = noting(
        monkeypatch, lambda config: (config.epilogue_fusion, config.max_fusion_size, config.cpp.min_chunk_size)
    )
    settings = {"epilogue_fusion": False, "max_fusion_size": 7, "cpp.min_chunk_size": 64}

    def program(x, w):
        with in_region("tuned", **settings):
            h = x @ w
        return h.sin()

    regional.run(program, *pair(regional))
    assert noted == [(False, 7, 64)]


def test_a_region_without_configs_is_compiled_with_the_defaults(regional, seen):
    def program(x, w):
        with in_region("plain"):
            return x @ w

    regional.run(program, *pair(regional))
    assert seen == [True]


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("region_configs", "distinct_region_configs"))
@pytest.mark.regional_known_failure(
    "torch",
    reason="the first node's configs win for the whole partition: docs/findings/config_of_second_node_is_lost.py",
    torch=">=2.11",
)
def test_different_configs_of_one_id_are_different_regions(regional, seen):
    def program(x, w):
        with in_region("one", epilogue_fusion=False):
            h = x @ w
        with in_region("one", epilogue_fusion=True):
            return h @ w

    record = regional.run(program, *pair(regional))

    # No config wins over the other: two regions of one name, each compiled with what it asked for.
    assert [(r.name, r.partitions) for r in record.regions] == [("one", 1), ("one", 1)]
    assert seen == [False, True]


@pytest.mark.regional_compile(expects_regions=False)
def test_an_unknown_config_is_an_error_that_names_it(regional):
    def program(x, w):
        with in_region("wrong", no_such_setting=True):
            return x @ w

    with pytest.raises(Exception, match="no_such_setting"):
        regional.run(program, *pair(regional))


@pytest.mark.regional_compile(requires=("region_ids", "region_counts"))
def test_the_innermost_annotation_wins(regional):
    def program(x, w):
        with in_region("outer"):
            h = x @ w
            with in_region("inner"):
                h = h @ w.T
            return h @ w

    record = regional.run(program, *pair(regional))

    # The inner product divides the outer region, and is compiled once, not inside the outer one.
    assert [(r.name, r.partitions, len(r.ops)) for r in record.regions] == [("outer", 2, 2), ("inner", 1, 2)]


def test_annotation_as_decorator_of_functions_and_methods(regional):
    from pytest_regional import region

    @region("function")
    def product(x, w):
        return x @ w

    class Model(torch.nn.Module):
        @region("method")
        def project(self, x, w):
            return x @ w.T

        def forward(self, x, w):
            return self.project(product(x, w).sin(), w)

    record = regional.run(Model(), *pair(regional))
    assert [r.name for r in record.regions] == ["function", "method"]
