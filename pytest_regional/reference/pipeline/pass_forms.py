"""The forms of passes: their declarations, and how they are called."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._base.text import unknown_name
from pytest_regional._torch import pass_forms
from pytest_regional._torch.pass_forms import PassForm, PassFormUnknownError, form_of
from pytest_regional.reference.pass_protocol import DEFAULT_GRAPHS, GRAPH_KINDS, InvalidPassError, PipelineError
from pytest_regional.reference.pass_uuids import checked_uuid

_WHAT_IS_ONE = (
    "a pass is a callable (gm, example_inputs), an object with a name and __call__, a CustomGraphPass, a "
    "CustomGraphModulePass or a PatternMatcherPass"
)


@dataclass(frozen=True, eq=False)
class DeclaredPass:
    """One pass of a pipeline: its declarations with defaults, and a single way to call it.

    Attributes:
        given: the user's object.
        changes_interface: whether it may change a graph's inputs and outputs.
    """

    given: Any
    name: str
    requires: tuple[str, ...]
    after: tuple[str, ...]
    before: tuple[str, ...]
    terminal: bool
    graphs: tuple[str, ...]
    changes_interface: bool
    form: PassForm

    @property
    def keeps_graph(self) -> bool:
        """Whether its return value is ignored: it changes a ``torch.fx.Graph`` in place."""
        return self.form.takes == pass_forms.GRAPH

    def call(self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], graph: str) -> Any:
        """Call the pass on the module of a graph of kind ``graph``."""
        return self.form.call(gm, lambda: example_inputs, graph=graph, is_inference=graph == "inference")

    def uuid(self) -> Hashable | None:
        """Return the pass's uuid in its form for keys, or None without one.

        Raises:
            PipelineError: a uuid that is empty, changes between calls, or means nothing in another process.
        """
        method = getattr(self.given, "uuid", None)
        if method is None:
            return None
        if not callable(method):
            raise PipelineError(
                f"the pass {self.name!r} has a uuid that is no method but {method!r}: define uuid(self) and return it."
            )
        return checked_uuid(method, f"the pass {self.name!r}", PipelineError)

    def summary(self, graph: str) -> str:
        """Return the pass's text on its latest run on ``graph``; empty without a method ``summary``."""
        method = getattr(self.given, "summary", None)
        return str(method(graph)) if callable(method) else ""


def declared_pass(given: Any) -> DeclaredPass:
    """Read the declarations of ``given``.

    Raises:
        InvalidPassError: not a pass, or an invalid declaration.
        PipelineError: an unknown kind of graph.
    """
    if isinstance(given, type):
        raise InvalidPassError(f"{given.__name__} is a class: a pipeline needs an instance, {given.__name__}(...).")
    form = _form(given)
    name = name_of(given)
    return DeclaredPass(
        given,
        name,
        _names(given, "requires", name),
        _names(given, "after", name),
        _names(given, "before", name),
        _flag(given, "terminal", name),
        _graphs(given, name),
        _flag(given, "changes_interface", name),
        form,
    )


def name_of(given: Any) -> str:
    """Return the name of a pass: its ``name``, a function's own, else that of its class."""
    name = getattr(given, "name", None)
    if name is not None:
        if isinstance(name, str) and name.strip():
            return name
        raise InvalidPassError(f"the name of the pass {given!r} is {name!r}: give a string that is not empty.")
    inner = getattr(given, "func", given)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def _names(given: Any, declaration: str, name: str) -> tuple[str, ...]:
    value = getattr(given, declaration, ())
    if callable(value):  # PassBase of torch.fx has a method ``requires``, a check
        return ()
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, (tuple, list, set, frozenset)) or not all(isinstance(one, str) for one in names):
        raise InvalidPassError(
            f"{declaration}={value!r} of the pass {name!r} names no passes: give a tuple of their names."
        )
    return tuple(sorted(names) if isinstance(names, (set, frozenset)) else names)


def _flag(given: Any, declaration: str, name: str) -> bool:
    value = getattr(given, declaration, False)
    if not isinstance(value, bool):
        raise InvalidPassError(f"{declaration}={value!r} of the pass {name!r} is neither True nor False.")
    return value


def _graphs(given: Any, name: str) -> tuple[str, ...]:
    value = getattr(given, "graphs", DEFAULT_GRAPHS)
    graphs = (value,) if isinstance(value, str) else tuple(value)
    for graph in graphs:
        checked_kind(graph, f" in graphs={value!r} of the pass {name!r}")
    if not graphs:
        raise InvalidPassError(f"the pass {name!r} has graphs=(): it would never run. Leave it out, or disable it.")
    return graphs


def checked_kind(graph: object, where: str = "") -> str:
    """Return ``graph`` if it is a kind of graph.

    Raises:
        PipelineError: listing the kinds.
    """
    if isinstance(graph, str) and graph in GRAPH_KINDS:
        return graph
    raise PipelineError(unknown_name(f"kind of graph{where}:", graph, GRAPH_KINDS))


def _form(given: Any) -> PassForm:
    try:
        form = form_of(given, pass_forms.MODULE, ("graph",), offers_inputs=True)
    except PassFormUnknownError as error:
        raise InvalidPassError(f"{error}: {_WHAT_IS_ONE}.") from None
    if form is None:
        raise InvalidPassError(f"{given!r} cannot be called: {_WHAT_IS_ONE}.")
    return form
