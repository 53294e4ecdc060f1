"""The reducer: what it takes away, what it keeps, and when it stops."""

import random
from collections import Counter

import pytest

from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.model.arguments import PARTS, TensorInput
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.program import Block, Context, Program, Region, Step
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.shrink import EDITS, Candidate, cost, rebuild, reduce_program, shrink_shapes

ARGUMENTS = (TensorInput((4, 4), requires_grad=True),)
A, B = Region("a"), Region("b", (("max_fusion_size", 8),))


def chain(*operators, scope=(), arguments=ARGUMENTS):
    """Return a program in which each operator reads what the one before made."""
    steps = tuple(
        Step(name, (number and number + len(arguments) - 1,), (), (number + len(arguments),), scope)
        for number, name in enumerate(operators)
    )
    return Program(arguments, steps, steps[-1].results)


def has(*names):
    return lambda program: set(names) <= set(program.operators)


def test_steps_between_are_taken_away():
    program = chain("sin", "cos", "tanh", "sigmoid", "square", scope=(A,))
    small = reduce_program(program, has("tanh"))
    assert [step.operator for step in small.steps] == ["tanh"]
    assert small.arguments == (TensorInput(()),)
    assert not small.regions
    assert not small.training
    check_buildable(small)


def test_users_read_something_else():
    program = Program(
        (TensorInput((4,)), TensorInput((4,))),
        (
            Step("mul", (0, 1), (), (2,)),
            Step("sin", (2,), (), (3,), (A,)),
            Step("add", (3, 2), (), (4,), (Context("tag"), A)),
        ),
        (3, 4),
    )
    small = reduce_program(program, has("add"))
    assert small.steps == (Step("add", (0, 0), (), (1,)),)


def test_regions_that_matter_stay():
    program = chain("sin", "cos", "tanh", scope=(A, B))

    def nested(program):
        return any(len(step.regions) == 2 for step in program.steps)

    small = reduce_program(program, nested)
    assert len(small.steps) == 1
    assert all(not region.configs for region in small.steps[0].regions)


def test_blocks_are_written_out():
    block = Block((0,), (Step("sin", (0,), (), (1,)), Step("tanh", (1,), (), (2,))), 2)
    program = Program((TensorInput((4,)),), (Step("checkpoint", (0,), (), (1,), (), (0,)),), (1,), (block,))
    assert reduce_program(program, has("tanh")).blocks == ()
    kept = reduce_program(program, has("checkpoint"))
    assert [len(block.steps) for block in kept.blocks] == [1]


def test_other_operands_are_forgotten():
    program = Program(
        (TensorInput((4,), content="distinct"),),
        (
            Step("sin", (0,), (), (1,), (A,)),
            Step("argsort", (0,), (("dim", 0),), (2,)),
            Step("scatter_add", (1, 2, 1), (), (3,), (B,)),
        ),
        (3,),
    )

    def feeds(program):
        return len(program.regions) == 2 and program.steps[0].results[0] in program.steps[-1].operands

    assert [step.operator for step in reduce_program(program, feeds).steps] == ["sin", "sin"]


def test_writes_are_kept_where_they_are_needed():
    program = Program(
        (TensorInput((4,)),),
        (Step("clone", (0,), (), (1,)), Step("add_", (1, 0)), Step("sin", (1,), (), (2,)), Step("cos", (2,), (), (3,))),
        (3,),
    )
    assert [step.operator for step in reduce_program(program, has("add_")).steps] == ["add_"]


def test_shapes_dtypes_and_layouts_become_ordinary():
    argument = TensorInput((2, 3, 4), "bfloat16", "transposed", "positive", True)
    small = reduce_program(chain("sin", arguments=(argument,)), has("sin"))
    assert small.arguments == (TensorInput(()),)


def test_a_dtype_that_matters_stays():
    program = chain("sin", "cos", arguments=(TensorInput((4,), "bfloat16"),))
    small = reduce_program(program, lambda program: program.arguments[0].dtype == "bfloat16")
    assert (small.arguments[0].dtype, small.arguments[0].shape, len(small.steps)) == ("bfloat16", (), 1)


