"""What ``regional_fuzz`` gives to a test: its share of the programs, what it keeps, and what it reports.

The check is the tests' own: nothing is compiled here.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_regional._base.errors import CampaignError
from pytest_regional._base.stash import FUZZ, TARGET, Target
from pytest_regional.fuzz import oracles
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.fuzz_test import FuzzTest, fuzz_test
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.claims import disclaimed, needs_of
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import ORACLES, OracleViolationError
from pytest_regional.harness.devices.device import device_under_test
from pytest_regional.harness.record import GeneratedSource
from tests.splitting_backend import BARE

SOURCE = GeneratedSource("inference", (), "def call(args): ...", loaded=False)
REGIONAL = SimpleNamespace(device_under_test=device_under_test("cpu"), spec=BARE, _spec=BARE)


def chain(*operators):
    steps = [Step(name, (place,), (), (place + 1,)) for place, name in enumerate(operators)]
    return Program((TensorInput((4,)),), tuple(steps), (len(operators),), training=False)


def longer_and_longer(seed):
    length = 0
    while True:
        length += 1
        yield chain(*["neg"] * length)


def a_sine_in_each_second(seed):
    while True:
        yield chain("neg")
        yield chain("neg", "sin")


@pytest.fixture
def checked(monkeypatch):
    """The programs that were checked; a sine is wrong where nothing but negations is with it."""
    found = []

    def check(regional, program, *, mode, oracles, blame, known):
        found.append(program)
        if {"sin"} <= {*program.operators} <= {"neg", "sin"}:
            violation = OracleViolationError("parity", "run", "another sign", origin="value of output")
            violation.sources = (SOURCE,)
            if not known(violation):
                raise violation

    monkeypatch.setattr(oracles, "check", check)
    monkeypatch.setattr("pytest_regional.fuzz.findings.folder.shows", lambda *_: True)
    return found


def a_test(folder, budget, **options):
    return FuzzTest(REGIONAL, budget, 7, options.pop("shard", 0), "bare", folder, blames=False, **options)


def test_shards_share_a_number_of_programs(checked, tmp_path):
    for shard, lengths in enumerate(([1, 3, 5], [2, 4])):
        checked.clear()
        share = Budget(examples=5).share(shard, 2)
        result = a_test(tmp_path, share, shard=shard, shards=2).run("native", draw=longer_and_longer)

        assert [len(program.steps) for program in checked] == lengths
        assert result.seed == 7063


def test_in_a_time_each_shard_draws_its_own_programs(tmp_path):
    seconds = Budget(seconds=1)

    assert [a_test(tmp_path, seconds, shard=shard, shards=2).seed for shard in range(2)] == [7063, 7064]


def test_a_finding_is_kept_and_reported_and_known_from_then_on(checked, tmp_path):
    first = a_test(tmp_path / "found", Budget(examples=4))
    with pytest.raises(CampaignError, match=r"1 new finding in 4 programs \(--regional-seed=7\):\n") as failed:
        first.run("native", draw=a_sine_in_each_second)

    (data,) = (tmp_path / "found").glob("*.json")
    (finding,) = first.facts["findings"]
    assert Path(finding["script"]) == data.with_suffix(".py")
    assert (finding["name"], finding["discovered_at"]) == (data.stem, 2)
    assert (finding["oracle"], finding["rule"]) == ("parity", ORACLES["parity"].summary)
    assert failed.value.code == {data.stem: (SOURCE,)}
    kept = json.loads(data.read_text())
    assert [step["operator"] for step in kept["program"]["steps"]] == ["sin"]
    assert [step["operator"] for step in kept["original_program"]["steps"]] == ["neg", "sin"]

    second = a_test(tmp_path / "found", Budget(examples=4))
    result = second.run("native", draw=a_sine_in_each_second)

    assert (result.examples, result.hits[data.stem], second.facts["findings"]) == (4, 2, [])


def test_what_a_backend_disclaims_is_drawn_in_an_audit_alone(checked, tmp_path):
    a_test(tmp_path, Budget(examples=12)).run("native")
    assert not any(needs_of(program) & disclaimed(BARE) for program in checked)
    a_test(tmp_path, Budget(examples=12), audit=True).run("native")
    assert any(needs_of(program) & disclaimed(BARE) for program in checked)


@pytest.mark.parametrize(("blame", "blames"), [(None, True), ("deep:30", True), ("region", False), ("off", False)])
def test_what_the_fixture_takes_from_the_run(tmp_path, blame, blames):
    settings = SimpleNamespace(
        fuzz=Budget(examples=5), findings=tmp_path, timeout=3.0, audit=True, fuzz_settings=("freezing",), blame=blame
    )
    stash = {TARGET: Target(BARE, "cpu", None, "here:bare")}
    item = SimpleNamespace(name="test_any", stash=stash, config=SimpleNamespace(workerinput={"workercount": 2}))

    made = fuzz_test(item, SimpleNamespace(settings=settings, fuzz_seed=7), REGIONAL, 1)

    assert item.stash[FUZZ] is made
    assert (made.budget, made.run_seed, made.shard, made.shards) == (Budget(examples=2), 7, 1, 2)
    assert (made.backend, made.folder, made.name, made.limit) == ("here:bare", tmp_path, "test_any", 3.0)
    assert (made.audit, made.settings, made.blames) == (True, ("freezing",), blames)
