"""The full-graph pipeline: a model, its joint graph, forward and backward in plain ATen, a list of passes, code.

Read in this order: ``capture`` (a model as one joint graph, then forward and backward), ``reference.pass_protocol``
(the protocol of passes), ``pass_order`` and ``pass_pipeline`` (a list of them), ``compile`` (all of it, and its cache),
``call`` (the result, with the model's parameters, and as a file; checks of its calls; what passes did, as text).
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
from pytest_regional.reference.pipeline.call import CompiledModule, PassReport, PipelineReport, load
from pytest_regional.reference.pipeline.capture import GraphValue, JointGraph, PartitionedGraphs, capture, partition
from pytest_regional.reference.pipeline.compile import compile
from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline, as_inductor_pass

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
