"""Check random programs and print every alarm: ``python -m bench.fuzz_false_alarms --backend aot_eager``.

On a backend that is believed right each alarm is a real defect, or a fault of an oracle or of the generator. Defects of
PyTorch are kept as findings in ``known_alarms.jsonl``: an alarm with the signature of one of them is counted under its
name, and so is one that ends where one of ``alarm_causes`` is taken out of the program.
``--oracles parity`` names oracles, each of which is then checked on every program. With ``--keep`` each other alarm is
reduced: where a known one is left it is counted under that name, and else it is written as a finding, and is known from
then on.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import logging
import platform
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from bench.alarm_causes import cause_of
from pytest_regional.backends.spec import PARTITIONERS
from pytest_regional.fuzz.campaign import CAPTURE, partitioned
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.findings.folder import (
    AnyFinding,
    Finding,
    FindingsFolder,
    features_of,
    from_data,
    installed_versions,
    signature_of,
)
from pytest_regional.fuzz.model.program import Program
from pytest_regional.fuzz.oracles import ORACLES, BadProgramError, CheckResult, OracleViolationError, check
from pytest_regional.fuzz.shrink import reduce_program
from pytest_regional.harness.regional import Regional
from pytest_regional.testing import regional


def drawn(examples: int, number: int, partitioners: Sequence[str] = ()) -> list[Program]:
    """Return different programs, those that train with one of ``partitioners``; the same for the same seed."""
    source = random.Random(number)
    found: dict[str, Program] = {}
    while len(found) < examples:
        program = random_program(source)
        found[program.source] = program
    return list(partitioned(iter(found.values()), partitioners, number))


#: Findings that a campaign made and that somebody looked into, one a line.
KNOWN = Path(__file__).with_name("known_alarms.jsonl")


def known_alarms() -> list[AnyFinding]:
    """Return the findings in :data:`KNOWN`."""
    return [from_data(json.loads(line)) for line in KNOWN.read_text(encoding="utf-8").splitlines()]


class Tally:
    """Counts what became of programs.

    Args:
        known: defects of PyTorch that were looked into.
    """

    def __init__(self, known: Iterable[AnyFinding] = ()) -> None:
        self.known = [finding for finding in known if isinstance(finding, Finding)]
        self.verdicts: collections.Counter[str] = collections.Counter()
        self.oracles: collections.Counter[str] = collections.Counter()
        self.skips: collections.Counter[str] = collections.Counter()
        self.seconds: collections.Counter[str] = collections.Counter()

    def add(
        self,
        program: Program,
        result: CheckResult,
        reduce: Callable[[OracleViolationError], Finding] | None = None,
        explain: Callable[[OracleViolationError], str | None] = lambda alarm: None,
    ) -> list[tuple[OracleViolationError, Finding | None]]:
        """Count one program; return the alarms that no known defect explains, and what ``reduce`` made of each."""
        alarms: list[tuple[OracleViolationError, Finding | None]] = []
        for error in result.known:
            name, finding = self._explained(error, features_of(program)) or explain(error), None
            if name is None and reduce is not None:
                finding = reduce(error)
                name = next((known.name for known in self.known if known.signature == finding.signature), None)
            if name is None:
                alarms.append((error, finding))
                self.known += [finding] if finding is not None else []
            self.verdicts[f"  known: {name}" if name else "  {} ({}): {}".format(*_signature(error))] += 1
        self.verdicts["alarm" if alarms else "known defect of PyTorch" if result.known else "ok"] += 1
        self.oracles.update(result.oracles)
        self.skips.update(f"{name}: {reason}"[:150] for name, reason in result.skipped.items())
        self.seconds.update(result.spent)
        return alarms

    def _explained(self, error: OracleViolationError, features: frozenset[str]) -> str | None:
        signature = signature_of(error)
        return next((known.name for known in self.known if known.signature.covers(signature, features)), None)

    def lines(self) -> Iterator[str]:
        """Yield the report."""
        for title, counter in (("verdicts", self.verdicts), ("held", self.oracles), ("skipped", self.skips)):
            yield f"{title}:"
            yield from (f"  {count:6} {name}" for name, count in counter.most_common())
        yield "seconds by oracle: " + ", ".join(f"{name} {spent:.1f}" for name, spent in self.seconds.most_common())


def reduced(harness: Regional, program: Program, options: argparse.Namespace, alarm: OracleViolationError) -> Finding:
    """Return ``alarm`` as a finding with a smaller program."""
    wanted = signature_of(alarm)

    def still_fails(smaller: Program) -> bool:
        try:
            check(harness, smaller, mode=options.mode, oracles=[wanted.oracle], blame=False)
        except OracleViolationError as violation:
            return signature_of(violation) == wanted and violation.without_backend == alarm.without_backend
        except BadProgramError:
            pass
        return False

    small = reduce_program(program, still_fails)
    backend = CAPTURE if alarm.without_backend else options.backend
    return Finding(
        signature_of(alarm, small),
        small,
        program,
        alarm.detail,
        None,
        backend=backend,
        device=options.device,
        mode=options.mode,
        versions=installed_versions(),
    )


def _signature(error: OracleViolationError) -> tuple[str, str, str]:
    return error.oracle, error.stage, error.origin


def main() -> None:
    """Draw, check, print."""
    options = _options()
    logging.disable(logging.CRITICAL)  # compilers log what eager refuses as well
    warnings.simplefilter("ignore")
    tally, shown = Tally(known_alarms()), set[tuple[str, str, str]]()
    with regional(options.backend, options.device, expects_regions=False) as harness:
        examples = drawn(options.examples, options.seed, PARTITIONERS if "partitioner" in harness.variants else ())
        started = time.perf_counter()
        for number, program in enumerate(examples):
            if time.perf_counter() - started > options.seconds:
                examples = examples[:number]
                break
            try:
                result = check(
                    harness, program, mode=options.mode, oracles=options.oracles, blame=False, known=lambda error: True
                )
            except BadProgramError as error:
                tally.verdicts[f"bad program: {str(error).splitlines()[0][:160]}"] += 1
                continue
            reduce = functools.partial(reduced, harness, program, options) if options.keep is not None else None
            explain = functools.partial(cause_of, harness, program, options.mode)
            for alarm, finding in tally.add(program, result, reduce, explain):
                if _signature(alarm) not in shown:
                    shown.add(_signature(alarm))
                    print(f"--- example {number}\n{alarm}\n", flush=True)
                if finding is not None:
                    FindingsFolder(options.keep).save(finding)
    spent = time.perf_counter() - started
    print(f"torch {torch.__version__}, Python {platform.python_version()}, {options.backend} on {options.device}")
    print(f"mode {options.mode}, seed {options.seed}: {len(examples)} examples, {spent / len(examples):.3f} s each")
    print("\n".join(tally.lines()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode", default="native")
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop early, and report")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--oracles", type=lambda text: list(ORACLES) if text == "all" else text.split(","), default=None
    )
    parser.add_argument("--keep", type=Path, help="folder that new alarms are written to, reduced")
    return parser.parse_args()


if __name__ == "__main__":
    main()
