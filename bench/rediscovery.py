"""How many known bugs a campaign finds by itself: ``python -m bench.rediscovery run FOLDER``, then ``count FOLDER``.

``run`` fuzzes several backends in a row, each for its share of a budget of processor time (``--core-minutes``, of all
processes together, so that a busy machine changes nothing), from fresh seeds, into a folder of findings. The cases of
``suites/history`` are hidden from it: no campaign reads them. A campaign whose process dies is started again with
another seed, and a run that was ended goes on where the folder holds what it has used. ``--python`` fuzzes with another
version of PyTorch.

``keep`` adds what a run found so far to ``rediscovered.jsonl``, because a run may outlast its machine: a line for each
campaign, with its processor time and the parts of its findings that are counted.

``count`` compares the findings with the cases of ``suites/history`` that stand on that version, by their signatures
(``known_bug_signatures``), and prints a table by class with a column for each kept generator and each folder, and how
many had been found after a part of the budget where the times are known. Findings without a match are listed, so that
somebody reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.known_bug_signatures import OUT_OF_REACH, SIGNATURES, FindingData
from pytest_regional._base.files import write_whole
from suites.history.__main__ import VERSIONS
from suites.history.known_bugs import BACKENDS, KnownBug, all_bugs


@dataclass(frozen=True)
class Part:
    """One campaign: a backend, a mode, its share of the budget, and more options of pytest."""

    backend: str
    mode: str
    share: float
    options: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.backend}-{self.mode}"


def read(folder: Path, part: str = "*") -> list[FindingData]:
    """Return the findings of all parts below a folder, or of one; the folder may come from another checkout."""
    return [_finding(path) for each in sorted(folder.glob(part)) for path in _in_files(each)]


def _in_files(findings: Path) -> list[Path]:
    return sorted(path for path in findings.glob("*.json") if not path.name.startswith("corpus"))


@dataclass(frozen=True)
class Campaigned:
    """What one campaign of a part used and found.

    Attributes:
        part: the name of the part.
        seed: what it began with.
        core_seconds: all that it used.
        findings: what it found.
        found_after: by the name of a finding, what was used by then; by the end, if that was not recorded.
        torch: the version that was fuzzed; known of kept campaigns.
        generator: a name for the fuzzer of that day; known of kept campaigns.
    """

    part: str
    seed: int
    core_seconds: float
    findings: tuple[FindingData, ...]
    found_after: Mapping[str, float] = field(default_factory=dict)
    torch: str = ""
    generator: str = ""

    def found_in(self, core_seconds: float) -> tuple[FindingData, ...]:
        """Return what was found before the campaign had used ``core_seconds``."""
        return tuple(
            each for each in self.findings if self.found_after.get(each.name, self.core_seconds) <= core_seconds
        )


#: The campaigns that are kept, one a line.
KEPT = Path(__file__).with_name("rediscovered.jsonl")


def kept(file: Path = KEPT) -> list[Campaigned]:
    """Return the kept campaigns."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [
        Campaigned(**{**one, "findings": tuple(map(_from_data, one["findings"]))}) for one in map(json.loads, lines)
    ]


def _from_data(data: Mapping[str, Any]) -> FindingData:
    sets = {name: frozenset(data[name]) for name in ("operators", "features")}
    return FindingData(data["name"], data["backend"], data["fails"], **sets)


