"""Twins that differ in what they return: numbers, dtypes, layouts, containers, objects, memory."""

from __future__ import annotations

import collections
import dataclasses
import enum
import fractions
import functools
import types
from typing import NamedTuple

import numpy
import torch

from tests.faults.parity.twins import Twins, numbers, trained

F = torch.nn.functional

# Numbers


def chain(x, w):
    return F.silu(x @ w) * 2 + x


def one_element(y):
    y = y.clone()
    y[3, 5] += 2
    return y


def zero_row(y):
    y = y.clone()
    y[-1] = 0
    return y


def swapped_rows(y):
    y = y.clone()
    y[[1, 2]] = y[[2, 1]]
    return y


def a_tile(y):
    y = y.clone()
    y[4:8, 8:12] = y[8:12, 4:8].clone()
    return y


FAULTS = {
    "one element": one_element,
    "a row of zeros": zero_row,
    "two rows swapped": swapped_rows,
    "a tile from elsewhere": a_tile,
    "all elements times 1.03": lambda y: y * 1.03,
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128)


def square(dtype):
    if dtype.is_complex:
        return lambda: tuple(torch.complex(numbers(32, 32, seed=s), numbers(32, 32, seed=9)).to(dtype) for s in (0, 1))
    return lambda: tuple(numbers(32, 32, seed=seed).to(dtype) for seed in (0, 1))


def product(x, w):
    return x @ w * 2 + x


def sums(x, w):
    return x + (w.t() @ x.t()).t() * 2


