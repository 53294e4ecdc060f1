"""Hypothesis strategies for annotated programs. Needs the ``hypothesis`` package."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hypothesis import strategies as st

from pytest_regional.fuzz.arguments import FLOATS
from pytest_regional.fuzz.operators.table import families as all_families
from pytest_regional.fuzz.program import Program
from pytest_regional.fuzz.random_rows import (
    ARGUMENT_BYTES,
    PLAN_BYTES,
    STEP_BYTES,
    argument_row,
    plan_row,
    step_row,
)
from pytest_regional.fuzz.rows import Options, ProgramRows, StepRow, program_of, table


def programs(
    *,
    max_steps: int = 12,
    max_arguments: int = 5,
    families: Collection[str] | None = None,
    training: bool | None = None,
    regions: bool = True,
    dtypes: Sequence[str] = FLOATS,
    dynamic: bool = True,
    nonfinite: bool = True,
    data_dependent: bool = False,
) -> st.SearchStrategy[Program]:
    """Return a strategy of annotated programs that run, and where they are to train, train.

    They shrink to few steps, the operators that stand first in the table, one region or none, dense float32 inputs of
    a few elements. In half of them some families of operators are switched off, so that others come more often.

    Args:
        max_steps: no program has more steps.
        max_arguments: nor more inputs.
        families: families of operators, such as ``"pointwise"``; all by default. ``docs/fuzzing-programs.md`` has them.
        training: whether programs are backpropagated through: all, none, or (None) some.
        regions: whether there are region annotations.
        dtypes: floating dtypes of inputs; shrinks to the first.
        dynamic: whether sizes of inputs may be marked as dynamic.
        nonfinite: whether inputs of some programs hold NaN and infinities.
        data_dependent: whether sizes and numbers may depend on data. Dynamo has to be told to capture them
            (``capture_scalar_outputs``, ``capture_dynamic_output_shape_ops``).

    Raises:
        ValueError: a family is not known.
    """
    unknown = sorted(set(families or ()) - set(all_families()))
    if unknown:
        raise ValueError(f"no family of operators is called {unknown[0]!r}; there are {', '.join(all_families())}")
    wanted = None if families is None else frozenset(families)
    options = Options(wanted, training, regions, tuple(dtypes), dynamic, nonfinite, data_dependent)
    return _rows(max_steps, max_arguments, options).map(lambda rows: program_of(rows, options))


def _rows(max_steps: int, max_arguments: int, options: Options) -> st.SearchStrategy[ProgramRows]:
    used = sorted({operator.family for operator in table(options)})
    off = st.frozensets(st.sampled_from(used)) if len(used) > 1 else st.just(frozenset())
    return st.builds(
        ProgramRows,
        st.lists(_bytes(ARGUMENT_BYTES).map(argument_row), min_size=1, max_size=max_arguments).map(tuple),
        _steps(max_steps),
        st.lists(_steps(3), max_size=2).map(tuple),
        st.builds(plan_row, _bytes(PLAN_BYTES), st.one_of(st.just(frozenset()), off)),
    )


def _steps(most: int) -> st.SearchStrategy[tuple[StepRow, ...]]:
    return st.lists(_bytes(STEP_BYTES).map(step_row), min_size=1, max_size=most).map(tuple)


def _bytes(count: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=count, max_size=count)


__all__ = ["programs"]
