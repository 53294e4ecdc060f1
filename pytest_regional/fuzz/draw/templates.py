"""Templates, a few steps that rarely come together by chance; and near duplicates, regions that differ in one thing.

Some are about regions, others are what compilers look for by its shape, in several spellings, or writes that they have
to keep in order. Each is added to a program behind what was drawn, and reads a value of it; what does not fit is left
out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.claims import uses_rng
from pytest_regional.fuzz.model.program import Context, Region, Scope, Step
from pytest_regional.fuzz.operators.operator import ProgramValue
from pytest_regional.fuzz.operators.table import operator_named, operators

ONE: Scope = (Region("one"),)
OTHER: Scope = (Region("other"),)
OUTSIDE: Scope = ()


@dataclass(frozen=True)
class Template:
    """Steps that come together.

    Attributes:
        name: what is rare about them.
        slots: steps, or tuples of alternatives for one, the simplest first; None leaves it out, and its first operand
            stands for its result. Operand 0 is a value of the program; results, and operands that are results, count
            from -1 down.
        rank: how many dimensions that value has at least.
        most: how many it has at most.
        scopes: what its steps stand in besides their own contexts: alternatives, each for the first, third, ... and for
            the second, fourth, ... step.
        weight: how many times as often as others it is drawn.
        shared: whether that value is an input that lies in the memory of another input, and that wants no gradient.
    """

    name: str
    slots: Sequence[Step | tuple[Step | None, ...]]
    rank: int = 0
    most: int = 8
    scopes: tuple[tuple[Scope, Scope], ...] = ((OUTSIDE, OUTSIDE),)
    weight: int = 1
    shared: bool = False

    @property
    def families(self) -> frozenset[str]:
        """The families of its operators, all alternatives included."""
        steps = (step for slot in self.slots for step in _alternatives(slot) if step is not None)
        return frozenset(operators()[step.operator].family for step in steps)

    @property
    def variations(self) -> int:
        """How many ways there are to choose among the alternatives."""
        return math.prod(len(_alternatives(slot)) for slot in self.slots) * len(self.scopes)

    def steps(self, variation: int = 0) -> list[Step]:
        """Return the steps that a number chooses, modulo :attr:`variations`; what is left out has no step."""
        made, renamed = list[Step](), dict[int, int]()
        variation, place = divmod(variation, len(self.scopes))
        scopes = self.scopes[place]
        for slot in self.slots:
            alternatives = _alternatives(slot)
            variation, place = divmod(variation, len(alternatives))
            step = alternatives[place]
            if step is not None:
                operands = tuple(renamed.get(number, number) for number in step.operands)
                made.append(replace(step, operands=operands, scope=(*step.scope, *scopes[len(made) % 2])))
                continue
            left_out = next(one for one in alternatives if one is not None)
            renamed[left_out.results[0]] = renamed.get(left_out.operands[0], left_out.operands[0])
        return made


def _alternatives(slot: Step | tuple[Step | None, ...]) -> tuple[Step | None, ...]:
    return slot if isinstance(slot, tuple) else (slot,)


def _clone(number: int) -> Step:
    return Step("clone", (0,), (), (number,))


WRITE_TEMPLATES = (
    Template(
        "a write through what looks like a copy",
        (
            _clone(-1),
            (
                Step("slice_of_all", (-1,), (), (-2,)),
                Step("to_same", (-1,), (), (-2,)),
                Step("contiguous", (-1,), (), (-2,)),
                Step("dropout_in_eval", (-1,), (), (-2,)),
                Step("dropout_of_none", (-1,), (), (-2,)),
                Step("real_part", (-1,), (), (-2,)),
                Step("reshape", (-1,), (("shape", (-1,)),), (-2,)),
                Step("expand_as_itself", (-1,), (), (-2,)),
            ),
            (Step("mul_number_", (-2,), (("value", 0.5),), ()), Step("add_", (-2, 0), (), ())),
            Step("sin", (-1,), (), (-3,)),
        ),
    ),
    Template(
        "a write to a part, and the whole is read",
        (
            _clone(-1),
            (
                Step("narrow", (-1,), (("dim", 0), ("start", 0), ("length", 1)), (-2,)),
                Step("select", (-1,), (("dim", 0), ("index", 0)), (-2,)),
                Step("diagonal", (-1,), (), (-2,)),
                Step("every_second", (-1,), (), (-2,)),
                Step("matrix_transpose", (-1,), (), (-2,)),
            ),
            (Step("mul_number_", (-2,), (("value", 0.5),), ()), Step("sin_", (-2,), (), ())),
            (
                Step("copy_between_slices", (-1,), (("length", 1),), ()),
                Step("shift_rows", (-1,), (), ()),
                Step("foreach_add_flipped", (-1,), (), ()),
            ),
            Step("add", (-1, 0), (), (-3,)),
        ),
        rank=2,
    ),
    Template(
        "a copy that a custom operator writes to, next to its original",
        (
            Step("detach", (0,), (), (-1,)),
            Step("clone", (-1,), (), (-2,)),
            (
                Step("custom_mutating", (-2, -1), (), ()),
                Step("custom_exchange", (-2, -1), (), ()),
                Step("custom_mutating_with_result", (-2,), (), (-3,)),
            ),
            Step("mul", (-2, -1), (), (-4,)),
        ),
    ),
    Template(
        "two copies that exchange what they hold",
        (
            Step("detach", (0,), (), (-1,)),
            Step("sin", (-1,), (), (-2,)),
            Step("cos", (-1,), (), (-3,)),
            (Step("foreach_exchange", (-2, -3), (), ()), Step("custom_exchange", (-2, -3), (), ())),
            Step("sub", (-2, -3), (), (-4,)),
        ),
    ),
    Template(
        "rows are put into what was expanded",
        (
            (Step("sum", (0,), (("dim", 0), ("keepdim", False)), (-1,)), Step("sin", (0,), (), (-1,))),
            Step("expand_in_front", (-1,), (), (-2,)),
            Step("literal_index", (0,), (), (-3,)),
            (Step("index", (-2, -3), (), (-4,)), Step("index_select", (-2, -3), (("dim", 0),), (-4,))),
            Step("neg", (-4,), (), (-5,)),
            (
                Step("index_put_accumulate", (-2, -3, -5), (), (-6,)),
                Step("index_put", (-2, -3, -5), (), (-6,)),
                Step("index_add", (-2, -3, -5), (), (-6,)),
                Step("index_copy", (-2, -3, -5), (), (-6,)),
            ),
        ),
        rank=1,
        most=4,
        weight=3,
    ),
    Template(
        "pieces of an input are returned, and written through it while another input shares its memory",
        (
            (
                Step("unbind", (0,), (("dim", 0),), (-1, -2)),
                Step("chunk", (0,), (("dim", 0),), (-1, -2)),
                Step("tensor_split", (0,), (("dim", 0),), (-1, -2, -3)),
                Step("unbind", (0,), (("dim", 1),), (-1, -2)),
                Step("alias", (0,), (), (-1,)),
            ),
            (
                Step("mul_number_", (0,), (("value", 0.5),), ()),
                Step("add_number_", (0,), (("value", 1.0),), ()),
                Step("sub_", (0, 0), (), ()),
            ),
        ),
        rank=1,
        shared=True,
        weight=12,
    ),
)


REGION_TEMPLATES = (
    Template(
        "a draw outside of a region, between two of it",
        (
            Step("rand_like", (0,), (), (-1,), ONE),
            Step("rand_like", (0,), (), (-2,), OUTSIDE),
            Step("rand_like", (0,), (), (-3,), ONE),
            Step("add", (-1, -3), (), (-4,), ONE),
        ),
    ),
    Template(
        "a draw behind another operator of its region",
        (Step("sin", (0,), (), (-1,), ONE), Step("dropout", (-1,), (), (-2,), ONE)),
    ),
    Template(
        "channels-last values are stacked in a region, and what leaves it is viewed",
        (
            Step("channels_last", (0,), (), (-1,), OUTSIDE),
            Step("stack", (-1, -1), (("dim", 0),), (-2,), ONE),
            Step("flatten", (-2,), (), (-3,), OUTSIDE),
        ),
        rank=4,
    ),
    Template(
        "transposed values enter a region and leave it, and are viewed",
        (
            Step("matrix_transpose", (0,), (), (-1,), OUTSIDE),
            Step("atan", (-1,), (), (-2,), ONE),
            Step("matrix_transpose", (-2,), (), (-3,), OUTSIDE),
            Step("flatten", (-3,), (), (-4,), OUTSIDE),
        ),
        rank=2,
    ),
    Template(
        "two regions that wait for each other",
        (
            Step("sin", (0,), (), (-1,), ONE),
            Step("cos", (0,), (), (-2,), OTHER),
            Step("mul", (-2, -1), (), (-3,), OTHER),
            Step("mul", (-1, -2), (), (-4,), ONE),
        ),
    ),
    Template(
        "the same operator inside and outside",
        (
            Step("sin", (0,), (), (-1,), ONE),
            Step("sin", (0,), (), (-2,), OUTSIDE),
            Step("mul", (-1, -2), (), (-3,), OUTSIDE),
        ),
    ),
    Template(
        "a number written into a slice in a region",
        (Step("clone", (0,), (), (-1,), ONE), Step("set_column_number", (-1,), (("index", 0),), (), ONE)),
        rank=1,
    ),
    Template(
        "a write between two parts of a region",
        (
            Step("clone", (0,), (), (-1,), ONE),
            Step("mul_number_", (-1,), (("value", 0.5),), (), OUTSIDE),
            Step("sin", (-1,), (), (-2,), ONE),
        ),
    ),
    Template(
        "a size that is an expression enters a region",
        (Step("cat_itself", (0,), (), (-1,), OUTSIDE), Step("sin", (-1,), (), (-2,), ONE)),
        rank=1,
    ),
    Template(
        "a region feeds a region, with nothing between",
        (Step("sin", (0,), (), (-1,), ONE), Step("cos", (-1,), (), (-2,), OTHER)),
    ),
)


def _scaled(operand: int, result: int) -> tuple[Step | None, ...]:
    return (
        Step("mul_number", (operand,), (("value", 0.5),), (result,)),
        Step("div_number", (operand,), (("value", 0.5),), (result,)),
        None,
    )


PATTERN_TEMPLATES = (
    Template(
        "attention by hand",
        (
            (
                Step("matrix_transpose", (0,), (), (-1,)),
                Step("transpose", (0,), (("first", -2), ("second", -1)), (-1,)),
            ),
            Step("matmul_batched", (0, -1), (), (-2,)),
            _scaled(-2, -3),
            (None, Step("float", (-3,), (), (-4,))),
            (None, Step("full_like", (-4,), (("value", -2.0),), (-5,))),
            (None, Step("add", (-4, -5), (), (-6,))),
            (
                Step("softmax", (-6,), (("dim", -1),), (-7,)),
                Step("softmax", (-6,), (("dim", -2),), (-7,)),
                Step("softmax", (-6,), (("dim", 1),), (-7,)),
            ),
            (None, Step("dropout_of_none", (-7,), (), (-8,)), Step("dropout_in_eval", (-7,), (), (-8,))),
            (None, Step("type_as", (-8, 0), (), (-9,))),
            Step("matmul_batched", (-9, 0), (), (-10,)),
        ),
        rank=3,
        most=4,
    ),
    Template(
        "convolution, batch norm and activation",
        (
            Step("conv2d", (0, 0), (("stride", 1), ("padding", 1)), (-1,)),
            Step("batch_norm_in_eval", (-1,), (), (-2,)),
            (Step("silu", (-2,), (), (-3,)), Step("relu", (-2,), (), (-3,)), None),
        ),
        rank=4,
    ),
    Template(
        "modulated layer norms in a row",
        (
            Step("mean", (0,), (("dim", -2), ("keepdim", True)), (-1,)),
            Step("layer_norm", (0,), (), (-2,)),
            Step("add_number", (-1,), (("value", 1.0),), (-3,)),
            Step("mul", (-2, -3), (), (-4,)),
            Step("add", (-4, -1), (), (-5,)),
            Step("layer_norm", (-5,), (), (-6,)),
            Step("mul", (-6, -3), (), (-7,)),
            Step("add", (-7, -1), (), (-8,)),
        ),
        rank=2,
    ),
    Template(
        "products, transposes and sums of them",
        (
            Step("mm_transposed", (0, 0), (), (-1,)),
            (Step("matrix_transpose", (-1,), (), (-2,)), None),
            Step("add", (-1, -2), (), (-3,)),
            (
                Step("addmm", (-3, 0, 0), (), (-4,)),
                Step("mm", (-3, 0), (), (-4,)),
                Step("add_alpha", (-3, -1), (("alpha", 2),), (-4,)),
            ),
            (None, Step("matrix_transpose", (-4,), (), (-5,))),
        ),
        rank=2,
        most=2,
    ),
    Template(
        "positions of extremes behind a sum of a permuted value",
        (
            (
                Step("matrix_transpose", (0,), (), (-1,)),
                Step("channels_last", (0,), (), (-1,)),
                Step("permute", (0,), (("dims", (2, 0, 1)),), (-1,)),
            ),
            Step("detach", (-1,), (), (-2,)),
            (Step("sum", (-2,), (("dim", -1), ("keepdim", False)), (-3,)), Step("square", (-2,), (), (-3,)), None),
            (
                Step("value_at_argmax", (-3,), (("dim", 0),), (-4,)),
                Step("value_at_argmin", (-3,), (("dim", -1),), (-4,)),
                Step("value_at_max_index", (-3,), (("dim", 0),), (-4,)),
                Step("values_by_argsort", (-3,), (("dim", -1),), (-4,)),
            ),
        ),
        rank=2,
    ),
    Template(
        "sums over rows next to sums over columns",
        (
            Step("mul", (0, 0), (), (-1,)),
            (Step("rms_by_hand", (-1,), (), (-2,)), Step("layer_norm", (-1,), (), (-2,)), None),
            Step("sum", (-2,), (("dim", 0), ("keepdim", False)), (-3,)),
            Step("sum", (-2,), (("dim", -1), ("keepdim", False)), (-4,)),
        ),
        rank=2,
    ),
    Template(
        "pieces that are put together again",
        (
            Step("chunk", (0,), (("dim", 0),), (-1, -2)),
            (None, Step("neg", (-1,), (), (-3,))),
            (Step("cat", (-1, -2), (("dim", 0),), (-4,)), Step("stack", (-1, -2), (("dim", 0),), (-4,))),
            Step("flatten", (-4,), (), (-5,)),
        ),
        rank=1,
    ),
    Template(
        "a gated unit",
        (
            Step("chunk", (0,), (("dim", -1),), (-1, -2)),
            Step("swiglu", (-1, -2), (), (-3,)),
            (None, Step("rms_by_hand", (-3,), (), (-4,))),
        ),
        rank=1,
    ),
    Template(
        "a rotary embedding",
        (
            Step("chunk", (0,), (("dim", -1),), (-1, -2)),
            Step("neg", (-2,), (), (-3,)),
            Step("cat", (-3, -1), (("dim", -1),), (-4,)),
            Step("cos", (0,), (), (-5,)),
            Step("sin", (0,), (), (-6,)),
            Step("mul", (0, -5), (), (-7,)),
            Step("mul", (-4, -6), (), (-8,)),
            Step("add", (-7, -8), (), (-9,)),
        ),
        rank=1,
    ),
    Template(
        "rows that are looked up, normalized and added back",
        (
            Step("literal_index", (0,), (), (-1,)),
            Step("index", (0, -1), (), (-2,)),
            Step("rms_by_hand", (-2,), (), (-3,)),
            Step("zeros_like", (0,), (), (-4,)),
            (Step("index_add", (-4, -1, -3), (), (-5,)), Step("index_put_accumulate", (-4, -1, -3), (), (-5,))),
            Step("index", (-5, -1), (), (-6,)),
        ),
        rank=1,
    ),
    Template(
        "a margin that is cut off again",
        (
            (Step("pad", (0,), (), (-1,)), Step("constant_pad", (0,), (), (-1,))),
            (Step("head", (-1,), (), (-2,)), Step("every_second", (-1,), (), (-2,))),
            Step("sin", (-2,), (), (-3,)),
        ),
        rank=2,
    ),
    Template(
        "a lower precision for a moment",
        (
            Step("sin", (0,), (), (-1,)),
            (Step("to_float16", (-1,), (), (-2,)), Step("to_bfloat16", (-1,), (), (-2,))),
            (Step("to_float32", (-2,), (), (-3,)), Step("type_as", (-2, 0), (), (-3,))),
            Step("add_mixed", (-3, -1), (), (-4,)),
        ),
    ),
    Template(
        "a flip of repeated elements",
        (
            Step("repeat_interleave", (0,), (("dim", 0),), (-1,)),
            Step("flip", (-1,), (("dim", 0),), (-2,)),
            Step("add", (-1, -2), (), (-3,)),
        ),
        rank=1,
        most=3,
    ),
    Template(
        "a sum over what was expanded",
        (
            (Step("matrix_transpose", (0,), (), (-1,)), None),
            Step("expand_in_front", (-1,), (), (-2,)),
            (Step("sum", (-2,), (("dim", 0), ("keepdim", False)), (-3,)), Step("sum_by_hand", (-2,), (), (-3,))),
        ),
        rank=2,
    ),
    Template(
        "autocast around a product, and its sum outside",
        (
            Step("mm_transposed", (0, 0), (), (-1,), (Context("autocast"),)),
            (Step("softmax", (-1,), (("dim", -1),), (-2,)), Step("sin", (-1,), (), (-2,))),
            Step("sum_all", (-2,), (), (-3,)),
        ),
        rank=2,
        most=2,
    ),
    Template(
        "a norm of an instance, of its vectors, and an activation",
        (
            Step("instance_norm", (0,), (), (-1,)),
            (None, Step("unit_vectors", (-1,), (("dim", 1),), (-2,))),
            (Step("silu", (-2,), (), (-3,)), Step("hardswish", (-2,), (), (-3,))),
        ),
        rank=3,
    ),
    Template(
        "rows in an order that is drawn",
        (
            (Step("sin", (0,), (), (-1,)), None),
            Step("randperm", (0,), (("size", 2),), (-2,)),
            (
                Step("index", (-1, -2), (), (-3,)),
                Step("index_select", (-1, -2), (("dim", 0),), (-3,)),
                Step("take", (-1, -2), (), (-3,)),
            ),
        ),
        rank=1,
        weight=2,
    ),
    Template(
        "labels of each row, some of them padding",
        (
            Step("sign", (0,), (), (-1,)),
            Step("to_int64", (-1,), (), (-2,)),
            Step("aten_multilabel_margin_loss", (0, -2), (("reduction", 1),), (-3,)),
        ),
        rank=2,
        most=2,
        weight=4,
    ),
    Template(
        "powers of two of another dtype",
        (
            Step("sign", (0,), (), (-1,)),
            (Step("to_int64", (-1,), (), (-2,)), Step("to_int32", (-1,), (), (-2,)), Step("to_int8", (-1,), (), (-2,))),
            Step("aten_ldexp_Tensor", (0, -2), (), (-3,)),
        ),
    ),
    Template(
        "the deviation of large numbers",
        (
            Step("detach", (0,), (), (-1,)),
            Step("square", (-1,), (), (-2,)),
            Step("add_number", (-2,), (("value", 1.0),), (-3,)),
            Step("mul_number", (-3,), (("value", 1e20),), (-4,)),
            Step("deviation_of_large", (-4,), (("dim", 0), ("keepdim", False)), (-5,)),
        ),
        rank=1,
        weight=5,
    ),
)


CALL_TEMPLATES = (
    Template(
        "a condition, and a nested region behind it",
        (
            Step("literal_index", (0,), (), (-1,)),
            (Step("cond", (-1, 0), (), (-2,), (), (0, 0)), Step("nested", (0,), (), (-2,), (), (0,))),
            (Step("nested", (-2,), (), (-3,), (), (0,)), Step("cond", (-1, -2), (), (-3,), (), (0, 0))),
        ),
        weight=3,
    ),
    Template(
        "a branch that reads the weight of a convolution",
        (
            (
                Step("conv2d", (0, 0), (("stride", 2), ("padding", 0)), (-1,)),
                Step("conv2d", (0, 0), (("stride", 1), ("padding", 1)), (-1,)),
            ),
            Step("literal_index", (0,), (), (-2,)),
            Step("cond", (-2, 0), (), (-3,), (), (0, 0)),
        ),
        rank=4,
        most=4,
        weight=9,
    ),
)


#: Within a region, outside, and across its boundary.
_PLACES = ((ONE, ONE), (OUTSIDE, OUTSIDE), (ONE, OUTSIDE))

TEMPLATES = (
    *REGION_TEMPLATES,
    *(replace(template, scopes=_PLACES) for template in (*PATTERN_TEMPLATES, *WRITE_TEMPLATES, *CALL_TEMPLATES)),
)

#: Places of the templates, as often as each is to be drawn.
DRAWN = tuple(place for place, template in enumerate(TEMPLATES) for _ in range(template.weight))


def add_template(
    builder: Builder, choice: int, families: Collection[str] | None = None, *, variation: int = 0
) -> Template | None:
    """Add a template and return it; None where it does not fit, of which the first steps may be there.

    Args:
        builder: a program under construction.
        choice: which one, counted on to one whose operators are allowed, and which some value has the rank for.
        variation: which value it reads, and then which of the alternatives it takes.
        families: the families of operators that the program may hold; all where None.
    """
    for place in range(len(TEMPLATES)):
        template = TEMPLATES[(choice + place) % len(TEMPLATES)]
        allowed = families is None or template.families <= frozenset(families)
        values = [
            value.number
            for value in builder.values.values()
            if value.is_float
            and template.rank <= value.rank <= template.most
            and (not template.shared or value.number in builder.shared_inputs)
        ]
        if allowed and values:
            first, alternative = variation % len(values), variation // len(values)
            tried = [*values[first:], *values[:first]][:3]
            return template if any(_add(builder, template, value, alternative) for value in tried) else None
    return None


def _add(builder: Builder, template: Template, value: int, variation: int) -> bool:
    mark, numbers = len(builder.steps), {0: value}
    try:
        for step in template.steps(variation):
            operands = tuple(numbers[number] for number in step.operands)
            # Blocks of the program in place of those that the step names, which take as much as it passes.
            fitting = builder.blocks_for(operator_named(step.operator))
            blocks = tuple(fitting[index % len(fitting)] for index in step.blocks) if fitting else step.blocks
            added = builder.add(replace(step, operands=operands, results=(), blocks=blocks))
            numbers |= dict(zip(step.results, added.results, strict=True))
    except Refused:
        if not any(operator_named(step.operator).writes or uses_rng(step) for step in builder.steps[mark:]):
            builder.take_back(mark)
        return False
    return True


LONGEST = 3
FIRST, SECOND = Region("one"), Region("other")


def add_near_duplicates(builder: Builder, choice: int) -> None:
    """Add two regions that differ in one thing; nothing, or a part of them, where that does not fit.

    Args:
        builder: a program under construction.
        choice: in what they differ, and what they compute: a run of region steps again, or a few steps made for it.
    """
    difference = DIFFERENCES[choice % len(DIFFERENCES)]
    number = choice // len(DIFFERENCES)
    drawn = list(_runs(builder.steps))
    if drawn and not difference.own:
        run = drawn[number % len(drawn)]
    else:
        values = [value for value in builder.values.values() if value.is_float and value.rank > 1]
        if not values:
            return
        run = _made(values[number % len(values)].number)
    try:
        first = _repeat(builder, run, {}, FIRST)
        inputs = _inputs(builder, run, difference.prepare)
        second = _repeat(builder, difference.change(run), inputs, difference.region)
        if difference.reads is not None:
            for made, place in zip((first, second), difference.reads, strict=True):
                builder.add(Step("neg", (made[run[place].results[0]],)))
    except Refused:
        return


@dataclass(frozen=True)
class Difference:
    """What the second region has that the first has not.

    Attributes:
        prepare: eager steps that make what it reads of what the first one reads.
        change: makes its steps of those of the first one.
        region: its annotation.
        own: whether the steps are made for it, in place of those that were drawn.
        reads: which of its values eager code reads, the first and the second region's; they leave the regions.
    """

    prepare: Callable[[ProgramValue], Sequence[Step]] = lambda value: ()
    change: Callable[[Sequence[Step]], Sequence[Step]] = lambda run: run
    region: Region = SECOND
    own: bool = False
    reads: tuple[int, int] | None = None


def _runs(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the last steps of each stretch of steps in one region."""
    for region, run in itertools.groupby(steps, lambda step: step.region):
        last = list(run)[-LONGEST:]
        if region is not None and len(last) > 1 and any(step.results for step in last):
            yield last


