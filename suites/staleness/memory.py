"""Changes of which tensors share memory, and of where in memory they are."""

from __future__ import annotations

import torch

from .changes import Case, Changes, numbers, put

changes = Changes(__name__, requires=("mutation", "aliasing"), in_region=False)

FIRST, SECOND = None, None

MEMORY = "stale_hit_shared_memory"


def write_first(x, y):
    """Write to the first argument, and read the second one."""
    x.mul_(2)
    return x + y


def pair(shared: bool, *, rows: int = 3):
    """Return two tensors of two rows: views of one tensor that overlap, or tensors apart with the same values."""
    base = numbers(rows, 4)
    first, second = base[:2], base[1:3]
    return (first, second) if shared else (first.clone(), second.clone())


@changes(False, True, quick=True, finding=MEMORY)
def arguments_come_to_overlap(shared):
    """Two arguments become views of one tensor that overlap; one is written."""
    return Case(write_first, pair(shared))


@changes(True, False, quick=True, finding=MEMORY)
def arguments_overlap_no_more(shared):
    """Two arguments that were views of one tensor are tensors apart."""
    return Case(write_first, pair(shared))


@changes(False, True, in_region=True, finding=MEMORY)
def arguments_overlap_in_a_region(shared):
    """Two arguments become views of one tensor; one is written, in a region."""
    return Case(write_first, pair(shared))


@changes(1, 2, finding=MEMORY)
def larger_overlap(row):
    """Two arguments overlap in other rows than before."""
    base = numbers(5, 4)
    return Case(write_first, (base[1:3], base[row : row + 2]))


@changes(0, 2, finding=MEMORY)
def overlap_moves(row):
    """The second argument overlaps the first one at its beginning, then at its end."""
    base = numbers(5, 4)
    return Case(write_first, (base[1:3], base[row : row + 2]))


@changes(False, True, finding=MEMORY)
def disjoint_views_come_to_overlap(overlap):
    """Two disjoint views of one tensor come to overlap."""
    base = numbers(4, 4)
    return Case(write_first, (base[:2], base[1:3] if overlap else base[2:]))


@changes(False, True)
def one_argument_twice(same):
    """Both arguments become one tensor."""
    x = numbers(2, 3)
    return Case(write_first, (x, x if same else x.clone()))


@changes(False, True, finding=MEMORY)
def detached_argument(shared):
    """The second argument becomes a tensor that uses the storage of the first and is no view of it."""
    x = numbers(2, 3)
    return Case(write_first, (x, x.detach() if shared else x.clone()))


@changes(False, True, finding=MEMORY)
def transposed_argument(shared):
    """The second argument becomes the transpose of the first."""
    x = numbers(3, 3)
    return Case(write_first, (x, x.t() if shared else x.clone().t()))


@changes(False, True, finding=MEMORY)
def expanded_argument(shared):
    """The second argument becomes an expanded row of the first."""
    x = numbers(2, 3)
    row = x[:1] if shared else x[:1].clone()
    return Case(write_first, (x, row.expand(2, 3)))


@changes((0, 0, 1), (0, 1, 1), finding=MEMORY)
def partition_of_three_arguments(owners):
    """Of three arguments, the second shares memory with the first, then with the third."""
    bases = [numbers(2, 3), numbers(2, 3)]
    first, second, third = (bases[owner][:] for owner in owners)

    def program(x, y, z):
        x.mul_(2)
        z.mul_(5)
        return x + y + z

    return Case(program, (first, second, third))


@changes(False, True, finding=MEMORY)
def items_of_a_list(shared):
    """Two tensors of a list argument come to share memory."""
    return Case(lambda pair: write_first(*pair), (list(pair(shared)),))


@changes(False, True, finding=MEMORY)
def items_of_a_dictionary(shared):
    """Two tensors of a dictionary argument come to share memory."""
    x, y = pair(shared)
    return Case(lambda table: write_first(table["x"], table["y"]), ({"x": x, "y": y},))


@changes(False, True, finding=MEMORY)
def keyword_arguments(shared):
    """Two keyword arguments come to share memory."""
    x, y = pair(shared)
    return Case(lambda x, y: write_first(x, y), (), {"x": x, "y": y})


@changes(False, True, finding=MEMORY)
def argument_and_global(shared):
    """An argument becomes a view of a global tensor that is written."""
    x = numbers(2, 3)
    with put(globals(), "FIRST", x if shared else x.clone()):
        yield Case(lambda y: write_first(FIRST, y), (x[:],))


@changes(False, True)
def argument_is_the_global(shared):
    """An argument becomes a global tensor itself."""
    x = numbers(2, 3)
    with put(globals(), "FIRST", x if shared else x.clone()):
        yield Case(lambda y: write_first(FIRST, y), (x,))


@changes(False, True, finding=MEMORY)
def two_globals(shared):
    """Two global tensors come to share memory."""
    x, y = pair(shared)
    with put(globals(), "FIRST", x), put(globals(), "SECOND", y):
        yield Case(lambda z: write_first(FIRST, SECOND) + z, (numbers(2, 4),))


