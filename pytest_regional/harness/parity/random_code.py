"""Judge a backend's own random numbers, which are others than eager's.

With ``fallback_random`` the compiled program draws what eager draws, and values are compared. Users compile without
that setting, and then Inductor generates code that draws by itself. Of such runs these must be as in eager:

* dtype, shape, strides, aliases, which gradients there are; and values that no draw reaches;
* the generator: it moves where eager moves it, one seed always gives the same bits, and other seeds give others;
* the distribution of all else. Eager and the compiled program run with the same :data:`RUNS` seeds. Of each run some
  statistics are taken (:func:`statistics`), and each is compared by the two-sample test of Kolmogorov and Smirnov,
  whose level holds whatever the distribution is. All tests of a program together raise a false alarm with a probability
  of at most :data:`FALSE_ALARM`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import torch

from pytest_regional.harness.parity.compare import compare
from pytest_regional.harness.parity.execution import Execution, other_generators
from pytest_regional.harness.parity.report import Mismatch
from pytest_regional.harness.parity.state import same_bytes

#: How many seeds each program runs with. Fewer could not reach :data:`FALSE_ALARM` with forty statistics.
RUNS = 24

#: The probability that a correct program fails.
FALSE_ALARM = 1e-9

#: Pairs of tensors of one shape whose common distribution is compared.
_PAIRS = 12

#: Differences of a statistic, relative to the size of what it sums up, that rounding may cause.
_ROUNDING = {torch.bfloat16: 2e-2, torch.float16: 2e-3}

#: How near values that no draw reaches are to be: the first mode judges them closely.
_NEAR = 0.05

Values = Mapping[str, torch.Tensor]


def random_mismatches(eager: Sequence[Execution], compiled: Sequence[Execution], again: Execution) -> list[Mismatch]:
    """Return how runs of the compiled program, which draws by itself, differ from eager's with the same seeds.

    ``again`` is the first compiled run once more. If a run of eager's fails, nothing is said.
    """
    if any(run.exception is not None for run in eager):
        return []
    failed = next((run for run in (*compiled, again) if run.exception is not None), None)
    if failed is not None:
        return _compared(eager[0], failed)
    values = [_values(run) for run in eager], [_values(run) for run in compiled]
    everywhere = set.intersection(*(set(run) for runs in values for run in runs))
    random = [name for name in values[0][0] if name in everywhere and _differ(values[0], name)]
    found = [one for one in _compared(eager[0], compiled[0]) if _is_never_so(one, eager, compiled)]
    found += _repeated(compiled[0], again)
    if random and compiled[0].rng_consumed != eager[0].rng_consumed:  # draws that no result needs may be left out
        moves = [
            ", ".join(f"the generator of {name}" for name in sorted(run.rng_consumed)) or "no generator"
            for run in (compiled[0], eager[0])
        ]
        found.append(Mismatch("random state", "draws", f"compiled moves {moves[0]}, eager {moves[1]}"))
    if found:
        return found
    return [*_constant(random, *values), *_distributions(random, *values)]


def _compared(eager: Execution, other: Execution) -> list[Mismatch]:
    return list(compare(eager, other, rtol=_NEAR, atol=_NEAR, own_draws=True).mismatches)


def _is_never_so(mismatch: Mismatch, eager: Sequence[Execution], compiled: Sequence[Execution]) -> bool:
    """Return whether each run of the compiled program differs so from eager, and no other run of eager does.

    What is drawn differs in some runs of eager as well. If it does so with a probability of ``q``, then all ``n`` runs
    of one program and none of ``n - 1`` of the other do with ``q ** n * (1 - q) ** (n - 1)``, below ``2 ** (1 - 2n)``.
    """

    def is_in(run: Execution) -> bool:
        found = _compared(eager[0], run)
        return any((one.where, one.kind) == (mismatch.where, mismatch.kind) for one in found)

    return not any(map(is_in, eager[1:])) and all(map(is_in, compiled))


def _values(run: Execution) -> dict[str, torch.Tensor]:
    """Return what a run makes or changes that has values, by the names of reports."""
    unchanged = {*run.inputs_after, *run.buffers_after} - run.mutated
    return {name: captured.value for name, captured in run.tensors().items() if name not in unchanged}


def _differ(runs: Sequence[Values], name: str) -> bool:
    return any(not same_bytes(runs[0][name], run[name]) for run in runs)


def _repeated(first: Execution, again: Execution) -> Iterator[Mismatch]:
    """Yield what differs between two runs with one seed."""
    for name in other_generators(first, again):
        detail = f"one seed, set twice, leaves two states of the random generator {name!r}"
        yield Mismatch("random state", "draws", detail)
    repeated = _values(again)
    for name, value in _values(first).items():
        if name not in repeated or not same_bytes(value, repeated[name]):
            yield Mismatch(name, "draws", "with one seed, the compiled program draws other numbers the second time")


def _constant(random: Sequence[str], eager: Sequence[Values], compiled: Sequence[Values]) -> Iterator[Mismatch]:
    """Yield values that the compiled program draws alike with all seeds, where eager draws another with each."""
    for name in random:
        all_others = all(not same_bytes(one[name], other[name]) for one, other in itertools.combinations(eager, 2))
        if all_others and not _differ(compiled, name):
            yield Mismatch(name, "draws", f"the compiled program draws the same numbers with {len(compiled)} seeds")


def _distributions(random: Sequence[str], eager: Sequence[Values], compiled: Sequence[Values]) -> Iterator[Mismatch]:
    theirs, ours = ([statistics(run, random) for run in runs] for runs in (eager, compiled))
    keys = [key for key in theirs[0] if all(key in run for run in (*theirs, *ours))]
    for key in keys:
        size = max(run[key].size for run in (*theirs, *ours))
        near = size * max(_ROUNDING.get(eager[0][name].dtype, 1e-4) for name in key.names)
        expected, found = ([run[key].value for run in runs] for runs in (theirs, ours))
        chance = probability(expected, found, near)
        if chance < FALSE_ALARM / len(keys):
            detail = (
                f"{key.what} is {sum(found) / len(found):.4g} in the mean of {len(found)} runs, "
                f"eager {sum(expected) / len(expected):.4g}; the probability "
                f"that numbers of one distribution are so far apart is {chance:.1g}"
            )
            yield Mismatch(" and ".join(key.names), "distribution", detail)


class Key(NamedTuple):
    """What a statistic is of, and what it is."""

    names: tuple[str, ...]
    what: str


class Statistic(NamedTuple):
    """A number that sums up tensors, and the size of the numbers that it was made from."""

    value: float
    size: float


def statistics(run: Values, names: Sequence[str]) -> dict[Key, Statistic]:
    """Return numbers that sum up the values called ``names``.

    They are: mean, mean square, largest and smallest value, share of zeros, and mean product of neighbours; of two
    tensors with one shape the mean product, and the shares of elements that are equal, and that are zero in one alone:
    the mask of a dropout is the same in the backward.
    """
    found: dict[Key, Statistic] = {}
    plain = {name: _numbers(run[name]) for name in names if run[name].numel()}
    for name, (numbers, near) in plain.items():
        own = (name,)
        found[Key(own, "the mean")] = _mean(numbers)
        found[Key(own, "the mean square")] = _mean(numbers.square())
        largest = float(numbers.abs().max())
        found[Key(own, "the largest value")] = Statistic(float(numbers.max()), largest)
        found[Key(own, "the smallest value")] = Statistic(float(numbers.min()), largest)
        found[Key(own, "the share of zeros")] = _share(numbers.abs() <= near)
        if numbers.numel() > 1:
            found[Key(own, "the mean product of neighbours")] = _mean(numbers[1:] * numbers[:-1])
    pairs = ((one, other) for one, other in itertools.combinations(plain, 2) if run[one].shape == run[other].shape)
    for one, other in itertools.islice(pairs, _PAIRS):
        (first, near), (second, also_near) = plain[one], plain[other]
        if first.numel() != second.numel():  # one of them is complex
            continue
        both = (one, other)
        found[Key(both, "the mean product")] = _mean(first * second)
        found[Key(both, "the share of equal elements")] = _share((first - second).abs() <= max(near, also_near))
        masks = (first.abs() <= near) != (second.abs() <= also_near)
        found[Key(both, "the share that is zero in one alone")] = _share(masks)
    return found


def _numbers(tensor: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return the elements in float64, row by row, zero for those that are not finite, and what counts as zero."""
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    numbers = torch.nan_to_num(real.double().cpu(), nan=0.0, posinf=0.0, neginf=0.0).reshape(-1)
    digits = torch.finfo(real.dtype).eps if real.is_floating_point() else 0.0
    return numbers, 4 * digits * float(numbers.abs().max())


