"""Judge random programs and print every alarm: ``python -m tests.benchmarks.fuzz_false_alarms --backend aot_eager``.

On a backend that is believed right each alarm is a real defect, or a fault of a law or of the generator. With
``--laws parity`` the laws are named, and each is judged on every program.
"""

from __future__ import annotations

import argparse
import collections
import logging
import platform
import random
import time
import warnings
from collections.abc import Iterator

import torch

from pytest_regional.fuzz.oracles import LAWS, BadProgramError, Judgement, LawBrokenError, judge
from pytest_regional.fuzz.program import Program
from pytest_regional.fuzz.random_rows import random_program
from pytest_regional.testing import regional


def drawn(examples: int, number: int) -> list[Program]:
    """Return different programs; the same for the same seed and generator."""
    source = random.Random(number)
    found: dict[str, Program] = {}
    while len(found) < examples:
        program = random_program(source)
        found[program.source] = program
    return list(found.values())


class Tally:
    """Counts what became of programs."""

    def __init__(self) -> None:
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.laws: collections.Counter[str] = collections.Counter()
        self.skips: collections.Counter[str] = collections.Counter()
        self.seconds: collections.Counter[str] = collections.Counter()

    def add(self, judgement: Judgement) -> None:
        """Count one."""
        shared = judgement.known and all(error.without_backend for error in judgement.known)
        verdict = "fails with AOTAutograd alone" if shared else "alarm" if judgement.known else "ok"
        self.verdicts[verdict] += 1
        self.verdicts.update("  {} ({}): {}".format(*_signature(error)) for error in judgement.known)
        self.laws.update(judgement.laws)
        self.skips.update(f"{name}: {reason}"[:150] for name, reason in judgement.skipped.items())
        self.seconds.update(judgement.spent)

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        for title, counter in (("verdicts", self.verdicts), ("held", self.laws), ("skipped", self.skips)):
            yield f"{title}:"
            yield from (f"  {count:6} {name}" for name, count in counter.most_common())
        yield "seconds by law: " + ", ".join(f"{name} {spent:.1f}" for name, spent in self.seconds.most_common())


def _signature(error: LawBrokenError) -> tuple[str, str, str]:
    return error.law, error.stage, error.origin


def main() -> None:
    """Draw, judge, print."""
    options = _options()
    logging.disable(logging.CRITICAL)  # compilers log what eager refuses as well
    warnings.simplefilter("ignore")
    tally, shown = Tally(), set[tuple[str, str, str]]()
    examples = drawn(options.examples, options.seed)
    started = time.perf_counter()
    with regional(options.backend, options.device, expects_regions=False) as harness:
        for number, program in enumerate(examples):
            if time.perf_counter() - started > options.seconds:
                examples = examples[:number]
                break
            try:
                judgement = judge(
                    harness, program, lane=options.lane, laws=options.laws, blame=False, known=lambda error: True
                )
            except BadProgramError as error:
                tally.verdicts[f"bad program: {str(error).splitlines()[0][:160]}"] += 1
                continue
            tally.add(judgement)
            for error in judgement.known:
                if _signature(error) not in shown:
                    shown.add(_signature(error))
                    print(f"--- example {number}\n{error}\n", flush=True)
    spent = time.perf_counter() - started
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {options.backend} on {options.device}")
    print(f"lane {options.lane}, seed {options.seed}: {len(examples)} examples, {spent / len(examples):.3f} s each")
    print("\n".join(tally.lines()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lane", default="full")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop early, and report")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--laws", type=lambda text: list(LAWS) if text == "all" else text.split(","), default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