def _made(number: int) -> list[Step]:
    """Return steps that have a number, a dimension, and values that may leave or not; results count from -1 down."""
    return [
        Step("mul_number", (number,), (("value", 0.5),), (-1,)),
        Step("cumsum", (-1,), (("dim", 0),), (-2,)),
        Step("atan", (-2,), (), (-3,)),
    ]


def _inputs(builder: Builder, run: Sequence[Step], prepare: Callable[[ProgramValue], Sequence[Step]]) -> dict[int, int]:
    """Map what the run reads from outside to what its near-duplicate is to read, made by eager steps."""
    made = {number for step in run for number in step.results}
    outside = dict.fromkeys(number for step in run for number in step.operands if number not in made)
    numbers = {}
    for number in outside:
        now = number
        for step in prepare(builder.values[number]) if number in builder.values else ():
            (now,) = builder.add(replace(step, operands=(now,))).results
        numbers[number] = now
    return numbers


def _repeat(builder: Builder, run: Sequence[Step], numbers: dict[int, int], region: Region) -> dict[int, int]:
    """Add the run once more, in another region; return what its values, and those that it reads, are called now."""
    for step in run:
        operands = tuple(numbers.get(number, number) for number in step.operands)
        scope: Scope = (*step.contexts, region)
        again = builder.add(replace(step, operands=operands, results=(), scope=scope))
        numbers |= dict(zip(step.results, again.results, strict=True))
    return numbers