def _mean(numbers: torch.Tensor) -> Statistic:
    return Statistic(float(numbers.mean()), float(numbers.abs().mean()))


def _share(chosen: torch.Tensor) -> Statistic:
    return Statistic(float(chosen.double().mean()), 1.0)


def probability(first: Sequence[float], second: Sequence[float], near: float = 0.0) -> float:
    """Return a bound on the probability that two samples of one distribution and one size are as far apart.

    It is that of the two-sample test of Kolmogorov and Smirnov: exact for a distribution without ties, an upper bound
    for others. Numbers at most ``near`` apart count as equal.
    """
    count, lead = len(first), max(_lead(first, second, near), _lead(second, first, near))
    if lead <= 0:
        return 1.0
    # The probability that one leads by so much or more, by reflection.
    paths = sum((-1) ** (turn - 1) * math.comb(2 * count, count - turn * lead) for turn in range(1, count // lead + 1))
    return float(min(Fraction(1), Fraction(2 * paths, math.comb(2 * count, count))))


def _lead(first: Sequence[float], second: Sequence[float], near: float) -> int:
    """Return by how many elements more ``first`` lies below some number than ``second``, moved down, does."""
    return max(
        sum(value <= limit for value in first) - sum(value - near <= limit for value in second) for limit in first
    )


def reseeded(seed: int, run: int) -> int:
    """Return the seed of one of the runs."""
    return (seed + 7919 * run) % 2**63
