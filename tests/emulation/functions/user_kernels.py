"""Triton kernels that users wrote; eager cannot run them on CPU, so each has a reference in torch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .case import SINGLE, WIDE, Case
from .inputs import integers, joined, normal


@triton.jit
def _twice_plus_exp(x_ptr, y_ptr, out_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x * 2 + tl.exp(y), mask=mask)


def plain(x, y):
    out = torch.empty_like(x)
    _twice_plus_exp[(triton.cdiv(x.numel(), 256),)](x, y, out, x.numel(), BLOCK=256)
    return out + 1


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["count"])
@triton.jit
def _scaled(x_ptr, out_ptr, count, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


def autotuned(x):
    out = torch.empty_like(x)
    _scaled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), 3.0)
    return out.sin()


@triton.jit
def _squared(x):
    return x * x


@triton.jit
def _row_norms(x_ptr, out_ptr, columns, row_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        x = tl.load(x_ptr + row * row_stride + start + offsets, mask=start + offsets < columns, other=0.0)
        total += _squared(x.to(tl.float32))
    tl.store(out_ptr + row, tl.sqrt(tl.sum(total, 0)))


def with_helper(x):
    out = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _row_norms[(x.shape[0],)](x, out, x.shape[1], x.stride(0), BLOCK=32)
    return out * 2


@triton.jit
def _product(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + inner
        a = tl.load(a_ptr + rows[:, None] * K + k[None], mask=(rows[:, None] < M) & (k[None] < K), other=0.0)
        b = tl.load(b_ptr + k[:, None] * N + columns[None], mask=(k[:, None] < K) & (columns[None] < N), other=0.0)
        total += tl.dot(a, b, input_precision="ieee")
    inside = (rows[:, None] < M) & (columns[None] < N)
    tl.store(c_ptr + rows[:, None] * N + columns[None], total.to(c_ptr.dtype.element_ty), mask=inside)


def two_dimensional(a, b):
    c = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(a.shape[0], 16), triton.cdiv(b.shape[1], 16))
    _product[grid](a, b, c, a.shape[0], b.shape[1], a.shape[1], BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
    return c.relu()


@triton.jit
def _histogram(index_ptr, counts_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    index = tl.load(index_ptr + offsets, mask=mask)
    tl.atomic_add(counts_ptr + index, 1, mask=mask)


def atomic(index):
    counts = torch.zeros(9, dtype=torch.int32, device=index.device)
    _histogram[(triton.cdiv(index.numel(), 64),)](index, counts, index.numel(), BLOCK=64)
    return counts * 2


@triton.jit
def _add_one(x_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) + 1, mask=mask)


def in_place(x, y):
    x = x * y
    _add_one[(triton.cdiv(x.numel(), 128),)](x, x.numel(), BLOCK=128)
    return x.cos()


class _Doubling(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        out = torch.empty_like(x)
        _scaled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel(), 2.0)
        return out

    @staticmethod
    def backward(context, gradient):
        out = torch.empty_like(gradient)
        gradient = gradient.contiguous()
        _scaled[lambda meta: (triton.cdiv(gradient.numel(), meta["BLOCK"]),)](gradient, out, gradient.numel(), 2.0)
        return out


CASES = [
    Case("user_kernel", plain, normal((1000,), (1000,)), reference=lambda x, y: x * 2 + y.exp() + 1, dtypes=WIDE),
    Case("user_kernel_autotuned", autotuned, normal((1000,)), reference=lambda x: (x * 3.0).sin()),
    Case(
        "user_kernel_helper",
        with_helper,
        normal((20, 100)),
        reference=lambda x: x.norm(dim=1) * 2,
        dtypes=("f32", "bf16", "f16"),
        terms=100,
    ),
    Case(
        "user_kernel_product",
        two_dimensional,
        normal((40, 50), (50, 30)),
        reference=lambda a, b: (a @ b).relu(),
        dtypes=("f32", "bf16", "f16"),
        terms=50,
    ),
    Case(
        "user_kernel_atomic",
        atomic,
        integers(0, 9, (300,)),
        dtypes=SINGLE,
        reference=lambda i: (torch.bincount(i, minlength=9) * 2).int(),
    ),
    Case("user_kernel_in_place", in_place, normal((500,), (500,)), reference=lambda x, y: (x * y + 1).cos()),
    Case(
        "user_kernel_backward",
        lambda x: _Doubling.apply(x).sin(),
        joined(normal((500,))),
        backward=True,
        reference=lambda x: (x * 2).sin(),
        dtypes=WIDE,
    ),
]
