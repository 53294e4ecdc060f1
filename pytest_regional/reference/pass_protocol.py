"""Graph passes: a protocol, a base class and a decorator; their uuids in keys; passes on Dynamo's graph.

A pass takes a ``GraphModule`` and its example inputs and changes the graph in place, or returns another. Everything but
the name is optional: order (``requires``, ``after``, ``before``, ``terminal``), the kinds of graphs it runs on, and a
``uuid()`` that identifies it to a cache.

Pre-grad passes run once on the whole Dynamo graph. ``early`` runs them before the cache lookup, on hits as well, and
the key is that of the transformed graph. ``late`` only runs them on a miss, so the key contains their uuids.
``default`` is ``late`` if possible.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import pathlib
import re
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, overload

import torch.fx

from pytest_regional._base.cache_keys import own_code
from pytest_regional._base.errors import RegionalError, RegionalWarning
from pytest_regional._base.text import unknown_name
from pytest_regional._torch.compile_phases import logged
from pytest_regional._torch.config import (
    TIMINGS,
    configured_pre_grad_passes,
    configured_pre_grad_timing,
    inductor_config,
)
from pytest_regional._torch.dynamo import at_dynamo_reset
from pytest_regional._torch.fx_graphs import sort_topologically
from pytest_regional._torch.inductor import custom_graph_pass_base, other_custom_pass_bases

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
        if self.version is None:
            return None
        custom: Any = self
        if dataclasses.is_dataclass(custom):
            names = [field.name for field in dataclasses.fields(custom) if field.metadata.get("in_key", True)]
        else:
            names = sorted(vars(self))
        return (self.name, self.version, *((name, getattr(self, name)) for name in names))

    def __call__(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any] = ()) -> Any:
        """Run the pass; subclasses define it."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define __call__(gm, example_inputs)")


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


_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_ADVICE = "return a non-empty str or bytes, an int, or a tuple of these"


class PreGradPassError(RegionalError, RuntimeError):
    """An unusable pre-grad pass: the message says which, what is wrong and what to do."""


def pass_name(custom: Any) -> str:
    """Return the name of a pass: its class's, or a function's own."""
    return str(getattr(custom, "__qualname__", None) or type(custom).__qualname__)


def checked_uuid(uuid: Callable[[], Any], owner: str, error: type[Exception]) -> Hashable | None:
    """Call ``uuid`` and return its value in the form for keys, or ``None``.

    Args:
        uuid: called twice; its exceptions propagate.
        owner: its owner in messages, as in ``the pass x``.
        error: raised for a uuid that is empty, changes between calls, or means nothing in another process.
    """
    value = uuid()
    if value is None:
        return None
    stable = _checked(value, owner, error)
    again = uuid()
    try:
        is_same = repr(stable_form(again)) == repr(stable)
    except TypeError:
        is_same = False
    if not is_same:
        raise error(
            f"uuid() of {owner} returned {value!r} and then {again!r}: no cache entry would ever be found again. "
            f"Return what identifies the pass's code and settings, the same on each call."
        )
    return stable


def _checked(value: Any, owner: str, error: type[Exception]) -> Hashable:
    what = f"uuid() of {owner} returned {value!r}"
    try:
        hash(value)
    except TypeError as reason:
        kind = type(value).__name__
        raise error(f"{what}, a value of type {kind} that cannot be hashed: {_ADVICE}.") from reason
    try:
        stable = stable_form(value)
    except TypeError as reason:
        raise error(f"{what}, which means nothing in another process ({reason}): {_ADVICE}.") from reason
    if isinstance(value, str | bytes | tuple | frozenset) and not value:
        raise error(f"{what}, which identifies nothing: {_ADVICE}, or return None for a pass without a uuid.")
    return stable


def stable_form(value: Any) -> Hashable:
    """Return ``value`` as plain data whose ``repr`` is unique and the same in every process.

    Raises:
        TypeError: a type whose values cannot be compared by content.
    """
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, enum.Enum):
        return (kind, value.name)
    if isinstance(value, uuid.UUID | pathlib.PurePath | str):  # torch.__version__ is a str subclass
        return (kind, str(value))
    if isinstance(value, frozenset):
        return (kind, *sorted(map(repr, map(stable_form, value))))
    if type(value) is tuple:
        return tuple(map(stable_form, value))
    if isinstance(value, tuple):
        return (kind, *map(stable_form, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, stable_form(getattr(value, field.name))) for field in dataclasses.fields(value))
        return (kind, *fields)
    raise TypeError(f"a {kind} is not plain data")


#: Part of our own passes' uuids; another version of their code has another uuid.
OWN_CODE = own_code("reference")


_warned: set[str] = set()


