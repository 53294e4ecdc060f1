"""The full-graph pipeline: a model, its joint graph, forward and backward in plain ATen, a list of passes, code.

Read in this order: ``capture`` (a model as one joint graph), ``partition`` (forward and backward),
``reference.pass_protocol`` (the protocol of passes), ``pass_order`` and ``pass_pipeline`` (a list of them), ``compile``
(all of it, and its cache), ``module`` (the result, with the model's parameters, and as a file), ``call`` (checks of its
calls), ``report`` (what passes did, as text).
"""

from pytest_regional.reference.caching.container import ArtifactError
from pytest_regional.reference.pass_protocol import (
    GraphPass,
    InvalidPassError,
    Pass,
    PassFailedError,
    PassOrderError,
    PipelineError,
    UnknownPassError,
    graph_pass,
)
from pytest_regional.reference.pipeline.capture import GraphValue, JointGraph, capture
from pytest_regional.reference.pipeline.compile import compile
from pytest_regional.reference.pipeline.inductor_pass import as_inductor_pass
from pytest_regional.reference.pipeline.module import CompiledModule, load
from pytest_regional.reference.pipeline.partition import PartitionedGraphs, partition
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline
from pytest_regional.reference.pipeline.report import PassReport, PipelineReport

__all__ = [
    "ArtifactError",
    "CompiledModule",
    "GraphPass",
    "GraphValue",
    "InvalidPassError",
    "JointGraph",
    "PartitionedGraphs",
    "Pass",
    "PassFailedError",
    "PassOrderError",
    "PassPipeline",
    "PassReport",
    "PipelineError",
    "PipelineReport",
    "UnknownPassError",
    "as_inductor_pass",
    "capture",
    "compile",
    "graph_pass",
    "load",
    "partition",
]
