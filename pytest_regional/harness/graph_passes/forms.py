"""Graph passes under test: the stages at which they run, what is raised, and how one is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch import pass_forms
from pytest_regional._torch.pass_forms import PassForm, PassFormUnknownError, form_of, pass_name


class GraphPassError(RegionalError, RuntimeError):
    """A pass under test, or what it was asked to run on, cannot be used; the message says why and what to do."""


class GraphAssertionError(RegionalError, AssertionError):
    """An assertion about the graphs before and after a pass does not hold, or no graph reached the pass."""


@dataclass(frozen=True)
class Stage:
    """One place in a compile where custom passes run.

    Attributes:
        name: as ``run_pass(stage=...)`` takes it.
        setting: Inductor's setting that holds the pass, ``""`` for the bare graph.
        tells_inference: whether Inductor tells a pass there if the graph is for inference.
        sorts: whether Inductor sorts the graph topologically after the pass.
    """

    name: str
    setting: str = ""
    tells_inference: bool = False
    sorts: bool = True


GRAPH = Stage("graph", sorts=False)

STAGES: dict[str, Stage] = {
    "graph": GRAPH,
    "pre_grad": Stage("pre_grad", "pre_grad_custom_pass"),
    "joint": Stage("joint", "joint_custom_post_pass"),
    "joint_pre": Stage("joint_pre", "joint_custom_pre_pass"),
    "joint_post": Stage("joint_post", "joint_custom_post_pass"),
    "post_grad": Stage("post_grad", "post_grad_custom_post_pass", tells_inference=True),
    "post_grad_pre": Stage("post_grad_pre", "post_grad_custom_pre_pass", tells_inference=True),
    "post_grad_post": Stage("post_grad_post", "post_grad_custom_post_pass", tells_inference=True),
}


def stage_named(name: object) -> Stage:
    """Return the stage called ``name``.

    Raises:
        GraphPassError: with the nearest, and all.
    """
    if isinstance(name, str) and name in STAGES:
        return STAGES[name]
    raise GraphPassError(unknown_name("stage", name, STAGES))


@dataclass(frozen=True)
class PassTarget:
    """What a pass runs on: a graph module, and whether it is for inference."""

    module: torch.fx.GraphModule
    is_inference: bool

    def example_inputs(self) -> list[Any]:
        """Return one (fake) value a placeholder, ``None`` where tracing left none."""
        placeholders = self.module.graph.find_nodes(op="placeholder")
        return [node.meta.get("val", node.meta.get("example_value")) for node in placeholders]


@dataclass(frozen=True)
class PassUnderTest:
    """One pass under test."""

    given: Any
    form: PassForm

    @property
    def name(self) -> str:
        """What messages call it."""
        return pass_name(self.given)


def graph_passes(given: Any, stage: Stage) -> tuple[PassUnderTest, ...]:
    """Return the pass, or the passes of a list, ready to be called at ``stage``.

    Raises:
        GraphPassError: something that is no pass, or none for that stage.
    """
    passes = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not passes:
        raise GraphPassError("run_pass got an empty list of passes: there is nothing to run")
    return tuple(PassUnderTest(one, _form(one, stage)) for one in passes)


def _form(given: Any, stage: Stage) -> PassForm:
    if isinstance(given, type):
        raise GraphPassError(f"{given.__name__} is a class: run_pass needs an instance, {given.__name__}(...)")
    try:
        form = form_of(given, pass_forms.GRAPH, ("is_inference",))
    except PassFormUnknownError as error:
        raise GraphPassError(str(error)) from None
    if form is None:
        raise GraphPassError(
            f"{given!r} is no graph pass: give a function of a torch.fx.Graph (or GraphModule), a CustomGraphPass, a "
            f"PatternMatcherPass, or a list of these"
        )
    if form.knows_inference and stage is not GRAPH and not stage.tells_inference:
        raise GraphPassError(
            f"{pass_name(given)} takes is_inference, which Inductor gives to post-grad passes alone: run it at stage "
            f"'post_grad', or derive it from CustomGraphPass for stage {stage.name!r}"
        )
    return form


def run_one(one: PassUnderTest, target: PassTarget, stage: Stage) -> torch.fx.GraphModule:
    """Call a pass and return the graph module that counts from here on.

    Raises:
        GraphPassError: it returned another graph where Inductor would drop it, or something that is no graph.
    """
    returned = one.form.call(target.module, target.example_inputs, is_inference=target.is_inference)
    made = getattr(returned, "graph_module", returned)
    if made is None or made is target.module or made is target.module.graph or isinstance(made, int):
        return target.module
    if not isinstance(made, torch.fx.Graph | torch.fx.GraphModule):
        raise GraphPassError(
            f"the pass {one.name} returned {type(made).__name__} {made!r:.80}: a pass returns nothing (it changed the "
            f"graph in place), or a Graph or GraphModule"
        )
    if stage is not GRAPH:
        raise GraphPassError(
            f"the pass {one.name} returned another {type(made).__name__}, which Inductor drops in silence at stage "
            f"{stage.name!r}: change the graph that it is called with in place"
        )
    return made if isinstance(made, torch.fx.GraphModule) else torch.fx.GraphModule(target.module, made)
