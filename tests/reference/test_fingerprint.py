"""What keeps partitions from being shared that is no part of the region key."""

import pytest
import torch

from pytest_regional.reference import regional_inductor
from pytest_regional.reference.fingerprint import fingerprint
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


@pytest.mark.parametrize(("place", "differs"), [(1, False), (2, True)])
def test_memory_of_inputs_and_results_is_told_apart_and_none_in_between(place, differs):
    """A view that a checkpoint recomputes may have lost in its metadata what it is a view of."""
    compiler = InterpretedCompiler()
    gm = chain("aau")
    nodes = list(gm.graph.nodes)
    regional_inductor(gm, torch.randn(3), compiler=compiler)
    (request,) = compiler.requests
    before = fingerprint(request)
    nodes[place].meta["val"] = nodes[0].meta["val"].view(3)
    assert (fingerprint(request) != before) == differs
