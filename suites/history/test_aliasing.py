"""Aliases and the order of writes: what is written, when, and what else it changes."""

from __future__ import annotations

import pytest
import torch

from .checks import parity, same
from .known_bugs import BugClass, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("aliasing", needs=("aliasing", "mutation"))

#: A region computes what is written to an input, and eager copies it there.
COPIED_OUTSIDE = {"torch": None, "reference": None}

#: Only where nothing else is done to the joint graph.
ELSEWHERE = {"inductor": None, "torch": None, "reference": None}


@torch.library.custom_op("history::add_to", mutates_args=("target",))
def add_to(target: torch.Tensor, other: torch.Tensor) -> None:
    target.add_(other)


@add_to.register_fake
def _add_to(target, other):
    return None


@bugs(198033, layer="inductor", torch="<2.15", notices="input state", but=COPIED_OUTSIDE)
def foreach_add_reads_what_it_writes(regional):
    """``_foreach_add_([x], [x.flip(0)])`` reads x while it writes it."""

    def program(x):
        torch._foreach_add_([x], [x.flip(0)])
        return x * 2

    parity(regional, program, regional.randn(16))


@torch.library.custom_op("history::double_and_add", mutates_args=("target",))
def double_and_add(target: torch.Tensor, other: torch.Tensor) -> None:
    target.mul_(2)
    target.add_(other)


@double_and_add.register_fake
def _double_and_add(target, other):
    return None


@bugs(198031, layer="inductor", notices="value", requires=("custom_ops",))
def clone_of_what_is_written(regional):
    """A custom operator gets x, which it writes, and a clone of x, which it reads: it gets x twice."""

    def program(x):
        x = x.sin()
        double_and_add(x, x.clone())
        return x

    parity(regional, program, regional.randn(16))


@bugs(layer="inductor", torch="<2.15", notices="input state", in_region=False, requires=("mutation",))
def rows_shifted_in_place(regional):
    """``x[1:] = x[:-1].clone()``: the clone is left out, and rows are read that were written."""

    def program(x):
        x[1:] = x[:-1].clone()

    regional.assert_parity(program, regional.randn(40))


@bugs(layer="inductor", torch="<2.13", notices="value", in_region=False, requires=("mutation",))
def read_after_its_overwrite(regional):
    """A sine of y, then ``y.copy_(column * x)``: y is written first, and the sine is that of what was written."""

    def program(x, y):
        sine = torch.sin(y)
        y.copy_(x[:, None] * x)
        return sine

    regional.assert_parity(program, regional.randn(3), regional.randn(3, 3))


@bugs(layer="inductor", torch="<2.15", notices="value")
def index_add_of_itself(regional):
    """``y.index_add(0, index, y)`` is done in place on y, and rows are read that were written."""

    def program(x, index):
        y = x.sin()
        return y.index_add(0, index, y)

    parity(regional, program, regional.randn(40), torch.arange(40, device=regional.device).flip(0))


@bugs(188084, layer="inductor", torch="<2.15", notices="value")
def index_put_into_expanded_view(regional):
    """``index_put`` is done in place on an expanded tensor, and its rows are one row."""

    def program(x, index, values):
        rows = x.sin().sum(0, keepdim=True).expand(3, 4)
        return torch.ops.aten.index_put(rows, [index], values, True)

    parity(regional, program, regional.randn(3, 4), regional.tensor([1, 1]), regional.randn(2, 4))


@bugs(layer="aot_autograd", notices="input state", requires=("custom_ops",), in_region=False)
def write_to_slice(regional):
    """A custom operator writes to a slice of an input that begins behind the start of its memory: elsewhere."""

    def program(x):
        add_to(x[:8], torch.ones(8, device=x.device))
        return x * 2

    regional.assert_parity(program, torch.zeros(20, device=regional.device)[3:])


@bugs(layer="inductor", torch="<2.15", notices="input state", but=COPIED_OUTSIDE)
def swapped_inputs(regional):
    """Two inputs are swapped in place: both end with the values of one."""

    def program(a, b):
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    parity(regional, program, torch.zeros(4, device=regional.device), torch.ones(4, device=regional.device))


@bugs(layer="inductor", notices="input state", but=COPIED_OUTSIDE)
def foreach_reads_what_it_wrote(regional):
    """One `_foreach_copy_` writes two inputs from each other: the second is computed from the first's new value."""

    def program(a, b):
        torch._foreach_copy_([a, b], [b * 2, a * 2])

    parity(regional, program, torch.zeros(4, device=regional.device), torch.ones(4, device=regional.device))


@bugs(layer="inductor", notices="value")
def scatter_behind_storage_offset(regional):
    """``as_strided_scatter`` of a view that begins behind the start of its storage counts from the view's start."""

    def program(x, y):
        return torch.as_strided_scatter(x, y, (1,), (1,), 0)

    parity(regional, program, torch.zeros(3, device=regional.device)[1:-1], torch.ones(1, device=regional.device))


@bugs(layer="inductor", torch="<2.13", notices="value")
def as_strided_of_view(regional):
    """``as_strided`` of an input that begins behind the start of its storage counts from the input's start."""

    def program(x):
        return torch.as_strided(x, (4,), (1,), 1) * 2

    parity(regional, program, regional.randn(10)[2:8])


