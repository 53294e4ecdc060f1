"""Programs as they are drawn: what kinds there are, that they run, print, and survive a file."""

import math
import random
import time
from datetime import timedelta

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

import pytest_regional.fuzz.draw.encoding as encoding
from pytest_regional import strategies
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_program
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.folder import features_of
from pytest_regional.fuzz.model.building import check_buildable
from pytest_regional.fuzz.model.program import renumbered
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.strategies import programs
from tests.fuzz.generator.declared import DECLARED

EXAMPLES = 300


def drawn(count, strategy):
    """Return ``count`` programs, the same in every run where the same modules are imported.

    Hypothesis draws constants that it finds in the modules of this repository, too.
    """
    found = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(program):
        found.append(program)

    collect()
    return found


@pytest.fixture(scope="module")
def generated():
    return drawn(EXAMPLES, programs())


def too_rare(found):
    """Return declared features that ``found`` has implausibly seldom, if their declared shares are right."""
    features = [features_of(program) for program in found]
    rare = []
    for name, percent in DECLARED.items():
        expected = len(found) * percent / 100
        if sum(name in one for one in features) < expected - 3 * math.sqrt(expected):
            rare.append(name)
    return rare


def test_declared_shares(generated):
    assert not too_rare(generated)


def test_missing_kinds_are_noticed():
    found = [
        random_program(random.Random(seed), options=Options(regions=False, dtypes=("float32",))) for seed in range(100)
    ]
    assert {"region", "dtype:float64"} <= set(too_rare(found))
    assert "family:pointwise" not in too_rare(found)


def test_steps_that_were_refused_leave_room_for_the_simplest_one(monkeypatch):
    spent = []

    def refused(builder, *_):
        spent.append(builder._room is not None)
        builder._room = builder._room and 1

    monkeypatch.setattr(encoding, "_chosen", refused)
    assert all(random_program(random.Random(seed)).steps for seed in range(40))
    assert any(spent)


def test_rejects_nothing(generated):
    # What Hypothesis rejects, or draws twice, does not come here.
    assert len(generated) >= 0.95 * EXAMPLES


def is_quick(program):
    """Tell whether eager runs it without compiling, and without a second registration of a custom op."""
    families = {operator_named(name).family for name in program.operators}
    return not families & {"cond", "loop", "custom"}


def test_source_runs_with_torch_alone(generated):
    for program in filter(is_quick, generated[:120]):
        namespace = {}
        exec(compile(program.source, "<printed>", "exec", dont_inherit=True), namespace)
        results = []
        for function, inputs in (
            (program, program.inputs(seed=5)),
            (namespace["program"], namespace["inputs"](seed=5)),
        ):
            torch.manual_seed(0)
            results.append([*function(*inputs), *inputs])
        for ours, printed in zip(*results, strict=True):
            assert torch.equal(ours.nan_to_num(), printed.nan_to_num())
            assert (ours.stride(), ours.dtype, ours.requires_grad) == (
                printed.stride(),
                printed.dtype,
                printed.requires_grad,
            )


def test_those_to_train_train(generated):
    for program in (program for program in generated[:150] if program.training and is_quick(program)):
        inputs = program.inputs(seed=7)
        assert any(leaf.requires_grad for leaf in inputs)
        roots = {id(result): result for result in program(*inputs) if result.requires_grad}
        if roots:
            torch.autograd.backward(list(roots.values()), [torch.ones_like(root) for root in roots.values()])


def test_can_be_built_again(generated):
    for program in generated:
        check_buildable(program)


def test_files_keep_programs(generated):
    for program in generated[:100]:
        again = files.from_data(files.to_data(program))
        assert again == program
        assert again.source == program.source


def test_identity_ignores_numbers(generated):
    for program in generated[:100]:
        assert renumbered(program).identity == program.identity
    assert len({program.identity for program in generated}) > 0.8 * len(generated)


def test_same_seed_same_program():
    assert random_program(random.Random(11)) == random_program(random.Random(11))
    assert random_program(random.Random(11)).identity != random_program(random.Random(12)).identity


def test_options():
    found = drawn(
        40, programs(max_steps=3, max_arguments=2, families=("pointwise", "view"), training=False, regions=False)
    )
    assert all(len(program.steps) <= 3 and len(program.arguments) <= 2 for program in found)
    assert {operator_named(name).family for program in found for name in program.operators} <= {"pointwise", "view"}
    assert not any(program.training or program.regions for program in found)
    trained = drawn(10, programs(training=True, dtypes=("float64",), dynamic=False, nonfinite=False))
    assert all(program.training for program in trained)
    assert {argument.dtype for program in trained for argument in program.arguments} & {"float32", "bfloat16"} == set()
    assert not any(argument.dynamic for program in trained for argument in program.arguments)


def test_sizes_depend_on_data_only_if_asked(generated):
    assert not any("family:data_dependent" in features_of(program) for program in generated)
    found = drawn(150, programs(families=("data_dependent", "comparison", "pointwise"), data_dependent=True))
    assert any("family:data_dependent" in features_of(program) for program in found)


def test_unknown_family_lists_the_known():
    with pytest.raises(ValueError, match="pointwise"):
        programs(families=("pointwies",))


def test_draws_that_wait_for_a_processor_pass_the_health_checks(monkeypatch):
    decode = strategies.program_of

    def interrupted(encoded, options):
        time.sleep(0.3)  # ten of them: three times what Hypothesis allows
        return decode(encoded, options)

    monkeypatch.setattr(strategies, "program_of", interrupted)

    @settings(max_examples=12, deadline=timedelta(milliseconds=200), suppress_health_check=(), database=None)
    @given(programs())
    def holds(program):
        assert program.steps

    holds()
