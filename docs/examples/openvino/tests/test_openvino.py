"""What OpenVINO compiles, what it computes in, and that tests would notice if it did neither."""

import pytest
import torch

import openvino_regional.conformance as conformance
from pytest_regional import VacuousTestError, testing

pytestmark = pytest.mark.regional_compile


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.head = torch.nn.Linear(32, 4)

    def forward(self, rows):
        features = torch.nn.functional.gelu(self.norm(self.hidden(rows)))
        return torch.log_softmax(self.head(features), -1)


@pytest.fixture
def classifier():
    return Classifier().eval()


def test_values(regional, classifier):
    report = regional.assert_parity(classifier, regional.randn(8, 16))
    assert report.anchored


def test_it_compiles_and_pytorch_does_not(regional, classifier):
    before = conformance.compiled()
    record = regional.run(classifier, regional.randn(8, 16))
    assert conformance.compiled() > before
    assert record.counters.region_compiles == 0  # nothing was handed to Inductor


def test_what_it_does_not_compile_is_no_test_of_it(regional, classifier):
    """One operator alone runs in PyTorch: a test of it would say nothing of OpenVINO."""
    with pytest.raises(VacuousTestError, match="no graph was compiled"), testing.regional(regional.spec) as r:
        r.compile(torch.tanh)(r.randn(8))
    regional.compile(classifier)(regional.randn(8, 16))


def test_a_graph_is_compiled_once(regional, classifier):
    compiled = regional.compile(classifier)
    compiled(regional.randn(8, 16))
    before = conformance.compiled()
    compiled(regional.randn(8, 16))
    assert conformance.compiled() == before


def test_a_convolution(regional):
    """A known failure: see known-failures.txt."""
    regional.assert_parity(torch.nn.Conv2d(3, 8, 3).eval(), regional.randn(2, 3, 16, 16))


@pytest.mark.regional_compile(requires=("backward",))
def test_training(regional, classifier):
    regional.assert_parity(classifier.train(), regional.randn(8, 16, requires_grad=True))
