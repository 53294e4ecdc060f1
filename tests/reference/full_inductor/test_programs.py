"""Programs whose forward and backward are compiled as a whole, judged against a float64 run of eager."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_regional import ParityError
from pytest_regional.reference import FullInductor
from tests.reference.full_inductor.backend import Backend, custom_op, harness, ops

functional = torch.nn.functional


def leaf(made, *shape):
    return made.randn(*shape, requires_grad=True)


def check(made, fn, *inputs, **options):
    """Compare with eager, and make sure that forward and backward were compiled by this pass."""
    report = made.assert_parity(fn, *inputs, **options)
    assert made.backend_object.seen
    return report


def norms(x, w):
    h = functional.gelu(functional.layer_norm(x @ w, (16,)))
    h = functional.dropout(functional.rms_norm(h, (16,)), 0.5)
    return torch.softmax(h, -1)


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does", fast="test_a_wrong_decomposition_is_seen"
)
def test_norms_softmax_and_dropout_with_the_random_numbers_of_eager():
    """The values are eager's. The backward draws once more (docs/findings/backward_draws_for_nothing.py)."""
    with harness() as made:
        with pytest.raises(ParityError) as caught:
            check(made, norms, leaf(made, 8, 16), leaf(made, 16, 16))
        assert {mismatch.kind for mismatch in caught.value.report.mismatches} == {"draws"}
        forward, backward = made.backend_object.seen[:2]
        assert "aten.native_dropout.default" in ops(forward)
        assert "aten.gelu_backward.default" in ops(backward)


class Convolution(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(2, 4, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return functional.relu(self.norm(self.convolution(x)))


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does",
    fast="tests/reference/full_inductor/test_decompose.py::test_several_results_and_one_that_is_none",
)
def test_batch_norm_writes_its_buffers():
    with harness() as made:
        check(made, Convolution(), leaf(made, 2, 2, 6, 6))


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does", fast="test_a_wrong_decomposition_is_seen"
)
def test_indexed_writes_views_and_written_inputs():
    def fn(w, x, rows, total):
        total.add_(1)
        table = w.index_put((rows,), x, accumulate=True)
        sums = torch.zeros(4, 4).scatter_add(0, rows[:, None].expand(-1, 4), x)
        return table.sin() * total, sums.view(2, 8), table.t()

    with harness() as made:
        rows = torch.tensor([0, 2, 2])
        check(made, fn, leaf(made, 4, 4), leaf(made, 3, 4), rows, made.randn(4))


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does", fast="test_a_wrong_decomposition_is_seen"
)
def test_recomputed_dropout_draws_the_same_numbers():
    def fn(x, w):
        return checkpoint(lambda y: functional.dropout(torch.sin(y @ w), 0.5) * y, x, use_reentrant=False)

    with harness(partitioner="min_cut") as made:
        check(made, fn, leaf(made, 8, 8), leaf(made, 8, 8))
        forward, backward = made.backend_object.seen[:2]
        assert ops(forward)["run_and_save_rng_state"] == 1
        assert ops(backward)["run_with_rng_state"] == 1


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient * x.exp()


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does", fast="test_a_wrong_decomposition_is_seen"
)
def test_operators_and_autograd_functions_of_the_user():
    op = custom_op("sine")
    with harness() as made:
        check(made, lambda x: Scaled.apply(op(functional.gelu(x))), leaf(made, 4, 8))
        assert "full_inductor_tests.sine.default" in ops(made.backend_object.seen[0])


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does",
    fast="tests/reference/full_inductor/test_decompose.py::test_bodies_are_decomposed",
)
def test_branches():
    def fn(x):
        return torch.cond(x.sum() > 0, lambda v: functional.gelu(v), lambda v: functional.silu(v) * 2, (x.sin(),))

    with harness() as made:
        check(made, fn, leaf(made, 4))


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does", fast="test_a_wrong_decomposition_is_seen"
)
def test_one_graph_for_many_sizes():
    def fn(x, w):
        return torch.softmax(functional.gelu(x @ w), -1) / x.shape[0]

    with harness() as made:
        w = leaf(made, 8, 8)
        compiled = made.compile(fn, dynamic=True)
        for rows in (5, 9):
            x = leaf(made, rows, 8)
            torch.testing.assert_close(compiled(x, w), fn(x, w))
            compiled(x, w).sum().backward()
            found, x.grad = x.grad, None
            fn(x, w).sum().backward()
            torch.testing.assert_close(found, x.grad, atol=1e-6, rtol=1e-4)
        assert len(made.backend_object.seen) == 2


def test_inference_writes_buffers_at_the_end_of_the_graph():
    def fn(x, total):
        total.add_(x)
        return x.sin() * total

    with harness() as made:
        check(made, fn, made.randn(4), made.randn(4))
        (graph, *_) = made.backend_object.seen
        assert "aten.copy_.default" in ops(graph)


@pytest.mark.slow(
    "compiles a whole program for eager's results, as suites/full_graph does",
    fast="tests/reference/full_inductor/test_decompose.py::test_bodies_are_decomposed",
)
def test_flex_attention_without_gradients():
    from torch.nn.attention.flex_attention import flex_attention

    def fn(q, k, v):
        return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: score + functional.silu((i - j) * 0.1))

    with harness() as made:
        check(made, fn, *(made.randn(1, 1, 64, 16) for _ in range(3)))


def test_flex_attention_with_gradients_is_refused_on_a_cpu_by_pytorch():
    """Before any backend is asked: the reason why there is no such parity test without a GPU."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, backend=Backend(FullInductor()), fullgraph=True)
    with pytest.raises(Exception, match="does not support backward on CPU"):
        compiled(*(torch.randn(1, 1, 64, 16, requires_grad=True) for _ in range(3)))


class SavedTwice(torch.autograd.Function):
    """The backward overwrites the first saved value if it may, and reads the second one afterwards."""

    @staticmethod
    def forward(ctx, x):
        y = x @ x
        ctx.save_for_backward(y, y.detach())
        return y @ y

    @staticmethod
    def backward(ctx, gradient):
        y, same = ctx.saved_tensors
        return gradient @ y.neg() @ same


def test_two_saved_values_that_are_one_tensor():
    """A value and its ``detach``: PyTorch donates both to the backward, and writing one of them spoils the other."""
    with harness() as made:
        check(made, SavedTwice.apply, leaf(made, 8, 8))
        forward = made.backend_object.seen[0]
        saved = [node.meta["val"].untyped_storage()._cdata for node in forward.graph.output_node().args[0]]
        assert len(set(saved)) < len(saved)


class SavedInput(torch.autograd.Function):
    """The backward overwrites the input if it may."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x @ x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient @ x.neg()


def test_effects_with_tokens():
    """A token stands first among the forward's inputs, where PyTorch looks for what must not be overwritten."""

    def fn(x):
        torch.ops.aten._print("from the compiled program")
        return SavedInput.apply(x)

    with harness() as made:
        check(made, fn, leaf(made, 8, 8))
        assert "with_effects" in ops(made.backend_object.seen[0])


def test_a_wrong_decomposition_is_seen():
    """The parity test can fail: an op decomposed to something else."""
    wrong = {torch.ops.aten.gelu.default: lambda x, approximate="none": x @ x}
    with harness() as made:
        made.backend_object.compiler = FullInductor(decompositions=wrong)
        with pytest.raises(ParityError):
            made.assert_parity(functional.gelu, made.randn(8, 8))
