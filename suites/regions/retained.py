"""Ways to run a backward more than once, and a program whose backward has values that could be overwritten."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pytest_regional import region

Program = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Gradients = list[torch.Tensor]


def two_outputs(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Save results of a region, and of operators outside, that no caller sees."""
    h = (x * w).sigmoid()
    with region("first"):
        h = h.exp().sin()
    with region("second"):
        return h.cos() * w, (h * x).tanh()


def retained_then_again(program: Program, x: torch.Tensor, w: torch.Tensor) -> Gradients:
    """Run the backward and keep the graph, run it again and let it go: the gradients accumulate."""
    loss = sum(output.sum() for output in program(x, w))
    loss.backward(retain_graph=True)
    loss.backward()
    return [x.grad, w.grad]


def three_times(program: Program, x: torch.Tensor, w: torch.Tensor) -> Gradients:
    """Keep the graph twice; each backward gives the same."""
    outputs = program(x, w)
    cotangents = [torch.full_like(output, 0.5) for output in outputs]
    return [g for keep in (True, True, False) for g in torch.autograd.grad(outputs, (x, w), cotangents, keep)]


def one_input_at_a_time(program: Program, x: torch.Tensor, w: torch.Tensor) -> Gradients:
    """Ask for the gradients of one input after the other."""
    loss = sum(output.sum() for output in program(x, w))
    return [*torch.autograd.grad(loss, x, retain_graph=True), *torch.autograd.grad(loss, w)]


def one_output_at_a_time(program: Program, x: torch.Tensor, w: torch.Tensor) -> Gradients:
    """Run the backward of one output after the other."""
    first, second = program(x, w)
    kept = torch.autograd.grad(first.sum(), (x, w), retain_graph=True)
    return [*kept, *torch.autograd.grad(second.sum(), (x, w))]


def creating_a_graph(program: Program, x: torch.Tensor, w: torch.Tensor) -> Gradients:
    """Ask for a graph of the gradients, and do not use it."""
    loss = sum(output.sum() for output in program(x, w))
    return [gradient.detach() for gradient in torch.autograd.grad(loss, (x, w), create_graph=True)]


WAYS = (retained_then_again, three_times, one_input_at_a_time, one_output_at_a_time, creating_a_graph)