@bugs(layer="inductor", torch=">=2.13", notices="value")
def as_strided_of_clone(regional):
    """``as_strided(x.clone())``: the clone is left out, and the offset of x in its storage is subtracted."""

    def program(x):
        return torch.as_strided(x.clone(), (4,), (1,), 2) * 2

    parity(regional, program, regional.randn(10)[2:8])


@bugs(layer="aot_autograd", torch="<2.15", notices="input state", in_region=False)
def number_written_in_place(regional):
    """A write to a float64 input without dimensions is lost."""

    def program(x):
        y = torch.sin(x)
        x.mul_(2.0)
        return y

    regional.assert_parity(program, regional.tensor(1.5, dtype=torch.float64))


@bugs(layer="aot_autograd", notices="exception", in_region=False)
def detached_alias_written(regional):
    """Two inputs share memory, one as a strided view, and both are written: an assertion fails."""

    def program(x, y, z):
        y.zero_()
        z.copy_(x)
        return x + 1

    def written(function):
        y = torch.zeros(2, 8, device=regional.device)[:, ::2]
        function(torch.ones(2, 4, device=regional.device), y, y.detach())
        return y

    same("input state", written(regional.compile(program)), written(program))


def shared(regional, *size):
    """Return two inputs that are one memory."""
    x = torch.ones(*size, device=regional.device)
    return x, x.detach()


@bugs(layer="aot_autograd", notices="exception", in_region=False)
def unbind_of_alias(regional):
    """One of two inputs that share memory is unbound while the other is written."""

    def program(x, y):
        first, _ = y.unbind(0)
        x.add_(x)
        return first

    regional.assert_parity(program, *shared(regional, 2, 3))


@bugs(layer="aot_autograd", notices="exception", in_region=False)
def split_of_alias(regional):
    """One of two inputs that share memory is split by ``tensor_split`` while the other is written."""

    def program(x, y):
        part, *_ = y.tensor_split(3, 1)
        x.mul_(x)
        return part

    regional.assert_parity(program, *shared(regional, 3, 3))


@bugs(layer="aot_autograd", notices="exception", in_region=False)
def bits_of_alias(regional):
    """One of two inputs that share memory is viewed as another dtype while the other is written."""

    def program(x, y):
        bits = y.view(torch.int32).view(torch.float32)
        x.add_(1)
        return bits

    regional.assert_parity(program, *shared(regional, ()))


@bugs(layer="aot_autograd", notices="value", in_region=False)
def slice_of_alias(regional):
    """A slice of one of two inputs that share memory is returned while the other is written: it is another slice."""

    def program(x, y):
        x.neg_()
        return y[:2]

    memory = torch.arange(12.0, device=regional.device)
    regional.assert_parity(program, memory[2:8], memory[4:])


@bugs(layer="inductor", torch="<2.15", notices="alias")
def view_is_the_tensor_itself(regional):
    """A value and a view of all of it are returned: the caller gets one tensor twice."""

    def program(x):
        y = torch.sin(x)
        return y, y[...]

    parity(regional, program, torch.ones(2, 3, device=regional.device))


@bugs(layer="aot_autograd", notices="alias", in_region=False, but=ELSEWHERE, requires=("backward",))
def equal_results_are_one_tensor(regional):
    """Two calls of one operator with several results give the same tensors where a gradient flows."""

    def program(x):
        first, _ = torch.max(x, dim=0)
        again, _ = torch.max(x, dim=0)
        return first, again

    regional.assert_parity(program, regional.randn(3, 2, requires_grad=True))


@bugs(layer="aot_autograd", notices="alias", in_region=False)
def flatten_of_flat(regional):
    """``flatten`` of what is flat is the tensor itself; compiled, it is another one."""

    def program(x):
        flat = x.flatten()
        return flat, flat.flatten()

    regional.assert_parity(program, torch.ones(2, 2, device=regional.device))


@bugs(layer="inductor", notices="alias")
def two_clones(regional):
    """Two clones of a computed value are one tensor."""

    def program(x):
        y = x.sin()
        return y.clone(), y.clone()

    parity(regional, program, regional.randn(4))


@bugs(layer="inductor", notices="alias")
def product_with_ones(regional):
    """``torch.ones_like(x) * x`` is the input itself."""

    def program(x):
        return torch.ones_like(x) * x

    parity(regional, program, regional.randn(4))


@bugs(layer="dynamo", torch="<2.15", notices="alias", in_region=False)
def transposed_twice(regional):
    """``x.mT`` twice is one tensor."""

    def program(x):
        return x.mT, x.mT

    regional.assert_parity(program, torch.ones(2, 3, device=regional.device))


@bugs(layer="aot_autograd", notices="exception", in_region=False)
def write_through_view_of_expanded(regional):
    """An element of an expanded input is written through a view: the call fails."""

    def program(x):
        y = x.diagonal(0, 0, 1)
        y.mul_(2.0)
        return y

    regional.assert_parity(program, torch.ones(1, 1, device=regional.device).expand(2, 1))


