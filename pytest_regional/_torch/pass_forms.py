"""The forms that graph passes have, and how each is called: for ``run_pass`` and for pipelines alike.

A callable declares what it takes by the annotation of its first parameter, ``torch.fx.Graph`` or
``torch.fx.GraphModule``, or with :func:`pass_form`. One with a second parameter takes the module and example inputs.
Without either it takes what is usual where it runs; a parameter whose name says otherwise is an error, never a guess.
Passes of Inductor's classes are called as Inductor calls them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch.inductor import (
    custom_graph_pass_base,
    graph_module_pass_base,
    inference_aware_pass_base,
    pattern_matcher_pass,
)

GRAPH, MODULE = "graph", "module"
_CLASSES = {GRAPH: "torch.fx.Graph", MODULE: "torch.fx.GraphModule"}
_NAMES = {GRAPH: {"graph", "g", "fx_graph"}, MODULE: {"gm", "graph_module", "module", "mod"}}


F = TypeVar("F", bound=Callable[..., Any])


def pass_form(form: str) -> Callable[[F], F]:
    """Declare what a graph pass takes, where its first parameter has no annotation, as in a lambda.

    Args:
        form: ``"graph"`` for a ``torch.fx.Graph``, ``"module"`` for a ``torch.fx.GraphModule``.
    """
    if form not in _CLASSES:
        raise ValueError(f"pass_form takes 'graph' or 'module', not {form!r}")

    def declare(function: F) -> F:
        function.pass_form = form  # type: ignore[attr-defined]
        return function

    return declare


@dataclass(frozen=True)
class PassForm:
    """How one pass is called.

    Attributes:
        function: what is called.
        takes: ``"graph"`` or ``"module"``.
        inputs: whether example inputs follow, and ``"spread"`` where they do so one by one.
        facts: which of the facts that are offered it takes, by keyword.
        knows_inference: whether it has to be told if the graph is for inference.
    """

    function: Callable[..., Any]
    takes: str
    inputs: bool | str = False
    facts: tuple[str, ...] = ()
    knows_inference: bool = False

    def call(self, module: Any, inputs: Callable[[], Sequence[Any]], **facts: Any) -> Any:
        """Call the pass on ``module``; ``inputs()`` makes the example inputs."""
        arguments = [module.graph if self.takes == GRAPH else module]
        if self.inputs:
            arguments += inputs() if self.inputs == "spread" else [inputs()]
        return self.function(*arguments, **{name: facts[name] for name in self.facts})


def form_of(given: Any, default: str, facts: Collection[str] = (), *, offers_inputs: bool = False) -> PassForm | None:
    """Return how to call ``given``, ``None`` for what cannot be called.

    Args:
        given: a pass.
        default: what a callable that declares nothing takes here.
        facts: keywords that are offered to passes, besides ``is_inference`` for Inductor's class of that name.
        offers_inputs: whether example inputs are given to a parameter that has a default, and to ``*args``.

    Raises:
        RegionalValueError: it does not say what it takes, or takes nothing.
    """
    aware = inference_aware_pass_base()
    if aware and isinstance(given, aware):
        return PassForm(lambda graph, is_inference: given(graph, is_inference), GRAPH, False, ("is_inference",), True)
    if isinstance(given, custom_graph_pass_base()):
        return PassForm(given, GRAPH)
    if isinstance(given, graph_module_pass_base()):
        return PassForm(given, MODULE)
    if isinstance(given, pattern_matcher_pass()) or (not callable(given) and hasattr(given, "apply")):
        return PassForm(given.apply, GRAPH)
    if not callable(given):
        return None
    try:
        parameters = list(inspect.signature(given).parameters.values())
    except ValueError:  # a builtin that does not tell
        return PassForm(given, default, offers_inputs)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    others = [p for p in positional[1:] if p.name not in facts]
    variadic = offers_inputs and any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if not positional and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise RegionalValueError(f"{pass_name(given)} takes no graph module and no graph")
    taken = tuple(p.name for p in parameters if p.name in facts and p not in positional[:1])
    if variadic or any(offers_inputs or p.default is p.empty for p in others):
        # (gm, *example_inputs) is the convention of PyTorch's regional_inductor; (*args) alone is a wrapper's.
        return PassForm(given, MODULE, "spread" if variadic and len(positional) == 1 else True, taken)
    return PassForm(given, _declared(given, positional[0], default) if positional else default, False, taken)


def _declared(given: Any, parameter: inspect.Parameter, default: str) -> str:
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if "GraphModule" in text:
        return MODULE
    if text.rpartition(".")[2] == "Graph":
        return GRAPH
    declared = getattr(getattr(given, "func", given), "pass_form", None)
    if declared is not None:
        return str(declared)
    default = getattr(given, "default_pass_form", default)
    other = GRAPH if default == MODULE else MODULE
    if parameter.name in _NAMES[other]:
        raise RegionalValueError(
            f"{pass_name(given)} does not say what it takes: here a pass that declares nothing gets a "
            f"{_CLASSES[default]}, and its parameter is called {parameter.name!r}. Annotate it, ({parameter.name}: "
            f"{_CLASSES[other]}), or decorate the pass with pytest_regional.testing.pass_form({other!r})"
        )
    return default


def pass_name(given: Any) -> str:
    """Return what to call a pass in messages: its ``name``, a function's name, else its class."""
    name = getattr(given, "name", None)
    if isinstance(name, str) and name:
        return name
    inner = getattr(given, "func", given)
    return str(getattr(inner, "__name__", type(inner).__name__))
