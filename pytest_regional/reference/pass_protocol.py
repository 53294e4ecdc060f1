"""What a graph pass is: one protocol, a base class and a decorator that make writing one two lines.

A pass takes a ``GraphModule`` and its example inputs and changes the graph in place, or returns another. Everything
but the name is optional: order (``requires``, ``after``, ``before``, ``terminal``), the graphs that it is for, and a
``uuid()`` that says to a cache what it does.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, overload

import torch.fx

from pytest_regional._errors import RegionalError, RegionalWarning

#: The kinds of graphs: before the partitioner, and what it or inference leaves.
GRAPH_KINDS = ("joint", "forward", "backward", "inference")

#: The graphs that a pass runs on when it does not say.
DEFAULT_GRAPHS = ("forward", "backward", "inference")

#: What a pass returns: nothing (it changed the graph in place), another module, or what a terminal pass compiled.
PassResult: TypeAlias = torch.fx.GraphModule | Callable[..., Any] | None


class GraphPass(Protocol):
    """A pass of a pipeline. Objects need not derive from this; what they lack has the default of :class:`Pass`.

    Attributes:
        name: what others, messages and reports call it.
        requires: passes that have to be there, enabled, and run earlier.
        after: passes to run later than, where they are there.
        before: passes to run earlier than, where they are there.
        terminal: whether nothing runs after it; then it may return something that is no graph any more.
        graphs: the kinds of graphs that it is for.
        changes_interface: whether it may change what the graph takes and returns; else a change is an error.
    """

    name: str
    requires: tuple[str, ...]
    after: tuple[str, ...]
    before: tuple[str, ...]
    terminal: bool
    graphs: tuple[str, ...]
    changes_interface: bool

    def uuid(self) -> Hashable | None:
        """Return what identifies code and settings in every process, or None if nothing does."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> PassResult:
        """Run on ``gm``; a keyword ``graph``, where the signature has one, gets the kind of graph."""


class Pass:
    """Base of passes, made for frozen dataclasses: give ``name``, and ``version`` if there is to be a uuid.

    The name is that of the class, as ``snake_case``, where it gives none. ``uuid()`` is made of name, ``version``
    and every field of a dataclass, those with ``metadata={"in_key": False}`` left out (of every attribute of another
    object); without a version there is none.
    """

    name: str = "pass"
    requires: tuple[str, ...] | str = ()
    after: tuple[str, ...] | str = ()
    before: tuple[str, ...] | str = ()
    terminal: bool = False
    graphs: tuple[str, ...] | str = DEFAULT_GRAPHS
    changes_interface: bool = False
    version: Hashable | None = None
    #: What the function of a :class:`FunctionPass` takes that does not say so.
    default_pass_form = "module"

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Name the class, unless it, or a base of its own, has a name."""
        super().__init_subclass__(**keywords)
        if cls.name is Pass.name:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def uuid(self) -> Hashable | None:
        """Return name, version and settings, or None without a version."""
        return None if self.version is None else (self.name, self.version, *_settings(self))

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> Any:
        """Run the pass; subclasses say how."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define __call__(gm, example_inputs)")


def _settings(custom: Any) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(custom):
        names = [field.name for field in dataclasses.fields(custom) if field.metadata.get("in_key", True)]
    else:
        names = sorted(vars(custom))
    return ((name, getattr(custom, name)) for name in names)


class _SignatureOfFunction:
    """The signature of an object is that of its function; the class keeps its own, which a property would hide."""

    def __get__(self, instance: FunctionPass | None, owner: type) -> inspect.Signature:
        if instance is None:
            raise AttributeError("__signature__")
        return inspect.signature(instance.function)


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionPass(Pass):
    """A function with declarations: what :func:`graph_pass` makes. It can be called as the function can."""

    function: Callable[..., Any]
    name: str
    identity: Hashable | None = None
    requires: tuple[str, ...] | str = ()
    after: tuple[str, ...] | str = ()
    before: tuple[str, ...] | str = ()
    terminal: bool = False
    graphs: tuple[str, ...] | str = DEFAULT_GRAPHS
    changes_interface: bool = False

    __signature__ = _SignatureOfFunction()

    def uuid(self) -> Hashable | None:
        """Return what the decorator was given."""
        return self.identity

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


@overload
def graph_pass(function: Callable[..., Any], /) -> FunctionPass: ...


@overload
def graph_pass(
    *,
    name: str | None = None,
    uuid: Hashable | None = None,
    requires: tuple[str, ...] | str = (),
    after: tuple[str, ...] | str = (),
    before: tuple[str, ...] | str = (),
    terminal: bool = False,
    graphs: tuple[str, ...] | str = DEFAULT_GRAPHS,
    changes_interface: bool = False,
) -> Callable[[Callable[..., Any]], FunctionPass]: ...


def graph_pass(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    uuid: Hashable | None = None,
    **declarations: Any,
) -> Any:
    """Make a pass of a function ``(gm)``, ``(gm, example_inputs)`` or ``(graph)``, with or without arguments.

    Args:
        function: the function, where the decorator is used without arguments.
        name: the function's name where it is left out.
        uuid: what identifies the function's code to a cache; without one nothing is cached.
        **declarations: ``requires``, ``after``, ``before``, ``terminal``, ``graphs`` and ``changes_interface``, as in
            :class:`GraphPass`.
    """

    def decorate(decorated: Callable[..., Any]) -> FunctionPass:
        return FunctionPass(decorated, name or decorated.__name__, uuid, **declarations)

    return decorate if function is None else decorate(function)


class PipelineError(RegionalError):
    """Base of all errors of the pipeline."""


class InvalidPassError(PipelineError, TypeError):
    """Something that is no graph pass, or one whose declarations are not understood."""


class PassOrderError(PipelineError, ValueError):
    """The passes cannot run in any order that all their declarations allow.

    Attributes:
        passes: the names of the passes concerned.
    """

    def __init__(self, message: str, passes: tuple[str, ...] = ()) -> None:
        self.passes = passes
        super().__init__(message)


class PassNameWarning(RegionalWarning):
    """A pass is declared to run after or before a name that no pass has, though one nearly has it."""


class UnknownPassError(PipelineError, LookupError):
    """A name, given to disable a pass or to choose one, that no pass has."""


class UnknownGraphError(PipelineError, ValueError):
    """A kind of graph that there is not."""


class PassUuidError(PipelineError, RuntimeError):
    """A ``uuid()`` that no cache could use."""


class PassFailedError(PipelineError, RuntimeError):
    """A pass raised, left an invalid graph, or returned what nobody can use; the cause is chained, if there is one.

    Attributes:
        pass_name: the pass.
        graph: the kind of graph that it ran on.
    """

    def __init__(self, message: str, pass_name: str, graph: str) -> None:
        self.pass_name = pass_name
        self.graph = graph
        super().__init__(message)


class CaptureError(PipelineError, RuntimeError):
    """A model, or its inputs, of which no graph can be made."""


class PartitionError(PipelineError, RuntimeError):
    """A joint graph that cannot be split, or a partitioner that does not split it."""


class CaptureWarning(RegionalWarning):
    """A model does something that its graph does not."""
