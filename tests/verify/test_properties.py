"""Each property: proved where it holds, refuted with the programs that break it where it does not, else unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl
import z3

from pytest_regional.verify import PROVED, REFUTED, UNKNOWN, NotVerifiableError, Outcome, verifier
from pytest_regional.verify.properties import covered, memory_safe, race_free
from pytest_regional.verify.question import Question, reachable

from .runs import Case, case, question_about


@triton.jit
def copy(values, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, tl.load(values + x, x < n), x < n)


@triton.jit
def copy_one_more(values, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, tl.load(values + x, x < n), x < n + 1)


@triton.jit
def copy_one_less(values, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, tl.load(values + x, x < n), x < n - 1)


@triton.jit
def copy_from_before(values, out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, tl.load(values + x - 1, x < n), x < n)


@triton.jit
def overlapping(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * (XBLOCK - 1) + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, x, x < n)


@triton.jit
def halves(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x // 2, x, x < n)


@triton.jit
def shifted_in_place(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, tl.load(out + x + 1, x < n - 1), x < n)


@triton.jit
def in_place(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, tl.load(out + x, x < n) + 1, x < n)


@triton.jit
def rows_again(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, tl.program_id(1), x < n)


@triton.jit
def gathered(keys, out, n, size, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    key = tl.load(keys + x, x < n)
    key = tl.where(key < 0, key + size, key)
    tl.device_assert(((key >= 0) & (key < size)) | ~(x < n), "index out of bounds")
    tl.store(out + x, tl.load(out + size + key, x < n), x < n)


@triton.jit
def gathered_then_asserted(keys, out, n, size, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    key = tl.load(keys + x, x < n)
    tl.store(out + x, tl.load(out + size + key, x < n), x < n)
    tl.device_assert(((key >= 0) & (key < size)) | ~(x < n), "index out of bounds")


@triton.jit
def gathered_anyhow(keys, out, n, size, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    key = tl.load(keys + x, x < n)
    tl.store(out + x, tl.load(out + size + key, (x < n) & (key < size)), x < n)


@triton.jit
def contradictory(out, n):
    tl.device_assert(n < 0, "never")
    tl.store(out + n, 1)


@triton.jit
def contradictory_afterwards(out, n):
    tl.store(out + n, 1)
    tl.device_assert(n < 0, "never")


@triton.jit
def kept_promise(out, n):
    tl.assume(tl.program_id(0) >= 0)
    tl.store(out + tl.program_id(0), 1)


@triton.jit
def broken_promise(out, n):
    tl.assume(tl.program_id(0) < n)
    tl.store(out + tl.program_id(0), 1)


@triton.jit
def narrow_product(out, n, XBLOCK: tl.constexpr):
    x = (tl.program_id(0) * XBLOCK).to(tl.int64) + tl.arange(0, XBLOCK)[:].to(tl.int64)
    tl.store(out + x, 1, x < n)


@triton.jit
def wide_product(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0).to(tl.int64) * XBLOCK + tl.arange(0, XBLOCK)[:].to(tl.int64)
    tl.store(out + x, 1, x < n)


@triton.jit
def narrow_index(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:]
    tl.store(out + x, 1, x < n)


@triton.jit
def narrow_lane(out, n, XBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:].to(tl.int8)
    tl.store(out + x, 1, x < n)


@triton.jit
def narrow_twice(out, n, XBLOCK: tl.constexpr):
    x = tl.arange(0, XBLOCK)[:] * n
    tl.store(out + x, 1, tl.arange(0, XBLOCK)[:] < 1)
    tl.store(out + 1 + tl.arange(0, XBLOCK)[:], 1, x < 0)


OUT, BLOCK = torch.zeros(20, dtype=torch.int32), {"XBLOCK": 8}
COPIED = {"values": OUT, "out": OUT, **BLOCK}
KEYS = {"keys": torch.zeros(9, dtype=torch.int64), "size": 10, **BLOCK}


@pytest.mark.parametrize(
    "given",
    [
        case(copy, 3, n=20, **COPIED),
        case(in_place, 3, n=20, out=OUT, **BLOCK),
        case(gathered, 2, n=9, out=OUT, **KEYS),
        case(kept_promise, 3, n=2, out=OUT),
        case(wide_product, 2**29, n=20, out=OUT, **BLOCK),
        case(narrow_index, 2**28, n=20, out=OUT, **BLOCK),
        case(narrow_product, 2**28, n=20, out=OUT, **BLOCK),
        case(narrow_twice, n=5, out=OUT, **BLOCK),
    ],
    ids=str,
)
def test_memory_is_proved_to_be_safe(given: Case):
    question = question_about(given)
    assert reachable(question)
    assert memory_safe(question).verdict == PROVED


@pytest.mark.parametrize(
    ("given", "reason", "program"),
    [
        (case(copy_one_more, 3, n=20, **COPIED), "out-of-bounds store", (2, 0, 0)),
        (case(copy, 3, n=21, **COPIED), "out-of-bounds load", (2, 0, 0)),
        (case(copy_from_before, 3, n=20, **COPIED), "out-of-bounds load", (0, 0, 0)),
        (case(gathered_anyhow, 2, n=9, out=OUT, **KEYS), "out-of-bounds load", None),
        (case(gathered_then_asserted, 2, n=9, out=OUT, **KEYS), "out-of-bounds load", None),
        (case(narrow_index, 2**29, n=20, out=OUT, **BLOCK), "the mask of a store overflows", None),
        (case(narrow_product, 2**29, n=20, out=OUT, **BLOCK), "the mask of a store overflows", None),
        (case(narrow_lane, n=20, out=OUT, XBLOCK=256), "the mask of a store overflows", (0, 0, 0)),
        (case(narrow_twice, n=2**30, out=OUT, **BLOCK), "the mask of a store overflows", (0, 0, 0)),
    ],
    ids=lambda part: str(part) if isinstance(part, Case) else "",
)
def test_memory_is_refuted(given: Case, reason: str, program: tuple[int, int, int] | None):
    question = question_about(given)
    question.tensors = {name: replace(tensor, given=True) for name, tensor in question.tensors.items()}
    outcome = memory_safe(question)
    assert (outcome.verdict, outcome.reason.split(":")[0]) == (REFUTED, reason)
    assert "test_properties.py:" in outcome.reason
    if program is not None:
        assert outcome.counterexample.programs == (program,)


def test_the_first_index_that_is_out_of_bounds_is_the_one_loaded():
    question = question_about(case(gathered_anyhow, 2, n=9, out=OUT, **KEYS))
    question.tensors = {name: replace(tensor, given=True) for name, tensor in question.tensors.items()}
    loaded = memory_safe(question).counterexample.loaded["keys"]
    assert any(key < -10 for key in loaded.values())


def test_a_broken_promise_is_not_proved():
    outcome = memory_safe(question_about(case(broken_promise, 3, n=2, out=OUT)))
    assert (outcome.verdict, "what tl.assume promises" in outcome.reason) == (UNKNOWN, True)


def test_what_contradicts_itself_is_not_reachable():
    assert not reachable(question_about(case(contradictory, n=3, out=OUT)))
    assert reachable(question_about(case(contradictory_afterwards, n=3, out=OUT)))


def test_nothing_is_proved_of_what_contradicts_itself():
    question = question_about(case(contradictory, n=3, out=OUT))
    found = list(verifier._outcomes(None, 0, question, ["out"]))
    assert [(one.property, one.verdict) for one in found] == [(p, UNKNOWN) for p in ("memory", "races", "coverage")]
    assert {one.reason for one in found} == {"what is known of the kernel contradicts itself"}


def test_a_refutation_shows_by_itself_that_something_is_reachable(monkeypatch):
    monkeypatch.setattr(verifier, "_replayed", lambda launch, question, number, outcome, *_: outcome)
    monkeypatch.delattr(verifier, "reachable")
    question = question_about(case(copy_one_more, 3, n=20, **COPIED))
    assert next(verifier._outcomes(None, 0, question, [])).verdict == REFUTED


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (case(copy, 3, n=20, **COPIED), PROVED),
        (case(in_place, 3, n=20, out=OUT, **BLOCK), PROVED),
        (case(overlapping, 3, n=20, out=OUT, **BLOCK), REFUTED),
        (case(overlapping, 1, n=20, out=OUT, **BLOCK), PROVED),
        (case(rows_again, 3, 2, n=20, out=OUT, **BLOCK), REFUTED),
        (case(rows_again, 3, 1, n=20, out=OUT, **BLOCK), PROVED),
        (case(halves, 3, n=20, out=OUT, **BLOCK), REFUTED),
        (case(shifted_in_place, 3, n=20, out=OUT, **BLOCK), REFUTED),
        (case(shifted_in_place, 1, n=8, out=OUT, **BLOCK), PROVED),
    ],
    ids=lambda part: str(part),
)
def test_races(given: Case, verdict: str):
    assert race_free(question_about(given)).verdict == verdict


def test_programs_that_meet_are_told():
    example = race_free(question_about(case(shifted_in_place, 3, n=20, out=OUT, **BLOCK))).counterexample
    (first, *_), (second, *_) = example.programs
    assert abs(first - second) == 1


def test_arguments_of_one_storage_meet():
    question = question_about(case(copy_from_before, 3, n=20, **COPIED))
    assert race_free(question).verdict == PROVED
    question.tensors = {name: replace(tensor, storage="one") for name, tensor in question.tensors.items()}
    assert race_free(question).verdict == REFUTED


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (case(copy, 3, n=20, **COPIED), PROVED),
        (case(copy, 3, n=19, **COPIED), REFUTED),
        (case(copy_one_less, 3, n=20, **COPIED), REFUTED),
        (case(copy, 2, n=20, **COPIED), REFUTED),
    ],
    ids=lambda part: str(part),
)
def test_coverage(given: Case, verdict: str):
    assert covered(question_about(given), "out").verdict == verdict


@pytest.mark.parametrize("property", [memory_safe, race_free, lambda question: covered(question, "out")])
def test_out_of_time_is_unknown(property: Callable[[Question], Outcome]):
    outcome = property(question_about(case(copy, 3, n=20, **COPIED), seconds=0))
    assert (outcome.verdict, outcome.reason) == (UNKNOWN, "out of time")


def test_what_z3_does_not_know_is_unknown():
    x, y, z = z3.Ints("x y z")
    hard = [x > 2**40, y > 2**40, z > 2**40, x * x * x + y * y * y == z * z * z + 33]
    outcome = memory_safe(question_about(case(copy_one_more, 3, n=20, **COPIED), seconds=1.0, known=hard))
    assert (outcome.verdict, outcome.counterexample) == (UNKNOWN, None)
    assert "out of time" in outcome.reason or "z3 does not know" in outcome.reason


@triton.jit
def block_pointers(values, out, n):
    block = tl.make_block_ptr(values, (n,), (1,), (0,), (8,), (0,))
    tl.store(out + tl.arange(0, 8), tl.load(block, boundary_check=(0,)))


@triton.jit
def descriptors(values, out, n):
    block = tl.make_tensor_descriptor(values, (n, 4), (4, 1), (8, 4))
    block.store((0, 0), tl.zeros((8, 4), tl.int32))


@triton.jit
def waiting(out, n):
    while tl.atomic_add(out, 0) < n:
        pass
    tl.store(out + 1, 1)


@triton.jit
def pointers_chosen(values, out, n):
    x = tl.arange(0, 8)
    tl.store(tl.where(x < n, values + x, out + x), 1)


@triton.jit
def addresses(out, n):
    tl.store((out.to(tl.int64) + n).to(tl.pointer_type(tl.int32)), 1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (case(block_pointers, n=5, values=OUT, out=OUT), "make_block_ptr|block pointer"),
        (case(descriptors, n=5, values=OUT, out=OUT), "tensor_descriptor|tensor descriptor"),
        (case(waiting, n=5, out=OUT), "branches in a row"),
        (case(pointers_chosen, n=5, values=OUT, out=OUT), "a choice between pointers into different arguments"),
        (case(addresses, n=5, out=OUT), "an address that is turned into a number"),
    ],
    ids=lambda part: str(part) if isinstance(part, Case) else "",
)
def test_what_is_not_verified_is_named(given: Case, reason: str):
    with pytest.raises(NotVerifiableError, match=reason):
        question_about(given)
