"""The loops of C++ kernels: those of PyTorch are proved, and those with a planted fault refuted."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from pytest_regional._torch import torch_version
from pytest_regional._torch.cpp_loops import IN_A_ROW, SAME, RawBody, RawKernel, RawNest
from pytest_regional.verify import PROVED, REFUTED, UNKNOWN, cpp
from pytest_regional.verify.cpp import verify_kernel
from tests.verify.cpp_nests import differs, kernels_of

VECTORS, TILES, SCALARS = "CppVecKernel", "CppTile2DKernel", "CppKernel"
TAIL = {"cpp.enable_loop_tail_vec": False}


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(cpp, "_KNOWN", {})


def rows(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(sizes, dtype=dtype)


@dataclass(frozen=True)
class Program:
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    kinds: frozenset[str]
    dynamic: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    nests: int = 1
    outcome: tuple[str, str] = (PROVED, "")


def program(function, *inputs, kinds, dynamic=False, nests=1, outcome=(PROVED, ""), **options) -> Program:
    return Program(function, inputs, frozenset(kinds), dynamic, tuple(options.items()), nests, outcome)


def transposed(x):
    return x.t().contiguous() + 1


# Loops without an end that is shorter than a vector have multiples of 32 elements: that many are whole vectors on every
# processor.
PROGRAMS = {
    "pointwise": program(lambda x: x.relu() + 1, rows(37, 5), kinds=[VECTORS]),
    "pointwise of any size": program(lambda x: x.relu() + 1, rows(64), kinds=[VECTORS], dynamic=True),
    "pointwise of two sizes": program(lambda x: x.relu() + 1, rows(37, 5), kinds=[VECTORS], dynamic=True),
    "pointwise, end without vectors": program(
        lambda x: x.relu() + 1, rows(41), kinds=[VECTORS, SCALARS], dynamic=True, **TAIL
    ),
    "reduction of a row": program(lambda x: x.sum(-1), rows(37, 53), kinds=[VECTORS]),
    "reduction of a row of any size": program(lambda x: x.sum(-1), rows(37, 53), kinds=[VECTORS], dynamic=True),
    "reduction of columns": program(lambda x: x.sum(0), rows(37, 53), kinds=[VECTORS]),
    "reduction of columns of any size": program(lambda x: x.sum(0), rows(96, 64), kinds=[VECTORS], dynamic=True),
    "reduction of columns, end without vectors": program(
        lambda x: x.sum(0), rows(37, 53), kinds=[VECTORS, SCALARS], dynamic=True, **TAIL
    ),
    "mean and variance": program(lambda x: torch.var_mean(x, -1), rows(37, 53), kinds=[VECTORS], dynamic=True),
    "tiles": program(transposed, rows(37, 53), kinds=[TILES]),
    "tiles of any size": program(transposed, rows(64, 96), kinds=[TILES], dynamic=True),
    "tiles, ends without vectors": program(transposed, rows(37, 53), kinds=[TILES, VECTORS, SCALARS], **TAIL),
    "outer loops fused": program(lambda x: x.softmax(-1), rows(37, 53), kinds=[VECTORS], nests=3),
    "outer loops fused, of any size": program(
        lambda x: x.softmax(-1), rows(37, 53), kinds=[VECTORS], dynamic=True, nests=3
    ),
    "bfloat16": program(lambda x: x * 2, rows(37, 53, dtype=torch.bfloat16), kinds=[VECTORS], dynamic=True),
    "tiles of bfloat16": program(transposed, rows(37, 53, dtype=torch.bfloat16), kinds=[TILES], dynamic=True),
    "int8": program(lambda x: x.to(torch.int8), rows(37, 53), kinds=[VECTORS], dynamic=True),
    "tiles of int8": program(transposed, rows(37, 53, dtype=torch.int8), kinds=[TILES], dynamic=True),
    "uint8 to float": program(lambda x: x.float() / 255, rows(3, 17, 19, dtype=torch.uint8), kinds=[VECTORS]),
    "strided": program(
        lambda x: x[:, ::3] + 1, rows(37, 54), kinds=[VECTORS], **{"cpp.enable_tiling_heuristics": False}
    ),
    "loaded indices": program(
        lambda x, at: x[at] * 2, rows(37, 53), rows(12, dtype=torch.int64), kinds=[VECTORS], dynamic=True
    ),
    "cat and flip": program(
        lambda x, y: torch.cat([x, y], 1).flip(0), rows(37, 53), rows(37, 19), kinds=[VECTORS], dynamic=True
    ),
    "padding": program(
        lambda x: torch.nn.functional.pad(x, (3, 2)) * 2,
        rows(37, 53),
        kinds=[VECTORS],
        dynamic=True,
        outcome=(UNKNOWN, "a load under a mask that may go on behind the last lane, of "),
    ),
    "scalar": program(lambda x: x.reshape(()) + 1, rows(1), kinds=[SCALARS]),
}


@functools.cache
def kernels(name: str) -> tuple[RawKernel, ...]:
    made = PROGRAMS[name]
    return tuple(kernels_of(made.function, *made.inputs, dynamic=made.dynamic, **dict(made.options)))


def nests(name: str) -> list[RawNest]:
    return [nest for kernel in kernels(name) for nest in kernel.nests]


def sizes_of(name: str) -> dict[str, int]:
    """Return the symbols of a program's first input with the values that they have there."""
    symbols = {s for nest in nests(name) for size in nest.sizes for s in size.free_symbols}
    assert len(symbols) <= 2
    ranges = [str(symbol) for symbol, _, _ in kernels(name)[0].ranges]
    shape = dict(zip(ranges, PROGRAMS[name].inputs[0].shape, strict=False))
    return {str(symbol): shape[str(symbol)] for symbol in symbols}


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_of_pytorch_are_proved_or_unknown_for_a_reason(name):
    made = PROGRAMS[name]
    outcomes = [outcome for kernel in kernels(name) for outcome in verify_kernel(kernel).outcomes]
    found = [(outcome.verdict, outcome.reason.partition("arg")[0]) for outcome in outcomes]
    assert found == [made.outcome] * len(nests(name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_bodies_are_seen(name):
    made = PROGRAMS[name]
    assert {body.kind for nest in nests(name) for body in nest.bodies} >= made.kinds
    assert len(nests(name)) >= made.nests
    assert all(nest.plain and all(body.accesses for body in nest.bodies) for nest in nests(name))


@pytest.mark.parametrize("size", [1, 8, 19])
@pytest.mark.parametrize(
    "name", [n for n, made in PROGRAMS.items() if made.dynamic and made.outcome[0] == PROVED and "loaded" not in n]
)
def test_what_is_proved_holds_where_the_loops_are_run(name, size):
    symbols = {str(s) for nest in nests(name) for extent in nest.sizes for s in extent.free_symbols}
    values = {symbol: size + n for n, symbol in enumerate(sorted(symbols))}
    assert not any(differs(nest, values) for nest in nests(name))


def body(nest: RawNest, number: int, **changes: Any) -> RawNest:
    """Return a nest of which one body is another."""
    bodies = list(nest.bodies)
    bodies[number] = replace(bodies[number], **changes)
    return replace(nest, bodies=tuple(bodies))


def ending(nest: RawNest, number: int, **changes: Any) -> RawNest:
    """Return a nest of which one body after the reduction is another."""
    bodies = list(nest.after)
    bodies[number] = replace(bodies[number], **changes)
    return replace(nest, after=tuple(bodies))


def loop(nest: RawNest, number: int, **changes: Any) -> RawNest:
    loops = list(nest.loops)
    loops[number] = replace(loops[number], **changes)
    return replace(nest, loops=tuple(loops))


def access(nest: RawNest, of: int, kind: str, **changes: Any) -> RawNest:
    """Return a nest of which the accesses of one kind in a body are others; functions are given the access."""
    accesses = tuple(
        replace(one, **{name: change(one) if callable(change) else change for name, change in changes.items()})
        if one.kind == kind
        else one
        for one in nest.bodies[of].accesses
    )
    return body(nest, of, accesses=accesses)


def without(nest: RawNest, of: int) -> RawNest:
    """Return a nest of which one body stores nothing."""
    return body(nest, of, accesses=tuple(one for one in nest.bodies[of].accesses if one.kind == "load"))


def moved(number: int) -> Callable[[RawBody], Any]:
    """Return what shifts the number of lanes of a body."""
    return lambda one: tuple((v, count + number) for v, count in one.lanes)


def swapped(expression: Any, nest: RawNest) -> Any:
    first, second = (loop.variable for loop in nest.loops)
    return expression.subs({first: second, second: first}, simultaneous=True)


def part(nest: RawNest, of: int, place: int, start: int = 0, end: int = 0) -> tuple[Any, ...]:
    """Return when a body runs, with the limits of one variable shifted."""
    active = list(nest.bodies[of].active)
    variable, low, high = active[place]
    active[place] = (variable, low + start, high + end)
    return tuple(active)


@dataclass(frozen=True)
class Fault:
    """A change of a nest.

    Attributes:
        program: whose it is.
        plant: makes it.
        reason: what is said of it.
        seen: whether loops that are run with the sizes of the program show it.
    """

    program: str
    plant: Callable[[RawNest], RawNest]
    reason: str
    seen: bool = True


ANY, COLUMNS, ANY_TILES = "pointwise of any size", "reduction of columns of any size", "tiles of any size"
PLAIN_END, PLAIN_ENDS = "pointwise, end without vectors", "tiles, ends without vectors"

FAULTS = {
    "half a step": Fault(ANY, lambda n: loop(n, 0, step=n.loops[0].step / 2), "is done by|outside"),
    "two steps": Fault(ANY, lambda n: loop(n, 0, step=n.loops[0].step * 2), "no loop does the index x0 = "),
    "the loop ends early": Fault(ANY, lambda n: loop(n, 0, size=n.loops[0].size - 1), "no loop does", seen=False),
    "the loop begins late": Fault(ANY, lambda n: loop(n, 0, offset=n.loops[0].step), "no loop does the index x0 = "),
    "a lane less": Fault(ANY, lambda n: body(n, 0, lanes=moved(-1)(n.bodies[0])), "no loop does"),
    "a lane more": Fault(ANY, lambda n: body(n, 0, lanes=moved(1)(n.bodies[0])), "is done by|outside"),
    "the tail lacks": Fault(ANY, lambda n: replace(n, bodies=n.bodies[:1]), "no loop does", seen=False),
    "a lane less of the tail": Fault(ANY, lambda n: body(n, 1, lanes=moved(-1)(n.bodies[1])), "no loop", seen=False),
    "a lane more of the tail": Fault(ANY, lambda n: body(n, 1, lanes=moved(1)(n.bodies[1])), "outside", seen=False),
    "the tail is a whole vector": Fault(ANY, lambda n: body(n, 1, lanes=n.bodies[0].lanes), "outside", seen=False),
    "the tail begins late": Fault(ANY, lambda n: body(n, 1, active=part(n, 1, 0, start=1)), "no loop", seen=False),
    "the tail runs everywhere": Fault(ANY, lambda n: body(n, 1, active=()), "is done by", seen=False),
    "the vectors run to the end": Fault(
        ANY, lambda n: body(n, 0, active=((n.loops[0].variable, sympy.S.Zero, n.loops[0].size),)), "outside", seen=False
    ),
    "the vectors end early": Fault(
        ANY, lambda n: body(n, 0, active=part(n, 0, 0, end=-n.loops[0].step)), "no loop does"
    ),
    "a nest of other sizes": Fault(ANY, lambda n: replace(n, sizes=(n.sizes[0] + 1,)), "no loop does"),
    "the plain end begins late": Fault(
        PLAIN_END,
        lambda n: body(n, 1, inner=tuple((v, low + 1, high) for v, low, high in n.bodies[1].inner)),
        "no loop does",
    ),
    "the plain end goes on": Fault(
        PLAIN_END,
        lambda n: body(n, 1, inner=tuple((v, low, high + 1) for v, low, high in n.bodies[1].inner)),
        "outside",
    ),
    "the plain end begins at 0": Fault(
        PLAIN_END,
        lambda n: body(n, 1, inner=tuple((v, sympy.S.Zero, high) for v, low, high in n.bodies[1].inner)),
        "is done by",
    ),
    "columns: vectors end all sums": Fault(
        COLUMNS, lambda n: ending(replace(n, after=n.after[:1]), 0, active=()), "outside", seen=False
    ),
    "columns: the tail ends no sum": Fault(COLUMNS, lambda n: replace(n, after=n.after[:1]), "no loop", seen=False),
    "columns: a tail as wide as a vector": Fault(
        COLUMNS, lambda n: ending(n, 1, lanes=n.bodies[0].lanes), "outside", seen=False
    ),
    "tiles: the corner lacks": Fault(
        ANY_TILES, lambda n: replace(n, bodies=n.bodies[:3]), "no loop does the index x0 = ", seen=False
    ),
    "tiles: two ends exchanged": Fault(
        ANY_TILES,
        lambda n: body(body(n, 1, lanes=n.bodies[2].lanes), 2, lanes=n.bodies[1].lanes),
        "no loop|outside",
        seen=False,
    ),
    "tiles: a corner without end": Fault(
        ANY_TILES, lambda n: body(n, 3, lanes=n.bodies[0].lanes), "outside", seen=False
    ),
    "tiles: the plain body runs in each round": Fault(
        PLAIN_ENDS,
        lambda n: body(n, 2, active=(*n.bodies[2].active[:1], (n.loops[1].variable, sympy.S.Zero, n.loops[1].size))),
        "is done by",
    ),
    "tiles: another stride": Fault(
        ANY_TILES, lambda n: access(n, 0, "load", stride=lambda one: one.stride + 1), "load of .* accesses element"
    ),
    "tiles: axes of a store exchanged": Fault(
        ANY_TILES, lambda n: access(n, 0, "store", at=lambda one: swapped(one.at, n)), "store of .* accesses element"
    ),
    "tiles: the element of another row": Fault(
        ANY_TILES,
        lambda n: access(n, 0, "store", at=lambda one: one.at.subs(n.bodies[0].within, 0)),
        "store of .* accesses element",
    ),
    "a store one further": Fault(ANY, lambda n: access(n, 0, "store", at=lambda one: one.at + 1), "store of buf0: at"),
    "a store of the tail one further": Fault(
        ANY, lambda n: access(n, 1, "store", at=lambda one: one.at + 1), "store of buf0: at", seen=False
    ),
    "all lanes load one element": Fault(ANY, lambda n: access(n, 0, "load", lanes=SAME), "load of arg.*: at"),
    "lanes of a strided load in a row": Fault(
        "strided", lambda n: access(n, 0, "load", lanes=IN_A_ROW), "load of arg.*: at"
    ),
    "the vectors store nothing": Fault(ANY, lambda n: without(n, 0), "CppVecKernel lacks a store of buf0"),
    "the tail stores nothing": Fault(ANY, lambda n: without(n, 1), "CppVecKernel lacks a store of buf0", seen=False),
    "a store too many": Fault(
        ANY, lambda n: body(n, 0, accesses=(*n.bodies[0].accesses, n.bodies[0].accesses[-1])), "alone has a store"
    ),
    "the plain end loads another element": Fault(
        PLAIN_END, lambda n: access(n, 1, "load", at=lambda one: one.at + 1), "load of arg.*: at"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_refuted(name):
    fault = FAULTS[name]
    (kernel,) = kernels(fault.program)
    (nest,) = kernel.nests
    planted = fault.plant(nest)
    assert planted != nest

    (outcome,) = verify_kernel(replace(kernel, nests=(planted,))).outcomes
    assert outcome.verdict == REFUTED, outcome
    assert re.search(fault.reason, outcome.reason), outcome
    assert differs(planted, sizes_of(fault.program)) == fault.seen
    if outcome.counterexample is not None:
        # At the sizes that are told, loops that are run show it.
        assert differs(planted, outcome.counterexample.sizes)
        assert not differs(nest, outcome.counterexample.sizes)


def verdict_of(kernel: RawKernel, nest: RawNest, seconds: float = 20) -> tuple[str, str]:
    (outcome,) = verify_kernel(replace(kernel, nests=(nest,)), seconds).outcomes
    return outcome.verdict, outcome.reason


def one_of(name: str) -> tuple[RawKernel, RawNest]:
    (kernel,) = kernels(name)
    (nest,) = kernel.nests
    return kernel, nest


def test_a_refutation_that_the_loops_do_not_show_is_unknown(monkeypatch):
    kernel, nest = one_of(ANY)
    monkeypatch.setattr(cpp, "_rounds", lambda low, high, offset, step: cpp.z3.IntVal(2))
    verdict, reason = verdict_of(kernel, nest)
    assert verdict == UNKNOWN
    assert "show no fault at x0 = " in reason


def test_an_element_that_is_the_same_when_computed_is_unknown(monkeypatch):
    kernel, nest = one_of(ANY)
    planted = access(nest, 0, "store", at=lambda one: one.at + 1)
    number = cpp._number
    monkeypatch.setattr(cpp, "_number", lambda e, values: 0 if "lane" in str(e) else number(e, values))
    verdict, reason = verdict_of(kernel, planted)
    assert verdict == UNKNOWN
    assert "show no fault at x0 = " in reason


@pytest.mark.parametrize(
    ("vectors", "shift", "verdict"),
    [(1, 0, PROVED), (1, -3, REFUTED), (2, 0, PROVED)],
    ids=["of a vector", "shorter", "longer"],
)
def test_lanes_may_load_one_element_where_its_index_is_the_same_for_all(vectors, shift, verdict):
    kernel, nest = one_of(ANY)
    variable = nest.loops[0].variable
    floor = FloorDiv(variable, nest.loops[0].step * vectors + shift)
    plain = tuple(replace(one, at=floor) if one.kind == "load" else one for one in nest.plain)
    planted = replace(nest, plain=plain)
    for number in range(len(nest.bodies)):
        planted = access(planted, number, "load", lanes=SAME, at=floor)
    assert verdict_of(kernel, planted)[0] == verdict


def test_loaded_indices_that_lanes_do_not_share_are_unknown():
    kernel, nest = one_of("loaded indices")
    planted = access(nest, 0, "load", varying=lambda one: one.loaded)
    verdict, reason = verdict_of(kernel, planted)
    assert verdict == UNKNOWN
    assert reason.endswith("that is loaded, by all lanes at once")
    assert verdict_of(kernel, access(nest, 0, "load", loaded=()))[1].endswith("that is loaded in another way")


def test_bodies_that_load_something_else_are_unknown():
    kernel, nest = one_of(ANY)
    planted = body(nest, 0, accesses=(nest.bodies[0].accesses[0], *nest.bodies[0].accesses))
    assert verdict_of(kernel, planted) == (
        UNKNOWN,
        "CppVecKernel and a body without vectors differ in what they load",
    )


def test_sizes_that_contradict_themselves_prove_nothing():
    kernel, nest = one_of(ANY)
    (symbol,) = nest.sizes
    kernel = replace(kernel, guards=(sympy.Lt(symbol, 4), sympy.Gt(symbol, 9)))
    assert verdict_of(kernel, nest) == (UNKNOWN, "what is known of the sizes contradicts itself")


def test_without_time_nothing_is_known():
    verdict, reason = verdict_of(*one_of(ANY_TILES), seconds=1e-6)
    assert (verdict, reason) == (UNKNOWN, "out of time")


def test_loops_with_too_many_rounds_are_not_run():
    kernel, nest = one_of(ANY)
    kernel = replace(kernel, guards=(sympy.Gt(nest.sizes[0], 1 << 24),))
    verdict, reason = verdict_of(kernel, replace(nest, bodies=nest.bodies[:1]))
    assert verdict == UNKNOWN
    assert reason.startswith("loops with too many rounds")


@pytest.mark.parametrize("step", [sympy.Symbol("s0"), sympy.S.Zero], ids=["symbol", "zero"])
def test_other_steps_are_unknown(step):
    kernel, nest = one_of(ANY)
    verdict, reason = verdict_of(kernel, loop(nest, 0, step=step))
    assert verdict == UNKNOWN
    assert reason.startswith("a loop whose step")


def test_loops_that_do_not_fit_their_sizes_are_unknown():
    kernel, nest = one_of("tiles")
    assert verdict_of(kernel, replace(nest, sizes=nest.sizes[:1])) == (UNKNOWN, "2 loops for 1 sizes")
    assert verdict_of(kernel, loop(nest, 0, variable=nest.loops[1].variable)) == (
        UNKNOWN,
        "loops that share a variable: x1, x1",
    )


def test_an_equal_kernel_is_verified_once(monkeypatch):
    kernel, _ = one_of(ANY)
    first = verify_kernel(kernel)
    monkeypatch.setattr(cpp, "_outcomes", None)
    assert verify_kernel(replace(kernel, name="another")) == replace(first, kernel="another")


@pytest.mark.skipif(torch_version() < (2, 13), reason="shown of 2.13.0 and 2.15.0")
@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="no vectors")
@pytest.mark.xfail(strict=True, reason="PyTorch: a load under a mask reads a whole vector at the end (reads_behind.py)")
def test_nothing_is_read_behind_an_input(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.verify.reads_behind"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "room behind it: True" in ran.stdout, ran.stderr
    assert ran.returncode == 0
