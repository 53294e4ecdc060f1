"""What keeps partitions from being shared that is no part of the region key."""

import pytest
import torch
from torch._functorch import config as functorch
from torch._inductor import config as inductor

from pytest_regional._torch.config import compile_state
from pytest_regional.reference import regional_inductor
from pytest_regional.reference.compile_regions import fingerprint
from pytest_regional.reference.regions import freeze
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


def test_partitions_with_another_order_are_told_apart():
    """One of them, compiled for both, would run its ops in the order that the other one asks for."""
    compiler = InterpretedCompiler()
    regional_inductor(chain("aaa"), torch.randn(3), compiler=compiler)
    (request,) = compiler.requests
    tokens = set()
    for request.positions in ((), ((0, 1),), ((1, 2),)):
        tokens.add(fingerprint(request).token)
    assert len(tokens) == 3


def test_settings_that_hold_their_defaults_are_no_other_state():
    """PyTorch sets a container to a copy of its default as soon as somebody reads it."""
    before = freeze(compile_state())
    with inductor.patch(post_grad_fusion_options={}, epilogue_fusion=True), functorch.patch(cse=True):
        assert freeze(compile_state()) == before


@pytest.mark.parametrize(
    ("module", "setting", "value"),
    [
        (inductor, "max_fusion_size", 3),
        (inductor, "epilogue_fusion", 1),
        (inductor, "post_grad_fusion_options", {"normalization_pass": {}}),
        (inductor, "triton.unique_kernel_names", False),
        (functorch, "cse", False),
    ],
)
def test_another_setting_is_another_state_even_if_only_its_type_differs(module, setting, value):
    before = compile_state()
    with module.patch({setting: value}):
        assert freeze(compile_state()) != freeze(before)
    assert compile_state() == before


def test_a_setting_that_is_changed_in_place_is_another_state():
    before = compile_state()
    with inductor.patch(post_grad_fusion_options={}):
        inductor.post_grad_fusion_options["normalization_pass"] = {}
        assert compile_state() != before
