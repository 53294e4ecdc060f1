"""``fuzz``: a fuzzing campaign without a test file, by several workers, on one machine or on many."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._errors import RegionalError
from pytest_regional._limits import memory_of
from pytest_regional._text import plural, unknown_name
from pytest_regional.command_line.fuzz_status import show_status, write_page
from pytest_regional.command_line.targets import UsageError
from pytest_regional.fuzz.budget import Budget, BudgetError
from pytest_regional.fuzz.modes import MODES
from pytest_regional.fuzz.store import Store, open_store
from pytest_regional.fuzz.store.opening import SECRET, UNAUTHENTICATED
from pytest_regional.fuzz.workers.engines import Engine, LocalProcesses
from pytest_regional.fuzz.workers.plan import SEEDS, Part, Plan, joined
from pytest_regional.fuzz.workers.pruning import prune
from pytest_regional.fuzz.workers.regression import Regression, fill
from pytest_regional.fuzz.workers.status import StatusReader

if TYPE_CHECKING:
    from pytest_regional.fuzz.workers.head import Outcome

_HELP = "fuzz backends with several workers: on this machine, or on all that share a store"

#: Variables that workers on other machines get from this one.
_PASSED_ON = ("OMP_NUM_THREADS", SECRET, UNAUTHENTICATED)

#: Seconds that the first question to a store may take; later ones wait longer for a server that is away.
_FIRST_SECONDS = 15.0

#: The name of the environment that runs the command.
_THIS = "python"

#: The directory of the store, in the directory of findings.
_STORE = "store"


def add_command(commands: Any) -> None:
    """Add ``fuzz`` to the commands of a parser."""
    parser = commands.add_parser(
        "fuzz",
        help=_HELP,
        description=f"{_HELP.capitalize()}. The same command again goes on where it ended. Ctrl-C and SIGTERM end it "
        "behind the programs that are being checked. Exit status 0: nothing new; 1: new findings, or workers that died "
        "of a program; 2: it could not run.",
    )
    what = parser.add_argument_group("what is fuzzed (given once; who joins a store may leave it out)")
    what.add_argument("--backend", metavar="NAMES", help="backends, comma-separated (default: reference)")
    what.add_argument(
        "--mode", metavar="NAMES", help=f"modes, comma-separated: {', '.join(MODES)} (default: that of the device)"
    )
    what.add_argument("--device", metavar="NAME", help="as --regional-device of pytest (default: cpu)")
    what.add_argument("--seed", metavar="N", type=int, help="what programs are drawn from (default: a new one)")
    what.add_argument("--settings", metavar="NAMES", default="", help="compiler settings that are drawn, or 'all'")
    what.add_argument(
        "--guidance", choices=("on", "off"), default="on", help="mutate programs that reach something new (default: on)"
    )
    what.add_argument("--timeout", metavar="S", type=float, default=120.0, help="seconds for one program (120)")
    what.add_argument("--audit", action="store_true", help="draw what a backend disclaims, too")
    what.add_argument("--no-blame", action="store_true", help="do not search which step of a compile is to blame")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--budget",
        metavar="BUDGET",
        help="a time (30s, 10m, 2h) that this command works, or the number of programs (500) of the whole campaign in "
        "each environment (default: 10m; with --ci 5m)",
    )
    how.add_argument("--workers", metavar="N", type=int, help="worker processes (default: one for each core)")
    how.add_argument(
        "--memory", metavar="SIZE", default="3G", help="a worker that takes more is replaced by a new one (default: 3G)"
    )
    how.add_argument(
        "--findings", metavar="DIR", type=Path, default=Path("regional-findings"), help="directory of findings"
    )
    how.add_argument(
        "--store",
        metavar="URL",
        help="directory or redis:// URL that all workers share (default: 'store' in the directory of findings)",
    )
    how.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="workers are actors of a Ray cluster: 'local' starts one on this machine, 'ray://host:10001' joins one "
        "(default: processes of this machine, without Ray)",
    )
    how.add_argument(
        "--environment",
        metavar="NAME=PYTHON",
        action="append",
        default=[],
        help="a Python interpreter with another PyTorch, whose workers check the same programs; may be repeated",
    )
    how.add_argument(
        "--exit-zero",
        action="store_true",
        help="exit status 0 also for new findings, where a scheduler takes 1 as failed",
    )
    how.add_argument(
        "--page", metavar="FILE", type=Path, help="an HTML page of the campaign, which loads itself again meanwhile"
    )
    instead = parser.add_argument_group("instead of new programs")
    instead.add_argument(
        "--ci",
        action="store_true",
        help="check again what earlier campaigns kept: known findings, and programs that reached something of their "
        "own. Exit status 1: something fails that is not known",
    )
    instead.add_argument(
        "--prune", action="store_true", help="delete the kept programs of the store that reach nothing of their own"
    )
    instead.add_argument(
        "--status",
        metavar="URL",
        nargs="?",
        const=True,
        help="show what the campaign of a store has come to; nothing is written into it (without URL: of the campaign "
        "in the directory of findings)",
    )
    instead.add_argument("--watch", action="store_true", help="with --status: go on until Ctrl-C")
    parser.set_defaults(run=run)


def run(asked: argparse.Namespace) -> int:
    """Run the campaign; return the exit status.

    Raises:
        UsageError: an option makes no sense, or the campaign cannot run.
    """
    try:
        return _run(asked)
    except UsageError:
        raise
    except KeyboardInterrupt:
        print("ended at once: programs that were being checked are reported as crashes by the next command")
        return 130
    except RegionalError as error:
        raise UsageError(_sentence(error)) from error


def _run(asked: argparse.Namespace) -> int:
    from rich.console import Console

    from pytest_regional.fuzz.workers.head import Head
    from pytest_regional.report.campaign_screen import CampaignScreen

    _check_together(asked)
    if asked.status:
        url = _only_store(asked.findings) if asked.status is True else asked.status
        with contextlib.closing(open_store(url, tell=_tell, patience=_FIRST_SECONDS)) as store:
            return show_status(store, asked.page, watch=asked.watch)
    budget = _budget(asked.budget or ("5m" if asked.ci else "10m"))
    pythons = _pythons(asked.environment)
    workers, memory = _workers(asked.workers), _memory(asked.memory)
    if asked.ci and asked.cluster not in (None, "local"):
        raise UsageError("--ci checks again on one machine: leave out --cluster, or say --cluster=local.")
    wanted = _plan(asked, budget, tuple(pythons))
    url = asked.store or _default_store(asked.findings, wanted)
    console = Console()
    regression = None
    open_store(url, tell=_tell, patience=_FIRST_SECONDS).close()  # a server that never answered is not waited for
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(open_store(url, tell=_tell)))
        if asked.prune:
            return _prune(store)
        plan = wanted if wanted is not None and asked.ci else joined(store, wanted)
        if wanted is None and budget.examples is not None:
            plan = joined(store, replace(plan, programs=budget.examples))
        _check_backends(plan, asked)
        if asked.ci:
            source, url = store, stack.enter_context(tempfile.TemporaryDirectory(prefix="pytest-regional-"))
            store = stack.enter_context(contextlib.closing(open_store(url, tell=_tell)))
            plan = joined(store, replace(plan, programs=0))
            regression = fill(store, plan, asked.findings, source)
        screen = stack.enter_context(CampaignScreen(console, budget.seconds, asked.page).shown())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pytest-regional-")))
        screen.says(f"{_named(plan)}; --seed={plan.seed}; {plural(workers, 'worker')}; store {store.where}")
        head = Head(
            store,
            url,
            plan,
            _engine(asked, pythons, workers),
            screen,
            findings=_made(asked.findings),
            scratch=scratch,
            seconds=budget.seconds,
            python_path=[os.getcwd()],
            memory=memory,
        )
        write_page(StatusReader(store, plan).read(), asked.page, live=True)
        outcome = head.run(workers)
    write_page(outcome.status, asked.page, live=False)
    if regression is None:
        _print_sums(outcome)
    else:
        _print_regression(regression, outcome)
    _print_new(outcome, asked.findings)
    return 0 if asked.exit_zero else outcome.exit_status


def _check_together(asked: argparse.Namespace) -> None:
    """Refuse options that exclude each other, and such without a value, as a variable that is not set gives them."""
    instead = [f"--{name}" for name in ("ci", "prune", "status") if getattr(asked, name)]
    if len(instead) > 1:
        raise UsageError(f"{' and '.join(instead)} exclude each other: give one of them.")
    if asked.watch and not asked.status:
        raise UsageError("--watch goes with --status.")
    for name in ("backend", "mode", "device", "store", "status", "cluster"):
        if getattr(asked, name) == "":
            raise UsageError(f"--{name}= has no value: leave it out, or give one.")


def _prune(store: Store) -> int:
    pruned = prune(store)
    print(f"{pruned.after} of {plural(pruned.before, 'kept program')} reach all {plural(pruned.keys, 'coverage key')}")
    return 0


def _print_regression(regression: Regression, outcome: Outcome) -> None:
    known, kept = plural(len(regression.findings), "known finding"), plural(regression.programs, "kept program")
    fixed = regression.fixed(outcome.status)
    print(f"to be checked again: {known}, {kept}; {len(fixed)} fixed")
    for title in fixed:
        print(f"  fixed: {title}")
    if unchecked := regression.unchecked(outcome.status):
        print(f"  {unchecked} not checked: give --budget more")


def _sentence(error: RegionalError) -> str:
    text = str(error)
    return text if text.endswith(".") else f"{text}."


def _budget(text: str) -> Budget:
    try:
        return Budget.parse(text)
    except BudgetError as error:
        raise UsageError(f"--budget: {error}.") from error


def _memory(text: str) -> int:
    try:
        return memory_of(text)
    except ValueError as error:
        raise UsageError(f"--memory={text}: {error}.") from error


def _workers(number: int | None) -> int:
    if number is not None and not 1 <= number <= 10_000:
        raise UsageError(f"--workers={number}: give a number from 1 to 10000.")
    return number or os.cpu_count() or 1


def _pythons(given: Sequence[str]) -> Mapping[str, str]:
    """Return the interpreters of environments by name; this one where none is given."""
    pythons: dict[str, str] = {}
    for text in given:
        name, separator, python = text.partition("=")
        if not separator or not name or not name.replace("-", "").replace(".", "").isalnum():
            raise UsageError(f"--environment={text}: write NAME=PYTHON, such as 2.11=.venv-2.11/bin/python.")
        path = Path(python).absolute()
        if not os.access(path, os.X_OK) or path.is_dir():
            raise UsageError(f"--environment={text}: {python} is no program that can be run.")
        if name in pythons:
            raise UsageError(f"--environment={text}: there are two environments of that name.")
        pythons[name] = str(path)
    return pythons or {_THIS: sys.executable}


def _default_store(findings: Path, plan: Plan | None) -> str:
    """Return the directory of the store of a campaign of this machine: the same command again goes on with it."""
    assert plan is not None, "only who names a store joins one"
    return str(_made(findings) / _STORE / plan.identity)


def _only_store(findings: Path) -> str:
    """Return the directory of the only store of a directory of findings."""
    stores = sorted(path for path in (findings / _STORE).glob("*") if path.is_dir())
    if len(stores) == 1:
        return str(stores[0])
    if not stores:
        raise UsageError(f"--status: there is no campaign in {findings}: give --findings=DIR, or --status=URL.")
    raise UsageError(f"--status: {findings} has several campaigns: give one of {', '.join(map(str, stores))}.")


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--findings={folder}: it cannot be made: {error.strerror}.") from error
    return folder


def _plan(asked: argparse.Namespace, budget: Budget, environments: tuple[str, ...]) -> Plan | None:
    """Return what the command line asks for; None where it says nothing, and joins what there is."""
    if asked.seed is not None and not 0 <= asked.seed < SEEDS:
        raise UsageError(f"--seed={asked.seed}: give a number from 0 to {SEEDS - 1}.")
    if asked.store and not (asked.backend or asked.mode or asked.device):
        return None
    backends = _names(asked.backend or "reference")
    device = asked.device or "cpu"
    modes = _names(asked.mode) if asked.mode else ["emulated" if device.startswith("cuda-emulated") else "native"]
    for mode in modes:
        if mode not in MODES:
            raise UsageError(f"--mode={asked.mode}: {unknown_name('mode', mode, MODES)}")
    parts = tuple(
        Part(backend, "cuda-emulated" if mode == "emulated" and device == "cpu" else device, mode)
        for backend in backends
        for mode in modes
    )
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    return Plan(
        parts,
        seed,
        environments,
        budget.examples,
        _settings(asked.settings),
        asked.guidance,
        _timeout(asked.timeout),
        asked.audit,
        not asked.no_blame,
    )


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _settings(text: str) -> tuple[str, ...]:
    if not text or text == "none":
        return ()
    from pytest_regional.fuzz.settings import UnknownSettingError, named_settings

    try:
        return tuple(setting.name for setting in named_settings(_names(text)))
    except UnknownSettingError as error:
        raise UsageError(f"--settings={text}: {_sentence(error)}") from error


def _timeout(seconds: float) -> float:
    if not 1 <= seconds <= 86_400:
        raise UsageError(f"--timeout={seconds:g}: give seconds from 1 to 86400.")
    return seconds


def _check_backends(plan: Plan, asked: argparse.Namespace) -> None:
    """Refuse to import what a store names and the command line does not: anybody may have written it there.

    Raises:
        UsageError: there is such a backend.
    """
    named = _names(asked.backend or "")
    for part in plan.parts:
        if ":" in part.backend and part.backend not in named:
            raise UsageError(
                f"the store names the backend {part.backend}, which is imported only if you name it: add "
                f"--backend={','.join(dict.fromkeys(one.backend for one in plan.parts))}."
            )


def _engine(asked: argparse.Namespace, pythons: Mapping[str, str], workers: int) -> Engine:
    """Return what starts workers, on this machine or on a cluster.

    Workers share the cores: by default PyTorch has as many threads in each as there are cores for it.
    """
    if asked.cluster and asked.cluster != "local":
        from pytest_regional.fuzz.workers.ray_cluster import RayCluster

        own = {name: value for name, value in os.environ.items() if name in _PASSED_ON}
        return RayCluster(asked.cluster, workers, pythons, own)
    variables = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // workers)), **os.environ}
    if asked.cluster:
        from pytest_regional.fuzz.workers.ray_cluster import RayCluster

        return RayCluster(asked.cluster, workers, pythons, variables)
    return LocalProcesses(pythons, variables)


def _named(plan: Plan) -> str:
    parts = "; ".join(part.name for part in plan.parts)
    return parts if plan.environments == (_THIS,) else f"{parts} in {', '.join(plan.environments)}"


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _print_sums(outcome: Outcome) -> None:
    from pytest_regional.report.campaign_words import summary_line

    print(summary_line(outcome.status))


def _print_new(outcome: Outcome, findings: Path) -> None:
    new = [row for row in outcome.status.findings if row.name in outcome.findings]
    environments = outcome.status.plan.environments
    for row in new:
        where = ", ".join(f"{name}: {row.results.get(name, 'not checked')}" for name in environments)
        print(f"  {row.title}" + (f" ({where})" if len(environments) > 1 else ""))
    print(f"{plural(len(new), 'new finding')} in {findings}" if new else "nothing new")


__all__ = ["add_command", "run"]
