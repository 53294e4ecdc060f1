"""Who notices what: ``python -m tests.faults.detection [--suites] [--fuzz] [--odd] [--only NAME ...]``.

Without ``--suites``, ``--fuzz`` and ``--odd``, all three. The reference is asked first, by the tests and programs that
complain of a mutant; what complains of the reference as well is no kill. Prints the table, and writes it into
``docs/detection.md`` with ``--write``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults import table
from tests.faults.by_suites import ROOT, checked_by_suites
from tests.faults.odd import ODD
from tests.faults.of_backends import FAULTS
from tests.faults.planting import Mutant, spec_of
from tests.faults.results import Results
from tests.faults.verdict import Alarm

#: Suites that an odd backend has to pass.
ODD_SUITES = (
    "suites/regions/test_interleaved.py",
    "suites/regions/test_effects.py",
    "suites/regions/test_strides.py",
    "suites/regions/test_configs.py",
    "suites/caching/test_annotations.py",
    "suites/models/test_norm_residual_silu.py",
)
REFERENCE = Mutant("reference", "the reference itself")
DOCUMENT = ROOT / "docs" / "detection.md"

#: The test that killed each faulty backend, as the last table says: asked first, since all suites of one take minutes.
KILLS = Path(__file__).with_name("kills.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; 1 where a mutant survived or a right backend was complained of."""
    options = _parser().parse_args(arguments)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="detection-"))
    warnings.simplefilter("ignore")
    _without_shrinking()
    results = Results.read(options.json)
    everything = not (options.suites or options.fuzz or options.odd or options.render)
    if options.suites or everything:
        _by_suites(results, options)
    if options.fuzz or everything:
        _by_fuzz(results, options)
    if options.odd or everything:
        _odd(results, options)
    text = table.rendered(results, FAULTS, ODD)
    print(text)
    if options.write:
        table.write_between_marks(DOCUMENT, text)
        known = {**json.loads(KILLS.read_text()), **_kills(results)}
        KILLS.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    return 0 if table.is_green(results) else 1


def _without_shrinking() -> None:
    """Let Hypothesis stop at the first failing sequence: it is counted, not read."""
    import hypothesis

    hypothesis.settings.register_profile("detection", phases=(hypothesis.Phase.generate,))
    hypothesis.settings.load_profile("detection")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.detection", description=__doc__)
    for name, meaning in (
        ("suites", "run the suites against the faulty backends"),
        ("fuzz", "run the fuzzer against the faulty backends"),
        ("odd", "run both against the reference and the odd backends"),
        ("render", "run nothing: print what --json holds"),
        ("missing", "leave out what --json has a verdict on, unless that is a survivor"),
        ("write", "put the table into docs/detection.md"),
    ):
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these backends alone")
    parser.add_argument("--examples", type=int, default=500, help="programs for each faulty backend")
    parser.add_argument("--odd-examples", type=int, default=60, help="programs for each odd backend")
    parser.add_argument("--seconds", type=float, default=180.0, help="for the programs of one backend")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for the suites of one backend")
    parser.add_argument(
        "--modes", nargs="+", default=("interpret", "caches", "emulated"), help="modes of the fuzzer, in this order"
    )
    parser.add_argument("--jobs", type=int, default=1, choices=(1,), help="one process at a time; nothing else yet")
    parser.add_argument("--json", type=Path, help="a file of results to add to")
    return parser


def _chosen(known: dict[str, Mutant], results: Results, half: str, options: argparse.Namespace) -> Iterator[Mutant]:
    # What nobody has asked about comes first, then what survived.
    for mutant in sorted(known.values(), key=lambda one: half in results.verdicts.get(one.name, {})):
        verdict = results.verdicts.get(mutant.name, {}).get(half)
        done = verdict is not None and verdict.outcome in ("killed", "not asked")
        done |= half in results.alarms.get(mutant.name, {})
        if mutant.name in options.only or (not options.only and not (options.missing and done)):
            yield mutant


def _by_suites(results: Results, options: argparse.Namespace) -> None:
    results.versions["suites"] = versions()
    known = json.loads(KILLS.read_text())
    for mutant in _chosen(FAULTS, results, "suites", options):
        verdict = checked_by_suites(mutant, timeout=options.timeout, first=known.get(mutant.name, ""))
        results.note(mutant.name, "suites", verdict)
        _say("suites", mutant, verdict.outcome, verdict.kill, verdict.seconds)
    tests = sorted({*_kills(results).values()})
    if tests:
        verdict = checked_by_suites(REFERENCE, "reference", suites=tests, timeout=3600, stop=False)
        results.note_right("reference", "suites", list(verdict.others), verdict.tried)
        _say("suites", REFERENCE, f"{len(verdict.others)} alarms", None, verdict.seconds)


def _kills(results: Results) -> dict[str, str]:
    """Return the test functions that killed, by mutant."""
    found = {name: halves["suites"].kill for name, halves in results.verdicts.items() if "suites" in halves}
    return {name: kill.source.partition("[")[0] for name, kill in found.items() if kill and name in FAULTS}


def _by_fuzz(results: Results, options: argparse.Namespace) -> None:
    from tests.faults.by_fuzz import Hunt, Pool

    results.versions["fuzz"] = versions()
    pool = Pool()
    for mutant in _chosen(FAULTS, results, "fuzz", options):
        verdict = Hunt(mutant, pool, options.examples, options.seconds, modes=options.modes).run()
        results.note(mutant.name, "fuzz", verdict)
        _say("fuzz", mutant, verdict.outcome, verdict.kill, verdict.seconds)


def _odd(results: Results, options: argparse.Namespace) -> None:
    from tests.faults.by_fuzz import Pool, alarms_of

    results.versions["odd"] = versions()
    pool = Pool()
    for mutant in _chosen({"reference": REFERENCE, **ODD}, results, "fuzz", options):
        spec = "reference" if mutant is REFERENCE else spec_of(mutant)
        found = alarms_of(spec, pool, options.odd_examples)
        results.note_right(mutant.name, "fuzz", found, options.odd_examples)
        _say("odd, fuzz", mutant, f"{len(found)} alarms", found[0] if found else None, 0.0)
    for mutant in _chosen(ODD, results, "suites", options):
        verdict = checked_by_suites(mutant, suites=ODD_SUITES, timeout=options.timeout, stop=False)
        found = list(verdict.others)
        if verdict.outcome == "never called":
            found.append(Alarm("planting", "never called"))
        results.note_right(mutant.name, "suites", found, verdict.tried)
        _say("odd, suites", mutant, f"{len(found)} alarms", found[0] if found else None, verdict.seconds)


def _say(half: str, mutant: Mutant, outcome: str, alarm: Alarm | None, seconds: float) -> None:
    by = f" by {alarm.source} ({alarm.error} {alarm.text[:80]})" if alarm else ""
    print(f"{half}: {mutant.name}: {outcome}{by}, {seconds:.0f} s", flush=True)


def versions() -> str:
    """Return what verdicts depend on."""
    import torch

    return f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"


if __name__ == "__main__":
    raise SystemExit(main())
