"""Inputs that lie in one memory, what shares memory without looking like it, and writes to slices of one memory."""

import random

import pytest
import torch

from pytest_regional._base.documents import DocumentError
from pytest_regional._torch.tracing import base_of
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.arguments import LAYOUTS, PARTS, PARTS_OF_ANY_RANK, TensorInput
from pytest_regional.fuzz.model.building import Builder, Picks, Refused
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.model.source import make_inputs
from pytest_regional.fuzz.operators.table import operator_named, operators
from pytest_regional.fuzz.shrink import reduce_program

SHAPE = (1, 4, 6, 2)


def share(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def places(tensor):
    flat = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    return set(flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten().tolist())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_has_its_shape_and_is_what_it_says(layout):
    (x,) = make_inputs((TensorInput(SHAPE, layout=layout),), "cpu", 0)
    dense = torch.empty(SHAPE)

    assert x.shape == SHAPE
    assert (x.stride() == dense.stride()) == (layout in ("dense", "offset", "tail", "expanded"))
    assert (x.storage_offset() > 0) == (layout in ("offset", "tail", "margin"))
    assert (0 in x.stride()) == (layout == "zero_stride")


def test_several_rows_of_an_expanded_input_are_one():
    (x,) = make_inputs((TensorInput((3, 2), layout="expanded"),), "cpu", 0)
    assert x.stride() == (0, 1)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("detached", [False, True])
def test_a_part_lies_in_the_memory_of_its_argument(part, layout, detached):
    owner = TensorInput(SHAPE, layout=layout, detached=detached)
    x, y = make_inputs((owner, TensorInput(SHAPE, layout=layout, alias_of=0, part=part, detached=detached)), "cpu", 0)

    assert share(x, y)
    if part == "same":
        assert y is x
    elif part != "whole":
        assert (base_of(y) is None) == detached
        assert detached or base_of(y) is base_of(x) or base_of(y) is x


def test_siblings_are_views_of_one_hidden_buffer_and_overlap_in_part():
    arguments = (TensorInput((4, 2), layout="tail"), TensorInput((4, 2), layout="tail", alias_of=0, part="head"))
    x, y = make_inputs(arguments, "cpu", 0)

    assert base_of(x) is base_of(y) is not None
    assert places(x) - places(y)
    assert places(y) - places(x)
    assert places(x) & places(y)


@pytest.mark.parametrize(("one", "other"), [("first_half", "second_half"), ("even", "odd")])
def test_disjoint_parts_share_no_element(one, other):
    arguments = (TensorInput((4, 6)), *(TensorInput((4, 6), alias_of=0, part=part) for part in (one, other)))
    _, x, y = make_inputs(arguments, "cpu", 0)
    assert places(x).isdisjoint(places(y))


def test_a_part_of_what_wants_a_gradient_wants_none_and_is_a_leaf():
    arguments = [TensorInput((4, 6), requires_grad=True)]
    arguments += [TensorInput((4, 6), alias_of=0, part=part) for part in PARTS if part != "same"]
    _, *others = make_inputs(tuple(arguments), "cpu", 0)
    assert not any(other.requires_grad for other in others)
    assert all(other.is_leaf for other in others)


def test_ranges_of_parts_know_what_repeats():
    distinct = TensorInput((4, 6), content="distinct", alias_of=0)
    assert distinct.value_range.distinct
    assert not TensorInput((4, 6), content="distinct", alias_of=0, part="expanded").value_range.distinct


def builder_with(*parts, **fields):
    return Builder((TensorInput((4, 6)), *(TensorInput((4, 6), alias_of=0, part=part) for part in parts)), **fields)


def test_slices_of_one_memory_that_share_nothing_are_copied_into_each_other():
    builder = builder_with("first_half", "second_half", "head")
    builder.add(Step("copy_", (1, 2)))
    with pytest.raises(Refused, match="operand 1"):
        builder.add(Step("copy_", (1, 3)))


@pytest.mark.parametrize("name", ["put_list", "scatter_add_", "index_add_", "index_put_"])
def test_rows_are_not_written_from_the_same_memory(name):
    """Eager reads what it wrote before, and the result depends on the order."""
    whole = TensorInput((2, 2), alias_of=0, part="whole")
    of_elements = name == "scatter_add_"
    index = TensorInput((2, 2) if of_elements else (2,), "int64", content="index", below=2)
    builder = Builder((TensorInput((2, 2)), whole, TensorInput((2, 2)), index))
    between = () if name == "put_list" else (3,)
    for source, fits in ((0, False), (1, False), (2, True)):
        found = builder.parameters(operator_named(name), (0, *between, source), Picks((0, 0, 0)))
        assert (found is not None) == fits


def test_a_write_to_a_slice_is_a_write_to_the_other_inputs_there():
    builder = builder_with("tail", "head")
    builder.add(Step("fill_", (1,), (("value", 2.0),)))
    builder.add(Step("add_", (1, 1)))
    assert all(builder.values[number].value_range.high >= 4.0 for number in (0, 1, 2))


def test_where_something_trains_inputs_of_one_memory_are_written_to_as_views_of_one_base_alone():
    """AOTAutograd refuses others; a program that is read may do it, and then shows the refusal."""
    trained = TensorInput((4, 6), requires_grad=True)
    shared = (TensorInput((4, 6)), TensorInput((4, 6), alias_of=1, part="whole"))
    views = (TensorInput((4, 6)), TensorInput((4, 6), alias_of=1, part="tail"))
    same = (TensorInput((4, 6)), TensorInput((4, 6), alias_of=1, part="same"))
    write = operator_named("zero_")

    assert Builder((trained, *shared)).choose(write, (0, 0, 0, 0), (0,)) is None
    assert Builder((trained, *same)).choose(write, (0, 0, 0, 0), (0,)) is not None
    assert Builder((trained, *views)).choose(write, (0, 0, 0, 0), (0,)) is not None
    assert Builder(shared[:1]).choose(write, (0, 0, 0, 0), (0,)) is not None
    assert Builder((trained, *shared)).add(Step("zero_", (1,)))


IDENTITIES = (
    "slice_of_all",
    "to_same",
    "type_as_itself",
    "dropout_in_eval",
    "dropout_of_none",
    "real_part",
    "positive",
    "at_least_2d",
    "expand_as_itself",
    "flatten_one",
    "move_no_dimension",
    "contiguous",
    "alias",
)


@pytest.mark.parametrize("name", IDENTITIES)
def test_a_write_through_an_identity_reaches_the_input(name):
    program = Program(
        (TensorInput((4, 6)),),
        (Step(name, (0,), (), (1,)), Step("mul_number_", (1,), (("value", 2.0),))),
        (0,),
        training=False,
    )
    (x,) = program.inputs()
    before = x.clone()
    program(x)
    assert torch.equal(x, before * 2)


@pytest.mark.parametrize("name", ["pad_nothing", "tile_once", "mul_one", "clone"])
def test_a_copy_that_changes_nothing_is_a_copy(name):
    builder = Builder((TensorInput((4, 6)),))
    builder.add(Step(name, (0,)))
    assert not share(builder.values[0].tensor, builder.values[1].tensor)


def test_windows_read_other_elements_of_the_storage():
    """As ``as_strided`` counts from the beginning of the storage, what it reads depends on the offset."""
    builder = Builder((TensorInput((4, 2), layout="tail"),))
    windows = {builder.choose(operator_named("as_strided"), (0, 0, 0, 0), (number,)).parameters for number in range(8)}
    starts = {dict(parameters)["offset"] for parameters in windows}
    assert {0, 2} <= starts
    assert len(windows) > 5


def test_elements_of_several_places_are_no_window_where_a_gradient_flows():
    for trained in (False, True):
        builder = Builder((TensorInput((3, 2), layout="expanded", requires_grad=trained),))
        assert (builder.choose(operator_named("as_strided"), (0, 0, 0, 0), (0,)) is None) == trained


def test_an_autograd_function_is_not_given_one_tensor_twice():
    """Dynamo refuses that, also where the tensor came in as two inputs."""
    builder = builder_with("same")
    assert [value.number for value in builder.suitable(operator_named("function_of_two"), [builder.values[0]])] == []


@pytest.mark.parametrize("name", ["function_writes_inside", "function_matmul_in_place", "function_marks_dirty"])
def test_functions_that_write_have_the_gradient_of_their_formula(name):
    shape = (3, 3)
    builder = Builder((TensorInput(shape, "float64", requires_grad=True),))
    builder.add(Step("sin", (0,)))
    builder.add(Step("cos", (0,)))
    step = builder.choose(operator_named(name), (1, 0, 0, 0), (0,))
    assert step is not None
    program = builder.program(step.results or step.operands[:1])
    (x,) = program.inputs(seed=1)
    assert torch.autograd.gradcheck(program.function, (x,))


def test_the_buffer_that_a_function_writes_to_is_saved():
    arguments = (TensorInput((3, 3), "float64", requires_grad=True), TensorInput((3, 3), "float64"))
    step = Step("function_writes_buffer", (0, 2), (), (3,))
    program = Program(arguments, (Step("clone", (1,), (), (2,)), step), (3,))
    assert torch.autograd.gradcheck(program.function, program.inputs(seed=1))


def program_of_parts():
    arguments = (
        TensorInput((4, 6), layout="tail", detached=True),
        TensorInput((4, 6), layout="tail", alias_of=0, part="odd", detached=True),
    )
    return Program(arguments, (Step("sin", (1,), (), (2,)),), (2,), training=False)


def test_files_keep_parts():
    data = files.to_data(program_of_parts())
    assert files.from_data(data) == program_of_parts()
    for changes, problem in (({"part": "third"}, "part"), ({"detached": 1}, "detached")):
        changed = {**data, "arguments": [data["arguments"][0], {**data["arguments"][1], **changes}]}
        with pytest.raises(DocumentError, match=problem):
            files.from_data(changed)


def test_a_part_of_a_part_is_refused():
    data = files.to_data(program_of_parts())
    part = {"shape": [4, 6], "alias_of": 1, "part": "tail"}
    with pytest.raises(DocumentError, match="a part of another one"):
        files.from_data({**data, "arguments": [*data["arguments"], part]})


def test_a_part_that_its_argument_does_not_have_is_refused():
    data = files.to_data(Program((TensorInput(()), TensorInput((), alias_of=0)), (Step("sin", (1,), (), (2,)),), (2,)))
    data["arguments"][1]["part"] = "tail"
    with pytest.raises(DocumentError, match="refuses the inputs"):
        files.from_data(data)


def overlap(program):
    inputs = program.inputs()
    return any(
        share(one, other) and one is not other and one.shape != other.shape for one in inputs for other in inputs
    )


def test_the_reducer_keeps_the_part_that_matters():
    program = reduce_program(program_of_parts(), overlap, seconds=20)
    assert [argument.part != "whole" for argument in program.arguments] == [False, True]
    assert not any(argument.detached for argument in program.arguments)


def test_the_reducer_gives_an_input_that_matters_not_its_own_memory():
    program = reduce_program(program_of_parts(), lambda program: bool(program.steps), seconds=20)
    assert [argument.alias_of for argument in program.arguments] == [None]
    assert program.arguments[0].layout == "dense"


def test_every_part_and_layout_is_drawn():
    source = random.Random(2)
    parts, layouts = set(PARTS), set(LAYOUTS)
    for _ in range(700):
        for argument in random_program(source).arguments:
            layouts.discard(argument.layout)
            if argument.alias_of is not None:
                parts.discard(argument.part)
        if not parts and not layouts:
            return
    pytest.fail(f"never drawn: {parts}, {layouts}")


def test_tensors_of_one_memory_have_a_base_all_or_none():
    """AOTAutograd refuses a mix of both where it is written to."""
    source = random.Random(3)
    for _ in range(200):
        program = random_program(source)
        inputs = dict(enumerate(program.inputs()))
        for number, argument in enumerate(program.arguments):
            if argument.alias_of is None or inputs[number] is inputs[argument.alias_of]:
                continue
            own, base = base_of(inputs[argument.alias_of]), base_of(inputs[number])
            wants = program.arguments[argument.alias_of].requires_grad
            assert wants or base is own or base is inputs[argument.alias_of], program.source


def test_without_aliasing_no_input_lies_in_the_memory_of_another():
    source = random.Random(4)
    for _ in range(60):
        program = random_program(source, options=Options(without=frozenset({"aliasing"})))
        assert not any(argument.alias_of is not None or argument.detached for argument in program.arguments)


def test_parts_of_any_rank_are_those_of_a_number():
    for part in PARTS:
        arguments = (TensorInput(()), TensorInput((), alias_of=0, part=part))
        try:
            make_inputs(arguments, "cpu", 0)
            fits = True
        except (IndexError, RuntimeError, TypeError):
            fits = False
        assert fits == (part in PARTS_OF_ANY_RANK)


def test_new_writes_are_in_the_table():
    names = {operator.name for operator in operators().values() if operator.writes}
    assert {"copy_between_slices", "foreach_add_flipped", "foreach_exchange", "custom_exchange", "detach_"} <= names
