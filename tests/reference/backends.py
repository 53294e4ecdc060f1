"""A Dynamo backend that partitions and extracts as the real one does, and compiles nothing."""

from __future__ import annotations

import functools

import torch

from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional.reference import regional_inductor
from pytest_regional.reference.gradients import partitioner_for
from tests.reference.graphs import InterpretedCompiler


class Structure:
    """Runs programs through AOTAutograd with an interpreted compiler; ``ops`` are those of each region compile."""

    def __init__(self, partition="default", share_identical=False):
        self.compiler = InterpretedCompiler()
        compile_graph = functools.partial(regional_inductor, share_identical=share_identical, compiler=self.compiler)
        self._options = {
            "fw_compiler": compile_graph,
            "bw_compiler": compile_graph,
            "partition_fn": partitioner_for(partition),
        }

    def compile(self, fn, **options):
        return torch.compile(fn, backend=aot_autograd(**self._options), fullgraph=True, **options)

    @property
    def ops(self):
        return [[op_name(target) for target in targets] for targets in self.compiler.ops]

    @property
    def labels(self):
        return [request.key.label for request in self.compiler.requests]


def op_name(target):
    return getattr(target, "_opname", getattr(target, "__name__", str(target)))
