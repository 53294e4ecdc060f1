"""Results of a first call that a second call overwrites: each call is right, and what was returned before is lost."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec, ParityError, declared, unsupported
from pytest_regional.testing import regional
from tests.harness.programs import in_region, pair, product, two_products


def pooled(gm, example_inputs):
    """Compile for inference: every output lives in a buffer that the next call writes to, as with CUDA graphs."""
    pool = []

    def call(*inputs):
        outputs = gm.forward(*inputs)
        if not pool:
            pool.extend(torch.empty_like(output) for output in outputs)
        # Another tensor on the same memory: of one that somebody else holds as well, autograd would store a copy.
        return [buffer.copy_(output).detach() for buffer, output in zip(pool, outputs, strict=True)]

    return call


def pooled_backward(gm, example_inputs):
    """Compile for training: fresh outputs, and gradients in buffers that the next backward writes to."""
    from torch._dynamo.backends.common import aot_autograd

    return aot_autograd(fw_compiler=lambda g, i: _boxed(g.forward), bw_compiler=lambda g, i: _boxed(pooled(g, i)))(
        gm, example_inputs
    )


def _boxed(function):
    from functorch.compile import make_boxed_func

    return make_boxed_func(function)


def writes_to_earlier_inputs(gm, example_inputs):
    """Keep the first call's inputs and copy those of the second into them."""
    static = []

    def call(*inputs):
        if not static:
            static.extend(inputs)
        for mine, given in zip(static, inputs, strict=True):
            mine.copy_(given)
        return gm.forward(*static)

    return call


def failure(backend, program, *shapes, **options):
    with (
        regional(BackendSpec(backend.__name__, lambda: backend), expects_regions=False) as r,
        pytest.raises(ParityError) as caught,
    ):
        r.assert_parity(program, *(r.randn(*shape, **options) for shape in shapes))
    return caught.value


def test_a_pooled_output_is_named():
    report = failure(pooled, product, (4, 8), (8, 8)).report
    assert [(m.where, m.kind) for m in report.mismatches] == [("output", "overwritten")]
    assert "32 of 32 elements changed after they were returned, first at [0, 0]" in str(report.mismatches[0])


def test_a_disclaimed_capability_is_not_tested():
    spec = BackendSpec("pooled", lambda: pooled, declared(results_kept=unsupported("outputs are pooled"))())
    with regional(spec, expects_regions=False) as r:
        assert r.assert_parity(product, r.randn(4, 8), r.randn(8, 8)).ok


def test_of_several_outputs_the_pooled_one_is_named():
    def one_pooled(gm, example_inputs):
        buffer = []

        def call(*inputs):
            first, *rest = gm.forward(*inputs)
            buffer.append(torch.empty_like(first))
            return [buffer[0].copy_(first), *rest]

        return call

    mismatches = failure(one_pooled, lambda x: (x.sin(), x.cos()), (4,)).report.mismatches
    assert len(mismatches) == 1
    assert mismatches[0].where in ("output[0]", "output[1]")


def test_a_pooled_gradient_is_named():
    report = failure(pooled_backward, lambda x, w: (x @ w).sin(), (4, 8), (8, 8), requires_grad=True).report
    assert {(m.where, m.kind) for m in report.mismatches} == {
        ("grad of input 0", "overwritten"),
        ("grad of input 1", "overwritten"),
    }


def test_inputs_of_the_first_call_that_the_second_writes_to_are_named():
    report = failure(writes_to_earlier_inputs, torch.sin, (4,)).report
    assert ("input 0", "overwritten") in {(m.where, m.kind) for m in report.mismatches}


def test_memory_that_can_no_longer_be_read():
    """PyTorch's CUDA graphs raise where an output is read that a later run has overwritten."""
    from pytest_regional.harness.parity.check import KeptResults
    from pytest_regional.harness.parity.execution import execute

    class Gone:
        device, dtype = torch.device("cpu"), torch.float32

        def detach(self):
            raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten\nstack")

    run = execute(torch.sin, (torch.randn(2),), keep=True)
    run.live["output"] = Gone()
    (mismatch,) = KeptResults.of(run).overwritten().values()
    assert "cannot be read: RuntimeError: accessing tensor output of CUDAGraphs" in mismatch.detail


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_right_backends_overwrite_nothing(requires_grad, seed):
    with regional("torch", seed=seed) as r:
        assert r.assert_parity(two_products, *pair(r, requires_grad=requires_grad)).ok


class KeepsItsBuffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x):
        self.last.copy_(x)
        with in_region("product"):
            return self.last, x @ x


def test_results_that_eager_overwrites_too_are_no_fault_of_the_backend():
    with regional("aot_eager", expects_regions=False) as r:
        assert r.assert_parity(KeepsItsBuffer(), r.randn(4)).ok


def test_the_region_with_the_pool_is_to_blame():
    from tests.harness.test_assert_parity import Corrupted

    class Pooled(Corrupted):
        def __init__(self, name):
            super().__init__(name)
            self.pool = {}

        def _corrupt(self, outputs):
            first, *rest = outputs
            buffer = self.pool.setdefault(first.shape, torch.empty_like(first))
            return [buffer.copy_(first), *rest]

    def returns_first(x, w):
        with in_region("first"):
            h = x @ w
        with in_region("second"):
            return h, h.T @ h

    with (
        regional(Pooled("first").spec(), expects_regions=False) as r,
        pytest.raises(ParityError, match="region 'first': with it left eager") as caught,
    ):
        r.assert_parity(returns_first, *pair(r))
    assert [(m.where, m.kind) for m in caught.value.report.mismatches] == [("output[0]", "overwritten")]
