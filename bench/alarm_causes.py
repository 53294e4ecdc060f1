"""Defects of PyTorch that random programs meet often, and what a program looks like that does not meet them.

An alarm is one of them where the same program without it keeps the oracle. That costs one check, a reduction hundreds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pytest_regional._base.errors import RegionalValueError
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.program import Block, Program, Step
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles import BadProgramError, OracleViolationError, check
from pytest_regional.harness.regional import Regional


@dataclass(frozen=True)
class Cause:
    """A defect of PyTorch.

    Attributes:
        script: its script in ``docs/findings``.
        differs: what it causes, one of which the origin of an alarm names.
        without: returns a program without it; the program itself where it has nothing of it.
    """

    script: str
    differs: tuple[str, ...]
    without: Callable[[Program], Program]


def _other_partitioner(program: Program) -> Program:
    return replace(program, partitioner="min_cut") if program.partitioner == "default" else program


def _with_steps(program: Program, instead: Callable[[Step], tuple[Step, ...]]) -> Program:
    def of_block(block: Block) -> Block:
        return replace(block, steps=tuple(other for step in block.steps for other in instead(step)))

    steps = tuple(other for step in program.steps for other in instead(step))
    return replace(program, steps=steps, blocks=tuple(map(of_block, program.blocks)))


def _copies_for_dropouts(program: Program) -> Program:
    def instead(step: Step) -> tuple[Step, ...]:
        through = step.operator in ("dropout_in_eval", "dropout_of_none")
        return (replace(step, operator="clone", parameters=()) if through else step,)

    return _with_steps(program, instead)


def _single_writes_for_lists(program: Program) -> Program:
    def instead(step: Step) -> tuple[Step, ...]:
        operator = operator_named(step.operator)
        if not operator.writes or "_foreach" not in operator.template:
            return (step,)
        return tuple(Step("sin_", (step.operands[place],), scope=step.scope) for place in operator.writes)

    return _with_steps(program, instead)


def _made_by(program: Program) -> dict[int, Step]:
    return {result: step for step in program.steps for result in step.results}


def _without_outputs_of_equal_operators(program: Program) -> Program:
    makers, seen, kept = _made_by(program), set[str](), []
    for number in program.outputs:
        maker = makers.get(number)
        if maker is None or maker.operator not in seen:
            kept.append(number)
        seen |= {maker.operator} if maker is not None else set()
    return replace(program, outputs=tuple(kept))


def _whole_values_for_overlapping_outputs(program: Program) -> Program:
    whole = {
        number: step.operands[0]
        for number, step in _made_by(program).items()
        if step.operator in ("unfold", "as_strided")
    }
    return replace(program, outputs=tuple(whole.get(number, number) for number in program.outputs))


CAUSES = (
    Cause("dropout_draws_again.py", ("draws of random state",), _other_partitioner),
    Cause("write_through_dropout.py", ("value of", "alias of output"), _copies_for_dropouts),
    Cause("foreach_on_view.py", ("value of grad",), _single_writes_for_lists),
    Cause("equal_results_are_one_tensor.py", ("alias of output",), _without_outputs_of_equal_operators),
    Cause("gradient_of_overlapping_output.py", ("value of grad",), _whole_values_for_overlapping_outputs),
)


#: Scripts of defects that raise an error of their own, by what the origin of an alarm then holds.
ERRORS = {
    "Cannot call storage_offset() on tensor with symbolic": "jvp_of_slice_dynamic.py",
    "RuntimeError at torch._functorch._aot_autograd.runtime_wrappers:merge_view_inputs": "dynamic_aliases_written.py",
    "AssertionError at torch._functorch._aot_autograd.runtime_wrappers:merge_view_inputs": "detached_alias_written.py",
    "input_output_analysis:compute_overlapping_inputs": "dynamic_aliases.py",
}


def cause_of(harness: Regional, program: Program, mode: str, alarm: OracleViolationError) -> str | None:
    """Return the script of the defect that raises such an error, or without which ``program`` keeps the oracle.

    None where it is none of them.
    """
    if raised := next((script for what, script in ERRORS.items() if what in alarm.origin), None):
        return raised
    found = (cause.script for cause, other in _without(program, alarm) if _keeps(harness, other, mode, alarm.oracle))
    return next(found, None)


def _without(program: Program, alarm: OracleViolationError) -> Iterator[tuple[Cause, Program]]:
    for cause in CAUSES:
        other = cause.without(program)
        if any(what in alarm.origin for what in cause.differs) and other != program and other.outputs:
            yield cause, other


def _keeps(harness: Regional, program: Program, mode: str, oracle: str) -> bool:
    try:
        check_buildable(program)
        return oracle in check(harness, program, mode=mode, oracles=[oracle], blame=False).oracles
    except (BadProgramError, OracleViolationError, RegionalValueError):
        return False
