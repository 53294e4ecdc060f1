"""What ranges say of integers: which values have the same bits in every correct order, and which wrap round."""

import dataclasses

import pytest
import torch

from pytest_regional.fuzz.model.arguments import TensorInput, ValueRange, constant, integers, product, total, unit_of
from pytest_regional.fuzz.model.building import Builder, Refused, value_ranges
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.harness.parity.compare import compare
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.tolerance import Exactness
from pytest_regional.testing import regional


def built(content, *steps, dtype="float32", shape=(4, 4)):
    builder = Builder([TensorInput(shape, dtype, content=content)] * 2)
    for step in steps:
        builder.add(step)
    return builder


@pytest.mark.parametrize(("number", "unit"), [(1.5, 0.5), (6, 2.0), (0, 1.0), (0.1, 2.0**-55), (-3, 1.0)])
def test_unit_of_a_number(number, unit):
    assert unit_of(number) == unit


def test_sums_and_products_of_integers_are_exact():
    builder = built("whole", Step("mm", (0, 1)), Step("sum", (2,), (("dim", 0), ("keepdim", False))))
    assert [builder.values[number].value_range.exact for number in (2, 3)] == [True, True]
    builder.add(Step("gt", (2, 0)))


def test_those_of_other_numbers_are_not():
    builder = built("signed", Step("mm", (0, 1)))
    assert not builder.values[2].value_range.exact
    with pytest.raises(Refused):
        builder.add(Step("gt", (2, 0)))


@pytest.mark.parametrize(("dtype", "exact"), [("bfloat16", False), ("float16", True), ("float32", True)])
def test_integers_are_exact_as_far_as_the_dtype_holds_them(dtype, exact):
    # Sums of 64 products of up to 9 need 10 bits.
    builder = built("whole", Step("mm", (0, 1)), dtype=dtype, shape=(64, 64)) if exact else None
    if exact:
        assert builder.values[2].value_range.exact
    else:
        with pytest.raises(Refused, match="range"):
            built("whole", Step("mm", (0, 1)), dtype=dtype, shape=(64, 64))


def test_an_operator_that_rounds_ends_it():
    builder = built("whole", Step("sin", (0,)), Step("mul_number", (0,), (("value", 0.5),)))
    assert builder.values[2].value_range.unit is None
    assert not builder.values[2].value_range.exact
    assert builder.values[3].value_range.unit == 0.5


def test_means_are_exact_of_a_power_of_two():
    for size, exact in ((4, True), (3, False)):
        builder = built("whole", Step("mean", (0,), (("dim", 0), ("keepdim", False))), shape=(size, 2))
        assert builder.values[2].value_range.exact == exact


def test_integers_wrap_round():
    builder = built("edges", Step("add_int", (0, 1)), Step("abs_int", (0,)), dtype="int8")
    assert builder.values[2].value_range == integers(-128, 127)
    assert builder.values[3].value_range == integers(-128, 127)


def test_floats_beyond_an_integer_are_not_cast():
    with pytest.raises(Refused):
        built("large", Step("to_int32", (0,)))
    built("whole", Step("to_int8", (0,)))


def test_magnitudes_that_cancel_are_not_summed():
    built("large", Step("add", (0, 1)))
    with pytest.raises(Refused, match="range"):
        built("edges", Step("add", (0, 1)))


def test_signs_of_zeros_are_not_known_of_sums():
    builder = built("whole", Step("sum", (0,), (("dim", 0), ("keepdim", False))))
    with pytest.raises(Refused):
        builder.add(Step("signbit", (2,)))
    builder.add(Step("signbit", (0,)))


def test_what_is_read_as_bits_is_not_rounded_by_a_later_write():
    """Inductor rounds once what several writes make: as good a float16 as eager's, but other bits."""
    viewed = Step("bits_of_float16", (0,))
    built("whole", viewed, Step("aten_neg_", (0,)), dtype="float16")
    with pytest.raises(Refused, match="may be rounded"):
        built("whole", viewed, Step("sin_", (0,)), dtype="float16")
    with pytest.raises(Refused, match="does not suit"):
        built("whole", Step("sin_", (0,)), viewed, dtype="float16")


def test_bits_of_another_number_are_not_written():
    with pytest.raises(Refused, match="bits of another number"):
        built("whole", Step("bits_of_float16", (0,)), Step("aten_neg_", (2,)), dtype="float16")


def test_units_of_ranges():
    half, whole = constant(0.5), integers(-3, 3)
    assert total(half, whole).unit == 0.5
    assert product(half, half).unit == 0.25
    assert ValueRange(0, 1).settled("float32").unit is None
    assert ValueRange(0, 2**30, unit=1.0).settled("float32").exact is False
    assert ValueRange(0, 300, unit=1.0).settled("int8") == integers(-128, 127)


PROGRAM = Program(
    (TensorInput((4, 4), content="whole"), TensorInput((4, 4), content="signed")),
    (Step("add", (0, 0), (), (2,)), Step("sin", (1,), (), (3,))),
    (2, 3),
    training=False,
)


def test_what_is_exact_is_judged_without_tolerance():
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        example = ExampleRun(harness, PROGRAM, "native")
    assert example.exact == {"input 0": Exactness(True), "input 1": Exactness(True), "output[0]": Exactness(True)}

    def off_by_little(x, y):
        return x + x + 1e-6 * (x != 0), torch.sin(y) + 1e-8

    inputs = PROGRAM.inputs()
    eager, other = execute(PROGRAM, inputs, backward=False), execute(off_by_little, inputs, backward=False)
    assert not compare(eager, other).mismatches
    assert [mismatch.where for mismatch in compare(eager, other, exact=example.exact).mismatches] == ["output[0]"]


@pytest.mark.parametrize(("zeros", "noticed"), [(True, True), (False, False)])
def test_signs_of_zeros_count_where_they_are_known(zeros, noticed):
    def positive(x):
        return x * 0.0

    def negative(x):
        return x * -0.0

    inputs = (torch.ones(3),)
    runs = [execute(function, inputs, backward=False) for function in (positive, negative)]
    assert bool(compare(*runs, exact={"output": Exactness(zeros)}).mismatches) == noticed


def test_nan_is_as_good_as_nan_and_integers_keep_all_bits():
    def made(shift):
        return lambda x: (x / x, torch.tensor([2**62 + shift]))

    inputs = (torch.zeros(2),)
    runs = [execute(made(shift), inputs, backward=False) for shift in (0, 1)]
    exact = {"output[0]": Exactness(True), "output[1]": Exactness(True)}
    assert [mismatch.where for mismatch in compare(*runs, exact=exact).mismatches] == ["output[1]"]


def test_ranges_of_a_program():
    assert value_ranges(PROGRAM)[2] == dataclasses.replace(integers(-6, 6), exact=True)
    assert value_ranges(dataclasses.replace(PROGRAM, steps=(Step("mm", (0, 9), (), (2,)),))) == {}
