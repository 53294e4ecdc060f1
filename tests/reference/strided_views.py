"""Views with every kind of strides, and layouts that a compiler may choose instead."""

from __future__ import annotations

import torch
from hypothesis import strategies as st


def every_other(value):
    return value[::2]


def without_the_first(value):
    return value[1:]


def turned(value):
    return value.permute(*reversed(range(value.dim())))


def last_first(value):
    return value.movedim(-1, 0)


def one_column(value):
    return value.select(-1, 0)


def repeated(value):
    return value.unsqueeze(1).expand(-1, 2, *value.shape[1:])


def windows(value):
    return value.unfold(0, 2, 1)


def with_a_dimension_of_one(value):
    return value.unsqueeze(0)


def first_only(value):
    return value[:1]


SHRINKING = (every_other, without_the_first, windows)
VIEWS = (*SHRINKING, turned, last_first, one_column, repeated, with_a_dimension_of_one, first_only)


def fits(view, value):
    """Return whether ``view`` of ``value`` leaves something worth looking at."""
    if view in SHRINKING:
        return value.shape[0] > 2 and value.dim() < 5
    return value.dim() > 1 if view in (one_column, turned, last_first) else value.dim() < 5


@st.composite
def views(draw, value, most=4):
    """Draw functions that, one after the other, make a view of ``value``; shrinks to none."""
    chosen = []
    for view in draw(st.lists(st.sampled_from(VIEWS), max_size=most)):
        if fits(view, value):
            chosen.append(view)
            value = view(value)
    return tuple(chosen)


#: Layouts, by the strides that they give a shape; each is right for whatever shape.
def row_major(shape):
    """Return strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step = step * size
    return strides


def column_major(shape):
    """Return strides of a contiguous tensor's transpose."""
    return row_major(shape[::-1])[::-1]


def padded(shape):
    """Return strides of a contiguous tensor with gaps between its rows."""
    return [*row_major([*shape[:-1], shape[-1] + 3])[:-1], 1] if shape else []


LAYOUTS = (row_major, column_major, padded)


def laid_out(value, layout):
    """Return a copy of ``value`` in ``layout``."""
    copy = torch.empty_strided(value.shape, layout(list(value.shape)), dtype=value.dtype, device=value.device)
    return copy.copy_(value)


def same_strides(one, other):
    """Compare strides where there is more than one element."""
    pairs = zip(one.shape, one.stride(), other.stride(), strict=True)
    return all(size < 2 or stride == found for size, stride, found in pairs)
