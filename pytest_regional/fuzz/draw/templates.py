"""Templates: a few steps that rarely come together by chance, and that compilers get wrong when they do.

Some are about regions, others are what compilers look for by its shape, in several spellings, or writes that they have
to keep in order. Each is added to a program behind what was drawn, and reads a value of it; what does not fit is left
out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from pytest_regional.fuzz.draw.call_templates import CALL_TEMPLATES
from pytest_regional.fuzz.draw.pattern_templates import PATTERN_TEMPLATES
from pytest_regional.fuzz.draw.region_templates import REGION_TEMPLATES
from pytest_regional.fuzz.draw.template import ONE, OUTSIDE, Template
from pytest_regional.fuzz.draw.write_templates import WRITE_TEMPLATES
from pytest_regional.fuzz.model.building import Builder, Refused
from pytest_regional.fuzz.model.evaluation import uses_rng
from pytest_regional.fuzz.model.program import Step
from pytest_regional.fuzz.operators.table import operator_named

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
        values = _readable(builder, template)
        if allowed and values:
            first, alternative = variation % len(values), variation // len(values)
            tried = [*values[first:], *values[:first]][:_TRIED]
            return template if any(_add(builder, template, value, alternative) for value in tried) else None
    return None


#: How many values of the program a template tries to read.
_TRIED = 3


def _add(builder: Builder, template: Template, value: int, variation: int) -> bool:
    mark, numbers = len(builder.steps), {0: value}
    try:
        for step in template.steps(variation):
            operands = tuple(numbers[number] for number in step.operands)
            blocks = _blocks(builder, step)
            added = builder.add(replace(step, operands=operands, results=(), blocks=blocks))
            numbers |= dict(zip(step.results, added.results, strict=True))
    except Refused:
        if not any(operator_named(step.operator).writes or uses_rng(step) for step in builder.steps[mark:]):
            builder.take_back(mark)
        return False
    return True


def _blocks(builder: Builder, step: Step) -> tuple[int, ...]:
    """Return blocks of the program in place of those that ``step`` names, which take as much as it passes."""
    fitting = builder.blocks_for(operator_named(step.operator))
    return tuple(fitting[index % len(fitting)] for index in step.blocks) if fitting else step.blocks


def _readable(builder: Builder, template: Template) -> list[int]:
    return [
        value.number
        for value in builder.values.values()
        if value.is_float
        and template.rank <= value.rank <= template.most
        and (not template.shared or value.number in builder.shared_inputs)
    ]
