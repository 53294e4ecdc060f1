"""What pytest-regional is told of OpenVINO's backend: what it lacks, what it computes in, what it has compiled."""

from __future__ import annotations

import functools

# Imported with the specification: it changes torch._dynamo.config, which is no test's doing.
import openvino.frontend.pytorch.torchdynamo.backend
from openvino import Core
from openvino.frontend.pytorch.torchdynamo import execute

from pytest_regional import BackendSpec, GraphCapabilities, Support, unsupported

_PRECISIONS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_forgotten = 0


class OpenVINOCapabilities(GraphCapabilities):
    """What a backend that torch.compile hands graphs to has, without what this one says that it lacks."""

    @property
    def backward(self) -> Support:
        """Programs that train are compiled, backward included."""
        return unsupported("it is made for inference: results carry no gradient")

    @property
    def results_kept(self) -> Support:
        """What a call returned stays as it was when the program is called again: no memory is handed out twice."""
        return unsupported("results are OpenVINO's own output buffers, which the next call fills again")

    @property
    def aliasing(self) -> Support:
        """Outputs that are inputs, or views of inputs or of each other, stay so; inputs may share memory."""
        return unsupported("a view that a compiled part returns is a copy")

    @property
    def channels_last(self) -> Support:
        """Channels-last memory format survives regions, forward and gradients."""
        return unsupported("what a compiled part returns is contiguous")

    @property
    def strides(self) -> Support:
        """Results have eager's strides: an output that is transposed in eager is transposed, not contiguous."""
        return unsupported("what a compiled part returns is contiguous")

    @property
    def rng(self) -> Support:
        """Random operators draw what eager draws under ``fallback_random``."""
        return unsupported("torch.rand becomes an operator of OpenVINO's, which draws other numbers and heeds no seed")

    @property
    def mutation(self) -> Support:
        """Inputs and buffers mutated inside a region are mutated for the caller."""
        return unsupported("what a part of a graph writes to stays as it was outside of it")


@functools.cache
def precision() -> str:
    """Return what OpenVINO computes in on this processor: bfloat16 where it has instructions for it."""
    return _PRECISIONS[Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()]


def compiled() -> int:
    """Return how many parts of graphs OpenVINO has compiled; what it runs in PyTorch is not among them."""
    return _forgotten + len(execute.compiled_cache)


def forget() -> None:
    """Drop what it keeps in memory: parts by number, and graphs by their address, which another graph may get."""
    global _forgotten
    _forgotten = compiled()
    execute.compiled_cache.clear()
    execute.req_cache.clear()
    execute.partitioned_modules.clear()


specification = BackendSpec(
    "openvino",
    factory=lambda: openvino.frontend.pytorch.torchdynamo.backend.openvino,
    capabilities=OpenVINOCapabilities(),
    precision=precision,
    compiled=compiled,
    forget=forget,
    inductor=False,  # what it cannot take apart it hands to Inductor, in silence
)
