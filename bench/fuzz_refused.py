"""Count the drawn programs that eager refuses: ``python -m bench.fuzz_refused --examples 5000 --seed 0``.

Such a program is the generator's fault: it was built in eager, and does not run there on other values. Nothing is
compiled. With ``--show`` the first program of each reason is printed.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import platform
import time
import warnings

import torch

from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.findings.provenance import reason_of
from pytest_regional.fuzz.oracles import BadProgramError
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.testing import regional


def main() -> None:
    """Draw, run in eager, print."""
    options = _options()
    warnings.simplefilter("ignore")
    refused: collections.Counter[str] = collections.Counter()
    started = time.perf_counter()
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        for program in itertools.islice(random_programs(options.seed), options.examples):
            try:
                _ = ExampleRun(harness, program, "native").expected
            except BadProgramError as error:
                reason = reason_of(error)
                if options.show and not refused[reason]:
                    print(f"--- {reason}\n{program.source}\n", flush=True)
                refused[reason] += 1
    print(f"torch {torch.__version__}, Python {platform.python_version()}, seed {options.seed}")
    print(f"{refused.total()} of {options.examples} programs refused, {time.perf_counter() - started:.0f} s")
    for reason, count in refused.most_common():
        print(f"  {count:4} {reason}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", action="store_true", help="print the first program of each reason")
    return parser.parse_args()


if __name__ == "__main__":
    main()
