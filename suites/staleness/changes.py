"""A change between two compiles of one program: what it is, and how the program is made before and after it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_regional import region
from pytest_regional.testing import current

#: What a row compares: the result with eager's, or only whether all was compiled again, or at least the whole graph,
#: whose regions may have the same code as before.
RESULT, COMPILE, WHOLE = "result", "compile", "whole"

#: The backends of PyTorch that have a cache of whole results: AOTAutograd's.
PYTORCHS = ("inductor", "torch")


@dataclass(frozen=True)
class Case:
    """A program and its arguments.

    Attributes:
        program: a function or module.
        inputs: its arguments; by default one float tensor of two rows that requires a gradient.
        kwargs: its keyword arguments.
        expected: what the result is compared with, where that is not the program itself run by eager.
        watched: other tensors that are compared after the call, by name.
        options: keywords of ``regional.compile``.
        compared: whether the result is compared at all: not that of a program whose random numbers are the compiler's.
    """

    program: Callable[..., Any]
    inputs: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expected: Callable[..., Any] | None = None
    watched: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    compared: bool = True


@dataclass(frozen=True)
class Change:
    """One row: a program that is compiled, changed, and compiled again.

    Attributes:
        topic: the module that the row is in.
        name: the name of the row's function.
        text: what changes: the docstring of that function.
        before: what the function is called with for the first compile.
        after: what it is called with for the second one.
        make: returns, or yields inside the state that the change is about, a program or a :class:`Case`.
        quick: whether the row is in the slice that runs by default.
        shows: :data:`RESULT`, or :data:`COMPILE` or :data:`WHOLE` for a change that no result depends on.
        in_region: whether the program is called in a region.
        requires: capabilities that the row needs.
        finding: the script in ``docs/findings`` that shows why caches of PyTorch are stale here; empty if none is.
        stale_on: the backends of PyTorch that are.
    """

    topic: str
    name: str
    text: str
    before: Any
    after: Any
    make: Callable[[Any], Any]
    quick: bool
    shows: str
    in_region: bool
    requires: tuple[str, ...]
    finding: str
    stale_on: tuple[str, ...]

    @property
    def id(self) -> str:
        """The row as test ids show it: ``code-closure_number``."""
        return f"{self.topic}-{self.name}"

    @property
    def batch(self) -> str:
        """The rows that are compiled in the same processes: those of the quick slice, or of a topic."""
        return "quick" if self.quick else self.topic

    @contextlib.contextmanager
    def case(self, value: Any) -> Iterator[Case]:
        """Make the program for ``value`` anew; what the change sets holds inside."""
        made = self.make(value)
        with (
            contextlib.contextmanager(lambda: made)()
            if inspect.isgenerator(made)
            else contextlib.nullcontext(made) as found
        ):
            case = found if isinstance(found, Case) else Case(found)
            yield case if case.inputs is not None else replace(case, inputs=(numbers(2, 3, requires_grad=True),))

    def program(self, case: Case) -> Callable[..., Any]:
        """Return what is compiled: the program, called in a region unless the row says otherwise."""

        def called(*inputs: Any, **kwargs: Any) -> Any:
            if not self.in_region:
                return case.program(*inputs, **kwargs)
            with region("r"):
                return case.program(*inputs, **kwargs)

        return called


class Changes:
    """The rows of one topic; an instance is a decorator of the functions that make the programs.

    Args:
        module: the ``__name__`` of the module that the rows are in.
        requires: capabilities that all of its rows need.
        in_region: whether programs are called in a region, where a row doesn't say.
    """

    def __init__(self, module: str, *, requires: tuple[str, ...] = (), in_region: bool = True) -> None:
        self.topic = module.rpartition(".")[2]
        self.requires, self.in_region = requires, in_region
        self.rows: list[Change] = []

    def __call__(
        self,
        before: Any = 2,
        after: Any = 3,
        *,
        name: str = "",
        quick: bool = False,
        shows: str = RESULT,
        in_region: bool | None = None,
        requires: tuple[str, ...] = (),
        finding: str = "",
        stale_on: tuple[str, ...] = PYTORCHS,
    ) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Add the row whose programs the decorated function makes; the keywords are the fields of :class:`Change`."""

        def added(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
            text = " ".join((make.__doc__ or "").split())
            where = self.in_region if in_region is None else in_region
            needs = (*self.requires, *requires)
            how = (quick, shows, where, needs, finding, stale_on if finding else ())
            self.rows.append(Change(self.topic, name or make.__name__, text, before, after, make, *how))
            return make

        return added


# What rows are made of


def numbers(*shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False, start: int = 1) -> Any:
    """Return small different numbers, on the device under test."""
    count = torch.Size(shape).numel()
    values = torch.arange(start, start + count, device=current().device).reshape(shape).to(dtype)
    return values.requires_grad_(requires_grad)


@contextlib.contextmanager
def put(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute, or an entry of a dictionary, and put back what was there."""
    missing = object()
    keyed = isinstance(owner, MutableMapping)
    if keyed:
        old = owner.get(name, missing)
        owner[name] = value
    else:
        old = vars(owner).get(name, missing)
        setattr(owner, name, value)
    try:
        yield
    finally:
        if keyed:
            owner.pop(name, None)
            owner.update({} if old is missing else {name: old})
        elif old is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, old)


@contextlib.contextmanager
def calling(setter: Callable[[Any], Any], value: Any, back: Any) -> Iterator[None]:
    """Call a setter of PyTorch's, and call it with ``back`` at the end."""
    setter(value)
    try:
        yield
    finally:
        setter(back)
