"""Integer twins: what is exchanged, what is exact then, and faults below tolerance that they show."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch

from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.program import Block, Program, Step
from pytest_regional.fuzz.oracles import ORACLES, check
from pytest_regional.fuzz.oracles.example_run import NoClaim
from pytest_regional.fuzz.oracles.integer_twin import RoundingWatch, Terms, integer_twin, terms_of
from pytest_regional.testing import regional

from .backends import around_calls, faulty
from .programs import A, B, chain

aten = torch.ops.aten

ALONG = (("dim", 0), ("keepdim", False))


def program_of(*steps, arguments=1, shape=(4, 4), training=False, blocks=(), **fields):
    inputs = (TensorInput(shape, requires_grad=training, **fields),) * arguments
    return Program(inputs, tuple(steps), (steps[-1].results[0],), blocks, training=training)


def test_operators_that_round_are_exchanged_and_all_else_stays():
    program = replace(chain(("sin", A), ("neg", ()), ("exp", B), training=True), dynamic=True)
    twin = integer_twin(program)
    assert [step.operator for step in twin.program.steps][1] == "neg"
    assert not {"sin", "exp"} & set(twin.program.operators)
    assert [step.scope for step in twin.program.steps] == [A, (), B]
    assert (twin.program.outputs, twin.program.dynamic, twin.program.trains) == ((3,), True, True)
    assert twin.value_ranges[3].exact
    assert twin.rounded == ()
    (x,) = twin.program.inputs(seed=1)
    assert torch.equal(x, x.round())
    assert integer_twin(twin.program).program == twin.program


def test_results_have_the_sizes_and_dtypes_of_the_programs():
    program = program_of(
        Step("var", (0,), ALONG, (1,)), Step("softmax", (0,), (("dim", 1),), (2,)), Step("div", (0, 0), (), (3,))
    )
    program = replace(program, outputs=(1, 2, 3), arguments=(TensorInput((4, 3), "float64", content="positive"),))
    twin = integer_twin(program).program
    ours, theirs = twin(*twin.inputs(seed=1)), program(*program.inputs(seed=1))
    assert [(one.shape, one.dtype) for one in ours] == [(one.shape, one.dtype) for one in theirs]


def test_writes_stay_writes():
    program = program_of(Step("clone", (0,), (), (1,)), Step("sin_", (1,), (), ()), Step("neg", (1,), (), (2,)))
    twin = integer_twin(program)
    assert twin.program.steps[1].operator in ("relu_", "aten_neg_", "aten_abs_", "aten_hardtanh_")
    assert twin.value_ranges[2].exact


def test_blocks_are_exchanged_where_they_stand():
    block = Block((0,), (Step("cos", (0,), (), (1,)), Step("mul", (1, 1), (), (2,))), 2)
    twin = integer_twin(program_of(Step("call", (0,), (), (1,), A, (0,)), blocks=(block,)))
    (made,) = twin.program.blocks
    assert made.steps[0].operator != "cos"
    assert made.steps[1].operator == "mul"
    assert twin.value_ranges[1].exact


def test_an_operator_without_a_stand_in_stays_and_what_is_behind_it_is_rounded():
    program = program_of(Step("hessian", (0,), (), (1,), (), (0,)), Step("neg", (1,), (), (2,)), shape=(2, 2))
    twin = integer_twin(replace(program, blocks=(Block((0,), (Step("sin", (0,), (), (1,)),), 1),)))
    assert twin.rounded == ("hessian", "neg")
    assert not twin.value_ranges[2].exact


def test_a_low_precision_holds_what_its_digits_hold():
    steps = [Step("mul", (0, 0), (), (1,)), *(Step("mul", (n, n), (), (n + 1,)) for n in (1, 2))]
    twin = integer_twin(program_of(*steps, dtype="bfloat16"))
    assert [step.operator for step in twin.program.steps][:2] == ["mul", "mul"]
    assert twin.program.steps[2].operator != "mul"  # 81 squared has 13 bits
    assert twin.value_ranges[3].exact


def test_where_nothing_fits_there_is_no_twin():
    program = Program(
        (TensorInput((4,), content="distinct"), TensorInput((4,), content="distinct", dtype="float64")),
        (Step("sin", (0,), (), (2,)), Step("kthvalue", (1,), (("k", 1), ("dim", 0)), (3, 4))),
        (4,),
        training=False,
    )
    assert integer_twin(program).value_ranges[4].exact
    unbuildable = replace(program, steps=(Step("mm", (0, 1), (), (2,)),), outputs=(2,))
    with pytest.raises(NoClaim, match="cannot be built again"):
        integer_twin(unbuildable)


def test_most_drawn_programs_have_a_twin_of_exact_outputs():
    made = exact = outputs = 0
    for program in islice(random_programs(5), 60):
        try:
            twin = integer_twin(program)
        except NoClaim:
            continue
        check_buildable(twin.program)
        assert len(twin.program.steps) == len(program.steps)
        assert twin.program.outputs == integer_twin(program).program.outputs
        made += 1
        outputs += len(twin.program.outputs)
        exact += sum(twin.value_ranges[number].exact for number in twin.program.outputs)
    assert made > 48
    assert exact > 0.8 * outputs


# What is watched


@pytest.mark.parametrize(
    ("values", "terms"),
    [
        ([3.0, -4.0, 0.0], Terms(1.0, 4.0, 7.0)),
        ([0.5, 6.0], Terms(0.5, 6.0, 6.5)),
        ([0.0], Terms(1.0, 0.0, 0.0)),
        ([float("inf")], None),
    ],
)
def test_terms(values, terms):
    assert terms_of(torch.tensor(values)) == terms


def rounding(call):
    with RoundingWatch() as watch:
        call()
    return watch.rounding


def test_the_watch_names_the_operator_that_may_round():
    whole, wide = torch.arange(16.0).reshape(4, 4), torch.full((4, 4), 2.0**20)
    for exact in (
        lambda: whole @ whole,
        lambda: (whole.T + 1) * 0.5,
        lambda: whole.mean() / 4,
        lambda: whole**2,
        lambda: whole.to(torch.bfloat16).sum(),
        lambda: torch.cat([whole, whole])[1:].neg_(),
    ):
        assert rounding(exact) == ""
    for name, call in {
        "exp": whole.exp,
        "mm": lambda: wide @ wide,
        "sum": lambda: (wide + whole).to(torch.float64).sum(0, dtype=torch.float32),
        "div": lambda: whole / 3,
        "mean": lambda: whole[:3].mean(0),
        "mul": lambda: whole * 0.1,
        "_to_copy": lambda: (whole + 256).to(torch.bfloat16),
        "copy_": lambda: torch.empty(4, 4, dtype=torch.bfloat16).copy_(whole + 256),
        "pow": lambda: whole**0.5,
    }.items():
        assert rounding(call) == name


# The oracle


def nudged(result):
    """Move the last element of a result by the smallest amount there is."""
    moved = result.clone()
    if moved.is_floating_point() and moved.numel():
        last = moved.view(-1)[-1:]
        last.copy_(torch.nextafter(last, torch.full_like(last, torch.inf)))
    return moved


def test_integer_twin_sees_a_bit_that_parity_allows(violation):
    program = chain(("sin", A), ("exp", ()), ("cos", ()))
    with regional(faulty(finish=around_calls(nudged)), "cpu", expects_regions=False) as harness:
        assert check(harness, program, mode="interpret", oracles="parity").oracles == ("parity",)
    error = violation(program, "integer_twin", finish=around_calls(nudged))
    assert (error.oracle, error.origin) == ("integer_twin", "value of output, value of output (second call)")
    assert "torch.exp" not in error.program


def test_integer_twin_sees_a_bit_of_a_gradient(violation):
    def in_backward(gm):
        if "tangents_1" in {node.name for node in gm.graph.nodes}:
            around_calls(nudged)(gm)

    error = violation(chain(("sin", A), training=True), "integer_twin", finish=in_backward)
    assert error.origin.startswith("value of grad")


def test_integer_twin_holds(checked):
    for program in (chain(("sin", A)), chain(("sin", A), ("tanh", B), training=True)):
        assert checked(program, "integer_twin").oracles == ("integer_twin",)
    assert ORACLES["integer_twin"].every > 1


def test_integer_twin_says_why_it_claims_nothing(checked):
    random = program_of(Step("rand_like", (0,), (), (1,), A))
    result = checked(random, "integer_twin")
    assert result.skipped["integer_twin"] == "all outputs are rounded, by rand_like; gradients: it does not train"