@dataclasses.dataclass(frozen=True)
class PreGradPlan:
    """Which passes run on a Dynamo graph, and when.

    Attributes:
        passes: in the order in which they run.
        early: whether they run before the cache lookup; false without passes.
        uuids: one per pass, in order, in their form for keys; empty if early.
    """

    passes: tuple[Callable[[torch.fx.Graph], Any], ...] = ()
    early: bool = False
    uuids: tuple[Hashable, ...] = ()

    def run(self, gm: torch.fx.GraphModule) -> None:
        """Run the passes in place: on the bodies of operators such as ``checkpoint``, then on Dynamo's graph itself.

        Exceptions from passes propagate.

        Raises:
            PreGradPassError: naming the pass that left an invalid graph, or that returned another one.
        """
        if not self.passes:
            return
        with logged("regional.passes"):
            for module in _bodies_first(gm):
                for custom in self.passes:
                    owner = f"the pre-grad pass {pass_name(custom)}"
                    result = custom(module.graph)
                    if isinstance(result, torch.fx.Graph | torch.fx.GraphModule) and result is not module.graph:
                        raise PreGradPassError(
                            f"{owner} returned another {type(result).__name__}, which is not used: change the given "
                            f"graph in place."
                        )
                    try:
                        sort_topologically(module.graph)
                        module.graph.lint()
                    except Exception as error:
                        reason = str(error).strip() or "its nodes depend on each other in a cycle"
                        raise PreGradPassError(f"{owner} left an invalid graph: {reason}") from error
                module.recompile()


def plan_pre_grad(timing: str | None = None) -> PreGradPlan:
    """Plan Inductor's ``pre_grad_custom_pass``: one pass, a list or tuple of them, or ``None``.

    Args:
        timing: ``early``, ``late`` or ``default``; ``None`` for Inductor's ``pre_grad_pass_timing``.

    Raises:
        PreGradPassError: an unknown timing, an invalid pre-grad pass, ``late`` without a uuid, a bad uuid.
    """
    chosen: object = configured_pre_grad_timing() if timing is None else timing
    if not isinstance(chosen, str) or chosen not in TIMINGS:
        raise PreGradPassError(
            f"{unknown_name('pre_grad_pass_timing', chosen, TIMINGS)} No pre-grad pass would ever run."
        )
    passes = _checked_passes(configured_pre_grad_passes())
    if not passes:
        return PreGradPlan()
    if chosen == "early":
        return PreGradPlan(passes, early=True)
    # Only a ``CustomGraphPass`` has a uuid, as in PyTorch.
    uuids = [
        checked_uuid(custom.uuid, f"the pre-grad pass {pass_name(custom)}", PreGradPassError)
        if isinstance(custom, custom_graph_pass_base())
        else None
        for custom in passes
    ]
    lacking = [pass_name(custom) for custom, uuid in zip(passes, uuids, strict=True) if uuid is None]
    if not lacking:
        return PreGradPlan(passes, early=False, uuids=tuple(uuids))
    if chosen == "late":
        which = f" ({len(lacking)} of the {len(passes)} in the list)" if len(passes) > 1 else ""
        raise PreGradPassError(
            f"the pre-grad pass {', '.join(lacking)}{which} has no uuid, so with pre_grad_pass_timing='late' the cache "
            f"could not tell what it does: derive it from CustomGraphPass and return from uuid() what identifies it, "
            f"or choose pre_grad_pass_timing='early', which runs it before the cache lookup."
        )
    at_dynamo_reset(reset_warnings)
    for name in dict.fromkeys(lacking):
        if name not in _warned:
            _warned.add(name)
            warnings.warn(
                f"the pre-grad pass {name} has no uuid and runs early: before the cache lookup, so on every compile. "
                f"Return from uuid() what identifies it to run it only on a miss, or choose "
                f"pre_grad_pass_timing='early' if this is intended.",
                RegionalWarning,
                stacklevel=2,
            )
    return PreGradPlan(passes, early=True)


def reset_warnings() -> None:
    """Give warnings about passes again, as in a new process."""
    _warned.clear()


@contextlib.contextmanager
def pre_grad_passes_done() -> Iterator[None]:
    """Keep Inductor from running the passes again while regions of the same graph compile."""
    with inductor_config().patch(pre_grad_custom_pass=None):
        yield


def _checked_passes(configured: Any) -> tuple[Any, ...]:
    if configured is None:
        return ()
    passes = tuple(configured) if isinstance(configured, list | tuple) else (configured,)
    for custom in passes:
        if not callable(custom) or isinstance(custom, type):
            raise PreGradPassError(
                f"pre_grad_custom_pass holds {custom!r}, which is not a pass: give a CustomGraphPass instance, a "
                f"function that takes a torch.fx.Graph and changes it in place, or a list of these."
            )
        for base in other_custom_pass_bases():
            if isinstance(custom, base):
                raise PreGradPassError(
                    f"the pre-grad pass {pass_name(custom)} is a {base.__name__}, but a pre-grad pass is called with a "
                    f"torch.fx.Graph alone: derive it from CustomGraphPass."
                )
    return passes


def _bodies_first(gm: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """Return the graphs that the passes run on, in Inductor's order."""
    used = {node.target for node in gm.graph.find_nodes(op="get_attr")}
    bodies = [b for name, b in gm.named_children() if name in used and isinstance(b, torch.fx.GraphModule)]
    found = [inner for body in bodies for inner in _bodies_first(body)]
    return [*dict.fromkeys(found), gm]
