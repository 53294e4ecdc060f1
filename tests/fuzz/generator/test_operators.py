"""Every operator of the table: its program prints, runs, is what it says, and backpropagates."""

import itertools

import pytest
import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import Builder, Picks, Refused, check_buildable, value_ranges
from pytest_regional.fuzz.model.program import Block, Program, Region, Step
from pytest_regional.fuzz.model.source import DEFINITIONS
from pytest_regional.fuzz.operators.table import operator_named, operators
from tests.fuzz.generator.examples import program_with

#: They do something where gradients flow alone.
TRAINED = ("detach_",)

#: torch.cond and while_loop compile also in eager, which takes a second each.
COMPILING = tuple(operator.name for operator in operators().values() if operator.family in ("cond", "loop"))


#: Operators that are of one dtype by what they are, or compare with what is.
OF_ONE_DTYPE = ("view_bits", "bucketize", "rounded_twice", "rounded_to_bfloat16")

#: Operators that eager has for float32 and float64 alone.
OF_NO_LOW_PRECISION = (
    *("aten_special_ndtri", "aten_special_log_ndtr", "aten_special_erfcx", "aten_special_zeta", "aten_cdist"),
    *("aten_special_bessel_j0", "aten_special_bessel_j1", "aten_multi_margin_loss", "aten_multilabel_margin_loss"),
    *("aten_avg_pool3d", "aten__upsample_bilinear2d_aa_vec", "aten__upsample_bicubic2d_aa_vec"),
    *("fractional_max_pool3d", "deviation_of_large", "embedding_bag"),
    *("inverse", "pseudoinverse", "cholesky", "solve", "log_determinant"),
)


def example(name, trained=(True, False)):
    """Return a program of the operator called ``name``, of the first dtype that it takes."""
    choices = itertools.product(("float32", "float16", "bfloat16", "float64"), trained)
    found = (program_with(name, dtype=dtype, training=training) for dtype, training in choices)
    return next((program for program in found if program is not None), None)


def gradients(program, inputs, results):
    roots = list({id(result): result for result in results if result.requires_grad}.values())
    leaves = [leaf for leaf in inputs if leaf.requires_grad]
    if roots:
        # Reentrant checkpoints refuse torch.autograd.grad.
        torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return [leaf.grad for leaf in leaves]


def outside_of_range(value_range, result):
    """Return whether ``result`` has values out of bounds; those that aren't finite are skipped where they may occur."""
    values = result.detach().double()
    values = values[torch.isfinite(values)] if not value_range.finite else values
    slack = 0.02 * max(value_range.size, 1.0)
    low, high = value_range.low - slack, value_range.high + slack
    return values.numel() > 0 and not low <= values.min() <= values.max() <= high


@pytest.mark.parametrize("name", [name for name in operators() if name not in COMPILING])
def test_runs_and_backpropagates_and_its_value_ranges_hold(name):
    """The ranges hold for other values than those that the program was built with."""
    program = example(name)
    assert program is not None
    check_buildable(program)
    ranges = value_ranges(program)
    for seed in (1, 2, 3):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also looks for each other kind of device
        inputs = program.inputs(seed=seed)
        results = program(*inputs)
        outside = [n for n, result in zip(program.outputs, results, strict=True) if outside_of_range(ranges[n], result)]
        assert not outside
    found = gradients(program, inputs, results)
    assert all(torch.isfinite(gradient).all() for gradient in found if gradient is not None)


@pytest.mark.parametrize("name", COMPILING)
def test_higher_order_operators_print_and_build(name):
    program = program_with(name, training=False)
    check_buildable(program)
    assert operator_named(name).needs or f"{name}(" in program.source or "_higher_order_ops" in program.source


def test_a_loop_goes_on_with_the_strides_of_what_it_begins_with():
    """``while_loop`` wants the same strides of both, of a dimension of one element as well."""
    block = Block((0,), (Step("sin", (0,), (), (1,)),), 1)
    loop = operator_named("while_loop")
    fits = []
    for argument in (TensorInput((1,)), TensorInput((1,), layout="strided")):
        builder = Builder((argument,), (block,))
        fits.append(builder.choose(loop, (0, 0, 0, 0), (0, 0, 0), ()) is not None)

    assert fits == [True, False]


