"""Gradients of an op belong to its region: no op of a backward stands outside because its metadata was lost."""

from dataclasses import dataclass, field

import pytest
import torch
from torch.compiler import nested_compile_region

from pytest_regional import region
from pytest_regional._torch.config import backward_lowered_at_once
from pytest_regional._torch.fx_graphs import is_backward_node, is_gradient_sum, use_boxed_codegen
from pytest_regional.reference import explain_program, gradients, split_regions
from pytest_regional.reference.dynamo_backend import through_aot_autograd
from pytest_regional.reference.effects import computes


@dataclass
class Backward:
    """The gradients of a program: calls of regions, and the computing ops inside and outside of them."""

    regions: list = field(default_factory=list)
    inside: list = field(default_factory=list)
    outside: list = field(default_factory=list)

    def see(self, graph, _):
        split_regions(graph)
        self.outside += _gradients(graph.graph)
        self.regions += [node.name for node in graph.graph.nodes if node.op == "call_module"]
        for name in self.regions:
            self.inside += _gradients(graph.get_submodule(name).graph)
        return _as_it_is(graph, _)


def _gradients(graph):
    ops = (node for node in graph.nodes if node.op == "call_function" and is_backward_node(node))
    return [node for node in ops if computes(node)]


def names(nodes):
    return [str(node.target) for node in nodes]


def written_in(nodes, function):
    """Return the nodes that a line of ``function`` made."""
    return [node for node in nodes if f"in {function.__name__}\n" in (node.meta.get("stack_trace") or "")]


def backward(program, *inputs, partitioner="default"):
    found = Backward()

    def backend(gm, example_inputs):
        return through_aot_autograd(gm, example_inputs, partitioner, fw_compiler=_as_it_is, bw_compiler=found.see)

    torch._dynamo.reset()
    with backward_lowered_at_once():
        torch.compile(program, backend=backend, fullgraph=True)(*inputs)
    return found


def _as_it_is(graph, _):
    use_boxed_codegen(graph)
    return graph


def square(**options):
    return torch.rand(4, 4, requires_grad=True, **options)


def divided(y, s):
    y /= s.sum(-1, keepdim=True)


def written_slice(y, s):
    y[0] = s[1]


def scaled_slice(y, s):
    y[0].mul_(s[1])


def filled_diagonal(y, s):
    y.diagonal().mul_(2)


def inplace_activation(y, s):
    torch.nn.functional.silu(y, inplace=True)


def indexed(y, s):
    y[:, 1:3] *= s[:, :2]


def copied(y, s):
    y.copy_(s.cos())


def foreach(y, s):
    torch._foreach_mul_([y], [s])


IN_PLACE = [divided, written_slice, scaled_slice, filled_diagonal, inplace_activation, indexed, copied, foreach]


@pytest.mark.parametrize("write", IN_PLACE, ids=lambda write: write.__name__)
def test_an_op_in_place_outside_stays_outside(write):
    def program(x, w):
        with region("r"):
            y = x * 2
        write(y, w)
        with region("r"):
            return y.sin() * y

    found = backward(program, square(), square())
    assert written_in(found.outside, write)
    assert not written_in(found.inside, write)


def methods_in_place():
    """Name methods of tensors that write to them, take nothing or one tensor, and let a gradient through."""
    for name in sorted(vars(torch._C.TensorBase)):
        if not name.endswith("_") or name.startswith("_"):
            continue
        for arity in (0, 1):
            x, w = (torch.rand(4, 4) * 0.5 + 0.25 for _ in range(2))
            x.requires_grad_()
            y = x * 1
            try:
                getattr(y, name)(*([w] * arity))
                again = x * 1
                getattr(again, name)(*([w] * arity))
                (gradient,) = torch.autograd.grad(y.sum(), x)
            except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
                continue
            if y.shape == (4, 4) and torch.equal(y, again) and gradient.any():
                yield name, arity


def test_gradients_of_every_method_in_place():
    """What a version of PyTorch adds is drawn as well; one capture for all of them."""
    methods = list(methods_in_place())
    assert len(methods) > 40

    def program(x, w):
        with region("r"):
            results = []
            for name, arity in methods:
                y = x * 1
                getattr(y, name)(*([w] * arity))
                results.append(y * 2)
            return results

    found = backward(program, (torch.rand(4, 4) * 0.5 + 0.25).requires_grad_(), torch.rand(4, 4) * 0.5 + 0.25)
    lost = [node for node in found.outside if not is_gradient_sum(node)]
    assert (names(lost), len(found.regions)) == ([], 1)


def test_what_pytorch_copies_does_not_do(monkeypatch):
    """The check above sees ops that lost their metadata, and the sums that then stand between."""
    monkeypatch.setattr(gradients, "annotate_lost_gradients", lambda joint: 0)

    def program(x, w):
        with region("r"):
            y = x * 2
            y /= w
            return y.sin()

    assert {*names(backward(program, square(), square()).outside)} >= {"aten.div.Tensor", "aten.neg.default"}


def test_the_same_line_in_two_regions():
    """Autograd's numbers tell iterations of a loop apart, where lines do not."""

    def program(x, w):
        y = x * 2
        for name in ("a", "b", "c"):
            with region(name):
                y /= w
        return y

    _, explained = explain_program(program, square(), square(), show=False)
    per_region = {p.region: p.ops for p in explained.partitions}
    assert list(per_region) == ["c", "b", "a"]
    assert per_region["a"] == per_region["b"] == per_region["c"]
    assert "aten.neg.default" in per_region["a"]


def used_three_times(x, w):
    with region("r"):
        h = x @ w
        return h.sin() + h.cos() * h


def nested(x, w):
    return nested_compile_region(used_three_times)(x, w)


def added_outside(x, w):
    for _ in range(4):
        with region("block"):
            h = (x.cos() @ w).sin()
        x = x + h
    return x


def added_inside(x, w):
    for _ in range(4):
        with region("block"):
            x = x + (x.cos() @ w).sin()
    return x


def test_blocks_with_the_addition_outside_stay_equal():
    """The gradient that passes by a block is added to what comes from it where the forward adds, too."""
    *_, explained = explain_program(added_outside, square(), square(), show=False)
    assert [p.region for p in explained.partitions] == ["block"] * 4
    assert sorted(names(backward(added_outside, square(), square()).outside)).count("aten.add.Tensor") >= 4


def test_blocks_with_the_addition_inside_are_one_partition():
    *_, explained = explain_program(added_inside, square(), square(), show=False)
    assert [p.region for p in explained.partitions] == ["block"]


def test_blocks_that_share_a_weight_stay_equal():
    """All but the first add to the weight's gradient, which no block reads: it is added up outside."""

    def program(x, w):
        for _ in range(4):
            with region("block"):
                x = x @ w
            x = x.sin()
        return x

    _, explained = explain_program(program, square(), square(), show=False)
    assert len(explained.partitions) == 4
    assert {p.shared_with for p in explained.partitions[1:]} == {explained.partitions[0].name}


def test_layers_on_a_residual_stream_have_one_partition_each():
    def program(x, w):
        for name in ("first", "second", "third"):
            with region(name):
                x = x + (x @ w).sin()
                x = x + (x.cos() @ w).tanh()
        return x

    _, explained = explain_program(program, square(), square(), show=False)
    assert [p.region for p in explained.partitions] == ["third", "second", "first"]