NUMBERS = [
    *(
        Twins(
            f"{fault} of {dtype}",
            product,
            lambda x, w, change=change: change(product(x, w)),
            inputs=square(dtype),
            right=sums,
        )
        for dtype in DTYPES
        for fault, change in FAULTS.items()
        if dtype in (torch.float32, torch.bfloat16) or fault in ("one element", "all elements times 1.03")
    ),
    Twins(
        "a sum in another order, and one term less", torch.sum, lambda x: x[:-1].sum(), right=lambda x: x.flip(0).sum()
    ),
    Twins(
        "a mean over one element too many",
        lambda x: x.mean(1),
        lambda x: x.sum(1) / 17,
        right=lambda x: x.sum(1) / 16,
    ),
    Twins(
        "softmax without the maximum, and over the other dimension",
        lambda x: x.softmax(1),
        lambda x: x.softmax(0),
        right=lambda x: x.exp() / x.exp().sum(1, keepdim=True),
    ),
    Twins(
        "layer norm by hand, and with the variance of a sample",
        lambda x: F.layer_norm(x, (16,)),
        lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt(),
        right=lambda x: (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt(),
    ),
    Twins(
        "gelu by tanh",
        F.gelu,
        lambda x: F.gelu(x, approximate="tanh"),
        right=lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    ),
    Twins(
        "rms norm with another epsilon",
        lambda x: x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt(),
        lambda x: x * (x.square().mean(1, keepdim=True) + 1e-3).rsqrt(),
        right=lambda x: x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt(),
    ),
    Twins(
        "bfloat16 fused in float32, and one factor left out",
        lambda x: (x.sin() * x * 1.1).cos(),
        lambda x: (x.sin() * x).cos(),
        inputs=lambda: (numbers(40, 16).bfloat16(),),
        right=lambda x: (x.float().sin() * x.float() * 1.1).cos().bfloat16(),
    ),
    Twins("float32 computed in bfloat16", torch.sin, lambda x: x.bfloat16().sin().float()),
    Twins("float32 computed in float16", torch.exp, lambda x: x.half().exp().float()),
    Twins(
        "a matrix product in bfloat16",
        lambda x: x @ x.t(),
        lambda x: (x.bfloat16() @ x.bfloat16().t()).float(),
        right=lambda x: torch.einsum("ij,kj->ik", x, x),
    ),
    Twins(
        "the boundary of relu",
        F.relu,
        lambda x: F.relu(x - 1e-3),
        right=lambda x: torch.where(x > 0, x, 0.0),
    ),
    Twins(
        "clamp at another bound",
        lambda x: x.clamp(-1, 1),
        lambda x: x.clamp(-1, 1.01),
        right=lambda x: x.minimum(torch.tensor(1.0)).maximum(torch.tensor(-1.0)),
    ),
    Twins(
        "rounding half to even",
        torch.round,
        lambda x: (x + 0.5).floor(),
        inputs=lambda: (torch.arange(40) / 2,),
    ),
    Twins(
        "division that truncates",
        lambda x: x // 3,
        lambda x: torch.div(x, 3, rounding_mode="trunc"),
        inputs=lambda: (torch.arange(-20, 20),),
        right=lambda x: torch.div(x, 3, rounding_mode="floor"),
    ),
    Twins(
        "remainder with the sign of the dividend",
        lambda x: x % 3,
        lambda x: x.fmod(3),
        inputs=lambda: (torch.arange(-20.0, 20),),
    ),
    Twins(
        "floor division of floats, one too high",
        lambda x: (x * 10) // 1,
        lambda x: (x * 10) // 1 + 1,
        right=lambda x: torch.floor(x * 10),
        inputs=lambda: (torch.arange(40) + 0.25,),
    ),
    Twins("an infinity with the other sign", lambda x: x / 0, lambda x: x.abs() / 0, kind="nan"),
    Twins("NaN at another place", torch.log, lambda x: x.roll(1).log().roll(-2), kind="nan"),
    Twins("zero for NaN", torch.log, lambda x: x.log().nan_to_num(0), kind="nan"),
    Twins("infinity for NaN", lambda x: x.abs().log() - torch.inf * (x > 0), lambda x: x.abs().log() * x, kind="nan"),
    Twins(
        "the largest number for infinity",
        lambda x: x * 1e38 * 1e38,
        lambda x: (x * 1e38 * 1e38).clamp(-3.4e38, 3.4e38),
        kind="nan",
        right=lambda x: 1e38 * (1e38 * x),
    ),
    Twins(
        "subnormal numbers flushed to zero",
        lambda x: x * 1e-40,
        lambda x: x * 0,
        right=lambda x: 1e-40 * x,
    ),
    Twins("minus zero, bit by bit", lambda x: x * 0, lambda x: x.abs() * 0, options={"level": "bitwise"}),
    Twins(
        "one unit in the last place, bit by bit",
        lambda x: x * 2,
        lambda x: torch.nextafter(x * 2, torch.tensor(99.0)),
        options={"level": "bitwise"},
        right=lambda x: x + x,
    ),
    Twins("1 percent, where half a percent is allowed", torch.sin, lambda x: x.sin() * 1.01, options={"rtol": 5e-3}),
    Twins("an argmax that is one off", lambda x: x.argmax(1), lambda x: (x.argmax(1) + 1) % 16),
    Twins(
        "the indices of a sort, descending", lambda x: x.sort(1).indices, lambda x: x.sort(1, descending=True).indices
    ),
    Twins(
        "a comparison with or without equality", lambda x: x > 3, lambda x: x >= 3, inputs=lambda: (torch.arange(40),)
    ),
    Twins("a cumulative sum that starts at zero", lambda x: x.cumsum(0), lambda x: x.cumsum(0) - x),
    Twins("a triangle without the diagonal", torch.tril, lambda x: x.tril(-1)),
    Twins(
        "a gather along the other dimension",
        lambda x: x.gather(0, I),
        lambda x: x.gather(1, I),
        right=lambda x: x[I, J],
    ),
    Twins(
        "float64 doubled, where numbers are small",
        lambda x: x.sin() * 1e-8,
        lambda x: x.sin() * 2e-8,
        inputs=lambda: (numbers(40, 16).double(),),
    ),
    Twins(
        "float64 computed in float32",
        torch.sin,
        lambda x: x.float().sin().double(),
        inputs=lambda: (numbers(40, 16).double(),),
    ),
    Twins(
        "a scalar tensor",
        lambda x: x.sum() * 2,
        lambda x: x.sum() * 2.01,
        right=lambda x: 2 * x.sum(0).sum(0),
    ),
    Twins("a tensor of no elements, of another shape", lambda x: x[:0], lambda x: x[:0, :3], kind="shape"),
    Twins("a tensor of no elements, of another dtype", lambda x: x[:0] * 2, lambda x: x[:0].double() * 2, kind="dtype"),
]
I = torch.arange(16).repeat(16, 1)  # noqa: E741
J = torch.arange(16).expand(16, 16)

# Dtypes

INTEGERS = ("int8", "uint8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
FLOATS_OF_8_BITS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
#: Of these no operator makes one; programs view bytes as them.
BITS = ("float4_e2m1fn_x2", "uint4", "int4", "bits8")


def counted(dtype):
    return lambda: (torch.arange(40).to(dtype),)


def stored(dtype):
    return lambda x: (x.long() + 1).to(dtype)


def of_bytes(dtype, more=0):
    return lambda x: (x.to(torch.uint8) + more).view(dtype)


DTYPES_OF_RESULTS = [
    *(
        Twins(
            f"one element of {name}",
            stored(dtype),
            lambda x, dtype=dtype: (x.long() + 1 + (x.long() == 3)).to(dtype),
            inputs=counted(dtype),
        )
        for name in INTEGERS
        for dtype in (getattr(torch, name),)
    ),
    *(
        Twins(
            f"numbers of {name}",
            lambda x, dtype=dtype: x.abs().to(dtype),
            lambda x, dtype=dtype: (x.abs() * 4).to(dtype),
        )
        for name in FLOATS_OF_8_BITS
        for dtype in (getattr(torch, name),)
    ),
    *(
        Twins(f"bits of {name}", of_bytes(dtype), of_bytes(dtype, 1), inputs=lambda: (torch.arange(40),))
        for name in BITS
        for dtype in (getattr(torch, name),)
    ),
    Twins(
        "float8 as another float8",
        lambda x: x.to(torch.float8_e4m3fn),
        lambda x: x.to(torch.float8_e5m2),
        kind="dtype",
    ),
    Twins(
        "float8 given and returned",
        lambda x: (x.float() * 2).to(x.dtype),
        lambda x: (x.float() * 4).to(x.dtype),
        inputs=lambda: (numbers(40, 16).to(torch.float8_e4m3fn),),
    ),
    Twins(
        "float4 given and returned",
        lambda x: x.view(torch.uint8).flip(0).view(x.dtype),
        lambda x: x.view(torch.uint8).flip(1).view(x.dtype),
        inputs=lambda: (torch.arange(64, dtype=torch.uint8).view(8, 8).view(torch.float4_e2m1fn_x2),),
    ),
    Twins("one flag", lambda x: x > 0, lambda x: one_flag(x > 0)),
    Twins("a widened result", torch.sin, lambda x: x.sin().double(), kind="dtype"),
    Twins("a narrowed result", torch.sin, lambda x: x.sin().half(), kind="dtype"),
    Twins("an index of 32 bits", lambda x: x.argmax(1), lambda x: x.argmax(1).int(), kind="dtype"),
    Twins("bytes for flags", lambda x: x > 0, lambda x: (x > 0).byte(), kind="dtype"),
    Twins("real numbers for complex ones", lambda x: x * 1j, lambda x: x * 1.0, kind="dtype"),
    Twins(
        "a conjugate left out",
        lambda x: (x * 2).conj(),
        lambda x: x * 2,
        inputs=lambda: (torch.complex(numbers(40, 16), numbers(40, 16)),),
        right=lambda x: torch.complex(x.real * 2, -x.imag * 2),
    ),
    Twins(
        "a dtype promoted to that of a scalar",
        lambda x: x * 2,
        lambda x: x * 2.0,
        kind="dtype",
        inputs=counted(torch.int32),
    ),
    Twins("one shape more", lambda x: x.sum(1), lambda x: x.sum(1, keepdim=True), kind="shape"),
    Twins("a transposed result", lambda x: x @ x.t(), lambda x: (x @ x.t())[:, :39], kind="shape"),
]


def one_flag(y):
    y[3, 5] = ~y[3, 5]
    return y


# Layouts


def quantized(scale=0.1, zero=0, dtype=torch.qint8):
    return lambda x: torch.quantize_per_tensor(x, scale, zero, dtype)


def of_channels(scale=0.1, axis=1):
    def program(x):
        scales = torch.full((x.shape[axis],), scale)
        return torch.quantize_per_channel(x, scales, torch.zeros(x.shape[axis]), axis, torch.quint8)

    return program


def sparse(x):
    return (x * (x > 0)).to_sparse()


def with_explicit_zeros(x):
    indices = torch.ones_like(x).to_sparse().indices()
    return torch.sparse_coo_tensor(indices, (x * (x > 0)).flatten(), x.shape, is_coalesced=True)


def twice_stored(x):
    y = sparse(x)
    return torch.sparse_coo_tensor(y.indices().repeat(1, 2), (y.values() / 2).repeat(2), x.shape)


def compressed(layout, change=lambda y: y):
    block = (2, 2) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return lambda x: change(x * (x > 0)).to_sparse(layout=layout, blocksize=block)


def nested(layout, change=lambda y: y):
    return lambda x: torch.nested.as_nested_tensor([change(x[:3] * 2), change(x[:5] + 1)], layout=layout)


def jagged():
    parts = [numbers(3, 4), numbers(5, 4, seed=1)]
    return (torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True),)


def strided():
    return (torch.nested.nested_tensor([numbers(3, 4), numbers(5, 4, seed=1)], requires_grad=True),)


LAYOUTS = [
    Twins("a quantized result", quantized(), lambda x: quantized()(x * 1.5)),
    Twins("a quantized result of another scale", quantized(), quantized(0.2), where="output.q_scale()"),
    Twins("a quantized result of another zero point", quantized(), quantized(zero=3), where="output.q_zero_point()"),
    Twins("a quantized result of another dtype", quantized(), quantized(dtype=torch.quint8), kind="dtype"),
    Twins("quantized by channel", of_channels(), lambda x: of_channels()(x * 1.5)),
    Twins("quantized by channel, other scales", of_channels(), of_channels(0.2), where="output.q_per_channel_scales()"),
    Twins(
        "quantized by channel of another axis", of_channels(), of_channels(axis=0), where="output.q_per_channel_axis()"
    ),
    Twins("quantized by tensor for by channel", of_channels(), quantized(dtype=torch.quint8), where="output.qscheme()"),
    Twins(
        "a quantized input",
        lambda q: q.dequantize() * 2,
        lambda q: q.dequantize() * 2.1,
        inputs=lambda: (quantized()(numbers(40, 16)),),
    ),
    Twins(
        "a quantized input, returned",
        lambda q: (q, q.dequantize()),
        lambda q: (torch.quantize_per_tensor(q.dequantize() + 1, 0.1, 0, torch.qint8), q.dequantize()),
        where="output[0]",
        inputs=lambda: (quantized()(numbers(40, 16)),),
    ),
    Twins("values of a sparse result", sparse, lambda x: sparse(x * 1.01)),
    Twins("explicit zeros", sparse, with_explicit_zeros, where="output.coalesce().indices()", kind="shape"),
    Twins("entries that are stored twice", sparse, twice_stored, where="output.is_coalesced()"),
    Twins("a dense result for a sparse one", sparse, lambda x: x * (x > 0), kind="structure"),
    *(
        Twins(
            f"values of {layout}",
            compressed(layout),
            compressed(layout, lambda y: y * 1.01),
            right=compressed(layout, lambda y: (y * 2) / 2),
        )
        for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
    ),
    Twins(
        "indices of sparse_csr",
        compressed(torch.sparse_csr),
        compressed(torch.sparse_csr, lambda y: y.roll(1, 1)),
        where="output.col_indices()",
    ),
    Twins("csr for csc", compressed(torch.sparse_csr), compressed(torch.sparse_csc), kind="structure"),
    Twins(
        "a sparse input",
        lambda s: s.to_dense() * 2,
        lambda s: s.to_dense() * 2.1,
        inputs=lambda: (sparse(numbers(40, 16)),),
    ),
    Twins(
        "the gradient of a sparse result",
        lambda x: (x * 2).to_sparse(),
        lambda x: (x * 1 + x.detach()).to_sparse(),
        where="grad of input 0",
        inputs=trained,
    ),
    Twins("an mkldnn result", lambda x: x.to_mkldnn(), lambda x: (x * 1.1).to_mkldnn()),
    Twins(
        "a meta result of another shape",
        lambda x: (x * 2, x.to("meta")),
        lambda x: (x * 2, x.to("meta")[:3]),
        where="output[1]",
        kind="shape",
        not_compared="output[1] (on the meta device, where tensors have no values)",
    ),
    Twins(
        "a meta result for a real one",
        lambda x: (x * 2, x * 3),
        lambda x: (x * 2, x.to("meta")),
        where="output[1]",
        kind="device",
    ),
    *(
        Twins(f"one part of a nested result of {layout}", nested(layout), nested(layout, lambda y: y * 1.01))
        for layout in (torch.strided, torch.jagged)
    ),
    *(
        Twins(
            f"a nested result of {layout} of other parts", nested(layout), nested(layout, lambda y: y[:2]), kind="shape"
        )
        for layout in (torch.strided, torch.jagged)
    ),
    Twins("a jagged result for a strided one", nested(torch.strided), nested(torch.jagged), kind="structure"),
    *(
        Twins(f"a nested input of {name}", lambda n: n * 2, lambda n: n * 2.1, inputs=inputs)
        for name, inputs in {"torch.strided": strided, "torch.jagged": jagged}.items()
    ),
    *(
        Twins(
            f"the gradient of a nested input of {name}",
            lambda n: n * 2,
            lambda n: n + n.detach(),
            where="grad of input 0",
            inputs=inputs,
        )
        for name, inputs in {"torch.strided": strided, "torch.jagged": jagged}.items()
    ),
    Twins(
        "channels last lost",
        lambda x: x.contiguous(memory_format=torch.channels_last) * 2,
        lambda x: x * 2,
        kind="stride",
        inputs=lambda: (numbers(2, 3, 4, 5),),
    ),
    Twins("strides transposed", lambda x: x * 2, lambda x: (x * 2).t().contiguous().t(), kind="stride"),
]

# Memory

MEMORY = [
    Twins("a view of the input is a copy", lambda x: x.view(-1), lambda x: x.clone().view(-1), kind="alias"),
    Twins("the input is a copy", lambda x: x, torch.clone, kind="alias"),
    Twins("the input is a view of itself", lambda x: x, lambda x: x.view_as(x), kind="alias"),
    Twins("a copy is a view", lambda x: x[:3].clone(), lambda x: x[:3], kind="alias"),
    Twins(
        "two results share memory",
        lambda x: (x + 1, x + 1),
        lambda x: (x + 1,) * 2,
        where="output[1]",
        kind="alias",
        right=lambda x: (1 + x, (x + 1).clone()),
    ),
    Twins(
        "two results are one no more",
        lambda x: (x + 1,) * 2,
        lambda x: (x + 1, x + 1),
        where="output[1]",
        kind="alias",
    ),
    Twins(
        "a result and a view of it are apart",
        lambda x: (lambda y: (y, y[0]))(x + 1),
        lambda x: (x + 1, x[0] + 1),
        where="output[1]",
        kind="alias",
    ),
    Twins(
        "a detached view is a copy", lambda x: x.detach(), lambda x: x.detach().clone(), kind="alias", inputs=trained
    ),
    Twins(
        "an expanded result is copied",
        lambda x: (x + 1)[:1].expand(3, 16),
        lambda x: (x + 1)[:1].repeat(3, 1).t().contiguous().t()[:, :15],
        kind="shape",
    ),
]

# Containers


class Pair(NamedTuple):
    first: object
    second: object


class OtherPair(NamedTuple):
    first: object
    second: object


class Row(tuple):
    """A subclass of tuple."""


class Unmeasured(tuple):
    def __len__(self):
        raise TypeError("how long it is cannot be said")


@dataclasses.dataclass
class Result:
    hidden: object
    scale: object = 1


@dataclasses.dataclass
class OtherResult(Result):
    pass


class Named(dict):
    __getattr__ = dict.__getitem__


def both(make, *others):
    """Return a program that gives what ``make`` makes of two tensors."""
    return lambda x: make(x * 2, x + 1)


CONTAINERS = [
    Twins("a list for a tuple", both(lambda a, b: (a, b)), both(lambda a, b: [a, b]), kind="structure"),
    Twins("one result", both(lambda a, b: (a,)), both(lambda a, b: a), kind="structure"),
    Twins("a result left out", both(lambda a, b: (a, b)), both(lambda a, b: (a,)), kind="structure"),
    Twins("a result too many", both(lambda a, b: (a,)), both(lambda a, b: (a, b)), kind="structure"),
    Twins("two results exchanged", both(lambda a, b: (a, b)), both(lambda a, b: (b, a)), where="output[0]"),
    Twins(
        "None for a tensor",
        both(lambda a, b: (a, b)),
        both(lambda a, b: (a, None)),
        kind="structure",
        where="output[1]",
    ),
    Twins(
        "a tensor for None",
        both(lambda a, b: (a, None)),
        both(lambda a, b: (a, b)),
        kind="structure",
        where="output[1]",
    ),
    Twins(
        "a value of a dict",
        both(lambda a, b: {"a": a, "b": b}),
        both(lambda a, b: {"a": a, "b": a}),
        where="output['b']",
    ),
    Twins(
        "a key of a dict", both(lambda a, b: {"a": a, "b": b}), both(lambda a, b: {"a": a, "c": b}), kind="structure"
    ),
    Twins(
        "the order of a dict",
        both(lambda a, b: {"a": a, "b": b}),
        both(lambda a, b: {"b": b, "a": a}),
        kind="structure",
    ),
    Twins(
        "an OrderedDict for a dict",
        both(lambda a, b: {"a": a}),
        both(lambda a, b: collections.OrderedDict(a=a)),
        kind="structure",
    ),
    Twins(
        "a defaultdict",
        both(lambda a, b: collections.defaultdict(list, a=a)),
        both(lambda a, b: collections.defaultdict(list, a=b)),
        where="output['a']",
    ),
    Twins("a subclass of dict", both(lambda a, b: Named(a=a)), both(lambda a, b: Named(a=b)), where="output['a']"),
    Twins("a dict for a subclass of it", both(lambda a, b: Named(a=a)), both(lambda a, b: {"a": a}), kind="structure"),
    Twins(
        "a deque",
        both(lambda a, b: collections.deque([a, b])),
        both(lambda a, b: collections.deque([a, a])),
        where="output[1]",
    ),
    Twins(
        "nested containers",
        both(lambda a, b: {"a": [(a, {"b": b})]}),
        both(lambda a, b: {"a": [(a, {"b": a})]}),
        where="output['a'][0][1]['b']",
    ),
    Twins("a named tuple", both(Pair), both(lambda a, b: Pair(a, b * 2)), where="output.second"),
    Twins("another named tuple", both(Pair), both(OtherPair), kind="structure"),
    Twins("a tuple for a named tuple", both(Pair), both(lambda a, b: (a, b)), kind="structure"),
    Twins("a subclass of tuple", both(lambda a, b: Row((a, b))), both(lambda a, b: Row((a, a))), where="output[1]"),
    Twins("a tuple for a subclass of it", both(lambda a, b: Row((a, b))), both(lambda a, b: (a, b)), kind="structure"),
    Twins(
        "a tuple that has no length",
        both(lambda a, b: Unmeasured((a, b))),
        both(lambda a, b: Unmeasured((a, a))),
        where="output[1]",
    ),
    Twins("a structure of torch's", lambda x: x.max(0), lambda x: (x * 2).max(0), where="output[0]"),
    Twins("a structure of torch's for a tuple", lambda x: x.max(0), lambda x: tuple(x.max(0)), kind="structure"),
    Twins("a structure of another name", lambda x: x.max(0), lambda x: x.min(0), kind="structure"),
    Twins("a dataclass", both(Result), both(lambda a, b: Result(a, a)), where="output.scale"),
    Twins(
        "a number in a dataclass",
        both(lambda a, b: Result(a, 2)),
        both(lambda a, b: Result(a, 3)),
        where="output.scale",
    ),
    Twins("another dataclass", both(Result), both(OtherResult), kind="structure"),
    Twins("a set of numbers", both(lambda a, b: (a, {1, 2})), both(lambda a, b: (a, {1, 3})), where="output[1]"),
    Twins(
        "a set of one tensor",
        both(lambda a, b: (a, {b})),
        both(lambda a, b: (a, [b])),
        where="output",
        kind="structure",
        not_compared="output[1] (a set of what has no __eq__, and no order)",
    ),
    Twins("an empty list for None", both(lambda a, b: (a, [])), both(lambda a, b: (a, None)), kind="structure"),
    Twins("a torch.Size", both(lambda a, b: (a, a.shape)), both(lambda a, b: (a, a.t().shape)), where="output[1][0]"),
    Twins(
        "a tuple for a torch.Size",
        both(lambda a, b: (a, a.shape)),
        both(lambda a, b: (a, tuple(a.shape))),
        where="output",
        kind="structure",
    ),
    Twins(
        "an array of objects",
        both(lambda a, b: (a, numpy.array([None, 1]))),
        both(lambda a, b: (a, numpy.array([None, 2]))),
        where="output[1].tolist()[1]",
    ),
]

# Python values


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Plain:
    def __init__(self, **values):
        self.__dict__.update(values)

    def get(self):
        return self.a


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


class Unequal:
    """What cannot be compared with ==."""

    def __init__(self, scale):
        self.scale = scale

    def __eq__(self, other):
        raise RuntimeError("not to be compared")

    __hash__ = object.__hash__


class Ring:
    """What holds itself."""

    def __init__(self, scale):
        self.scale, self.itself = scale, self


class OtherPlain(Plain):
    pass


def doubled(x):
    return x * 2


def tripled(x):
    return x * 3


def times(factor):
    return lambda x: x * factor


def counting(last):
    return (one for one in range(last))


def squares(last):
    return (one**2 for one in range(last))


def beside(value, *more):
    """Return a program that gives a tensor and what ``value`` makes."""
    return lambda x: (x * 2, value())


def values(name, right, wrong, where="output[1]", **named):
    return Twins(name, beside(right), beside(wrong), where=where, **named)


VALUES = [
    values("an integer", lambda: 3, lambda: 4),
    values("a flag for an integer", lambda: 1, lambda: True, kind="structure"),
    values("a float for an integer", lambda: 1, lambda: 1.0, kind="structure"),
    values("a float", lambda: 0.5, lambda: 0.51),
    values("a float, NaN", lambda: float("nan"), lambda: 1.0, kind="nan"),
    values("a float, infinite", lambda: float("inf"), lambda: -float("inf"), kind="nan"),
    values("a float beyond float32", lambda: 1e300, lambda: 2e300),
    values("a float that float32 does not hold", lambda: 16777217.0, lambda: 16777216.0),
    Twins(
        "a number out of a tensor",
        lambda x: x.sum().item(),
        lambda x: x.sum().item() * 1.01,
        right=lambda x: x.flip(0).sum().item(),
    ),
    values("an integer of many digits", lambda: 2**70, lambda: 2**70 + 1),
    values("a complex number", lambda: 1 + 2j, lambda: 1 + 2.5j),
    values("a text", lambda: "mean", lambda: "sum"),
    values("bytes", lambda: b"a", lambda: b"b"),
    values("a range", lambda: range(3), lambda: range(4)),
    values("a slice", lambda: slice(1, 3), lambda: slice(1, 4)),
    values("a fraction", lambda: fractions.Fraction(1, 3), lambda: fractions.Fraction(1, 4)),
    values("a member of an enumeration", lambda: Color.RED, lambda: Color.BLUE),
    values("a member of an enumeration of integers", lambda: Level.LOW, lambda: Level.HIGH),
    values("an integer for a member of an enumeration", lambda: Level.LOW, lambda: 1, kind="structure"),
    values("a dtype", lambda: torch.float32, lambda: torch.float64),
    values("a device", lambda: torch.device("cpu"), lambda: torch.device("meta")),
    values("a layout", lambda: torch.strided, lambda: torch.sparse_coo),
    values("a memory format", lambda: torch.contiguous_format, lambda: torch.channels_last),
    values("a class", lambda: Plain, lambda: OtherPlain),
    values("a function", lambda: doubled, lambda: tripled),
    values("a function that each run makes", lambda: times(2), lambda: times(3), where="output[1] (variable factor)"),
    values("a function with other code", lambda: times(2), lambda: lambda x: x + 2, where="output[1]"),
    values(
        "a partial", lambda: functools.partial(pow, 2), lambda: functools.partial(pow, 3), where="output[1].args[0]"
    ),
    values("a method", lambda: Plain(a=1).get, lambda: Plain(a=2).get, where="output[1].__self__.a"),
    values("a module of Python", lambda: torch, lambda: numpy),
    values(
        "a generator",
        lambda: counting(3),
        lambda: [0, 1, 2],
        where="output",
        kind="structure",
        not_compared="output[1] (a generator, which runs when it is read)",
    ),
    values(
        "an iterator",
        lambda: iter([1]),
        lambda: iter((1,)),
        kind="structure",
        not_compared="output[1] (a list_iterator",
    ),
    values("an object", lambda: Plain(a=1, b=[2]), lambda: Plain(a=1, b=[3]), where="output[1].b[0]"),
    values("an object of another class", lambda: Plain(a=1), lambda: OtherPlain(a=1), kind="structure"),
    values(
        "an object without an attribute",
        lambda: Plain(a=1, b=2),
        lambda: Plain(a=1),
        where="output[1].b",
        kind="structure",
    ),
    values("an object with slots", lambda: Slotted(1), lambda: Slotted(2), where="output[1].scale"),
    values("an object that refuses ==", lambda: Unequal(1), lambda: Unequal(2), where="output[1].scale"),
    values("an object that holds itself", lambda: Ring(1), lambda: Ring(2), where="output[1].scale"),
    values("an object in an object", lambda: Plain(a=Plain(b=1)), lambda: Plain(a=Plain(b=2)), where="output[1].a.b"),
    values("a dtype in an object", lambda: Plain(a=torch.half), lambda: Plain(a=torch.float), where="output[1].a"),
    values(
        "a SimpleNamespace", lambda: types.SimpleNamespace(a=1), lambda: types.SimpleNamespace(a=2), where="output[1].a"
    ),
    values("an exception", lambda: ValueError("a"), lambda: ValueError("b"), where="output[1].args[0]"),
    values(
        "an object()", object, lambda: None, where="output[1]", kind="structure", not_compared="output[1] (a object"
    ),
    values(
        "a generator of random numbers",
        lambda: torch.Generator().manual_seed(1),
        lambda: torch.Generator().manual_seed(2),
        where="output[1].get_state()",
    ),
    Twins("a tensor in an object", lambda x: Plain(a=x * 2, b=1), lambda x: Plain(a=x * 3, b=1), where="output.a"),
    Twins(
        "an enumeration beside a tensor in an object",
        lambda x: Plain(a=x * 2, b=Color.RED),
        lambda x: Plain(a=x * 2, b=Color.BLUE),
        where="output.b",
    ),
    Twins("an array of numpy", lambda x: (x + 1).numpy(), lambda x: (x + 1.1).numpy(), right=lambda x: 1 + x.numpy()),
    Twins(
        "an array beside a tensor",
        lambda x: (x * 1, (x + 1).numpy()),
        lambda x: (x * 1, (x + 2).numpy()),
        where="output[1]",
    ),
    Twins("an array of another dtype", lambda x: (x + 1).numpy(), lambda x: (x + 1).double().numpy(), kind="dtype"),
    Twins("an array of another shape", lambda x: (x + 1).numpy(), lambda x: (x + 1)[:3].numpy(), kind="shape"),
    Twins("a tensor for an array", lambda x: (x + 1).numpy(), lambda x: x + 1, kind="structure"),
    Twins(
        "a number of numpy", lambda x: (x * 2, numpy.float32(1)), lambda x: (x * 2, numpy.float32(2)), where="output[1]"
    ),
    Twins(
        "a number of numpy of another type",
        lambda x: (x * 2, numpy.int32(1)),
        lambda x: (x * 2, numpy.int64(1)),
        where="output[1]",
        kind="dtype",
    ),
    Twins(
        "texts of numpy",
        lambda x: (x * 2, numpy.array(["a"])),
        lambda x: (x * 2, numpy.array(["b"])),
        where="output[1].tolist()[0]",
    ),
]

# Subclasses of tensors


class Labelled(torch.Tensor):
    """A subclass that changes nothing."""


def tagged(y, tag):
    y.tag = tag
    return y


def noted(y):
    y.my_dynamo_note = "a"
    return y


def with_dynamic_rows(y):
    torch._dynamo.maybe_mark_dynamic(y, 0)
    return y


def masked(x, limit=0):
    return torch.masked.masked_tensor(x * 2, x > limit)


def two(a, b):
    from torch.testing._internal.two_tensor import TwoTensor

    return TwoTensor(a, b)


SUBCLASSES = [
    Twins(
        "a Parameter for a tensor",
        lambda x: x * 2,
        lambda x: torch.nn.Parameter(x * 2, requires_grad=False),
        kind="structure",
    ),
    Twins(
        "a tensor for a Parameter",
        lambda x: torch.nn.Parameter(x * 2, requires_grad=False),
        lambda x: x * 2,
        kind="structure",
    ),
    Twins("values of a subclass", lambda x: (x * 2).as_subclass(Labelled), lambda x: (x * 2.1).as_subclass(Labelled)),
    Twins("a tensor for a subclass", lambda x: (x * 2).as_subclass(Labelled), lambda x: x * 2, kind="structure"),
    Twins(
        "an attribute that was lost",
        lambda x: tagged(x * 2, "a"),
        lambda x: x * 2,
        where="output.tag",
        kind="structure",
    ),
    Twins(
        "an attribute that was added",
        lambda x: x * 2,
        lambda x: tagged(x * 2, "a"),
        where="output.tag",
        kind="structure",
    ),
    Twins("an attribute of another value", lambda x: tagged(x * 2, 1), lambda x: tagged(x * 2, 2), where="output.tag"),
    Twins(
        "an attribute whose name only mentions Dynamo",
        lambda x: noted(x * 2),
        lambda x: x * 2,
        where="output.my_dynamo_note",
        kind="structure",
    ),
    Twins(
        "marks of Dynamo, which are no part of a result",
        lambda x: with_dynamic_rows(x * 2),
        lambda x: x * 2.1,
        right=lambda x: x * 2,
    ),
    Twins(
        "a tensor as an attribute", lambda x: tagged(x * 2, x + 1), lambda x: tagged(x * 2, x + 2), where="output.tag"
    ),
    Twins("inside of a subclass", lambda x: two(x * 2, x + 1), lambda x: two(x * 2, x + 2), where="output.b"),
    Twins("a tensor for a subclass around tensors", lambda x: two(x * 2, x + 1), lambda x: x * 2, kind="structure"),
    Twins(
        "a masked tensor",
        masked,
        lambda x: masked(x * 1.1),
        where="output._masked_data",
        not_compared="output (a MaskedTensor",
    ),
    Twins("the mask of a masked tensor", masked, lambda x: masked(x, 1), where="output._masked_mask"),
]

ROWS = {
    "numbers": NUMBERS,
    "dtypes": DTYPES_OF_RESULTS,
    "layouts": LAYOUTS,
    "memory": MEMORY,
    "containers": CONTAINERS,
    "values": VALUES,
    "subclasses": SUBCLASSES,
}
