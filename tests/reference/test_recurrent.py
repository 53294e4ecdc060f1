"""Recurrent networks of every kind train in a region; what Inductor makes of it is for the suites."""

import pytest
import torch
from torch import nn

from pytest_regional._torch.config import patched_config
from suites.regions.test_recurrent import BATCH, SIZE, STEPS, InRegion
from tests.reference.backends import Structure


def gradients(run, network, x):
    parameters = list(network.parameters())
    result = run(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, *parameters])]


@pytest.mark.parametrize("bidirectional", [False, True], ids=["one_way", "both_ways"])
@pytest.mark.parametrize(
    "layers", [1, pytest.param(2, marks=pytest.mark.slow("compiles twice as much", fast="test_training"))]
)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM], ids=["rnn", "gru", "lstm"])
def test_training(kind, layers, bidirectional):
    network = InRegion(kind, layers, bidirectional)
    x = torch.randn(STEPS, BATCH, SIZE, requires_grad=True)
    backend = Structure()
    with patched_config("torch._dynamo.config", {"allow_rnn": True}):
        found = gradients(backend.compile(network), network, x)
    expected = gradients(network, network, x)
    torch.testing.assert_close(found, expected)
    assert {"cells"} == set(backend.labels)
