"""What the command line is pointed at."""

import torch

from pytest_regional import region
from pytest_regional.reference.pipeline import PassPipeline, graph_pass


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, scale=1.0):
        with region("linear"):
            h = self.linear(x)
        return h.relu() * scale


def block():
    return Block(), (torch.randn(2, 4),)


def scaled():
    return Block(), [torch.randn(2, 4)], {"scale": 2.0}


def one_function():
    return torch.sin, (torch.randn(3),)


def number():
    return 3


def unpaired():
    return Block(), torch.randn(2, 4)


def raising():
    raise ValueError("no data here")


def breaking():
    def breaks(x):
        torch._dynamo.graph_break()
        return x

    return breaks, (torch.randn(3),)


@graph_pass
def nothing(gm, example_inputs):
    """Changes nothing."""


@graph_pass
def failing(gm, example_inputs):
    raise ValueError("not today")


several = PassPipeline([nothing, graph_pass(name="other")(lambda gm, example_inputs: None)])