@pytest.mark.slow(
    "draws a program for each of 800 operators", fast="test_runs_and_backpropagates_and_its_value_ranges_hold"
)
def test_most_operators_take_other_dtypes():
    others = [name for name in operators() if name not in TRAINED]
    missing = [name for name in others if program_with(name, dtype="bfloat16", training=False) is None]
    complex_or_bits = {name for name in missing if name.startswith(("complex_", "bits_of_"))}
    assert set(missing) - complex_or_bits == {*OF_ONE_DTYPE, *OF_NO_LOW_PRECISION}


def test_unknown_operator_names_the_nearest():
    with pytest.raises(RegionalValueError, match="masked_fill"):
        operator_named("masked_fil")


def test_definitions_are_those_that_operators_need():
    assert {name for operator in operators().values() for name in operator.needs} == set(DEFINITIONS)


def test_only_exact_values_are_compared():
    builder = Builder([TensorInput((4,))])
    builder.add(Step("exp", (0,)))
    builder.add(Step("gt", (0, 0)))
    with pytest.raises(Refused):
        builder.add(Step("gt", (1, 0)))


def test_kinks_are_allowed_where_no_gradient_flows():
    for trained in (False, True):
        builder = Builder([TensorInput((4,), requires_grad=trained)])
        builder.add(Step("sin", (0,)))
        if trained:
            with pytest.raises(Refused):
                builder.add(Step("relu", (1,)))
        else:
            builder.add(Step("relu", (1,)))


def test_values_stay_where_nothing_overflows():
    builder = Builder([TensorInput((4,))])
    for number in range(2):
        builder.add(Step("cube", (number,)))
    with pytest.raises(Refused, match="range"):
        builder.add(Step("cube", (2,)))


def test_a_write_changes_what_is_known_of_its_views():
    builder = Builder([TensorInput((4,), content="positive")])
    builder.add(Step("view", (0,), (("shape", (-1,)),)))
    assert builder.values[0].value_range.low == 0.5
    builder.add(Step("mul_number_", (1,), (("value", -1.0),)))
    assert builder.values[0].value_range.low == -2.0


def test_elements_that_share_a_place_are_not_written_to():
    builder = Builder([TensorInput((4,)), TensorInput((1, 4))])
    builder.add(Step("unfold", (0,), (("dim", 0), ("step", 1))))
    builder.add(Step("expand", (1,), (("shape", (3, 4)),)))
    for number in (2, 3):
        with pytest.raises(Refused):
            builder.add(Step("add_number_", (number,), (("value", 1.0),)))


def test_pieces_of_what_is_written_to_are_gone():
    builder = Builder([TensorInput((4,), requires_grad=True)])
    builder.add(Step("sin", (0,)))
    builder.add(Step("chunk", (1,), (("dim", 0),)))
    builder.add(Step("add_number_", (1,), (("value", 1.0),)))
    assert list(builder.values) == [0, 1]


def test_loops_run_at_least_once():
    builder = Builder([TensorInput((4,))], [Block((0,), (Step("sin", (0,), (), (1,)),), 1)])
    with pytest.raises(Refused, match="at least once"):
        builder.add(Step("while_loop", (0,), (("count", 0),), (), (), (0,)))


def test_checking_names_the_step():
    from pytest_regional.fuzz.model.program import Program

    bad = Program((TensorInput((4,)),), (Step("sin", (0,), (), (1,)), Step("mm", (1, 0), (), (2,))), (2,))
    with pytest.raises(RegionalValueError, match=r"step 1 \(mm\)"):
        check_buildable(bad)


def test_statement_without_region_is_refused():
    builder = Builder([TensorInput((4,))])
    with pytest.raises(Refused, match="nothing"):
        builder.add(Step("nothing"))
    builder.add(Step("nothing", scope=(Region("a"),)))


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "copy_"])
def test_what_is_written_to_is_not_read_through_another_view(name):
    """As in ``x.add_(x[:, 1:2])``, whose value depends on which element is first: eager refuses that of dense ones."""
    builder = Builder([TensorInput((2, 4), layout="strided")])
    column = builder.add(Step("narrow", (0,), (("dim", 1), ("start", 1), ("length", 1)))).results[0]
    suitable = [value.number for value in builder.suitable(operator_named(name), [builder.values[0]])]

    assert column not in suitable
    assert 0 in suitable


