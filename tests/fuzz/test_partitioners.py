"""AOTAutograd's partitioners in campaigns: drawn for each program that trains, kept, named, and shown by scripts."""

from __future__ import annotations

import dataclasses
import itertools

import functorch.compile
import pytest

from pytest_regional import BackendSpec, GraphCapabilities
from pytest_regional._base.documents import DocumentError
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.backends import registry
from pytest_regional.fuzz.campaign import partitioned
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.files import Signature
from pytest_regional.fuzz.findings.folder import Finding, features_of
from pytest_regional.fuzz.findings.scripts import stand_alone
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import OracleViolationError, check
from pytest_regional.fuzz.shrink import reduce_program
from pytest_regional.testing import regional

PARTITIONERS = ("default", "min_cut")

TRAINING = Program((TensorInput((4, 4), requires_grad=True),), (Step("sin", (0,), results=(1,)),), (1,))
INFERENCE = dataclasses.replace(TRAINING, training=False)
MIN_CUT = dataclasses.replace(TRAINING, partitioner="min_cut")


def drawn(seed, *programs):
    return [one.partitioner for one in partitioned(iter(programs), PARTITIONERS, seed)]


def test_one_is_drawn_for_each_program_that_trains():
    names = drawn(1, *itertools.repeat(TRAINING, 40))
    assert set(names) == set(PARTITIONERS)
    assert names == drawn(1, *itertools.repeat(TRAINING, 40)) != drawn(2, *itertools.repeat(TRAINING, 40))
    assert drawn(1, INFERENCE, INFERENCE) == [None, None]
    assert drawn(1, MIN_CUT, MIN_CUT) == ["min_cut", "min_cut"]
    assert list(partitioned(iter((TRAINING,)), (), 1)) == [TRAINING]


def test_a_finding_names_it():
    finding = Finding(Signature("parity", "backward", "value of grad"), MIN_CUT, MIN_CUT, "detail")
    assert "partitioner min_cut" in finding.title
    assert "partitioner:min_cut" in features_of(MIN_CUT)
    assert "partitioner:min_cut" in Signature("parity", "run", "x").with_features(features_of(MIN_CUT)).features
    assert not any("partitioner" in name for name in features_of(TRAINING))


def test_it_survives_a_file():
    assert files.from_data(files.to_data(MIN_CUT)) == MIN_CUT
    assert "partitioner" not in files.to_data(TRAINING)
    with pytest.raises(DocumentError, match="partitioner"):
        files.from_data({**files.to_data(TRAINING), "partitioner": "os.system"})
    assert MIN_CUT.identity != TRAINING.identity


@pytest.mark.parametrize("backend", ["torch", "aot_eager"])
@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_a_script_takes_it(backend, partitioner):
    program = dataclasses.replace(TRAINING, partitioner=partitioner)
    script = stand_alone(program, "parity", "title", backend)
    expected = {
        ("torch", "default"): "partition_fn=default_partition",
        ("torch", "min_cut"): "partition_fn=min_cut_rematerialization_partition",
        ("aot_eager", "default"): 'backend = "aot_eager_default_partitioner"',
        ("aot_eager", "min_cut"): 'backend = "aot_eager"',
    }
    assert expected[backend, partitioner] in script
    compile(script, "script", "exec")
    assert stand_alone(program, "parity", "title", "reference") is None


def partitioners_of(calls):
    """A backend whose min-cut variant computes something else."""

    def backend(factor):
        def compile_graph(gm, example_inputs):
            calls.append(factor)
            return lambda *inputs: tuple(one * factor for one in gm(*inputs))

        return compile_graph

    variants = {"partitioner": lambda value: backend({"default": 1, "min_cut": 2}[value])}
    return BackendSpec("faulty", lambda: backend(1), GraphCapabilities(), variants=variants)


def test_the_backend_is_compiled_with_it():
    calls = []
    with regional(partitioners_of(calls), "cpu", expects_regions=False) as harness:
        for program in (TRAINING, dataclasses.replace(TRAINING, partitioner="default")):
            check(harness, program, mode="native", oracles="parity")
        with pytest.raises(OracleViolationError) as raised:
            check(harness, MIN_CUT, mode="native", oracles="parity")
    assert not raised.value.without_backend
    assert 2 in calls


def test_reducing_leaves_it_to_the_backend_where_it_does_not_matter():
    assert reduce_program(MIN_CUT, lambda program: True, seconds=5).partitioner is None
    assert reduce_program(MIN_CUT, lambda program: program.partitioner == "min_cut", seconds=5).partitioner == "min_cut"


def test_a_backend_without_the_variant_says_so():
    spec = dataclasses.replace(partitioners_of([]), variants={})
    with regional(spec, "cpu", expects_regions=False) as harness, pytest.raises(RegionalValueError, match="no variant"):
        check(harness, MIN_CUT, mode="native", oracles="parity")


@pytest.mark.parametrize("name", ["reference", "torch", "aot_eager"])
def test_built_in_backends_have_both(name):
    assert "partitioner" in registry.resolve(name).variants
    mode = "native" if name == "aot_eager" else "interpret"
    with regional(name, "cpu", expects_regions=False) as harness:
        for partitioner in PARTITIONERS:
            program = dataclasses.replace(TRAINING, partitioner=partitioner)
            assert "parity" in check(harness, program, mode=mode, oracles="parity").oracles


def test_a_partition_is_made_by_it(monkeypatch):
    asked = []
    original = functorch.compile.min_cut_rematerialization_partition

    def noted(*args, **kwargs):
        asked.append("min_cut")
        return original(*args, **kwargs)

    monkeypatch.setattr("functorch.compile.min_cut_rematerialization_partition", noted)
    with regional("torch", "cpu", expects_regions=False) as harness:
        check(harness, MIN_CUT, mode="interpret", oracles="parity")
    assert "min_cut" in asked
