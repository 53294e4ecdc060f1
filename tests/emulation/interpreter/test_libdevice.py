"""CUDA's math library and single PTX instructions."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch._inductor.runtime.triton_helpers import libdevice

from pytest_regional.emulation import EmulationError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.arithmetic import elementwise

from .launching import run

N = 64


@triton.jit
def one(a, out, FUNCTION: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, FUNCTION(tl.load(a + i)))


@triton.jit
def call_erf(a, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, libdevice.erf(tl.load(a + i)))


@triton.jit
def call_pow(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, libdevice.pow(tl.load(a + i), tl.load(b + i)))


@triton.jit
def call_several(a, exponents, truths, rounded, signs, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    tl.store(exponents + i, libdevice.ilogb(x))
    tl.store(truths + i, libdevice.isnan(x).to(tl.int1))
    tl.store(rounded + i, libdevice.llrint(tl.where(x != x, 0.0, x)))
    tl.store(signs + i, libdevice.signbit(x) != 0)


@triton.jit
def call_unknown(a, out):
    tl.store(out, libdevice.jn(tl.load(a).to(tl.int32), tl.load(a)))


@triton.jit
def assembled(a, out, ASM: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    tl.store(out + i, tl.inline_asm_elementwise(ASM, "=f,f", [x], tl.float32, True, 1))


ON_NUMBERS = {
    "exp": math.exp,
    "exp2": lambda x: 2**x,
    "exp10": lambda x: 10**x,
    "expm1": math.expm1,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "sinpi": lambda x: math.sin(math.pi * x),
    "cospi": lambda x: math.cos(math.pi * x),
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "asinh": math.asinh,
    "erf": math.erf,
    "erfc": math.erfc,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "nearbyint": round,
    "rint": round,
    "fabs": abs,
    "tgamma": math.gamma,
    "lgamma": math.lgamma,
    "normcdf": lambda x: 0.5 * math.erfc(-x / math.sqrt(2)),
    "cbrt": lambda x: math.copysign(abs(x) ** (1 / 3), x),
    "saturate": lambda x: min(max(x, 0.0), 1.0),
}
POSITIVE = {
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "log1p": math.log1p,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "rcbrt": lambda x: x ** (-1 / 3),
}
INSIDE_ONE = {"asin": math.asin, "acos": math.acos, "atanh": math.atanh}
TWO = {
    "atan2": math.atan2,
    "pow": lambda x, y: abs(x) ** y,
    "fmod": math.fmod,
    "remainder": math.remainder,
    "hypot": math.hypot,
    "copysign": math.copysign,
    "nextafter": math.nextafter,
    "fdim": lambda x, y: max(x - y, 0.0),
}


def compare(name, function, numbers):
    for suffix, dtype, tolerance in (("", np.float64, 1e-12), ("f", np.float32, 3e-6)):
        result = elementwise(f"__nv_{name}{suffix}")(numbers.astype(dtype))
        exact = [function(float(x)) for x in numbers.astype(dtype)]
        assert result.dtype == dtype
        np.testing.assert_allclose(result, exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ON_NUMBERS)
def test_functions_of_any_number(name):
    compare(name, ON_NUMBERS[name], np.linspace(-3.1, 3.25, N))


@pytest.mark.parametrize("name", POSITIVE)
def test_functions_of_positive_numbers(name):
    compare(name, POSITIVE[name], np.linspace(0.01, 9, N))


@pytest.mark.parametrize("name", INSIDE_ONE)
def test_functions_of_numbers_below_one(name):
    compare(name, INSIDE_ONE[name], np.linspace(-0.99, 0.99, N))


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two_numbers(name):
    x, y = np.linspace(-3, 3.1, N), np.linspace(2.9, -2.2, N)
    x = np.abs(x) if name == "pow" else x
    result = elementwise(f"__nv_{name}")(x, y)
    np.testing.assert_allclose(result, [TWO[name](a, b) for a, b in zip(x, y, strict=True)], rtol=1e-12, atol=1e-12)


def test_halves_are_rounded_as_each_name_says():
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert elementwise("__nv_round")(halves).tolist() == [-3, -2, -1, 1, 2, 3]
    assert elementwise("__nv_rint")(halves).tolist() == [-2, -2, 0, 0, 2, 2]


def test_exponents_of_special_numbers():
    special = np.array([0.0, math.inf, -math.inf, math.nan, 8.0, 0.75])
    assert elementwise("__nv_ilogb")(special).tolist() == [-(2**31), 2**31 - 1, 2**31 - 1, -(2**31), 3, -1]


@pytest.mark.parametrize("name", ["__nv_fadd_rn", "__nv_dadd_rn", "__nv_fast_expf", "__nv_fmaf_rn", "__nv_frcp_rn"])
def test_names_with_speed_and_rounding(name):
    assert elementwise(name) is not None


@pytest.mark.parametrize("name", ["__nv_fadd_rz", "__nv_float2int_ru", "__nv_byte_perm", "__nv_jnf"])
def test_unsupported_libdevice_functions_are_named(name):
    with pytest.raises(UnsupportedByEmulationError, match=f"libdevice function {name}"):
        elementwise(name)


def test_bits():
    numbers = np.array([0, 1, -1, 40, 2**31 - 1], dtype=np.int32)
    assert elementwise("__nv_popc")(numbers).tolist() == [0, 1, 32, 2, 31]
    assert elementwise("__nv_clz")(numbers).tolist() == [32, 31, 0, 26, 1]
    assert elementwise("__nv_ffs")(numbers).tolist() == [0, 1, 1, 4, 1]


def test_products_of_signed_numbers():
    a, b = (np.array(v, dtype=np.int32) for v in ([-5, 2**31 - 1, -(2**31)], [7, 2**31 - 1, -(2**31)]))
    expected = [(int(x) * int(y)) >> 32 for x, y in zip(a, b, strict=True)]
    assert elementwise("__nv_mulhi")(a, b).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_kernel_calls_the_overload_for_its_type(dtype):
    a = torch.linspace(-2, 2, N, dtype=dtype)
    out = torch.zeros_like(a)
    run(call_erf, a=a, out=out, N=N)
    torch.testing.assert_close(out, torch.erf(a))


def test_a_type_without_an_overload_is_an_error():
    with pytest.raises(EmulationError, match="call_erf, program"):
        run(call_erf, a=torch.zeros(N, dtype=torch.bfloat16), out=torch.zeros(N), N=N)


def test_two_arguments():
    a, b, out = torch.rand(N), torch.randn(N), torch.zeros(N)
    run(call_pow, a=a, b=b, out=out, N=N)
    torch.testing.assert_close(out, a**b)


def test_results_of_other_types():
    a = torch.tensor([1.0, -8.5, 0.3, float("nan"), -0.0, 2.5, 3.5, -1.0] * 8)
    exponents, truths = torch.zeros(N, dtype=torch.int32), torch.zeros(N, dtype=torch.bool)
    rounded, signs = torch.zeros(N, dtype=torch.int64), torch.zeros(N, dtype=torch.bool)
    run(call_several, a=a, exponents=exponents, truths=truths, rounded=rounded, signs=signs, N=N)
    assert exponents[:3].tolist() == [0, 3, -2]
    assert torch.equal(truths, a.isnan())
    assert rounded[:8].tolist() == [1, -8, 0, 0, 0, 2, 4, -1]
    assert torch.equal(signs, a.signbit())


def test_an_unknown_function_in_a_kernel_is_named():
    with pytest.raises(UnsupportedByEmulationError, match="libdevice function __nv_jnf"):
        run(call_unknown, a=torch.ones(1), out=torch.zeros(1))


@pytest.mark.parametrize(
    ("text", "function"),
    [
        ("mul.f32 $0, $1, $1;", lambda x: x * x),
        ("fma.rn.f32 $0, $1, $1, $1;", lambda x: x * x + x),
        ("ex2.approx.ftz.f32 $0, $1;", torch.exp2),
        ("abs.f32 $0, $1;", torch.abs),
        ("rcp.approx.ftz.f32 $0, $1;", torch.reciprocal),
    ],
)
def test_single_instructions(text, function):
    a, out = torch.linspace(0.5, 2, N), torch.zeros(N)
    run(assembled, a=a, out=out, ASM=text, N=N)
    torch.testing.assert_close(out, function(a))


@pytest.mark.parametrize(
    "text", ["mul.wide.s32 $0, $1, $1;", "mul.f32 $0, $1, $1; abs.f32 $0, $0;", "prmt.b32 $0, $1, $1, $1;"]
)
def test_other_assembly_is_refused(text):
    with pytest.raises(UnsupportedByEmulationError, match=re.escape(repr(text))):
        run(assembled, a=torch.zeros(N), out=torch.zeros(N), ASM=text, N=N)


def test_everything_that_inductor_calls_is_known():
    """The names are read from the sources of the installed torch and triton."""
    from triton.language.extra.cuda import libdevice as library

    inductor = Path(torch.__file__).parent / "_inductor"
    sources = [inductor / "codegen" / "triton.py", inductor / "runtime" / "triton_helpers.py"]
    called = {name for source in sources for name in re.findall(r"libdevice\.([a-z0-9_]+)\(", source.read_text())}
    assert len(called) > 30
    text = Path(library.__file__).read_text()
    for name in sorted(called & set(vars(library))):
        body = text.split(f"def {name}(", 1)[1].split("@core.extern", 1)[0]
        for symbol in re.findall(r'"(__nv_[a-z0-9_]+)"', body):
            elementwise(symbol)
    # Inductor names these two under its options for fast math; a GPU would not find them either.
    assert called - set(vars(library)) <= {"nextafterf", "fast_tanhf"}
