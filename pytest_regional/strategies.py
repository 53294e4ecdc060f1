"""Hypothesis strategies: annotated programs, their inputs, FX graphs, lists of graph passes.

The only module, with those that only it imports, that needs the ``hypothesis`` package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.control import current_build_context

from pytest_regional._base.text import unknown_name
from pytest_regional.fuzz.draw.encoding import EncodedProgram, EncodedStep, Options, program_of, table
from pytest_regional.fuzz.draw.graphs import (
    ARGUMENT_BYTES,
    PASSES,
    PLAN_BYTES,
    STEP_BYTES,
    AnnotatedGraph,
    EncodedNode,
    decode_argument,
    decode_plan,
    decode_step,
    fresh_arguments,
    fresh_program_inputs,
    graph_of,
)
from pytest_regional.fuzz.model.arguments import FLOATS
from pytest_regional.fuzz.model.claims import DRAWN
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.operators.table import families as all_families


def programs(
    *,
    max_steps: int = 12,
    max_arguments: int = 5,
    families: Collection[str] | str | None = None,
    training: bool | None = None,
    regions: bool = True,
    dtypes: Sequence[str] = FLOATS,
    dynamic: bool = True,
    nonfinite: bool = True,
    data_dependent: bool = False,
    without: Collection[str] = (),
) -> st.SearchStrategy[Program]:
    """Return a strategy of annotated programs that run, and where they are to train, train.

    They shrink to few steps, the operators that stand first in the table, one region or none, dense float32 inputs of
    a few elements. In half of them some families of operators are switched off, so that others come more often.

    Args:
        max_steps: no program is made of more steps; a near-duplicate region comes on top.
        max_arguments: nor more inputs.
        families: families of operators, such as ``"pointwise"``, or one of them; all by default.
            ``docs/fuzzing-programs.md`` has them.
        training: whether programs are backpropagated through: all, none, or (None) some.
        regions: whether there are region annotations.
        dtypes: floating dtypes of inputs; shrinks to the first.
        dynamic: whether sizes of inputs may be marked as dynamic.
        nonfinite: whether inputs of some programs hold NaN and infinities.
        data_dependent: whether sizes and numbers may depend on data. Dynamo has to be told to capture them
            (``capture_scalar_outputs``, ``capture_dynamic_output_shape_ops``).
        without: capabilities that no program needs, such as ``"backward"``; those of
            :data:`pytest_regional.fuzz.model.claims.DRAWN`.

    Raises:
        ValueError: there are no such families, dtypes, capabilities, or numbers of steps or arguments; or no operator
            is left.
    """
    if isinstance(families, str):
        families = (families,)
    _check_programs(max_steps, max_arguments, families, dtypes)
    for name in without:
        if name not in DRAWN:
            raise ValueError(unknown_name("capability that programs need", name, DRAWN))
    # Custom operators import Dynamo when they are first called; Hypothesis would blame the example that does.
    torch.compiler.disable(lambda: None)
    wanted = None if families is None else frozenset(families)
    options = Options(wanted, training, regions, tuple(dtypes), dynamic, nonfinite, data_dependent, frozenset(without))
    if not table(options):
        raise ValueError(f"programs(): no operator of {', '.join(sorted(wanted or ()))} does without {sorted(without)}")
    used = sorted({operator.family for operator in table(options)})
    off = st.frozensets(st.sampled_from(used)) if len(used) > 1 else st.just(frozenset())
    encodings = st.builds(
        EncodedProgram,
        st.lists(_bytes(ARGUMENT_BYTES).map(decode_argument), min_size=1, max_size=max_arguments).map(tuple),
        _steps(max_steps),
        st.lists(_steps(3), max_size=2).map(tuple),
        st.builds(decode_plan, _bytes(PLAN_BYTES), st.one_of(st.just(frozenset()), off)),
    )
    return encodings.map(lambda encoded: _decoded(encoded, options))


def _check_programs(
    max_steps: int, max_arguments: int, families: Collection[str] | None, dtypes: Sequence[str]
) -> None:
    for name, number in (("max_steps", max_steps), ("max_arguments", max_arguments)):
        if number < 1:
            raise ValueError(f"programs({name}={number}): expected at least 1")
    for family in families or ():
        if family not in all_families():
            raise ValueError(unknown_name("family of operators", family, all_families()))
    if families is not None and not families:
        raise ValueError("programs(families=()): there is nothing to draw; leave it out for all families")
    for dtype in dtypes:
        if dtype not in FLOATS:
            raise ValueError(unknown_name("floating dtype", dtype, FLOATS))
    if not dtypes:
        raise ValueError(f"programs(dtypes=()): expected some of {', '.join(FLOATS)}")


def _decoded(encoded: EncodedProgram, options: Options) -> Program:
    """Return the program; time in which other processes had the processor is none that Hypothesis says it took.

    Its health check ``too_slow`` allows a second of the clock for ten draws. They take a fifth of that on a machine
    that does nothing else. ``draw_times`` is a private attribute of Hypothesis (6.170).
    """
    clock, used = time.perf_counter(), time.process_time()
    program = program_of(encoded, options)
    waited = time.perf_counter() - clock - (time.process_time() - used)
    times = getattr(current_build_context().data, "draw_times", None)
    if times is not None and waited > 0:
        times["generate:waiting for a processor: "] = times.get("generate:waiting for a processor: ", 0.0) - waited
    return program


def _steps(most: int) -> st.SearchStrategy[tuple[EncodedStep, ...]]:
    return st.lists(_bytes(STEP_BYTES).map(decode_step), min_size=1, max_size=most).map(tuple)


def _bytes(count: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=count, max_size=count)


def graphs(*, max_nodes: int = 30, max_regions: int = 3, max_edges: int = 4) -> st.SearchStrategy[AnnotatedGraph]:
    """Return a strategy of FX graphs of ATen operators whose nodes carry regions, with order edges among them.

    What a partitioner or a graph pass is given. They shrink to few nodes without region, and to no edges.

    Args:
        max_nodes: no graph has more operators.
        max_regions: nor more regions; at most four.
        max_edges: nor more order edges.
    """
    codes = st.lists(_bytes(4).map(lambda drawn: EncodedNode(*drawn)), min_size=1, max_size=max_nodes)
    edges = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255)), max_size=max_edges)
    return st.builds(graph_of, codes, edges, st.just(max_regions))


def pass_pipelines(passes: Sequence[Any] | None = None, *, max_size: int = 4) -> st.SearchStrategy[list[Any]]:
    """Return a strategy of lists of graph passes in any order, some of them several times.

    ``regional.run_pass`` takes such a list; a compile with it has to give the same values as without. They shrink to
    the first pass alone.

    Args:
        passes: what to choose from, the simplest first; by default passes that change graphs and no value.
        max_size: no list is longer.
    """
    return st.lists(st.sampled_from(tuple(PASSES if passes is None else passes)), min_size=1, max_size=max_size)


def inputs_for(
    fn_or_program: Callable[..., Any],
    *example_inputs: Any,
    device: Any = "cpu",
    layouts: bool = True,
    dynamic: Mapping[int, Collection[int]] | None = None,
) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return a strategy of inputs on which the same program must run as well: other values, layouts, dynamic sizes.

    A :class:`~pytest_regional.fuzz.Program` knows what its inputs may be, and is given no examples. For any other
    function they are like ``example_inputs``: floats of the same magnitude and signs, integers permuted.

    Args:
        fn_or_program: what is to be called.
        example_inputs: inputs that it can be called with.
        device: where inputs of a program are made.
        layouts: whether strides may be others.
        dynamic: for each input, by position, the dimensions whose sizes may be others. Sizes that are equal stay equal.

    Raises:
        TypeError: a function without example inputs, or a program with them.
    """
    is_program = isinstance(fn_or_program, Program)
    if is_program == bool(example_inputs):
        raise TypeError("a Program makes its inputs itself; any other function needs example inputs: give one of both")
    seeds, sizes = st.integers(0, 2**16), st.integers(0, 13)
    layout = st.integers(0, 3) if layouts else st.just(0)
    if isinstance(fn_or_program, Program):
        return st.builds(fresh_program_inputs, st.just(fn_or_program), st.just(device), seeds, layout, sizes)
    return st.builds(fresh_arguments, st.just(example_inputs), st.just(dynamic or {}), seeds, layout, sizes)


__all__ = ["graphs", "inputs_for", "pass_pipelines", "programs"]
