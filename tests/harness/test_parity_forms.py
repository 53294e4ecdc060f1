"""Other ways of the same call: inputs that use one storage in two forms, and a backward in and out of an autocast."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec, ParityError
from pytest_regional._torch.tracing import base_of
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.inputs import copy_inputs, other_form
from pytest_regional.testing import regional


def views(**options):
    base = torch.arange(12.0).requires_grad_(options.get("requires_grad", False))
    return base, base[2:8], base[::2]


def storage_of(tensor):
    return tensor.untyped_storage().data_ptr()


def test_copies_of_views_are_views_of_a_copy_of_their_base():
    base, first, second = views()
    copies = copy_inputs((first, second)).arguments
    assert base_of(copies[0]) is base_of(copies[1]) is not base
    assert torch.equal(base_of(copies[0]), base)
    assert [copy.storage_offset() for copy in copies] == [2, 0]
    assert [copy.stride() for copy in copies] == [first.stride(), second.stride()]
    assert storage_of(copies[0]) == storage_of(copies[1]) != storage_of(base)


def test_a_base_that_is_an_input_is_the_copies_base():
    base, first, _ = views()
    copied, view = copy_inputs((base, first)).arguments
    assert base_of(view) is copied
    view, copied = copy_inputs((first, base)).arguments
    assert base_of(view) is copied


def test_views_of_one_storage_can_be_given_as_no_views_and_the_other_way_round():
    _, first, second = views()
    assert other_form((first, second)) == "storage"
    copies = copy_inputs((first, second), form="storage").arguments
    assert [base_of(copy) for copy in copies] == [None, None]
    assert storage_of(copies[0]) == storage_of(copies[1])
    assert other_form(copies) == "views"
    back = copy_inputs(copies, form="views").arguments
    assert base_of(back[0]) is base_of(back[1]) is not None
    assert torch.equal(back[0], first)
    assert torch.equal(back[1], second)


def test_inputs_apart_have_one_form():
    assert other_form((torch.zeros(3), torch.zeros(3)[1:])) is None


def test_gradients_of_views_arrive_at_their_base():
    _, first, second = views(requires_grad=True)
    copied = copy_inputs((first, second))
    (one, end), (other, same) = [
        (argument, leaf) for argument, (_, leaf) in zip(copied.arguments, copied.leaves, strict=True)
    ]
    assert end is same is base_of(one)
    (one.sum() + other.sum()).backward()
    assert end.grad.tolist() == [1, 0, 2, 1, 2, 1, 2, 1, 1, 0, 1, 0]


def test_a_view_that_is_a_leaf_stays_one():
    view = torch.ones(4)[1:].requires_grad_()
    (copy,) = copy_inputs((view,)).arguments
    assert copy.is_leaf
    assert copy.requires_grad
    assert base_of(copy) is not None


def writes(x, y):
    x.add_(1)
    return y * 2


def only_as(is_view):
    """A backend with a fault in one form of inputs."""

    def backend(gm, example_inputs):
        def run(*inputs):
            outputs = gm(*inputs)
            wrong = is_view == any(base_of(one) is not None for one in inputs)
            return tuple(one + 1 for one in outputs) if wrong else outputs

        return run

    return BackendSpec("faulty", lambda: backend)


@pytest.mark.parametrize(
    ("is_view", "detached", "said"),
    [
        (True, False, "output: value"),
        (False, False, "inputs of one storage that are no views: output: value"),
        (False, True, "output: value"),
        (True, True, "inputs as views of one tensor: output: value"),
    ],
)
def test_a_fault_in_one_form_of_inputs_is_found(is_view, detached, said):
    _, first, second = views()
    inputs = (first.detach(), second.detach()) if detached else (first, second)
    with regional(only_as(is_view), expects_regions=False) as r, pytest.raises(ParityError) as caught:
        r.assert_parity(writes, *inputs)
    assert any(str(mismatch).startswith(said) for mismatch in caught.value.report.mismatches)


def test_both_forms_agree_on_a_right_backend_and_count_once():
    _, first, second = views()
    with regional("aot_eager", expects_regions=False) as r:
        with r.expect(graphs=1):
            report = r.assert_parity(writes, first, second)
    # The output and two inputs, of two calls and of one in the other form.
    assert report.compared == 9


class Product(torch.autograd.Function):
    """Its backward multiplies in the precision that holds where it runs."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient.float() @ w.float().t(), x.float().t() @ gradient.float()


def test_a_backward_runs_outside_of_the_autocast_around_the_call_or_inside():
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        outside = execute(Product.apply, (x, w))
        inside = execute(Product.apply, (x, w), autocast_backward=True)
    assert outside.outputs[0][1].dtype == inside.outputs[0][1].dtype == torch.bfloat16
    ones, others = outside.grads["grad of input 0"].value, inside.grads["grad of input 0"].value
    assert not torch.equal(ones, others)
    assert torch.equal(others, others.bfloat16().float())


def test_what_the_backward_computes_in_the_forwards_autocast_is_found():
    """PyTorch's setting ``backward_pass_autocast`` says that it traces it so."""
    with regional("aot_eager", expects_regions=False) as r:
        x, w = r.randn(16, 16, requires_grad=True), r.randn(16, 16, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(ParityError) as caught:
            r.assert_parity(Product.apply, x, w)
        assert {mismatch.where for mismatch in caught.value.report.mismatches} >= {"grad of input 0"}
        r.restart()
        with torch._functorch.config.patch(backward_pass_autocast="off"), torch.autocast("cpu", torch.bfloat16):
            r.assert_parity(Product.apply, x, w)


def test_a_backward_that_is_wrong_inside_of_the_autocast_alone_is_found():
    def doubled(gradient):
        return gradient * 2 if torch.is_autocast_enabled("cpu") else gradient

    def backend(gm, example_inputs):
        def run(*inputs):
            (output,) = gm(*inputs)
            output.register_hook(doubled)
            return (output,)

        return run

    with regional(BackendSpec("faulty", lambda: backend), expects_regions=False) as r:
        x = r.randn(4, requires_grad=True)
        r.assert_parity(torch.sin, x)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(ParityError) as caught:
            r.assert_parity(torch.sin, x)
    assert {mismatch.where for mismatch in caught.value.report.mismatches} == {
        "backward inside of the autocast: grad of input 0"
    }
