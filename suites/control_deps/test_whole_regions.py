"""``region("comm", after=["mlp"])``: whole regions run in the order that their annotations ask for."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import region

pytestmark = pytest.mark.regional_compile(requires=("region_order", "backward"), dynamic=False)

RAN: list[str] = []


@torch.library.custom_op("pytest_regional_suites::passing", mutates_args=())
def passing(x: torch.Tensor, name: str) -> torch.Tensor:
    """Return a copy of ``x`` and note that ``name`` ran."""
    RAN.append(name)
    return x.clone()


@passing.register_fake
def _(x: torch.Tensor, name: str) -> torch.Tensor:
    return torch.empty_like(x)


def _save_name(ctx, inputs, output):
    ctx.name = inputs[1]


passing.register_autograd(lambda ctx, gradient: (passing(gradient, ctx.name), None), setup_context=_save_name)


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


def overlapping(**after):
    def program(x, w):
        with region("comm", **after):
            c = passing(x, "comm") @ x
        with region("mlp"):
            m = passing(x, "mlp") @ w
        return c @ m

    return program


ASKED = {"after": ["mlp"]}


@pytest.mark.quick
@pytest.mark.parametrize(("after", "order"), [({}, ["comm", "mlp"]), (ASKED, ["mlp", "comm"])], ids=["plain", "after"])
def test_regions_run_in_the_requested_order(regional, after, order):
    record = regional.run(overlapping(**after), regional.randn(8, 8), regional.randn(8, 8))
    assert order == RAN
    assert [source.regions for source in record.code] == [(name,) for name in order]
    assert {(one.name, one.partitions) for one in record.regions} == {("comm", 1), ("mlp", 1)}


@pytest.mark.quick
def test_gradients_run_the_other_way_round(regional):
    x, w = regional.randn(8, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True)
    regional.run(overlapping(**ASKED), x, w)
    assert RAN == ["mlp", "comm", "comm", "mlp"]


def test_parity(regional):
    inputs = regional.randn(8, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True)
    # In which order the regions run is what is asked for.
    regional.assert_parity(overlapping(**ASKED), *inputs, ignore_state=("RAN",))


def test_of_three_regions_each_waits_for_the_one_before(regional):
    def program(x, w):
        with region("c", after=["b"]):
            c = passing(x, "c")
        with region("b", after=["a"]):
            b = passing(w, "b")
        with region("a"):
            a = passing(x @ w, "a")
        return a, b, c

    regional.run(program, regional.randn(8, 8), regional.randn(8, 8))
    assert RAN == ["a", "b", "c"]


def test_the_whole_region_waits_for_the_whole_other(regional):
    def program(x, w):
        with region("comm", after=["mlp"]):
            first = passing(x, "comm 1")
        with region("mlp"):
            h = passing(w, "mlp 1")
        h = h.sin()
        with region("mlp"):
            h = passing(h, "mlp 2")
        with region("comm"):
            second = passing(x, "comm 2")
        return first, second, h

    regional.run(program, regional.randn(8, 8), regional.randn(8, 8))
    assert RAN[:2] == ["mlp 1", "mlp 2"]
    assert sorted(RAN[2:]) == ["comm 1", "comm 2"]


@pytest.mark.regional_compile(expects_regions=False)
def test_an_order_that_values_forbid_names_the_regions(regional):
    def program(x, w):
        with region("comm", after=["mlp"]):
            c = x @ w
        with region("mlp"):
            return c @ w

    with pytest.raises(Exception, match="region 'comm' after 'mlp'"):
        regional.run(program, regional.randn(8, 8), regional.randn(8, 8))
