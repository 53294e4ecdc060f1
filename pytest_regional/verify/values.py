"""Whether the kernels of a graph compute what the graph says: launch by launch, and at last what the code returns."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_regional.emulation.backend import Emulation
from pytest_regional.verify.buffers import Effects
from pytest_regional.verify.builder import UPDATE, WRITE
from pytest_regional.verify.equality import DifferentError, Equality
from pytest_regional.verify.errors import NotVerifiableError, UndecidedError
from pytest_regional.verify.holdings import Held, Holding, Holdings, InMemory, Part
from pytest_regional.verify.kept import Store, keep, kept
from pytest_regional.verify.kernels import KernelRun
from pytest_regional.verify.outcomes import PROVED, REFUTED, UNKNOWN, VALUES, Outcome
from pytest_regional.verify.question import Question
from pytest_regional.verify.replay import difference_of_graph
from pytest_regional.verify.symbols import Scope, constant
from pytest_regional.verify.wrappers import Graph, SymbolicLaunch, WrapperRun

_KNOWN: dict[str, tuple[tuple[Outcome, ...], float]] = {}
_MOST_REPLAYS = 3


class ValuesOfGraph:
    """What is found out about the values of one graph.

    Args:
        graph: the generated code, and the graph that it computes.
        run: what the code does.
        effects: for each launch, by its order, what it reads and writes.
        kernels: for each launch, by its order, the questions about it, one for each configuration.
        emulation: where a difference is replayed.
        seconds: for what the code returns, and for a replay.
        store: where outcomes are kept for other processes.
    """

    def __init__(
        self,
        graph: Graph,
        run: WrapperRun,
        effects: Mapping[int, Effects],
        kernels: Mapping[int, Sequence[Question | str]],
        emulation: Emulation,
        seconds: float,
        store: Store | None = None,
    ) -> None:
        self._graph = graph
        self._kernels = kernels
        self._emulation = emulation
        self._seconds = seconds
        self._store = store
        self._holdings = None if graph.module is None else Holdings(graph, run, effects)
        self._digests: dict[int, str] = {}
        self._found: dict[tuple[int, str], Holding] = {}
        if self._holdings is not None:
            for order in sorted(self._holdings.launches):
                self._find(order)
        self._text = "" if graph.module is None else f"{graph.module.graph} {sorted(graph.origins.items())}"

    def of_launch(self, launch: SymbolicLaunch, question: Question, digest: str) -> Outcome | None:
        """Return what is known of the values of one launch with one configuration, or None if there is no graph.

        Args:
            launch: the launch.
            question: about it.
            digest: of all that is known of the kernel and its arguments.
        """
        if self._holdings is None:
            return None
        held = self._held(launch.order)
        self._digests[launch.order] = digest
        memory = [sorted((name, self._told(one)) for name, one in part.items()) for part in (held.before, held.after)]
        misread = sorted(self._holdings.misread)
        key = hashlib.sha256(f"{digest} {launch.order} {memory} {misread} {self._text}".encode()).hexdigest()
        # What becomes of a part of the work is told by kernels that follow.
        lasting = not any(isinstance(one, Part) for one in held.after.values())
        return self._kept(key if lasting else "", lambda: self._launch(question, launch))

    def of_outputs(self) -> Outcome | None:
        """Return whether what the code returns is what the graph returns, or None if there is no graph."""
        if self._holdings is None:
            return None
        question = Question(KernelRun(Scope(), [], [], ()), {}, self._graph.known, self._seconds)
        returned = [
            (node.name, None if view is None else view.place(), self._told(self._resolved(held)))
            for node, view, held in self._holdings.outputs
        ]
        known = sorted(fact.sexpr() for fact in self._graph.known)
        misread = sorted(self._holdings.misread)
        told = f"{self._text} {returned} {known} {misread} {self._graph.inputs}"
        key = hashlib.sha256(told.encode()).hexdigest()
        return self._kept(key, lambda: self._outputs(question))

    def _kept(self, key: str, compare: Callable[[], tuple[Outcome, Sequence[Any]]]) -> Outcome:
        """Return what is known under a key, and else what a comparison says; it is kept if there is a key."""
        known = _KNOWN.get(key) or (kept(self._store, key, [VALUES]) if self._store and key else None)
        if known is None:
            started = time.perf_counter()
            outcome = replace(self._answered(compare), seconds=time.perf_counter() - started)
            known = (outcome,), outcome.seconds
            if self._store and key:
                keep(self._store, key, *known)
        if key:
            _KNOWN[key] = known
        return known[0][0]

    def _answered(self, compare: Callable[[], tuple[Outcome, Sequence[Any]]]) -> Outcome:
        try:
            outcome, apart = compare()
        except NotVerifiableError as error:
            return Outcome(VALUES, UNKNOWN, str(error), final=not isinstance(error, UndecidedError))
        return self._replayed(outcome, apart) if outcome.verdict == REFUTED else outcome

    def _require_numbers(self, names: Collection[str]) -> None:
        """Raise an error if a size is not shown to be taken out of the tensor that it comes from in the graph."""
        assert self._holdings is not None
        misread = sorted(self._holdings.misread & set(names))
        if misread:
            raise NotVerifiableError(f"{', '.join(misread)}: a number of a tensor that is not shown to be the graph's")

    def _launch(self, question: Question, launch: SymbolicLaunch) -> tuple[Outcome, Sequence[Any]]:
        """Compare the stores of a launch; a difference, to be replayed, comes before what is not known."""
        assert self._holdings is not None
        self._require_numbers(launch.unbacked)
        question.start()
        held = self._held(launch.order)
        stores = [access for access in question.run.accesses if access.kind == WRITE]
        unknown = ""
        if not stores or any(access.kind == UPDATE for access in question.run.accesses):
            unknown = "values that are added up in memory"
        for access in stores:
            target = held.after.get(access.argument, "an argument that is not written")
            equality = Equality(question, held.before, self._writers(held, {}))
            try:
                if isinstance(target, Part):
                    self._readers(launch.order, question)
                elif isinstance(target, Holding):
                    equality.store(access, target)
                else:
                    unknown = unknown or f"{access.argument} is {target}"
            except DifferentError as error:
                place = f"argument {access.argument}, {access.line}"
                reason = f"a value that is not shown to be the graph's: {place}: {error}"
                return Outcome(VALUES, REFUTED, reason), equality.apart
            except NotVerifiableError as error:
                unknown = unknown or str(error)
        return Outcome(VALUES, UNKNOWN if unknown else PROVED, unknown, final=not unknown), ()

    def _find(self, order: int) -> None:
        """Find out of which nodes the buffers are the value that a launch writes, of those that have no name."""
        assert self._holdings is not None
        question = self._kernels[order][0]
        held = self._held(order)
        for argument, part in held.after.items():
            stores = [] if isinstance(question, str) else question.run.accesses
            stores = [access for access in stores if access.kind == WRITE and access.argument == argument]
            if not isinstance(part, Part) or not isinstance(question, Question) or len(stores) != 1:
                continue
            ends = time.monotonic() + self._seconds / 2
            for node in part.candidates:
                question.deadline = ends
                holding = Holding(node, part.view)
                try:
                    Equality(question, held.before, self._writers(held, {})).store(stores[0], holding)
                except NotVerifiableError:
                    if time.monotonic() > ends:
                        break
                    continue
                self._found[order, argument] = holding
                break

    def _held(self, order: int) -> Held:
        """Return what the arguments of a launch hold, as far as it was found out."""
        assert self._holdings is not None
        held = self._holdings.launches[order]
        before, after = (
            {name: self._resolved(one) for name, one in part.items()} for part in (held.before, held.after)
        )
        return Held(before, after)

    def _resolved(self, held: InMemory) -> InMemory:
        return self._found.get((held.order, held.argument), held) if isinstance(held, Part) else held

    def _told(self, held: InMemory) -> str:
        """Return what tells contents of memory from others, of one graph."""
        if isinstance(held, Holding):
            return f"{held.node.name} {held.view.place()} {held.view.origin.storage.name}"
        return f"part {self._digests.get(held.order)}" if isinstance(held, Part) else held

    def _writers(self, held: Held, given: Mapping[int, Question]) -> dict[int, Equality]:
        """Return the launches whose parts of the work a launch reads; with the questions that are given."""
        assert self._holdings is not None
        found = {}
        for part in held.before.values():
            if isinstance(part, Part):
                question = given.get(part.order) or self._kernels[part.order][0]
                if isinstance(question, Question):
                    question.deadline = time.monotonic() + self._seconds
                    found[part.order] = Equality(question, self._held(part.order).before)
        return found

    def _readers(self, order: int, question: Question) -> None:
        """Prove of those that read a part of the work that they compute what the graph says with it.

        Raises:
            NotVerifiableError: that is not proved of one of them.
        """
        assert self._holdings is not None
        readers = self._holdings.readers.get(order, set())
        if not readers or None in readers:
            raise NotVerifiableError("a part of the work that no kernel reads")
        for reader in readers:
            assert reader is not None
            theirs = self._kernels[reader][0]
            if isinstance(theirs, str):
                raise NotVerifiableError(theirs)
            theirs.deadline = question.deadline
            held = self._held(reader)
            for access in theirs.run.accesses:
                if access.kind == WRITE:
                    target = held.after.get(access.argument, "")
                    if not isinstance(target, Holding):
                        raise NotVerifiableError("a part of the work that goes into another part of it")
                    try:
                        Equality(theirs, held.before, self._writers(held, {order: question})).store(access, target)
                    except DifferentError as error:
                        raise NotVerifiableError(f"a part of the work, with which {error}") from error

    def _outputs(self, question: Question) -> tuple[Outcome, Sequence[Any]]:
        assert self._holdings is not None
        self._require_numbers(self._holdings.misread)
        for node, view, held in self._holdings.outputs:
            holding = self._resolved(held)
            if view is None or not isinstance(holding, Holding):
                what = holding if isinstance(holding, str) else "a part of the work"
                raise NotVerifiableError(f"what is returned for {node.name} is {what}")
            equality = Equality(question, self._holdings.inputs)
            try:
                equality.output(node, view, holding)
            except DifferentError as error:
                return Outcome(
                    VALUES, REFUTED, f"a value that is not the graph's is returned for {node.name}: {error}"
                ), equality.apart
        return Outcome(VALUES, PROVED), ()

    def _replayed(self, outcome: Outcome, apart: Sequence[Any]) -> Outcome:
        """Return a difference with what the emulator says to it; if it finds none, nothing is known."""
        tried: list[Mapping[str, int]] = []
        for sizes in [*map(_sizes_in, apart[: _MOST_REPLAYS - 1]), {}]:
            if sizes in tried:
                continue
            tried.append(sizes)
            try:
                told = difference_of_graph(self._graph, self._emulation, self._seconds, sizes)
            except (NotVerifiableError, KeyError, MemoryError) as error:
                return replace(outcome, verdict=UNKNOWN, reason=f"{outcome.reason}; no replay: {error}", final=False)
            if told:
                return replace(outcome, reason=f"{outcome.reason}: {told}")
        return replace(outcome, verdict=UNKNOWN, reason=f"{outcome.reason}; a replay finds no difference", final=False)


def _sizes_in(model: Any) -> dict[str, int]:
    """Return the symbolic sizes among the values that z3 found."""
    values = {item.name(): constant(model[item]) for item in model.decls() if item.arity() == 0}
    return {name: int(value) for name, value in values.items() if value is not None and "#" not in name}