@changes(False, True, finding=MEMORY)
def two_closures(shared):
    """Two tensors in the closure come to share memory."""
    x, y = pair(shared)
    return Case(lambda z: write_first(x, y) + z, (numbers(2, 4),))


@changes(False, True, finding=MEMORY)
def closure_and_argument(shared):
    """A tensor in the closure becomes a view of an argument."""
    x, y = pair(shared)
    return Case(lambda z: write_first(z, y), (x,))


class Buffers(torch.nn.Module):
    """Two buffers, the first of which counts."""

    def __init__(self, first, second):
        super().__init__()
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, x):
        return x + write_first(self.first, self.second)


@changes(False, True, quick=True, finding=MEMORY)
def two_buffers(shared):
    """Two buffers of a module come to share memory."""
    return Case(Buffers(*pair(shared)), (numbers(2, 4),))


@changes(False, True)
def one_buffer_twice(same):
    """Two buffers of a module become one tensor."""
    x = numbers(2, 4)
    return Case(Buffers(x, x if same else x.clone()), (numbers(2, 4),))


@changes(False, True, finding=MEMORY)
def argument_and_buffer(shared):
    """An argument becomes a view of a buffer that is written."""
    x, y = pair(shared)
    return Case(Buffers(x, numbers(2, 4)), (y,))


@changes(False, True, finding=MEMORY)
def buffers_of_two_modules(shared):
    """Buffers of two submodules come to share memory."""
    x, y = pair(shared)
    layers = torch.nn.Sequential(Buffers(x, numbers(2, 4)), Buffers(numbers(2, 4), y))
    return Case(layers, (numbers(2, 4),))


@changes(False, True, finding=MEMORY)
def parameter_and_buffer(shared):
    """A buffer that is written becomes a view of a parameter."""
    layer = torch.nn.Linear(3, 3, bias=False)
    layer.weight = torch.nn.Parameter(numbers(3, 3), requires_grad=False)
    layer.register_buffer("count", layer.weight.data if shared else layer.weight.data.clone())

    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            self.layer.count.mul_(2)
            return self.layer(x)

    return Case(Counting(), (numbers(2, 3),))


@changes(False, True)
def tied_parameters(tied):
    """Two layers come to share a parameter, which then has the sum of their gradients."""
    first, second = (torch.nn.Linear(3, 3, bias=False) for _ in range(2))
    for layer in (first, second):
        layer.weight = torch.nn.Parameter(numbers(3, 3))
    if tied:
        second.weight = first.weight
    return torch.nn.Sequential(first, second).to(numbers(1).device)


# What an output shares


@changes(False, True)
def returned_view(copied):
    """The program returns a copy where it returned a view of its argument."""
    return Case(lambda x: x[:1].clone() if copied else x[:1], (numbers(2, 3),))


@changes(False, True)
def returned_argument(copied):
    """The program returns a copy where it returned its argument."""
    return Case(lambda x: x.clone() if copied else x, (numbers(2, 3),))


@changes(False, True)
def two_outputs_of_one_memory(shared):
    """Two outputs become views of one tensor."""

    def program(x):
        y = x * 2
        return y[:1], y[:1] if shared else y[:1].clone()

    return Case(program, (numbers(2, 3),))


# Strides and offsets


@changes(False, True)
def strides(transposed):
    """An argument is a transposed tensor; the program returns one of its layout."""
    x = numbers(3, 3)
    return Case(lambda x: x * 2, (x.t().contiguous().t() if transposed else x,))


@changes(False, True)
def strides_read(transposed):
    """The program reads the strides of its argument."""
    x = numbers(3, 3)
    return Case(lambda x: x * x.stride(0), (x.t() if transposed else x,))


@changes(0, 2)
def offset_used(offset):
    """The storage offset of an argument that ``as_strided`` uses."""
    return Case(lambda x: x.as_strided((2, 2), (1, 1)), (numbers(8)[offset : offset + 4],))


@changes(False, True)
def contiguity_read(transposed):
    """The program asks whether its argument is contiguous."""
    x = numbers(3, 3)
    return Case(lambda x: x * 2 if x.is_contiguous() else x * 3, (x.t() if transposed else x,))


@changes(False, True)
def expanded_strides(expanded):
    """A dimension of an argument has stride 0."""
    x = numbers(1, 3).expand(2, 3)
    return Case(lambda x: x * x.stride(0), (x if expanded else x.contiguous(),))


@changes(torch.contiguous_format, torch.channels_last, requires=("channels_last",))
def channels_last(format):
    """An argument is in channels-last format."""
    return Case(lambda x: x * 2, (numbers(2, 3, 2, 2).to(memory_format=format),))


@changes(False, True)
def dense_gaps(gaps):
    """An argument has gaps between its rows."""
    x = numbers(2, 4)[:, :3]
    return Case(lambda x: x * x.stride(0), (x if gaps else x.contiguous(),))
