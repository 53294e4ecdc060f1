"""What passes do to the program: they see Dynamo's graph, once, and what they leave is what runs."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint

from pytest_regional import region

from .programs import product, products_in, program_and_inputs, remove_ones, run, scaled, square

pytestmark = pytest.mark.regional_compile(requires=("pre_grad_passes",), dynamic=False)

TIMINGS = [
    None,
    *(
        pytest.param(
            timing,
            marks=pytest.mark.regional_compile(requires=("pre_grad_passes", "pre_grad_timing"), dynamic=False),
        )
        for timing in ("early", "late", "default")
    ),
]
timings = pytest.mark.parametrize("timing", TIMINGS)


@timings
def test_a_pass_sees_the_op_and_the_compiled_graph_lacks_it(regional, pre_grad_pass, timing):
    seen = []

    def note_and_remove(graph):
        seen.extend(str(node.target) for node in graph.nodes if node.op == "call_function")
        remove_ones(graph)

    counting = pre_grad_pass(uuid="v1", transform=note_and_remove)
    inputs = program_and_inputs(regional, "function")[1]
    with torch.no_grad():
        record = regional.run(
            regional.compile(scaled, pre_grad_pass=counting, pre_grad_pass_timing=timing), *inputs, as_is=True
        )

    assert any("mul" in op and "matmul" not in op for op in seen)
    assert [graph.ops for graph in record.graphs] == [("aten.mm.default",)]
    torch.testing.assert_close(record.output, scaled(*inputs))


@timings
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["function", "module"])
def test_a_pass_that_changes_the_meaning_changes_the_results(regional, pre_grad_pass, timing, kind, training):
    """So that nobody can leave the pass out and pass; gradients are those of what the pass left."""
    counting = pre_grad_pass(uuid="v1", transform=square)
    program, inputs = program_and_inputs(regional, kind, requires_grad=training)
    compiled = regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=timing)
    x = inputs[0]
    if training:
        output = compiled(*inputs)
        cotangent = torch.ones_like(output).tril()
        (actual,) = torch.autograd.grad(output, x, cotangent)
        (expected,) = torch.autograd.grad(x @ x, x, cotangent)
        torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(run(compiled, inputs)[0], x.detach() @ x.detach())


def many_regions(x, w):
    for name in ("a", "b", "c"):
        with region(name):
            x = x @ w
    return x


@pytest.mark.quick
@timings
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_a_pass_runs_once_for_all_regions(regional, pre_grad_pass, timing, training):
    counting = pre_grad_pass(uuid="v1")
    inputs = program_and_inputs(regional, "function", requires_grad=training)[1]
    with regional.expect(pre_grad_calls=1, region_pre_grad_calls=0):
        run(regional.compile(many_regions, pre_grad_pass=counting, pre_grad_pass_timing=timing), inputs, training)
    assert (counting.calls, counting.region_calls, counting.calls_by_compile) == (1, 0, (1,))


@torch.compiler.nested_compile_region
def nested_product(x, w):
    return product(x, w)


def in_nested_region(x, w):
    """One body, used twice: Dynamo puts a body that is used once into the graph."""
    return nested_product(nested_product(x, w), w)


def in_checkpoint(x, w):
    return torch.utils.checkpoint.checkpoint(product, x, w, use_reentrant=False) @ w


@timings
@pytest.mark.parametrize(("program", "products"), [(in_nested_region, [1, 0]), (in_checkpoint, [1, 1])])
def test_bodies_of_operators(regional, pre_grad_pass, timing, program, products):
    """The pass finds the product in the body, and the run on it is told apart from that on the graph."""
    seen = []

    def note_and_square(graph):
        seen.append(len(products_in(graph)))
        square(graph)

    counting = pre_grad_pass(uuid="v1", transform=note_and_square)
    x, w = program_and_inputs(regional, "function")[1]
    with regional.expect(pre_grad_calls=1):
        values = run(regional.compile(program, pre_grad_pass=counting, pre_grad_pass_timing=timing), (x, w))
    torch.testing.assert_close(values[0], (x @ x) @ (x @ x))
    assert seen == products
    assert (counting.calls, counting.body_calls, counting.calls_by_compile) == (2, 1, (1,))


def broken(x, w):
    x = product(x, w)
    torch._dynamo.graph_break()
    return product(product(x, w), w)


@pytest.mark.regional_compile(requires=("pre_grad_passes",), dynamic=False, fullgraph=False)
def test_a_pass_runs_once_for_each_piece_between_graph_breaks(regional, pre_grad_pass):
    seen = []
    counting = pre_grad_pass(uuid="v1", transform=lambda graph: seen.append(len(products_in(graph))))
    program_inputs = program_and_inputs(regional, "function")[1]
    values = run(regional.compile(broken, pre_grad_pass=counting), program_inputs)
    torch.testing.assert_close(values, run(broken, program_inputs))
    assert (counting.calls_by_compile, seen) == ((1, 1), [1, 2])


def test_a_recompile_is_another_run(regional, pre_grad_pass):
    counting = pre_grad_pass(uuid="v1")
    compiled = regional.compile(product, pre_grad_pass=counting)
    for n in (4, 4, 5):
        run(compiled, program_and_inputs(regional, "function", n=n)[1])
    assert counting.calls_by_compile == (1, 1)


def test_a_pass_in_pytorchs_own_config(regional, pre_grad_pass):
    """Whoever sets it there gets the same as from the harness."""
    counting = pre_grad_pass(uuid="v1", transform=square)
    program, (x, w) = program_and_inputs(regional, "function")
    with torch._inductor.config.patch(pre_grad_custom_pass=counting):
        value = run(regional.compile(program), (x, w))[0]
    torch.testing.assert_close(value, x @ x)
    assert counting.calls_by_compile == (1,)


@pytest.mark.regional_compile(requires=("pre_grad_passes", "pre_grad_timing", "outer_cache"), dynamic=False)
@pytest.mark.parametrize(("timing", "on_hit"), [("late", 0), ("early", 1)])
def test_a_timing_in_pytorchs_own_config(regional, pre_grad_pass, timing, on_hit):
    if not hasattr(torch._inductor.config, "pre_grad_pass_timing"):
        pytest.skip("this torch has no pre_grad_pass_timing (2.12 and later)")
    counting = pre_grad_pass(uuid="v1")
    program, inputs = program_and_inputs(regional, "function")
    with torch._inductor.config.patch(pre_grad_pass_timing=timing, pre_grad_custom_pass=counting):
        for _ in range(2):
            regional.restart()
            run(regional.compile(program), inputs)
    assert counting.calls_by_compile == (1, on_hit)


def test_pre_grad_passes_switched_off(regional, pre_grad_pass):
    counting = pre_grad_pass(uuid="v1", transform=square)
    program, (x, w) = program_and_inputs(regional, "function")
    for switched_on, expected in [(False, x @ w), (True, x @ x)]:
        compiled = regional.compile(
            program, pre_grad_pass=counting, inductor_configs={"use_pre_grad_passes": switched_on}
        )
        torch.testing.assert_close(run(compiled, (x, w))[0], expected)
    assert counting.calls_by_compile == (0, 1)
