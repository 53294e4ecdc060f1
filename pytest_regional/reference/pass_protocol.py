"""Graph passes: a protocol, a base class and a decorator.

A pass takes a ``GraphModule`` and its example inputs and changes the graph in place, or returns another. Everything but
the name is optional: order (``requires``, ``after``, ``before``, ``terminal``), the kinds of graphs it runs on, and a
``uuid()`` that identifies it to a cache.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, overload

import torch.fx

from pytest_regional._base.errors import RegionalError

#: The kinds of graphs: before the partitioner, and after it or for inference.
GRAPH_KINDS = ("joint", "forward", "backward", "inference")

#: The default kinds of graphs for a pass.
DEFAULT_GRAPHS = ("forward", "backward", "inference")

#: A pass's result: None (the graph was changed in place), another module, or a terminal pass's compiled result.
PassResult: TypeAlias = torch.fx.GraphModule | Callable[..., Any] | None


class GraphPass(Protocol):
    """A pass of a pipeline. Objects need not derive from this; missing attributes have the defaults of :class:`Pass`.

    Attributes:
        name: its name in declarations, messages and reports.
        requires: passes that must be present, enabled, and run earlier.
        after: passes to run later than, if present.
        before: passes to run earlier than, if present.
        terminal: whether nothing runs after it; then it may return something other than a graph.
        graphs: the kinds of graphs that it runs on.
        changes_interface: whether it may change a graph's inputs and outputs; otherwise a change is an error.
    """

    name: str
    requires: tuple[str, ...]
    after: tuple[str, ...]
    before: tuple[str, ...]
    terminal: bool
    graphs: tuple[str, ...]
    changes_interface: bool

    def uuid(self) -> Hashable | None:
        """Return an identifier of code and settings, the same in every process, or None."""

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> PassResult:
        """Run on ``gm``; the keyword ``graph``, if in the signature, is the kind of graph."""


class Pass:
    """Base class of passes, for frozen dataclasses: define ``name``, and ``version`` to get a uuid.

    The default name is the class name in ``snake_case``. ``uuid()`` consists of name, ``version`` and every field of a
    dataclass (or every attribute of another object), except for those with ``metadata={"in_key": False}``; without a
    version it is None.
    """

    name: str = "pass"
    requires: tuple[str, ...] | str = ()
    after: tuple[str, ...] | str = ()
    before: tuple[str, ...] | str = ()
    terminal: bool = False
    graphs: tuple[str, ...] | str = DEFAULT_GRAPHS
    changes_interface: bool = False
    version: Hashable | None = None
    #: Parameters of a :class:`FunctionPass`'s function by default.
    default_pass_form = "module"

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Name the class, unless it or one of its bases has a name."""
        super().__init_subclass__(**keywords)
        if cls.name is Pass.name:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def uuid(self) -> Hashable | None:
        """Return name, version and settings, or None without a version."""
        return None if self.version is None else (self.name, self.version, *_settings(self))

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> Any:
        """Run the pass; subclasses define it."""
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
    """A function with declarations, made by :func:`graph_pass`. It can be called like the function."""

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
        """Return the decorator's uuid."""
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
        function: the function, if the decorator is used without arguments.
        name: by default the function's name.
        uuid: identifies the function's code to a cache; without one nothing is cached.
        **declarations: ``requires``, ``after``, ``before``, ``terminal``, ``graphs`` and ``changes_interface``, as in
            :class:`GraphPass`.
    """

    def decorate(decorated: Callable[..., Any]) -> FunctionPass:
        return FunctionPass(decorated, name or decorated.__name__, uuid, **declarations)

    return decorate if function is None else decorate(function)


class PipelineError(RegionalError):
    """The model cannot be captured, or its passes cannot run; base of all errors of the pipeline."""


class InvalidPassError(PipelineError, TypeError):
    """Not a graph pass, or a pass with invalid declarations."""


class PassOrderError(PipelineError, ValueError):
    """No order of the passes satisfies all their declarations.

    Attributes:
        passes: the names of the passes involved.
    """

    def __init__(self, message: str, passes: tuple[str, ...] = ()) -> None:
        self.passes = passes
        super().__init__(message)


class UnknownPassError(PipelineError, LookupError):
    """A name, given to disable or choose a pass, that no pass has."""


class PassFailedError(PipelineError, RuntimeError):
    """A pass raised, left an invalid graph, or returned an unusable result; its exception is chained, if any.

    Attributes:
        pass_name: the pass.
        graph: the kind of graph that it ran on.
    """

    def __init__(self, message: str, pass_name: str, graph: str) -> None:
        self.pass_name = pass_name
        self.graph = graph
        super().__init__(message)
