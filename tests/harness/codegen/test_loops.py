"""Loops of one C++ function run one after another: they are one launch, and not fused."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CodeAssertionError
from pytest_regional.harness.codegen import KernelLaunch
from pytest_regional.reference import add_control_deps
from pytest_regional.testing import regional


def program(x, w):
    first = x.cos()
    return first.exp(), (x + w).sin()


def sin_after_cos(graph):
    nodes = {node.target: node for node in graph.nodes}
    aten = torch.ops.aten
    add_control_deps(graph, {nodes[aten.sin.default]: [nodes[aten.cos.default]]})


def code_of(**configs):
    with regional(backend="inductor", inductor_configs=configs) as made:
        return made.run(program, made.randn(8, 8), made.randn(8, 8)).code


@pytest.mark.skipif(torch.cuda.is_available(), reason="about C++ functions")
def test_loops_of_one_function_are_distinguished():
    code = code_of(post_grad_custom_post_pass=sin_after_cos)
    launches = code.events.of_kind("kernel")
    assert len({event.line for event in launches}) == 1
    assert [(event.loop, event.loops) for event in launches] == [(1, 2), (2, 2)]
    assert all(isinstance(event, KernelLaunch) for event in launches)
    code.assert_not_fused("aten.cos", "aten.sin")
    code.assert_order("aten.cos", "aten.sin")
    code.assert_count("aten.sin", 1)
    assert "(loop 2 of 2)" in str(code.events)
    with pytest.raises(CodeAssertionError, match=r"aten.sin .* does not come before aten.cos"):
        code.assert_order("aten.sin", "aten.cos")
    with pytest.raises(CodeAssertionError, match="not fused"):
        code.assert_fused("aten.cos", "aten.sin")


def test_one_loop_is_fused():
    code = code_of()
    code.assert_fused("aten.cos", "aten.sin")
    with pytest.raises(CodeAssertionError, match="fused into one kernel"):
        code.assert_not_fused("aten.cos", "aten.sin")
