"""How many planted faults each comparison rule sees, and how often it alarms at legitimate fused numerics.

Run ``python -m bench.parity_power [--size 512] [--programs 20] [--seed 0]``. The programs are random chains
of 3 to 9 operations. "Legitimate" is the same program computed one precision higher and rounded once, or, for float32,
with the sums of matrix products in another order. The faults sit in the last operation's result. No threshold was
chosen on these programs.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from typing import NamedTuple

import torch

from pytest_regional.harness.parity.noise import Noise, judged
from pytest_regional.harness.parity.rounding import Rounded
from pytest_regional.harness.parity.tolerance import Tolerance, judge

UNARY = [torch.sin, torch.tanh, torch.nn.functional.silu, torch.sigmoid, lambda x: torch.softmax(x, -1), torch.exp]
UNARY += [lambda x: x - x.mean(-1, keepdim=True), lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)]
BINARY = [torch.add, torch.mul, torch.sub]


def random_program(rng, reordered=False):
    """Return a chain of operations; the ``reordered`` twin sums matrix products in another order."""
    steps = [(rng.choice("uuubm"), rng.choice(UNARY), rng.choice(BINARY)) for _ in range(rng.randint(3, 9))]

    def run(x, w, shuffle):
        h = x
        for kind, unary, binary in steps:
            if kind == "u":
                h = unary(h.clamp(-4, 4))
            elif kind == "b":
                h = binary(h, x)
            else:
                scale = w.shape[0] ** -0.5
                h = ((h[:, shuffle] @ w[shuffle]) if reordered_run[0] else h @ w) * scale
        return h

    reordered_run = [reordered]
    return run, reordered_run


def one_element(y):
    """Add 0.5 to one element."""
    y[y.shape[0] // 3, y.shape[1] // 5] += 0.5


def wrong_tile(y):
    """Take a 4x4 tile from elsewhere."""
    y[4:8, 8:12] = y[8:12, 4:8].clone()


def swapped_rows(y):
    """Exchange two rows."""
    y[[1, 2]] = y[[2, 1]]


def zero_row(y):
    """Forget the last row."""
    y[-1] = 0


def dropped_op(y):
    """Lose a final doubling, as seen from the other side."""
    y.mul_(0.5)


class Judged(NamedTuple):
    """A verdict as the rule about eager's rounding takes it."""

    may_be_rounding: bool
    worst_ratio: float


FAULTS = [one_element, wrong_tile, swapped_rows, zero_row, dropped_op]


def close_alarms(candidate, eager, fp64, measure):
    """Alarm of this package's rule, with eager's rounding measured where eager's one error allows too little."""

    def compared(noise):
        verdict = judge(Tolerance(), candidate, eager, fp64, noise=noise and noise.of("output", eager, fp64))
        return Judged(bool(verdict.evidence), verdict.ratio)

    return judged(compared, measure).may_be_rounding


def one_error_alarms(candidate, eager, fp64, measure):
    """Alarm of the rule where nothing is measured."""
    return bool(judge(Tolerance(), candidate, eager, fp64).evidence)


def assert_close_alarms(candidate, eager, fp64, measure):
    """Alarm of torch.testing.assert_close with its defaults."""
    try:
        torch.testing.assert_close(candidate, eager, equal_nan=True)
    except AssertionError:
        return True
    return False


def rmse_alarms(candidate, eager, fp64, measure):
    """Alarm of a whole-tensor root mean square rule against float64, after PyTorch's benchmark runner."""
    tolerance, multiplier = (1e-3, 3.0) if eager.dtype != torch.float32 else (1e-4, 2.0)

    def rmse(value):
        return (value.double() - fp64).pow(2).mean().sqrt()

    return bool(rmse(candidate) > multiplier * rmse(eager) + tolerance / 10)


RULES = {"close": close_alarms, "one error": one_error_alarms, "assert_close": assert_close_alarms, "rmse": rmse_alarms}


def _noise(program, x, w, same, eager):
    def rounded_otherwise(seed):
        with Rounded(seed):
            return {"output": program(x, w, same)}

    return Noise.source({"output": eager}, rounded_otherwise)


def measure(dtype, size, programs, seed):
    """Return ``(alarms by (rule, case), cases)`` over random programs of one dtype."""
    rng, alarms, cases = random.Random(seed), Counter(), Counter()
    torch.manual_seed(seed)
    for _ in range(programs):
        program, reordered = random_program(rng)
        x, w = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        same, shuffle = torch.arange(size), torch.randperm(size)
        eager, fp64 = program(x, w, same), program(x.double(), w.double(), same)
        if dtype == torch.float32:
            reordered[0] = True
            legitimate = program(x, w, shuffle)
        else:
            legitimate = program(x.float(), w.float(), same).to(dtype)
        measure = _noise(program, x, w, same, eager)
        tried = {"legitimate": legitimate}
        for fault in FAULTS:
            faulty = legitimate.clone()
            fault(faulty)
            if (faulty.double() - legitimate.double()).abs().max() > 0:
                tried[fault.__name__] = faulty
        for case, candidate in tried.items():
            cases[case] += 1
            for name, rule in RULES.items():
                alarms[name, case] += rule(candidate, eager, fp64, measure)
    return alarms, cases


def main():
    """Print one table for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        alarms, cases = measure(dtype, options.size, options.programs, options.seed)
        print(f"\n{dtype} {options.size}x{options.size}: alarms in %\n{'':14}" + "".join(f"{n:>14}" for n in RULES))
        for case, count in cases.items():
            row = "".join(f"{100 * alarms[name, case] / count:14.0f}" for name in RULES)
            print(f"{case:14}{row}   of {count}{'  <- false alarms' if case == 'legitimate' else ''}")


if __name__ == "__main__":
    main()
