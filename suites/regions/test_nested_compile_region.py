"""``nested_compile_region`` around regions, in regions, and with training."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops.invoke_subgraph import NestedCompileRegionOptions
from torch.compiler import nested_compile_region

from .annotations import in_region

pytestmark = pytest.mark.regional_compile(requires=("nested_regions",))


def pair(regional, **options):
    return regional.randn(4, 8, **options), regional.randn(8, 8, **options)


@nested_compile_region
def holding_a_region(x, w):
    with in_region("inner"):
        h = x @ w
    return h.sin()


@nested_compile_region
def plain(x, w):
    return x @ w @ w


def region_in_body(x, w):
    return holding_a_region(holding_a_region(x, w), w)


def body_in_region(x, w):
    with in_region("outer"):
        h = plain(x, w)
    return h.sin()


def body_in_and_out_of_a_region(x, w):
    h = plain(x, w).sin()
    with in_region("outer"):
        return plain(h, w)


def region_in_body_in_region(x, w):
    with in_region("outer"):
        h = holding_a_region(x, w)
        return h @ w


PROGRAMS = [region_in_body, body_in_region, body_in_and_out_of_a_region, region_in_body_in_region]


@pytest.mark.quick
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_inference(regional, program):
    regional.assert_parity(program, *pair(regional))


@pytest.mark.quick
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_training(regional, program):
    regional.assert_parity(program, *pair(regional, requires_grad=True))


@pytest.mark.regional_compile(requires=("nested_regions", "regions", "region_counts"))
def test_a_shared_body_is_compiled_once_in_each_direction(regional):
    record = regional.run(region_in_body, *pair(regional, requires_grad=True))

    assert [(r.name, r.graph, r.partitions) for r in record.regions] == [
        ("inner", "forward", 1),
        ("inner", "backward", 1),
    ]
    assert record.counters["region_compiles"] == 2


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("nested_region_options",))
def test_a_body_with_compilers_of_its_own(regional):
    compiled = []

    def compiler(direction):
        def compile_body(gm, inputs):
            compiled.append(direction)
            return torch._inductor.standalone_compile(gm, inputs, dynamic_shapes="from_tracing_context", aot=True)

        return compile_body

    options = NestedCompileRegionOptions(fw_compiler=compiler("forward"), bw_compiler=compiler("backward"))

    def body(x, w):
        return x @ w

    with torch._dynamo.config.patch(enable_invoke_subgraph_regional_compile=True):
        marked = nested_compile_region(body, options=options)

        def program(x, w):
            return marked(marked(x, w).sin(), w)

        regional.assert_parity(program, *pair(regional, requires_grad=True))
    assert set(compiled) == {"forward", "backward"}
