"""What a kernel's text means to Triton's compiler, where it means something else to Python."""

import pytest
import torch
import triton
import triton.language as tl

from pytest_regional.emulation.interpreter.functions import python_function

from .launching import run

SHIFT: tl.constexpr = tl.constexpr(3)


@triton.jit
def boolean_operators(a, conjunction, disjunction, negation, chain, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    tl.store(conjunction + i, x > 1 and x < 4)
    tl.store(disjunction + i, x < 2 or x > 4)
    tl.store(negation + i, not x > 2)
    tl.store(chain + i, 1 < x < 4)


@triton.jit
def loops(out, n, STEP: tl.constexpr):
    total = 0
    for i in range(0, n, STEP):
        total += i.to(tl.int64)
    for j in tl.range(n):
        total += j
    for k in tl.static_range(2, 8, step=2):
        total += k
    while total > 1000:
        total -= 1000
    tl.store(out, total)


@triton.jit
def branches(out, n, WIDE: tl.constexpr):
    if WIDE:
        tl.store(out, 1)
    elif n > 3 and n < 6:
        tl.store(out, 2)
    else:
        tl.store(out, 3 if n == 9 else 4)


@triton.jit
def doubled_and_shifted(x, FACTOR: tl.constexpr = 2):
    return x * FACTOR, x + SHIFT


@triton.jit
def calls_another(a, out, N: tl.constexpr):
    i = tl.arange(0, N)
    double, shifted = doubled_and_shifted(tl.load(a + i))
    triple, _ = doubled_and_shifted(tl.load(a + i), FACTOR=3)
    tl.store(out + i, double + shifted * triple)


@triton.jit
def methods(a, out, N: tl.constexpr):
    x = tl.load(a + tl.arange(0, N))
    tl.store(out, x.sum(0))
    tl.store(out + 1, x.max(0))


@triton.jit
def early_return(out, n):
    if tl.program_id(0) >= n:
        return
    tl.store(out + tl.program_id(0), 1.0)


@triton.jit
def three_axes(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width, height = tl.num_programs(0), tl.num_programs(1)
    tl.store(out + x + width * (y + height * z), x + 10 * y + 100 * z)


@triton.jit
def described(source, target, rows, columns, BLOCK: tl.constexpr):
    from_ = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    to = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    for i in range(0, rows, BLOCK):
        for j in range(0, columns, BLOCK):
            to.store([i, j], from_.load([i, j]) + 1)


@triton.jit
def transposed(source, target, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(source + i[:, None] * N + i[None, :])
    tl.store(target + i[:, None] * N + i[None, :], x.T + tl.trans(x) - tl.permute(x, 1, 0))


@triton.jit
def printing(a):
    tl.device_print("value", tl.load(a))


def test_boolean_operators_work_element_by_element():
    a = torch.arange(8.0)
    results = [torch.zeros(8, dtype=torch.bool) for _ in range(4)]
    run(
        boolean_operators,
        a=a,
        **dict(zip(("conjunction", "disjunction", "negation", "chain"), results, strict=True)),
        N=8,
    )
    for result, expected in zip(
        results, [(a > 1) & (a < 4), (a < 2) | (a > 4), ~(a > 2), (a > 1) & (a < 4)], strict=True
    ):
        assert torch.equal(result, expected)


def test_loops():
    out = torch.zeros(1, dtype=torch.int64)
    run(loops, out=out, n=50, STEP=7)
    assert out.item() == (sum(range(0, 50, 7)) + sum(range(50)) + 12) % 1000


@pytest.mark.parametrize(("wide", "n", "expected"), [(True, 0, 1), (False, 4, 2), (False, 9, 3), (False, 2, 4)])
def test_branches(wide, n, expected):
    out = torch.zeros(1, dtype=torch.int32)
    run(branches, out=out, n=n, WIDE=wide)
    assert out.item() == expected


def test_functions_with_several_results_and_constants():
    a, out = torch.arange(8.0), torch.zeros(8)
    run(calls_another, a=a, out=out, N=8)
    assert torch.equal(out, a * 2 + (a + 3) * a * 3)


def test_methods():
    a, out = torch.arange(8.0), torch.zeros(2)
    run(methods, a=a, out=out, N=8)
    assert out.tolist() == [28, 7]


def test_early_return():
    out = torch.zeros(4)
    run(early_return, (4,), out=out, n=2)
    assert out.tolist() == [1, 1, 0, 0]


def test_grids_of_three_axes():
    out = torch.zeros(2 * 3 * 4, dtype=torch.int32)
    launch = run(three_axes, (2, 3, 4), out=out)
    assert out.view(4, 3, 2)[3, 1, 1] == 311
    assert (launch.grid, launch.programs) == ((2, 3, 4), 24)


def test_tensor_descriptors():
    source, target = torch.randn(20, 32), torch.zeros(20, 32)
    run(described, source=source, target=target, rows=20, columns=32, BLOCK=16)
    assert torch.equal(target, source + 1)


def test_transposition():
    source, target = torch.randn(8, 8), torch.zeros(8, 8)
    run(transposed, source=source, target=target, N=8)
    assert torch.equal(target, source.T)


def test_printing(capsys):
    run(printing, a=torch.tensor([2.5]))
    assert "value" in (printed := capsys.readouterr().out)
    assert "2.5" in printed


def test_a_kernel_is_rewritten_once_and_its_module_gets_no_names():
    before = set(globals())
    assert python_function(loops) is python_function(loops)
    assert set(globals()) == before


def test_lines_are_those_of_the_file():
    code = python_function(early_return).__code__
    assert code.co_filename == __file__
    assert code.co_firstlineno == early_return.starting_line_number + 1
