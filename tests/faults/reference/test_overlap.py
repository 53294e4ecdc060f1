"""The pass, broken on purpose: what the property test checks notices each break."""

from __future__ import annotations

import pkgutil

import pytest

from tests.reference.overlap.graphs import ATEN, BIG, SMALL, Builder, fsdp_chain
from tests.reference.overlap.strategies import Program as Drawn
from tests.reference.overlap.test_property import check

OVERLAP = "pytest_regional.reference.overlap"


def chain():
    b, gm = fsdp_chain(layers=4)
    return Drawn(gm, [value / 4 for value in b.values()])


def written_input():
    b = Builder()
    x, y, shard = b.input(BIG), b.input(BIG), b.input(SMALL)
    first = b.mm(y, y)
    reduced = b.wait(b.reduce(x))
    b.op(ATEN.copy_.default, x, y)
    written = b.wait(b.gather(shard))
    b.op(ATEN.copy_.default, shard, b.op(ATEN.slice.Tensor, first, 0, 0, 2))
    again = b.wait(b.gather(shard))
    return Drawn(b.module(reduced, written, again, b.mm(first, y)), [value / 4 for value in b.values()])


def one_group():
    b = Builder()
    x, shard = b.input(BIG), b.input(SMALL)
    reduced = b.wait(b.reduce(b.mm(x, x)))
    return Drawn(b.module(b.mm(reduced, b.wait(b.gather(shard)))), [value / 4 for value in b.values()])


def no_reading_until_the_wait(monkeypatch):
    monkeypatch.setattr(f"{OVERLAP}.program.OverlapProgram._finish_reading", lambda *_: None)


def no_order_of_effects(monkeypatch):
    monkeypatch.setattr(f"{OVERLAP}.program.order_edges", lambda graph: [])


def no_order_of_groups(monkeypatch):
    hoisting = pkgutil.resolve_name(f"{OVERLAP}:_Hoisting")
    original = hoisting._hoist

    def hoist(self, collective, lowest):
        self._last_start.clear()
        original(self, collective, lowest)

    monkeypatch.setattr(hoisting, "_hoist", hoist)


def no_bounds(monkeypatch):
    monkeypatch.setattr(f"{OVERLAP}.Reservations.earliest", lambda self, collective, lowest: (lowest, None))


def waits_at_the_end(monkeypatch):
    monkeypatch.setattr(f"{OVERLAP}._uses", lambda whole: dict.fromkeys(whole.order, len(whole.order) - 1))


MUTANTS = [
    (no_reading_until_the_wait, written_input, {}),
    (no_order_of_effects, written_input, {}),
    (no_order_of_groups, one_group, {}),
    (no_bounds, chain, {"memory_bound": 2048}),
    (no_bounds, chain, {"in_flight": 1}),
    (waits_at_the_end, chain, {}),
]


@pytest.mark.parametrize(("mutate", "make", "bounds"), MUTANTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_broken_pass_is_noticed(mutate, make, bounds, monkeypatch):
    check(make(), bounds)
    mutate(monkeypatch)
    with pytest.raises((AssertionError, RuntimeError)):
        check(make(), bounds)
