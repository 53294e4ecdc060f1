"""Between kernels: what each launch reads was written before, and no one has overwritten it since.

The order of launches is the same for all sizes, as the generated code has no branches on them. What differs is how much
of a buffer a kernel writes: that is proved kernel by kernel, and asked for here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_regional.verify.outcomes import BUFFERS, PROVED, REFUTED, UNKNOWN, Outcome
from pytest_regional.verify.wrappers import Contents, OperatorCall, Storage, SymbolicLaunch, View, WrapperRun


@dataclass(frozen=True)
class Effects:
    """What a launch does to its tensor arguments, by their names; None where it is not known."""

    reads: frozenset[str] | None = None
    writes: frozenset[str] | None = None
    updates: frozenset[str] = frozenset()


@dataclass
class _State:
    """What is in memory between two steps.

    Attributes:
        holds: whose contents each storage holds.
        overwritten: by what the contents of a buffer were overwritten.
        written: of the contents that are not complete: the places that were written.
    """

    holds: dict[Storage, Contents] = field(default_factory=dict)
    overwritten: dict[Contents, str] = field(default_factory=dict)
    written: dict[Contents, dict[tuple[str, ...], View]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


class BufferFlow:
    """The buffers of one graph, step by step.

    Attributes:
        refuted: a read of what is not there, in words; empty if there is none.
        required: for each launch, by its order, the arguments of which it has to write every element.
        partial: buffers of which several tensors are written, for each a sequence; all of a buffer is read later.
    """

    def __init__(
        self,
        run: WrapperRun,
        effects: Mapping[int, Effects],
        donated: Iterable[int],
        updated: Mapping[int, bool] | None = None,
    ) -> None:
        self.refuted = ""
        self.required: dict[int, list[str]] = {}
        self.partial: list[tuple[View, Sequence[View]]] = []
        self._state = _State()
        self._donated = set(donated)
        self._replaced = {run.inputs[number].contents for number, whole in (updated or {}).items() if whole}
        for step in run.steps:
            if isinstance(step, OperatorCall):
                self._operator(step)
            else:
                self._launch(step, effects.get(step.order, Effects()))
        for view in run.outputs:
            self._read(view, "the caller", in_place=False)
        for number in updated or {}:
            self._check_updated(run.inputs[number])
        kept = sorted(set(run.reused_inputs) - self._donated)
        if kept:
            self._state.unknown.append(f"the memory of inputs that are not donated is used again: {kept}")

    def outcome(self) -> Outcome:
        """Return what is known without asking about sizes."""
        if self.refuted:
            return Outcome(BUFFERS, REFUTED, self.refuted)
        if self._state.unknown:
            return Outcome(BUFFERS, UNKNOWN, self._state.unknown[0])
        return Outcome(BUFFERS, PROVED)

    def _operator(self, step: OperatorCall) -> None:
        for view in step.reads:
            self._read(view, step.name, in_place=False)
        for view in step.writes:
            if any(view.storage is read.storage and view.contents is not read.contents for read in step.reads):
                self._refute(f"{step.name} writes {view.contents.name} into memory that it reads")
            self._write(view, step.name)

    def _launch(self, step: SymbolicLaunch, effects: Effects) -> None:
        name = str(step.tuner.fn.__name__)
        views = {key: value for key, value in step.arguments.items() if isinstance(value, View)}
        if effects.reads is None or effects.writes is None:
            self._state.unknown.append(f"what {name} reads and writes is not known")
            for view in views.values():
                self._write(view, name)
                view.contents.complete = True
            return
        for argument in sorted(effects.reads & views.keys()):
            self._read(views[argument], name, in_place=argument in effects.writes)
        for argument in sorted((effects.writes | effects.updates) & views.keys()):
            view = views[argument]
            written = view.place() in self._state.written.get(view.contents, {})
            complete = view.contents.complete or written
            if argument in effects.writes and (not complete or (self._is_replaced(view) and not written)):
                self.required.setdefault(step.order, []).append(argument)
            if argument in effects.updates and not complete and argument not in effects.writes:
                self._refute(f"{name} updates {view.contents.name} before anything was written to it")
            self._write(view, name)

    def _is_replaced(self, view: View) -> bool:
        """Say whether a tensor is an input of which the graph writes each element."""
        whole = view.storage.whole
        return view.contents in self._replaced and whole is not None and whole.place() == view.place()

    def _check_updated(self, view: View) -> None:
        places = [one for written in self._state.written.values() for one in written.values()]
        if not _is_empty(view) and not any(one.storage is view.storage for one in places):
            self._refute(f"nothing is written to {view.contents.name}, which the graph changes")

    def _write(self, view: View, by: str) -> None:
        contents, held = view.contents, self._state.holds.get(view.storage)
        if held is not None and held is not contents:
            self._state.overwritten[held] = by
        elif held is None and contents.before is not None:
            self._state.overwritten[contents.before] = by
        self._state.holds[view.storage] = contents
        self._state.written.setdefault(contents, {})[view.place()] = view

    def _read(self, view: View, by: str, in_place: bool) -> None:
        contents = view.contents
        if _is_empty(view):
            return
        if contents in self._state.overwritten:
            self._refute(f"{by} reads {contents.name}, which {self._state.overwritten[contents]} overwrote")
            return
        places = self._state.written.get(contents, {})
        if contents.complete or view.place() in places:
            return
        if not places and contents.before is not None and in_place:
            # Its memory is that of a buffer which is read for the last time here.
            before = View(view.storage, contents.before, view.sizes, view.strides, view.start, view.dtype)
            self._read(before, by, in_place=False)
            return
        if not places:
            self._refute(f"{by} reads {contents.name} before anything was written to it")
            return
        whole = view.storage.whole
        if whole is not None and whole.place() in places:
            return
        self.partial.append((view, list(places.values())))

    def _refute(self, what: str) -> None:
        self.refuted = self.refuted or what


def _is_empty(view: View) -> bool:
    return 0 in [size for size in view.sizes if isinstance(size, int)]
