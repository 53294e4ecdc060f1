"""Where ids of regions come from: arguments of the compiled function, modules, enumerations, sizes."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.traceback import annotate

from pytest_regional import AnnotationError, region

pytestmark = pytest.mark.regional_compile(requires=("regions", "region_ids"))


def operands(regional):
    return regional.randn(4, 8), regional.randn(8, 8) / 3


class Layer(enum.IntEnum):
    first = 1
    second = 2


class Settings:
    def __init__(self, layer: int) -> None:
        self.layer = layer


class Block(nn.Module):
    def __init__(self, layer: int) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x, w):
        with region(self.layer):
            return x @ w


def by_argument(x, w, layer):
    with region(layer):
        return x @ w


def by_tuple(x, w, layer):
    with region(("layer", layer)):
        return x @ w


def by_formatted_index(x, w, layer):
    with region(f"layer{operator.index(layer)}"):
        return x @ w


def by_attribute(x, w, settings):
    with region(settings.layer):
        return x @ w


def by_size(x, w, other):
    with region(other.shape[0]):
        return x @ w


def by_decorator(x, w, layer):
    @region(layer)
    def product(a, b):
        return a @ b

    return product(x, w)


def by_module(x, w, block):
    return block(x, w)


VALUES: dict[Callable[..., Any], tuple[tuple[Any, ...], tuple[str, ...]]] = {
    by_argument: ((0, 3, 4), ("0", "3", "4")),
    by_tuple: ((0, 3, 4), ("('layer', 0)", "('layer', 3)", "('layer', 4)")),
    by_formatted_index: ((0, 3, 4), ("layer0", "layer3", "layer4")),
    by_attribute: (tuple(map(Settings, (0, 3, 4))), ("0", "3", "4")),
    by_size: (tuple(map(torch.empty, (3, 4, 5))), ("3", "4", "5")),
    by_decorator: ((0, 3, 4), ("0", "3", "4")),
    by_module: (tuple(map(Block, (0, 3, 4))), ("0", "3", "4")),
}


@pytest.mark.parametrize("program", VALUES, ids=lambda program: program.__name__)
def test_each_value_is_a_region(regional, program):
    values, names = VALUES[program]
    x, w = operands(regional)
    compiled = regional.compile(program)
    seen = []
    for value in values:
        record = regional.run(compiled, x, w, value, as_is=True)
        torch.testing.assert_close(record.output, x @ w)
        seen += [r.name for r in record.regions]
    assert tuple(seen) == names
    # What was compiled for a value serves it again.
    with regional.no_compile():
        torch.testing.assert_close(compiled(x, w, values[1]), x @ w)


def test_members_of_an_enumeration(regional):
    regional.assert_parity(by_argument, *operands(regional), Layer.second)


@pytest.mark.regional_compile(dynamic=True, requires=("regions", "region_ids", "dynamic_shapes"))
def test_an_argument_that_is_symbolic_from_the_start(regional):
    x, w = operands(regional)
    record = regional.run(by_argument, x, w, 3)
    assert [r.name for r in record.regions] == ["3"]


def test_order_after_a_region_by_argument(regional):
    def program(x, w, layer):
        with region("first"):
            h = x @ w
        with region(layer, after=["first"]):
            return h.sin() @ w

    for layer in (1, 2):
        regional.assert_parity(program, *operands(regional), layer)


def test_a_symbolic_integer_in_pytorchs_own_annotation(regional):
    """PyTorch takes none at its second value (docs/findings/integer_in_annotation.py); the error says what to do."""

    def program(x, w, layer):
        with annotate({"compile_with_inductor": {"inductor_region": layer}}):
            return x @ w

    x, w = operands(regional)
    compiled = regional.compile(program)
    regional.run(compiled, x, w, 1, as_is=True)
    with pytest.raises(AnnotationError, match=r"operator.index\(i\)[\s\S]*annotate"):
        regional.run(compiled, x, w, 2, as_is=True)


@pytest.mark.parametrize("name", [1.5, True, ["r"], ("r", None)], ids=repr)
@pytest.mark.regional_compile(expects_regions=False)
def test_invalid_ids_are_refused_by_name(regional, name):
    def program(x, w):
        with region(name):
            return x @ w

    kind = type(name[1] if isinstance(name, tuple) else name).__name__
    for check in (regional.assert_parity, regional.run):
        with pytest.raises(AnnotationError, match=f"not a {kind}"):
            check(program, *operands(regional))