# What is done to what the second region reads


def _negated(value: ProgramValue) -> list[Step]:
    return [Step("neg")] if value.is_float else []


def _restrided(value: ProgramValue) -> list[Step]:
    return [Step("matrix_transpose"), Step("contiguous"), Step("matrix_transpose")] if value.rank > 1 else []


def _cast(value: ProgramValue) -> list[Step]:
    return [Step("to_float32" if value.dtype == "float64" else "to_float64")] if value.is_float else []


def _cut(value: ProgramValue) -> list[Step]:
    size = value.shape[0] - 1 if value.rank else 0
    return [Step("narrow", (), (("dim", 0), ("start", 0), ("length", size)))] if size > 0 else []


# What is done to its steps


def _with(operator: str, **parameters: float) -> Callable[[Sequence[Step]], Sequence[Step]]:
    changed = tuple(parameters.items())
    return lambda run: [replace(step, parameters=changed) if step.operator == operator else step for step in run]


DIFFERENCES = (
    Difference(_negated),
    Difference(_negated, region=replace(SECOND, configs=(("max_fusion_size", 4),))),
    Difference(_restrided),
    Difference(_cast),
    Difference(_cut),
    Difference(change=_with("mul_number", value=1.5), own=True),
    Difference(change=_with("cumsum", dim=1), own=True),
    Difference(_negated, own=True, reads=(0, 1)),
    Difference(_restrided, own=True),
)
