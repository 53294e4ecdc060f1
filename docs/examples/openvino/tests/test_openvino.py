"""What OpenVINO compiles, what it computes in, and that tests would notice if it did neither."""

import pytest
import torch

import openvino_regional.conformance as conformance
from pytest_regional import VacuousTestError

pytestmark = pytest.mark.regional_compile


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, image):
        features = torch.relu(self.norm(self.convolution(image)))
        return torch.log_softmax(self.head(features.mean((2, 3))), -1)


@pytest.fixture
def classifier():
    return Classifier().eval()


def test_values(regional, classifier):
    report = regional.assert_parity(classifier, regional.randn(2, 3, 16, 16))
    assert report.anchored


def test_it_compiles_and_pytorch_does_not(regional, classifier):
    before = conformance.compiled()
    record = regional.run(classifier, regional.randn(2, 3, 16, 16))
    assert conformance.compiled() > before
    assert record.counters.region_compiles == 0  # nothing was handed to Inductor


def test_what_it_does_not_compile_is_no_test_of_it(regional):
    """Dropout runs in PyTorch: a test of it alone would say nothing of OpenVINO."""
    regional.compile(lambda x: torch.nn.functional.dropout(x, 0.5))(regional.randn(8))
    with pytest.raises(VacuousTestError, match="no graph was compiled"):
        regional.check_not_vacuous()
    regional.compile(torch.tanh)(regional.randn(8))


def test_a_graph_is_compiled_once(regional):
    compiled = regional.compile(torch.nn.functional.gelu)
    compiled(regional.randn(8))
    before = conformance.compiled()
    compiled(regional.randn(8))
    assert conformance.compiled() == before


@pytest.mark.regional_compile(requires=("backward",))
def test_training(regional, classifier):
    regional.assert_parity(classifier.train(), regional.randn(2, 3, 16, 16, requires_grad=True))