@bugs(layer="aot_autograd", notices="input state", in_region=False)
def write_to_windows(regional):
    """Windows of an input are written in place: what no window holds is set to zero."""

    def program(x):
        x.unfold(0, 2, 2).add_(1.0)
        return x

    regional.assert_parity(program, torch.ones(3, device=regional.device))


@bugs(
    layer="aot_autograd",
    notices="exception",
    in_region=False,
    but={"inductor": None, "reference": None},
    dynamic=True,
    requires=("dynamic_shapes",),
)
def dynamic_aliases(regional):
    """Two inputs share memory, one is written and one is reshaped, with dynamic sizes."""

    def program(x, y):
        y.mul_(2.0)
        return y, x.reshape((8,))

    regional.assert_parity(program, *shared(regional, 8))


@bugs(layer="aot_autograd", notices="exception", in_region=False, dynamic=True, requires=("dynamic_shapes",))
def dynamic_aliases_written(regional):
    """An input is added in place to another one that shares its memory, with dynamic sizes."""

    def program(x, y):
        y.add_(x)
        return x

    regional.assert_parity(program, *shared(regional, 2))


@bugs(layer="aot_autograd", notices="second call", in_region=False)
def aliases_at_another_offset(regional):
    """Two slices of one memory that begin elsewhere in the second call: it writes where the first call wrote."""

    def program(x, y):
        y.neg_()
        return x.sin()

    def slices(offset):
        memory = torch.arange(6.0, device=regional.device)
        return memory[offset : offset + 2], memory[offset : offset + 2].view(2)

    compiled = regional.compile(program)
    compiled(*slices(0))
    same("second call", compiled(*slices(3)), program(*slices(3)))


@bugs(layer="aot_autograd", torch=">=2.13", notices="exception", in_region=False, requires=("backward",))
def effect_token_and_written_view(regional):
    """``linalg.inv`` takes an effect token, as it may raise, and an input that another one is a view of is written."""

    def program(x, y, z):
        y.bitwise_not_()
        inverse = torch.linalg.inv(x @ x.mT)
        z.isnan()
        return inverse

    y = torch.ones((), dtype=torch.bool, device=regional.device)
    x = torch.ones(1, 1, device=regional.device).requires_grad_()
    same("value", regional.compile(program)(x, y, y.view_as(y)), program(x, y, y.view_as(y)))


@bugs(layer="inductor", notices="value", in_region=False, requires=("custom_ops",))
def sum_of_one_element(regional):
    """The sum of one element is a view of it, and a custom operator then writes to the tensor."""

    def program(x, y):
        total = x.sum()
        add_to(x, y)
        return total

    regional.assert_parity(program, regional.randn(1), regional.randn(1))


@bugs(layer="inductor", notices="value", requires=("custom_ops",), but=COPIED_OUTSIDE)
def number_written_by_operator(regional):
    """A custom operator writes an input without dimensions: what is read before sees the write."""

    def program(x, y):
        before = x.sin()
        add_to(x, y)
        return before

    parity(regional, program, regional.tensor(1.5), regional.tensor(2.0))


@bugs(layer="inductor", notices="value", requires=("custom_ops",), but=COPIED_OUTSIDE)
def result_given_to_operator_that_writes(regional):
    """A custom operator reads a result and writes what that was computed from; later the result is computed again."""

    def program(x):
        result = x.sin()
        add_to(x, result)
        return result + 1

    parity(regional, program, regional.randn(8))


@bugs(layer="aot_autograd", torch="<2.15", notices="input state")
def write_through_dropout(regional):
    """Dropout that drops nothing is its input itself; compiled, it is a copy, and a write to it is lost."""

    def program(x):
        torch.nn.functional.dropout(x, 0.5, False).mul_(2)
        return x + 1

    parity(regional, program, regional.randn(4))


@bugs(layer="aot_autograd", notices="exception", in_region=False)
def view_of_number_alias(regional):
    """Two inputs without dimensions share memory, one is written and a view of the other returned: no call succeeds."""

    def program(x, y):
        y.add_(1.0)
        return x.unsqueeze(0)

    x = regional.tensor(1.5)
    regional.assert_parity(program, x, x.detach())


@bugs(layer="aot_autograd", notices="exception", in_region=False, but={"inductor": ">=2.15"})
def as_strided_behind_write(regional):
    """An input with gaps is written, and ``as_strided`` then reads its gaps: the call fails."""

    def program(x):
        x.mul_(x)
        return x.as_strided((8,), (1,), 0) + 1

    # What it returns is not compared: where Inductor's call succeeds, it is that of ``as_strided_of_view``.
    regional.compile(program)(torch.ones(8, device=regional.device)[::2])


@bugs(layer="inductor", torch="<2.15", notices="exception", in_region=False)
def base_larger_than_traced(regional):
    """Two inputs are one slice of one buffer, and one is written: the buffer is traced smaller than it is."""

    def program(x, y):
        x.sin_()
        return y * 0.5

    buffer = torch.ones(1, 2, device=regional.device)
    regional.assert_parity(program, buffer[:, ::2].detach(), buffer[:, ::2].detach())


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