@pytest.mark.parametrize("name", ["aten_msort", "aten_sort", "sort"])
@pytest.mark.parametrize(("content", "suits"), [("signed", False), ("distinct", True)])
def test_no_gradient_goes_through_an_unstable_sort_of_ties(name, content, suits):
    """Which of two equal numbers comes first, and gets its gradient, is not promised: Inductor chose the other one."""
    builder = Builder([TensorInput((64,), "float16", content=content, requires_grad=True)])
    assert bool(list(builder.suitable(operator_named(name), []))) is suits


def test_ties_are_sorted_where_no_gradient_tells_them_apart():
    builder = Builder([TensorInput((64,), "float16")])
    assert list(builder.suitable(operator_named("aten_msort"), []))
    assert not list(builder.suitable(operator_named("aten_sort"), [])), "its second result says which came first"


@pytest.mark.parametrize("name", ["aten_fmod_Scalar", "aten_remainder_Scalar", "aten_floor_divide_Scalar"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_dtype_holds_the_numbers_that_it_is_divided_by(name, dtype):
    """Eager rounds 0.1 to float16, and Inductor does not: another remainder, up to 0.1 off at a multiple."""
    builder = Builder([TensorInput((4,), dtype)])
    divisors = {dict(builder.parameters(operator_named(name), (0,), Picks((pick,))))["number"] for pick in range(20)}
    exact = {number for number in divisors if torch.tensor(number, dtype=getattr(torch, dtype)).item() == number}
    assert len(divisors) == 6
    assert exact == divisors or (dtype == "float32" and divisors - exact == {0.1, 0.3})


@pytest.mark.parametrize("name", ["cond", "while_loop"])
@pytest.mark.parametrize("trained", [True, False])
def test_values_that_eager_must_not_write_to_are_not_written_to(name, trained):
    """What a loop returns are views out of a custom autograd function, which building does not show."""
    arguments = (TensorInput((4,), "float64", requires_grad=trained), TensorInput((4,), content="distinct"))
    operands, parameters, blocks = {
        "while_loop": ((0,), (("count", 2),), (0,)),
        "cond": ((1, 0), (), (0, 1)),
    }[name]
    block = Block((0,), (Step("sin", (0,), (), (1,)),), 1)
    called = Step(name, operands, parameters, (2,), (), blocks)
    write = Step("add_number_", (2,), (("value", 1.0),))
    program = Program(arguments, (called, write), (2,), (block, block), training=trained)
    try:
        program(*program.inputs())
        refused = False
    except RuntimeError:
        refused = True
    builder = Builder(arguments, (block, block))
    builder.add(called)

    assert refused == (trained and operator_named(name).sealed)
    if refused:
        with pytest.raises(Refused, match="write to what a custom autograd function returned"):
            builder.add(write)
    else:
        builder.add(write)


@pytest.mark.parametrize(("size", "why"), [(1, "eager refuses"), (2, "would resize")])
def test_a_refused_step_leaves_sizes_alone(size, why):
    """``addbmm_`` resizes what it writes to, and only then refuses to write to one element that is expanded."""
    batch = TensorInput((3, size, size))
    builder = Builder((batch, batch, TensorInput((3,))))
    (product,) = builder.add(Step("dot", (2, 2))).results
    write = Step("aten_addbmm_", (0, 1, product), (("beta", 1), ("alpha", -1)))
    with pytest.raises(Refused, match=why):
        builder.add(write)
    assert builder.values[product].shape == ()
    assert [step.operator for step in builder.steps] == ["dot"]


@pytest.mark.parametrize(("size", "fits"), [(8, True), (2**13, False)])
def test_nothing_is_drawn_that_fills_the_memory(size, fits):
    builder = Builder((TensorInput((size,)),))
    step = builder.choose(operator_named("aten_diag_embed"), (0,), (0, 0, 0, 0))
    assert (step is not None) == fits
