"""Compiled modules as files: forward and backward in a new process, bit for bit, with nothing compiled."""

import re

import pytest
import torch
from torch.fx.passes.regional_inductor import regional_inductor as pytorchs_regional_inductor

import pytest_regional.testing
from pytest_regional.reference import ArtifactError, pipeline
from pytest_regional.reference.artifacts import UnsavableArtifactError
from pytest_regional.reference.caching.container import ArtifactNotFoundError
from pytest_regional.reference.regional_inductor import compile_annotated
from tests.reference.pipeline.models import Tied, assert_same_bits, model_and_inputs, step


@pipeline.graph_pass(name="regions", terminal=True)
def regions(gm, example_inputs):
    return compile_annotated(gm, example_inputs)


@pytest.fixture
def folder(tmp_path):
    tmp_path.chmod(0o700)
    return tmp_path


def loaded_step(path, name):
    """Run in a new process, where nothing may compile."""
    from pytest_regional.testing import no_compile

    model, inputs = model_and_inputs(name)
    with no_compile():
        return step(pipeline.load(path, model), inputs)


@pipeline.graph_pass(name="pytorchs", terminal=True)
def pytorchs(gm, example_inputs):
    return pytorchs_regional_inductor(gm, example_inputs)


@pytest.mark.usefixtures("warm_process")
@pytest.mark.parametrize("terminal", [regions, pytorchs], ids=["ours", "pytorchs"])
def test_a_new_process_trains_with_compiled_regions(terminal, folder):
    path = folder / "block"
    model, inputs = model_and_inputs("Block")
    with pytest_regional.testing.regional("reference") as harness:
        compiled = pipeline.compile(model, inputs, passes=[terminal])
        compiled.save(path)
        expected = step(compiled, inputs)
        found = harness.in_new_process(loaded_step, str(path), "Block")
    assert_same_bits(found.value, expected)
    assert found.counters["region_compiles"] == 0


@pytest.mark.parametrize("name", ["Block", "Tied", "Dropping", "Branching", "Repeating", "Writing"])
def test_loaded_programs_give_the_same_bits(name, folder):
    model, inputs = model_and_inputs(name)
    twin, _ = model_and_inputs(name)
    pipeline.compile(model, inputs).save(folder / "model")

    loaded = pipeline.load(folder / "model", twin)
    assert_same_bits(step(loaded, inputs), step(model, inputs))
    # What was loaded can be saved again.
    loaded.save(folder / "again")
    again = pipeline.load(folder / "again", twin)
    assert_same_bits(step(again, inputs), step(model, inputs))


def test_inference(folder):
    model, inputs = model_and_inputs("Tied")
    with torch.no_grad():
        pipeline.compile(model, inputs).save(folder / "model")
        assert torch.equal(pipeline.load(folder / "model", model)(*inputs), model(*inputs))


def test_sizes_stay_dynamic(folder):
    model, inputs = model_and_inputs("Tied")
    pipeline.compile(model, inputs, dynamic=True).save(folder / "model")

    loaded = pipeline.load(folder / "model", model)
    x = torch.randn(9, 4)
    assert torch.equal(loaded(x), model(x))


def test_a_loaded_module_checks_its_calls(folder):
    model, inputs = model_and_inputs("Tied")
    pipeline.compile(model, inputs).save(folder / "model")

    loaded = pipeline.load(folder / "model", model)
    with pytest.raises(ArtifactError, match=re.escape("has shape (9, 4)")):
        loaded(torch.randn(9, 4))


def test_another_model(folder):
    pipeline.compile(*model_and_inputs("Block")).save(folder / "model")
    with pytest.raises(ArtifactError, match=r"compiled from a model with 'weight', .* Tied does not have"):
        pipeline.load(folder / "model", Tied())


def test_damaged_missing_and_foreign_files(folder):
    model, inputs = model_and_inputs("Tied")
    path = folder / "model"
    with pytest.raises(ArtifactNotFoundError):
        pipeline.load(path, model)
    pipeline.compile(model, inputs).save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError):
        pipeline.load(path, model)

    from pytest_regional.reference import compile_program

    compile_program(torch.sin, torch.randn(3)).save(folder / "program")
    with pytest.raises(ArtifactError, match="holds 'compiled program', not 'compiled module'"):
        pipeline.load(folder / "program", model)


def test_the_result_of_a_pass_may_be_unsavable(folder):
    @pipeline.graph_pass(name="mine", terminal=True)
    def mine(gm, example_inputs):
        return lambda *values: gm(*values)

    model, inputs = model_and_inputs("Tied")
    compiled = pipeline.compile(model, inputs, passes=[mine])
    with pytest.raises(UnsavableArtifactError, match="the result of pass 'mine' cannot be saved"):
        compiled.save(folder / "model")
    assert not (folder / "model").exists()


def test_a_model_of_another_width(folder):
    pipeline.compile(torch.nn.Linear(4, 4), (torch.randn(2, 4),)).save(folder / "model")
    with pytest.raises(ArtifactError, match=r"whose 'weight' has shape \(4, 4\).*here it has \(8, 4\)"):
        pipeline.load(folder / "model", torch.nn.Linear(4, 8))