def campaigns(folder: Path) -> list[Campaigned]:
    """Return the campaigns of a run's folder, by part."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [
        Campaigned(
            each["part"],
            each["seed"],
            each["core_seconds"],
            tuple(read(folder, each["part"])),
            each.get("found_after", {}),
        )
        for each in records
    ]


def keep(folder: Path, torch: str, generator: str, file: Path = KEPT) -> list[Campaigned]:
    """Add what a run found so far to ``file``, in place of what an earlier call kept of the same campaigns."""
    new = [replace(one, torch=torch, generator=generator) for one in campaigns(folder)]
    by_key = {(one.torch, one.generator, one.part, one.seed): one for one in [*kept(file), *new]}
    lines = [json.dumps(asdict(by_key[key]), default=sorted, separators=(",", ":")) for key in sorted(by_key)]
    file.write_text("\n".join(lines) + "\n")
    return new


def found_within(chosen: Iterable[Campaigned], core_minutes: float) -> list[FindingData]:
    """Return what was found when each part had used its share of ``core_minutes``; its campaigns follow by seed."""
    left = {part.name: core_minutes * 60 * part.share for part in PARTS}
    found = []
    for one in chosen:
        # A run sees the end of its budget a look late, and what it saves then is not noted.
        found += one.found_in(left[one.part] + INTERVAL)
        left[one.part] = max(0.0, left[one.part] - one.core_seconds)
    return found


def _finding(path: Path) -> FindingData:
    data = json.loads(path.read_text())
    program = data.get("program", {})
    steps = [*program.get("steps", []), *(step for block in program.get("blocks", []) for step in block["steps"])]
    inputs = program.get("arguments", [])
    words = {f"dtype:{each['dtype']}" for each in inputs if "dtype" in each}
    words |= {f"input:{each['content']}" for each in inputs if "content" in each}
    words |= {"input:scalar"} if any(each.get("shape") == [] for each in inputs) else set()
    words |= {"training"} if program.get("training") else set()
    words |= {"dynamic"} if program.get("dynamic") or any(each.get("dynamic") for each in inputs) else set()
    words |= {"large"} if "input:large" in words or any(map(_has_large_number, steps)) else set()
    return FindingData(
        path.stem,
        data["backend"],
        f"{data['oracle']} {data['stage']} {data['origin']}",
        frozenset(step["operator"] for step in steps),
        frozenset({*data["features"], *words}),
    )


def _has_large_number(step: Mapping[str, Any]) -> bool:
    """Tell whether a parameter of a step is so large that its square is infinite in float32."""
    return any(isinstance(value, float) and abs(value) > 1e19 for value in step.get("parameters", {}).values())


#: What is fuzzed. Most known bugs are in Inductor; most of them show in code for an emulated GPU as well, which takes
#: no C++ compiler.
PARTS = (
    Part("aot_eager", "native", 0.25),
    Part("inductor", "native", 0.25),
    Part("inductor", "emulated", 0.25, ("--regional-device=cuda-emulated",)),
    Part("torch", "native", 0.25),
)

#: Core-minutes after which a report says what was found so far.
BUDGETS = (15, 30, 60, 90, 120, 180, 240)

#: Seconds between two looks at the processor time.
INTERVAL = 1.0

#: Seconds that a campaign has to write its summary, after it is interrupted.
GRACE = 120.0


def run(
    part: Part, folder: Path, core_seconds: float, *, python: str, seed: int, tree: Path = Path()
) -> dict[str, object]:
    """Fuzz one part; return what it used, which the folder's file of that part's name holds at all times.

    Raises:
        RuntimeError: campaigns end at once, again and again.
    """
    findings, record = folder / part.name, folder / f"{part.name}.json"
    findings.mkdir(parents=True, exist_ok=True)
    used: dict[str, Any] = {"part": part.name, "core_seconds": 0.0, "starts": 0, "seed": seed, "found_after": {}}
    if record.exists():
        used |= json.loads(record.read_text())
    while used["core_seconds"] < core_seconds:
        used["starts"] += 1
        before = used["core_seconds"]
        command = [python, "-m", "pytest", "suites/fuzz/test_programs.py", "-k", f"test_{part.mode}", "-q", "-n0"]
        command += [f"--regional-backend={part.backend}", "--regional-fuzz=24h", "--regional-timeout=60"]
        command += [f"--regional-findings={findings}", f"--regional-seed={used['seed'] + 1000 * used['starts']}"]
        command += ["--regional-blame=off"]  # a search for culprits takes time and counts for nothing here
        with (findings / f"log-{used['starts']}.txt").open("w") as log:
            process = subprocess.Popen(
                [*command, *part.options],
                cwd=tree,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(),
            )
            for spent in _until(process, core_seconds - before):
                used["core_seconds"] = round(before + spent, 2)
                for one in _in_files(findings):
                    used["found_after"].setdefault(one.stem, used["core_seconds"])
                write_whole(record, json.dumps(used).encode())
        if used["starts"] > 20 and used["core_seconds"] / used["starts"] < 10:
            raise RuntimeError(
                f"{part.name}: {used['starts']} campaigns ended within {used['core_seconds']:.0f} s; see {findings}"
            )
    return used


def _until(process: subprocess.Popen[bytes], core_seconds: float) -> Iterator[float]:
    """Wait until ``process`` ends, or has used ``core_seconds`` and is interrupted; yield the seconds used so far."""
    used = 0.0
    while process.poll() is None:
        used = max(used, processor_seconds(process.pid))
        yield used
        if used >= core_seconds:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(INTERVAL)


def processor_seconds(session: int) -> float:
    """Return the processor seconds of all processes of a session, and of their children that ended (Linux, proc(5))."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields and int(fields[3]) == session:
            ticks += sum(int(number) for number in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def match(findings: Iterable[FindingData], bugs: Iterable[KnownBug], version: str) -> dict[str, list[str]]:
    """Return by the name of a known bug that stands on ``version`` the findings that look like it.

    A finding counts for a backend that the table of known bugs lists with the bug. One of AOTAutograd counts on
    ``aot_eager`` as well: a campaign draws the partitioner there, and the table is of its own one. Where several
    signatures match, those that ask for most count: a program that could not be reduced holds much that is no cause.
    """
    standing = {bug.name: bug for bug in bugs if bug.stands_in(version) and bug.name in SIGNATURES}
    found: dict[str, list[str]] = {name: [] for name in standing}
    for each in findings:
        matching = {
            name: SIGNATURES[name].wants
            for name, bug in standing.items()
            if each.backend in _backends(bug, version) and SIGNATURES[name].matches(each)
        }
        most = max(matching.values(), default=0)
        for name, wants in matching.items():
            if wants == most:
                found[name].append(each.name)
    return found


def _backends(bug: KnownBug, version: str) -> set[str]:
    backends = {backend for backend in BACKENDS if bug.stands(backend, version)}
    return backends | {"aot_eager"} if bug.layer == "aot_autograd" else backends


def columns_of(folders: Iterable[Path], version: str, file: Path = KEPT) -> dict[str, list[Campaigned]]:
    """Return the campaigns with one version of PyTorch that are kept, by generator, and those of each folder."""
    columns: dict[str, list[Campaigned]] = {}
    for one in kept(file):
        if one.torch == version:
            columns.setdefault(one.generator, []).append(one)
    return columns | {folder.name: campaigns(folder) for folder in folders}


def report(columns: Mapping[str, Sequence[Campaigned]], version: str) -> Iterator[str]:
    """Yield a report: a table by class with a column for each run, then what was found, missed and not matched."""
    bugs = [bug for bug in all_bugs() if bug.stands_in(version)]
    findings_of = {name: [finding for one in run for finding in one.findings] for name, run in columns.items()}
    found_of = {name: match(findings, bugs, version) for name, findings in findings_of.items()}
    yield f"| class | stand on {version} | can be met | {' | '.join(columns)} |"
    yield "|---|---|---|" + "---|" * len(columns)
    rows = {kind: [bug for bug in bugs if bug.kind == kind] for kind in sorted({bug.kind for bug in bugs})}
    rows |= {"all": bugs, "of these, reported by others": [bug for bug in bugs if bug.number]}
    for title, chosen in rows.items():
        counts = [sum(bool(found.get(bug.name)) for bug in chosen) for found in found_of.values()]
        reach = sum(bug.name not in OUT_OF_REACH for bug in chosen)
        yield f"| {title} | {len(chosen)} | {reach} | {' | '.join(map(str, counts))} |"
    for name, found in found_of.items():
        yield f"\n{name}: {len(findings_of[name])} findings"
        yield from _curve(columns[name], bugs, version)
        yield from (f"  found {bug}: {', '.join(names)}" for bug, names in found.items() if names)
        yield from (f"  missed {bug}" for bug, names in found.items() if not names)
        matched = {each for names in found.values() for each in names}
        yield from (
            f"  no known bug: {each.name}: {each.fails} ({', '.join(sorted(each.operators))})"
            for each in findings_of[name]
            if each.name not in matched
        )


def _curve(run: Sequence[Campaigned], bugs: Sequence[KnownBug], version: str) -> Iterator[str]:
    used = sum(one.core_seconds for one in run) / 60
    times_are_known = all(one.found_after or not one.findings for one in run)
    for budget in BUDGETS if times_are_known else ():
        if budget <= used:
            found = match(found_within(run, budget), bugs, version)
            yield f"  in {budget} core-minutes: {sum(map(bool, found.values()))}"


def main() -> None:
    """Run or count."""
    options = _options()
    if options.command == "count":
        print("\n".join(report(columns_of(options.folders, options.version), options.version)))
    if options.command == "keep":
        for one in keep(options.folder, options.version, options.generator):
            print(
                f"{one.part}, seed {one.seed}: {one.core_seconds / 60:.0f} core-minutes, {len(one.findings)} findings"
            )
    if options.command == "run":
        for part in PARTS:
            if options.only and part.name not in options.only:
                continue
            seconds = options.core_minutes * 60 * part.share
            used = run(part, options.folder, seconds, python=options.python, seed=options.seed)
            print(used, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="fuzz")
    running.add_argument("folder", type=Path, help="an empty folder, or one of a run that was ended")
    running.add_argument("--core-minutes", type=float, default=240.0)
    running.add_argument("--python", default=sys.executable)
    running.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    running.add_argument("--only", nargs="*", help="parts, such as inductor-native")
    keeping = commands.add_parser("keep", help=f"add what was found so far to {KEPT.name}")
    keeping.add_argument("folder", type=Path, help="the folder of a run with one version of PyTorch")
    keeping.add_argument("--generator", required=True, help="a name for the fuzzer of that day")
    counting = commands.add_parser("count", help="compare the findings with the known bugs")
    counting.add_argument("folders", type=Path, nargs="*", help="folders of runs that are not kept yet")
    for command in (keeping, counting):
        command.add_argument("--version", required=True, choices=VERSIONS, help="the version of PyTorch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
