"""What ``run`` reports: output, regions, graphs, generated code; and the scope of options."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import torch_matches
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch import config
from pytest_regional.testing import pre_grad_pass, regional

from .programs import in_region, pair, product, two_products

needs_region_ids = pytest.mark.skipif(not torch_matches(">=2.13"), reason="torch 2.11's own backend ignores region ids")


@needs_region_ids
def test_regions_of_forward_and_backward():
    with regional("torch") as r:
        record = r.run(two_products, *pair(r, requires_grad=True))
    assert [(x.name, x.graph, x.partitions) for x in record.regions] == [
        ("first", "forward", 1),
        ("second", "forward", 1),
        ("second", "backward", 1),
        ("first", "backward", 1),
    ]
    assert record.region("first", "forward").ops == ("aten.mm.default",)
    with pytest.raises(LookupError, match="2 regions match 'first'"):
        record.region("first")
    with pytest.raises(LookupError, match=r"0 regions match 'third'.*first \(forward\)"):
        record.region("third")


@needs_region_ids
def test_generated_code_of_forward_and_backward():
    with regional("torch") as r:
        record = r.run(two_products, *pair(r, requires_grad=True))
    assert [(s.graph, s.regions, s.loaded) for s in record.code] == [
        ("forward", ("first",), False),
        ("forward", ("second",), False),
        ("backward", ("second",), False),
        ("backward", ("first",), False),
    ]
    # The backward of one matrix product is two.
    assert (record.code.forward.count("extern_kernels.mm("), record.code.backward.count("extern_kernels.mm(")) == (2, 4)


def test_backward_false_leaves_the_backward_uncompiled():
    with regional("torch") as r:
        record = r.run(product, *pair(r, requires_grad=True), backward=False)
    assert [graph.kind for graph in record.graphs] == ["forward"]


def test_backward_may_be_a_function_of_the_output():
    with regional("torch") as r:
        x, w = pair(r, requires_grad=True)
        r.run(product, x, w, backward=lambda output: output.sum() * 2)
        expected = torch.autograd.grad(product(x, w).sum() * 2, x)
    torch.testing.assert_close(x.grad, expected[0])


def configured(x, w):
    with in_region("tuned", max_autotune=False, epilogue_fusion=False):
        h = x @ w
    return h.sin()


def test_configs_of_a_region_are_recorded():
    with regional("torch") as r:
        record = r.run(configured, *pair(r))
    assert record.region("tuned").configs == {"max_autotune": False, "epilogue_fusion": False}


def seen_while_compiling(name):
    """A backend that notes what Inductor's setting ``name`` is when its compilers are called."""
    seen = []

    def backend(gm, example_inputs):
        def compiler(graph, inputs):
            seen.append(getattr(config.inductor_config(), name))
            return _boxed(graph)

        from torch._dynamo.backends.common import aot_autograd

        return aot_autograd(fw_compiler=compiler, bw_compiler=compiler)(gm, example_inputs)

    return backend, seen


def _boxed(graph):
    from functorch.compile import make_boxed_func

    return make_boxed_func(graph.forward)


def test_inductor_configs_hold_for_the_backward_too_and_nowhere_else():
    from pytest_regional import BackendSpec

    backend, seen = seen_while_compiling("epilogue_fusion")
    with regional(BackendSpec("noting", lambda: backend), expects_regions=False) as r:
        output = r.compile(product, inductor_configs={"epilogue_fusion": False})(*pair(r, requires_grad=True))
        assert config.config_values("torch._inductor.config")["epilogue_fusion"] is True
        output.sum().backward()
    assert seen == [False, False]


def test_an_unknown_inductor_setting_is_an_error_at_the_call():
    with regional("torch", expects_regions=False) as r:
        with pytest.raises(RegionalValueError, match=r"'epilog_fusion'. Did you mean 'epilogue_fusion'"):
            r.compile(product, inductor_configs={"epilog_fusion": False})


def test_an_unknown_timing_is_an_error():
    with regional("torch", expects_regions=False) as r:
        with pytest.raises(RegionalValueError, match=r"'erly'. Did you mean 'early'"):
            r.compile(product, pre_grad_pass_timing="erly")


def test_an_invalid_program_is_an_error():
    with regional("torch", expects_regions=False) as r, pytest.raises(TypeError, match="function or module"):
        r.compile(3)


def test_a_module_compiles_and_keeps_its_parameters():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8, 8))

        def forward(self, x):
            return product(x, self.weight)

    with regional("torch") as r:
        block, x = Block(), r.randn(4, 8)
        record = r.run(block, x)
        torch.testing.assert_close(record.output, block(x))
        assert block.weight.grad is not None


def test_a_pass_transforms_and_counts():
    counting = pre_grad_pass(transform=lambda graph: None)
    with pytest.raises(TypeError, match="callable"):
        pre_grad_pass(transform=3)
    assert counting.calls == 0
    assert counting.uuid() is None
    counting(torch.fx.Graph())
    assert counting.calls == 1


def test_partitions_that_share_a_compile_are_all_counted():
    with regional("reference") as r:
        record = r.run(two_products, *pair(r))
    assert [(region.name, region.partitions) for region in record.regions] == [("first", 1), ("second", 1)]
    # The two products are equal up to their names.
    assert record.counters.region_compiles == 1


def test_a_region_left_eager_has_no_partition():
    with regional("aot_eager", expects_regions=False) as r:
        record = r.run(two_products, *pair(r))
    assert [(region.name, region.partitions) for region in record.regions] == [("first", 0), ("second", 0)]