def test_of_each_family_few_operators_are_asked():
    asked = []

    def only_this_one(program):
        asked.append(program.operators[0])
        return program.operators == ("argsort",)

    distinct = TensorInput((2,), content="distinct")
    small = reduce_program(Program((distinct,), (Step("argsort", (0,), (("dim", 0),), (1,)),), (1,)), only_this_one)
    assert small.operators == ("argsort",)
    families = Counter(operator_named(name).family for name in set(asked) - {"argsort"})
    assert families["pointwise"] == 2
    assert len(families) > 3
    assert max(families.values()) == 2


def test_the_first_of_a_family_takes_the_place_of_the_others():
    def sorts(program):
        return any(operator_named(step.operator).family == "sort" for step in program.steps)

    step = Step("sort_descending", (0,), (("dim", 0),), (1, 2))
    program = Program((TensorInput((2,), content="distinct"),), (step,), (1,))
    assert reduce_program(program, sorts).operators == ("sort",)


def test_attempts_are_limited():
    calls = []
    reduce_program(chain("sin", "cos", "tanh"), lambda program: calls.append(program) or False, attempts=3)
    assert len(calls) == 3


def test_no_time_no_attempt():
    program = chain("sin", "cos")
    assert reduce_program(program, lambda program: pytest.fail("was asked"), seconds=0.0).operators == program.operators


def test_errors_of_the_predicate_are_passed_on():
    def breaks(program):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        reduce_program(chain("sin", "cos"), breaks)


def test_no_program_is_tried_twice_and_none_that_is_larger():
    seen = []
    program = chain("sin", "cos", "tanh", scope=(A,))
    reduce_program(program, lambda candidate: seen.append(candidate) or False)
    identities = [candidate.identity for candidate in seen]
    assert len(set(identities)) == len(identities)
    assert all(cost(candidate) < cost(program) for candidate in seen)


def test_what_is_returned_was_seen_to_fail_with_the_same_numbers():
    seen = []

    def fails(program):
        if "tanh" in program.operators:
            seen.append(program)
        return "tanh" in program.operators

    small = reduce_program(chain("sin", "cos", "tanh", "sigmoid", scope=(A,)), fails)

    assert small == seen[-1]


@pytest.mark.parametrize("part", PARTS)
def test_an_input_of_no_dimension_has_no_part_of_some_kinds(part):
    arguments = (TensorInput((4, 4)), TensorInput((4, 4), alias_of=0, part=part))
    program = Program(arguments, (Step("sin", (1,), (), (2,)),), (2,))
    small = reduce_program(
        program, lambda smaller: (smaller.arguments[-1].part, smaller.arguments[-1].alias_of) == (part, 0)
    )
    check_buildable(small)


def test_every_edit_makes_drafts_that_settle_or_are_nothing():
    block = Block((0,), (Step("sin", (0,), (), (1,)), Step("tanh", (1,), (), (2,), (A,))), 2)
    program = Program(
        (TensorInput((2, 4), "bfloat16", "transposed", requires_grad=True), TensorInput((2, 4), dynamic=(0,))),
        (
            Step("mul_number", (1,), (("value", 3.0),), (2,), (B,)),
            Step("call", (2,), (), (3,), (Context("tag"),), (0,)),
            Step("sum", (3,), (("dim", 1), ("keepdim", True)), (4,), (A, B)),
        ),
        (4, 3),
        (block,),
    )
    for edit in EDITS:
        settled = [rebuild(candidate, program) for candidate in edit(program)]
        for one in filter(None, settled):
            check_buildable(one)
    assert rebuild(Candidate.of(program), program) == program


def test_drawn_programs_can_all_be_reduced():
    for number in range(12):
        program = random_program(random.Random(number))
        keep = program.steps[-1].operator

        def fails(candidate, keep=keep):
            return keep in candidate.operators and int(candidate.identity, 16) % 3 > 0

        small = reduce_program(program, fails, attempts=40)
        assert keep in small.operators
        check_buildable(small)


def test_sizes_that_are_gone_are_dynamic_no_more():
    program = Program((TensorInput((4, 4), dynamic=(0, 1)),), (Step("sin", (0,), results=(1,)),), (1,), training=False)
    reduced = [candidate.arguments[0] for candidate in shrink_shapes(program)]
    assert {len(argument.shape) for argument in reduced} == {0, 1, 2}
    assert all(set(argument.dynamic) <= set(range(len(argument.shape))) for argument in reduced)
