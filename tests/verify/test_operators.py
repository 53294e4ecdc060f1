"""What operators mean: each element, computed from its expression, is what PyTorch computes."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
import z3

from pytest_regional.verify.errors import NotVerifiableError
from pytest_regional.verify.operators import MEANINGS, SEVERAL
from pytest_regional.verify.operators.calls import shape_of
from pytest_regional.verify.operators.places import digits, reshaped
from pytest_regional.verify.region import Region
from pytest_regional.verify.symbols import ANY, EXTREMES, LARGEST, PRODUCT, SMALLEST, SUM, folded

aten, prims = torch.ops.aten, torch.ops.prims
_COMBINED = {SUM: sum, PRODUCT: math.prod, LARGEST: max, SMALLEST: min, ANY: any}
_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "nearbyint": torch.round,
    "erfcx": torch.special.erfcx,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "reciprocal": torch.reciprocal,
    "pow": torch.pow,
}


def floats(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)), dtype=torch.float64)


def positive(*sizes: int) -> torch.Tensor:
    return floats(*sizes).abs() + 0.1


def inside(*sizes: int) -> torch.Tensor:
    return floats(*sizes).tanh() * 0.9


def integers(*sizes: int, low: int = -9, high: int = 10, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randint(low, high, sizes, generator=generator).to(dtype)


def truths(*sizes: int) -> torch.Tensor:
    return floats(*sizes) > 0


class Computed:
    """A graph of one operator, and what its expressions are with the numbers that it is given."""

    def __init__(self, target: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self.expected = target(*arguments, **named)
        graph = torch.fx.Graph()
        self.inputs: dict[str, torch.Tensor] = {}

        def place(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                node = graph.placeholder(f"input_{len(self.inputs)}")
                node.meta["val"] = value
                self.inputs[node.name] = value
                return node
            return type(value)(map(place, value)) if isinstance(value, (list, tuple)) else value

        given = tuple(map(place, arguments)), {name: place(value) for name, value in named.items()}
        self.node = graph.call_function(target, *given)
        self.node.meta["val"] = self.expected
        self.region = Region(self._held)

    def _held(self, node: torch.fx.Node, place: Any) -> Any:
        if node.name not in self.inputs:
            return None
        value = self.inputs[node.name]
        kind = z3.BoolSort() if value.dtype == torch.bool else z3.IntSort()
        sort = z3.RealSort() if value.is_floating_point() else kind
        if not place:
            return z3.Const(f"element {node.name}", sort)
        return z3.Function(f"element {node.name}", *(z3.IntSort() for _ in place), sort)(*place)

    def element(self, place: tuple[int, ...], part: int | None) -> Any:
        expression = self.region.element(self.node, tuple(map(z3.IntVal, place)), part)
        return self.value(folded(z3.simplify(expression)))

    def value(self, expression: Any) -> Any:
        if z3.is_int_value(expression):
            return expression.as_long()
        if z3.is_rational_value(expression):
            return float(Fraction(expression.as_fraction()))
        if z3.is_true(expression) or z3.is_false(expression):
            return z3.is_true(expression)
        name = expression.decl().name()
        if z3.is_app_of(expression, z3.Z3_OP_ITE):
            return self.value(expression.arg(1 if self.value(expression.arg(0)) else 2))
        if name in self.region.reductions:
            reduction = self.region.reductions[name]
            sizes = [self.region.bounds[variable.decl().name()].as_long() for variable in reduction.bound]
            places = itertools.product(*map(range, sizes))
            terms = [
                z3.substitute(reduction.element, *zip(reduction.bound, map(z3.IntVal, place), strict=True))
                for place in places
            ]
            values = [self.value(folded(z3.simplify(term))) for term in terms]
            if reduction.place is None:
                return _COMBINED[reduction.kind](values)
            return values.index(_COMBINED[EXTREMES[reduction.kind]](values))
        children = [self.value(child) for child in expression.children()]
        if name.startswith("element "):
            return self.inputs[name.removeprefix("element ")][tuple(children)].item()
        if name.startswith("float "):
            return float(name.removeprefix("float "))
        if name == "integer part":
            return math.trunc(children[0])
        if expression.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            marked = folded(expression.decl()(*map(_literal, children, expression.children())))
            if marked.decl().kind() != z3.Z3_OP_UNINTERPRETED:
                return self.value(marked)
            compute = _FUNCTIONS.get(name) or getattr(torch, name)
            return compute(*(torch.tensor(child, dtype=torch.float64) for child in children)).item()
        return _builtin(expression, children)


def _literal(value: Any, like: Any) -> Any:
    return z3.IntVal(value) if z3.is_int(like) else z3.RealVal(str(Fraction(value)))


def _builtin(expression: Any, children: list[Any]) -> Any:
    kinds: dict[int, Callable[..., Any]] = {
        z3.Z3_OP_ADD: lambda *c: sum(c),
        z3.Z3_OP_MUL: lambda *c: math.prod(c),
        z3.Z3_OP_SUB: operator.sub,
        z3.Z3_OP_UMINUS: operator.neg,
        z3.Z3_OP_LE: operator.le,
        z3.Z3_OP_LT: operator.lt,
        z3.Z3_OP_GE: operator.ge,
        z3.Z3_OP_GT: operator.gt,
        z3.Z3_OP_EQ: operator.eq,
        z3.Z3_OP_DISTINCT: operator.ne,
        z3.Z3_OP_NOT: operator.not_,
        z3.Z3_OP_AND: lambda *c: all(c),
        z3.Z3_OP_OR: lambda *c: any(c),
        z3.Z3_OP_XOR: operator.ne,
        z3.Z3_OP_TO_REAL: float,
        z3.Z3_OP_POWER: operator.pow,
    }
    return kinds[expression.decl().kind()](*children)


X = floats(3, 4)
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}


def case(target: Any, *arguments: Any, **named: Any) -> None:
    CASES[f"{target}-{len(CASES)}"] = target, arguments, named


for (
    one
) in "exp exp2 expm1 sin cos tan sinh cosh tanh atan asinh erf erfc floor ceil trunc sigmoid relu neg abs".split():  # noqa: SIM905
    case(getattr(aten, one).default, X)
for one in "log log2 log10 log1p sqrt rsqrt reciprocal lgamma".split():  # noqa: SIM905
    case(getattr(aten, one).default, positive(3, 4))
for one in "asin acos atanh erfinv".split():  # noqa: SIM905
    case(getattr(aten, one).default, inside(3, 4))
for one in "eq ne lt le gt ge".split():  # noqa: SIM905
    case(getattr(aten, one).Tensor, integers(3, 4), integers(1, 4))
    case(getattr(aten, one).Scalar, X, 0.25)
for one in "logical_and logical_or logical_xor".split():  # noqa: SIM905
    case(getattr(aten, one).default, truths(3, 4), integers(3, 4))
case(aten.copysign.Tensor, X, floats(4))
for one in "maximum minimum atan2 hypot".split():  # noqa: SIM905
    case(getattr(aten, one).default, X, floats(4))
for one in "add sub mul div".split():  # noqa: SIM905
    case(getattr(aten, one).Tensor, X, floats(4))
for one in "add sub mul neg abs".split():  # noqa: SIM905
    small = [integers(5, low=-128, high=128, dtype=torch.int8) for _ in range(1 if one in ("neg", "abs") else 2)]
    case(getattr(getattr(aten, one), "default" if one in ("neg", "abs") else "Tensor"), *small)
case(aten.add.Tensor, X, floats(3, 1), alpha=2.5)
case(aten.sub.Tensor, integers(4), integers(4), alpha=3)
case(aten.rsub.Scalar, X, 2)
case(aten.div.Tensor_mode, X, floats(4), rounding_mode="floor")
case(aten.div.Tensor_mode, X, floats(4), rounding_mode="trunc")
case(aten.div.Tensor_mode, integers(9), integers(9, low=1), rounding_mode="floor")
case(aten.div.Tensor_mode, integers(9), integers(9, low=1), rounding_mode="trunc")
case(aten.fmod.Tensor, integers(9), integers(9, low=1))
case(aten.remainder.Tensor, integers(9), integers(9, low=1))
case(aten.fmod.Tensor, X, floats(4))
case(aten.remainder.Tensor, X, floats(4))
case(aten.sign.default, torch.tensor([-2.0, 0.0, 3.0]))
case(aten.round.default, X)
for power in (0, 1, 2, 3, 0.5, -1, -2, -0.5, 1.7):
    case(aten.pow.Tensor_Scalar, positive(3), power)
case(aten.pow.Tensor_Tensor, positive(3), floats(3))
case(aten.clamp.default, X, -0.5, 0.5)
case(aten.clamp.default, integers(8), None, 3)
case(aten.clamp_min.default, X, 0.1)
case(aten.clamp_max.default, X, 0.1)
case(aten.where.self, truths(3, 4), X, floats(4))
case(aten.masked_fill.Scalar, X, truths(3, 4), 7)
case(aten.addcmul.default, X, floats(4), floats(3, 1), value=2)
case(aten.addcdiv.default, X, floats(4), positive(3, 1))
case(prims.convert_element_type.default, integers(20, low=-300, high=300), torch.int8)
case(prims.convert_element_type.default, integers(4), torch.float32)
case(prims.convert_element_type.default, X, torch.int64)
case(prims.convert_element_type.default, integers(5, low=-1, high=2), torch.bool)
case(aten.logical_not.default, integers(5, low=-1, high=2))
case(aten.bitwise_and.Tensor, truths(6), truths(2, 6))
case(aten.bitwise_not.default, truths(6))
# Places
case(aten.view.default, floats(2, 6), [3, 4])
case(aten.view.default, floats(2, 3, 4, 5), [2, 12, 5])
case(aten.view.default, floats(2, 1, 6), [1, 4, 3, 1])
case(aten.permute.default, floats(2, 3, 4), [2, 0, 1])
case(aten.transpose.int, floats(2, 3, 4), 0, -1)
case(aten.t.default, X)
case(aten.unsqueeze.default, X, -1)
case(aten.squeeze.dim, floats(2, 1, 3), 1)
case(aten.squeeze.dims, floats(1, 2, 1), [0, 2])
case(aten.expand.default, floats(3, 1), [2, 3, 4])
case(aten.slice.Tensor, floats(9), 0, 1, 8, 3)
case(aten.slice.Tensor, floats(3, 9), 1, -4)
case(aten.select.int, floats(3, 4), 1, -1)
case(aten.flip.default, floats(3, 4), [1])
case(aten.diagonal.default, floats(3, 4), 1)
case(aten.diagonal.default, floats(4, 3, 2), -1, 0, 1)
case(aten.unfold.default, floats(9), 0, 3, 2)
case(aten.index.Tensor, floats(5, 4), [integers(3, low=-5, high=5)])
case(aten.index.Tensor, floats(5, 4, 3), [None, integers(2, low=0, high=4), integers(2, low=0, high=3)])
case(aten.index.Tensor, floats(5, 4, 3), [integers(2, 1, low=0, high=5), None, integers(2, low=0, high=3)])
case(aten.embedding.default, floats(5, 4), integers(2, 3, low=0, high=5))
case(aten.gather.default, floats(5, 4), 0, integers(2, 4, low=0, high=5))
case(aten.index_select.default, floats(5, 4), 1, integers(3, low=0, high=4))
case(aten.cat.default, [floats(2, 3), floats(1, 3), floats(4, 3)])
case(aten.cat.default, [floats(2, 3), floats(2, 1)], -1)
case(aten.constant_pad_nd.default, floats(2, 3), [1, 2, 0, 1], 9.0)
case(aten.constant_pad_nd.default, floats(5), [-1, 2])
case(aten.slice_scatter.default, floats(7), floats(3), 0, 1, 7, 2)
case(aten.select_scatter.default, floats(3, 4), floats(3), 1, -2)
case(aten.split.Tensor, floats(5, 2), 2)
case(aten.split_with_sizes.default, floats(5, 2), [1, 4])
case(aten.unbind.int, floats(3, 2), -1)
# Of nothing
case(aten.full.default, [2, 3], 1.5)
case(aten.full_like.default, X, 3)
case(prims.iota.default, 5, start=2, step=3, dtype=torch.int64, device="cpu", requires_grad=False)
case(aten.arange.start_step, 1, 9, 3)
case(aten.arange.start, 2, 5)
case(aten.arange.default, 4)
# Combined
case(aten.sum.dim_IntList, floats(2, 3, 4), [0, 2])
case(aten.sum.default, integers(3, 2))
case(aten.sum.dim_IntList, truths(3, 4), [1], True)
case(aten.mean.dim, floats(2, 3), [1], True)
case(aten.prod.dim_int, floats(2, 3), 1)
case(aten.amax.default, floats(2, 3), [1])
case(aten.amin.default, floats(2, 3), [0], True)
case(aten.var.correction, floats(3, 4), [1], correction=1)
case(aten.var.correction, floats(3, 4), [0, 1], correction=0, keepdim=True)
case(aten.var_mean.correction, floats(3, 4), [1], correction=0)
case(aten.any.dim, truths(3, 4), 1)
case(aten.all.dim, truths(3, 4), 1)
case(aten.max.dim, floats(3, 4), 1)
case(aten.min.dim, floats(3, 4), 0, True)
case(aten.argmax.default, floats(3, 4), 1)
case(aten.argmax.default, floats(3, 4))
case(aten.argmin.default, floats(3, 4), 0, True)


@pytest.mark.parametrize("name", CASES)
def test_each_element_is_what_pytorch_computes(name):
    target, arguments, named = CASES[name]
    computed = Computed(target, arguments, named)
    several = isinstance(computed.expected, (tuple, list))
    results = list(enumerate(computed.expected)) if several else [(None, computed.expected)]
    for part, expected in results:
        assert expected.numel()
        for place in itertools.product(*map(range, expected.shape)):
            found = computed.element(place, part)
            assert found == pytest.approx(expected[place].item(), rel=1e-9, abs=1e-12), place


def test_a_wrong_meaning_shows():
    computed = Computed(aten.sub.Tensor, (floats(3), floats(3) + 1), {})
    computed.node.target = aten.add.Tensor
    assert computed.element((0,), None) != pytest.approx(computed.expected[0].item())


def test_what_has_no_meaning_is_named():
    computed = Computed(aten.cumsum.default, (floats(3), 0), {})
    with pytest.raises(NotVerifiableError, match="aten::cumsum, whose meaning is not known here"):
        computed.element((0,), None)


def test_most_operators_are_compared():
    compared = {target._schema.name for target, _, _ in CASES.values()}
    assert len((MEANINGS.keys() | SEVERAL.keys()) & compared) > 100


@pytest.mark.parametrize(("outer", "inner"), [((2, 3, 4), (6, 4)), ((6, 1, 4), (2, 12)), ((5, 6), (5, 2, 3))])
def test_reshaped_places(outer, inner):
    sizes = tuple(map(z3.IntVal, outer)), tuple(map(z3.IntVal, inner))
    numbers = torch.arange(math.prod(outer)).reshape(inner)
    for at, place in enumerate(itertools.product(*map(range, outer))):
        found = reshaped(tuple(map(z3.IntVal, place)), *sizes)
        assert numbers[tuple(folded(z3.simplify(part)).as_long() for part in found)] == at


def test_digits_count_all_places():
    sizes = (2, 1, 3)
    found = [
        tuple(folded(z3.simplify(part)).as_long() for part in digits(z3.IntVal(at), tuple(map(z3.IntVal, sizes))))
        for at in range(6)
    ]
    assert found == list(itertools.product(*map(range, sizes)))
    assert shape_of(Computed(aten.neg.default, (X,), {}).node) == (z3.IntVal(3), z3.IntVal(4))
