"""Recurrent networks, trained in a region: hundreds of small ops whose backward leaves and enters the region often."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .annotations import in_region

pytestmark = pytest.mark.regional_compile

STEPS, BATCH, SIZE = 3, 2, 4


class InRegion(nn.Module):
    """A recurrent network in a region, between two layers that are not."""

    def __init__(self, kind: type[nn.RNNBase], layers: int, bidirectional: bool) -> None:
        super().__init__()
        self.before = nn.Linear(SIZE, SIZE)
        self.cells = kind(SIZE, SIZE, num_layers=layers, bidirectional=bidirectional)
        self.after = nn.Linear(SIZE * (2 if bidirectional else 1), SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        with in_region("cells"):
            h, _ = self.cells(h)
        return self.after(h)


@pytest.fixture(autouse=True)
def _recurrent_networks_are_traced():
    """Dynamo does not trace them unless it is told to."""
    with torch._dynamo.config.patch(allow_rnn=True):
        yield


@pytest.mark.regional_compile(requires=("backward",))
@pytest.mark.parametrize(
    ("kind", "layers", "bidirectional"),
    [(nn.RNN, 2, False), (nn.GRU, 1, True), (nn.LSTM, 2, False)],
    ids=["rnn", "gru_both_ways", "lstm"],
)
def test_training_parity(regional, kind, layers, bidirectional):
    network = InRegion(kind, layers, bidirectional).to(regional.device)
    regional.assert_parity(network, regional.randn(STEPS, BATCH, SIZE, requires_grad=True))
