"""The outer cache: a result compiled for inputs that share no memory is not for inputs that do, nor the reverse."""

import functools

import pytest
import torch

from pytest_regional.reference import cache_key
from tests.reference.caches import compiled, outcomes


def write_first(x, y):
    x.mul_(2)
    return x + y


class Buffers(torch.nn.Module):
    def __init__(self, second):
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", torch.zeros(4) if second is None else self.a[second])

    def forward(self, x):
        self.a.add_(1)
        return x + self.b


captured = torch.zeros(12)


def write_captured(x):
    captured.add_(1)
    return x * captured.sum()


def views(first, second, *, grown=1):
    """Return two slices of one buffer."""
    data = torch.arange(12.0 * grown).reshape(3, 4 * grown)
    return data[first].clone() if second is None else data[first], data[1:3] if second is None else data[second]


def trained(alias):
    """Return two results of one computation, of which the second may be a view of the first."""
    leaf = torch.ones(4, requires_grad=True)
    first = leaf * 3
    return first, first.view(4) if alias else (leaf * 3).view(4)


ROWS = {
    "two arguments": (write_first, [lambda: views(slice(0, 2), None), lambda: views(slice(0, 2), slice(1, 3))]),
    "the same argument twice as views": (
        write_first,
        [lambda: views(slice(0, 2), slice(0, 2)), lambda: views(slice(1, 3), slice(0, 2))],
    ),
    "two views of one buffer, apart": (
        write_first,
        [lambda: views(slice(0, 1), slice(1, 2)), lambda: views(slice(0, 1), slice(0, 1))],
    ),
    "results of autograd": (write_first, [lambda: trained(False), lambda: trained(True)]),
    "a view of what the program captured": (
        write_captured,
        [lambda: (torch.zeros(4),), lambda: (captured[:4],), lambda: (captured[2:6],)],
    ),
}


def result_of(fn, inputs):
    """Return the result of ``fn``, the inputs afterwards, and the gradient of the leaf behind them."""
    with torch.no_grad():
        captured.zero_()
    output = fn(*inputs)
    return [output.detach(), *(value.detach().clone() for value in inputs)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_each_sharing_is_an_entry(dynamic):
    for name, (fn, makers) in ROWS.items():
        for expected in ("miss", "hit"):
            for make in makers:
                wanted = result_of(fn, make())
                with outcomes() as seen:
                    got = result_of(compiled(fn, dynamic=dynamic), make())
                assert all(map(torch.equal, wanted, got)), (name, expected, seen)
                assert (seen["hit"], seen["miss"]) == (expected == "hit", expected == "miss"), (name, seen)


@pytest.mark.parametrize("order", [(None, slice(4)), (slice(4), None)])
def test_buffers_that_come_to_share_memory(order):
    for second in order:
        with outcomes() as seen:
            got = compiled(Buffers(second))(torch.zeros(4))
        assert torch.equal(got, Buffers(second)(torch.zeros(4)))
        assert seen["hit"] == 0


def test_places_count_only_where_memory_is_shared():
    keys = {cache_key(write_first, torch.zeros(12)[place : place + 4], torch.zeros(4)) for place in (0, 4, 8)}
    assert len(keys) == 1


def test_a_hit_guards_the_overlap_as_a_compile_does():
    apart, overlapping = functools.partial(views, slice(0, 1)), [slice(1, 2), slice(0, 1)]
    for order in (overlapping, overlapping[::-1]):
        for expected in ("miss", "hit"):
            fn = compiled(write_first, dynamic=True)
            for number, second in enumerate(order):
                with outcomes() as seen:
                    got = result_of(fn, apart(second, grown=2))
                assert all(map(torch.equal, result_of(write_first, apart(second, grown=2)), got)), (order, second)
                if not number:
                    assert seen[expected] == 1 or order is not overlapping
