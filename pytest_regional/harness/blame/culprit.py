"""What a search for a culprit found, as a record and as a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_regional._torch.vetoes import Application
from pytest_regional.harness.blame.experiments import Experiment

Layer = Literal[
    "nothing", "dynamo", "aot_autograd", "partitioner", "pass", "rewrite", "decomposition", "fusion", "lowering", "setting",
    "unknown",
]  # fmt: skip

Confidence = Literal["confirmed", "necessary", "unknown"]
"""Whether leaving one step out mends the failure, or only several together, or nothing that was tried does."""

#: What kinds of steps are called in a sentence.
SAID = {
    "pre_grad_pass": "pre-grad pass",
    "joint_graph_pass": "joint-graph pass",
    "post_grad_pass": "post-grad pass",
    "rewrite": "rewrite",
    "decomposition": "decomposition of",
    "fusion": "fusion of",
    "lowering": "lowering of",
}


@dataclass(frozen=True)
class Culprit:
    """Where a failure comes from.

    Attributes:
        layer: the layer of the compiler.
        steps: the steps of that layer that are to blame; empty where the layer has none.
        setting: the setting that mends it, for the layer "setting".
        confidence: see :data:`Confidence`.
        experiments: the evidence.
    """

    layer: Layer
    steps: tuple[Application, ...] = ()
    setting: str = ""
    confidence: Confidence = "unknown"
    experiments: tuple[Experiment, ...] = ()

    @property
    def sentence(self) -> str:
        """The answer."""
        if self.layer == "nothing":
            return "nothing can be blamed: the failure does not come again where nothing is changed"
        if self.layer == "dynamo":
            return "Dynamo: the graph that it captured is wrong already when it runs eagerly"
        if self.layer == "aot_autograd":
            return "AOTAutograd: its graphs are wrong already when they run eagerly"
        if self.layer == "partitioner":
            return "the partitioner: AOTAutograd's graphs are wrong with this one and right with the other"
        if self.layer == "setting":
            return f"right with {self.setting} ({self.confidence})"
        if self.layer == "unknown":
            tried = ", ".join(one.sentence for one in self.experiments if one.sentence)
            return f"unknown: the failure remains under each of: {tried}"
        steps = " and ".join(f"{SAID[step.kind]} {step.what}" for step in self.steps)
        without = "that is left out" if len(self.steps) == 1 else "these are left out together"
        return f"{steps}: right where {without} ({self.confidence})"
