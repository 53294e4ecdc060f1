"""A whole training step as a file: forward and backward, loaded in another process that compiles nothing."""

from __future__ import annotations

import pytest
import torch

from ..models.layers import RMSNorm, SwiGLU, in_region  # noqa: TID252
from .pipelines import ending_with

NEEDS = ("full_graph", "full_graph_artifacts", "backward")
pytestmark = [
    pytest.mark.regional_compile(requires=NEEDS, expects_regions=False),
    pytest.mark.filterwarnings("ignore:full_inductor compiles whole graphs"),
]


class Gated(torch.nn.Module):
    """A normalized, gated layer with dropout; its gate is the region ``gate``."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = RMSNorm(16), SwiGLU(16, 24)

    def forward(self, x, targets):
        h = torch.nn.functional.dropout(self.norm(x), 0.25)
        with in_region("gate"):
            h = self.layer(h)
        return torch.nn.functional.mse_loss(x + h, targets)


def seeded(regional):
    """Return the same model and the same batches in every process."""
    torch.manual_seed(7)
    return Gated().to(regional.device), [(regional.randn(8, 16), regional.randn(8, 16)) for _ in range(5)]


def losses(report):
    return [step.loss for step in report.steps]


def train_loaded(regional, path):
    """Load, and train five steps, each judged, without compiling anything."""
    model, steps = seeded(regional)
    with regional.expect(graphs=0, region_compiles=0), regional.no_compile():
        report = regional.assert_training_parity(
            model, steps, compiled=lambda model: regional.pipeline.load(path, model), compiling_steps=0
        )
    return losses(report)


def saved(regional, pipeline, path):
    """Compile and save; return the losses of the same training here."""
    model, steps = seeded(regional)

    def compiled(model):
        made = pipeline.compile(model, steps[0])
        made.save(path)
        return made

    return losses(regional.assert_training_parity(model, steps, compiled=compiled))


def test_a_trained_step_is_saved_and_trained_elsewhere(regional, tmp_path):
    path = tmp_path / "step.bin"
    here = saved(regional, regional.pipeline, path)
    there = regional.in_new_process(train_loaded, path)

    assert there.value == here  # To the last bit: it is the same code.
    assert there.counters.region_compiles == 0


def test_so_is_one_of_whole_graphs(regional, tmp_path):
    path = tmp_path / "step.bin"
    here = saved(regional, ending_with("inductor"), path)
    there = regional.in_new_process(train_loaded, path)

    assert there.value == here
    assert there.counters.region_compiles == 0


def test_compiling_in_its_place_is_noticed(regional):
    """That the cases above can fail."""
    with pytest.raises(AssertionError, match="inside no_compile"):
        regional.in_new_process(compile_instead)


def compile_instead(regional):
    model, steps = seeded(regional)
    with regional.no_compile():
        return regional.compile(model)(*steps[0])


def test_the_artifact_of_another_model_is_refused(regional, tmp_path):
    model, steps = seeded(regional)
    path = tmp_path / "step.bin"
    ending_with("aot_eager").compile(model, steps[0]).save(path)
    with pytest.raises(regional.pipeline.OtherModelError, match=r"norm\.scale"):
        regional.pipeline.load(path, torch.nn.Linear(2, 2))
