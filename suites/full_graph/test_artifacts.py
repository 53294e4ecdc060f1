"""A whole training step as a file: forward and backward, loaded in another process that compiles nothing."""

from __future__ import annotations

import pytest
import torch

from ..models.layers import RMSNorm, SwiGLU, in_region  # noqa: TID252

NEEDS = ("full_graph", "backward")
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


def train_loaded(regional, paths):
    """Load each file, and train five steps with it, each judged, without compiling anything."""
    found = {}
    for name, path in paths.items():
        model, steps = seeded(regional)
        with regional.expect(graphs=0, region_compiles=0), regional.no_compile():
            report = regional.assert_training_parity(
                model, steps, compiled=lambda model, path=path: regional.pipeline.load(path, model), compiling_steps=0
            )
        found[name] = losses(report)
    return found


def saved(regional, pipeline, path):
    """Compile and save; return the losses of the same training here."""
    model, steps = seeded(regional)

    def compiled(model):
        made = pipeline.compile(model, steps[0])
        made.save(path)
        return made

    return losses(regional.assert_training_parity(model, steps, compiled=compiled))


def test_trained_steps_are_saved_and_trained_elsewhere(regional, tmp_path):
    """The backend's own, and one of whole graphs, in one process: a new one costs more than both."""
    pipelines = {"of the backend": regional.pipeline, "whole graphs": regional.pipeline.ending_with("inductor")}
    paths = {name: tmp_path / name for name in pipelines}
    here = {name: saved(regional, pipelines[name], path) for name, path in paths.items()}
    there = regional.in_new_process(train_loaded, paths)

    assert there.value == here  # To the last bit: it is the same code.
    assert there.counters.region_compiles == 0


@pytest.mark.quick
def test_compiling_in_its_place_is_noticed(regional):
    """That the case above can fail."""
    model, steps = seeded(regional)
    with pytest.raises(AssertionError, match="inside no_compile"), regional.no_compile():
        regional.compile(model)(*steps[0])


@pytest.mark.quick
def test_the_artifact_of_another_model_is_refused(regional, tmp_path):
    model, steps = seeded(regional)
    path = tmp_path / "step.bin"
    regional.pipeline.ending_with("aot_eager").compile(model, steps[0]).save(path)
    with pytest.raises(regional.pipeline.ArtifactError, match=r"norm\.scale"):
        regional.pipeline.load(path, torch.nn.Linear(2, 2))
