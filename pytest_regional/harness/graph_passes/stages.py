"""Where a pass can run, and which of Inductor's settings that is."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_regional._text import unknown_name
from pytest_regional.harness.graph_passes.errors import UnknownStageError


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
        UnknownStageError: with the nearest, and all.
    """
    if isinstance(name, str) and name in STAGES:
        return STAGES[name]
    raise UnknownStageError(unknown_name("stage", name, STAGES))
