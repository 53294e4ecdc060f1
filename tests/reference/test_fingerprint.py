"""What keeps partitions from being shared that is no part of the region key."""

import torch

from pytest_regional.reference import regional_inductor
from tests.reference.graphs import InterpretedCompiler, chain


def compiles(other_of_second):
    gm = chain("aua")
    list(gm.graph.nodes)[3].meta["custom"].update(other_of_second)
    compiler = InterpretedCompiler()
    regional_inductor(gm, torch.randn(3), compiler=compiler)
    return len(compiler.requests)


def test_another_annotation_is_another_partition():
    assert compiles({}) == 1
    assert compiles({"stream": 1}) == 2
