"""Campaigns of sequences: what they find, how short it becomes, and what is left of it."""

import runpy
from collections.abc import Sequence
from operator import length_hint
from types import SimpleNamespace

import pytest

import pytest_regional.fuzz.caches.campaign as campaign_module
from pytest_regional.cli import main
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.caches.campaign import CacheSequences
from pytest_regional.fuzz.caches.findings import SequenceFinding, features_of_sequence, reduce_sequence
from pytest_regional.fuzz.caches.sequences import Clear, Compile, Damage, Event, Key, NewProcess, Restart
from pytest_regional.fuzz.campaign import Campaign
from pytest_regional.fuzz.findings.files import Signature
from pytest_regional.fuzz.findings.folder import FindingsFolder
from pytest_regional.testing import regional

FAULTY = "tests.faults.backends:key_without_annotations"
LONG = (Clear(), Compile(Key(size=7)), Restart(), Compile(Key(region="b", size=7)))


def campaign(monkeypatch: pytest.MonkeyPatch, backend: str, sequence: Sequence[Event], number: int, folder=None):
    monkeypatch.setattr(campaign_module, "sequences_for", lambda *args, **kwargs: iter([tuple(sequence)] * number))
    with regional(backend, "cpu", expects_regions=False) as harness:
        return Campaign(CacheSequences(harness, backend, "interpret"), Budget(examples=number), 0, folder).run()


def holding(known):
    """Return a folder that holds what ``known`` returns."""
    return SimpleNamespace(readable=known)


def test_a_sequence_that_breaks_the_model_is_shrunk_and_reported_once(monkeypatch, tmp_path):
    folder = FindingsFolder(tmp_path)
    result = campaign(monkeypatch, FAULTY, LONG, 2, folder)

    (finding,) = result.findings
    assert finding.sequence == (Compile(Key()), Compile(Key(region="b")))
    assert finding.original_sequence == LONG
    assert finding.title == "caches (restart): a hit where the model says miss (region)"
    assert result.hits == {finding.name: 2}
    assert (result.examples, result.discovered_at) == (2, {finding.name: 1})
    assert list(folder) == [finding]


def test_known_findings_are_counted_and_not_found_again(monkeypatch):
    known = finding(FAULTY)
    again = campaign(monkeypatch, FAULTY, LONG, 2, holding(lambda: [known]))

    assert again.findings == []
    assert again.hits == {known.name: 2}


def executed(monkeypatch):
    """Return a list that grows by each sequence that is executed, as a number of events."""
    lengths = []
    run = campaign_module.run_sequence

    def counted(regional, events, **given):
        lengths.append(length_hint(events))
        return run(regional, events, **given)

    monkeypatch.setattr(campaign_module, "run_sequence", counted)
    return lengths


@pytest.mark.parametrize(
    "before",
    [
        (Damage(1, "a flipped bit"), Compile(Key())),
        (Compile(Key(region="c", fusion=8)), Compile(Key(training=True)), Clear(), Compile(Key(fusion=8))),
    ],
    ids=["damage before", "others in between"],
)
def test_failures_that_a_known_finding_may_cause_are_not_reduced(monkeypatch, before):
    lengths = executed(monkeypatch)
    again = campaign(monkeypatch, FAULTY, (*before, Compile(Key(region="b"))), 1, holding(lambda: [finding(FAULTY)]))

    assert (again.findings, len(again.hits)) == ([], 1)
    assert len(lengths) == 1


def test_steps_that_no_longer_apply_are_dropped_without_running(monkeypatch):
    lengths = executed(monkeypatch)
    campaign(monkeypatch, FAULTY, (Compile(Key()), Compile(Key(region="b")), *[Restart()] * 5), 1)

    assert lengths[0] == 7
    assert max(lengths[1:]) == 2


def test_findings_of_another_shard_are_known_meanwhile(monkeypatch):
    asked = []

    def known():
        asked.append(True)
        return [finding(FAULTY)] if len(asked) > 1 else []

    assert campaign(monkeypatch, FAULTY, LONG, 1, holding(known)).findings == []


def test_a_backend_that_agrees_has_no_findings(monkeypatch):
    assert campaign(monkeypatch, "reference", LONG, 1).hits == {}


def finding(backend, *more):
    signature = Signature("caches", "restart", "a hit where the model says miss", frozenset({"changed:region"}))
    sequence = (
        Compile(Key(passes=("v1", None), timing="default")),
        Damage(1, "a flipped bit"),
        Clear(),
        Compile(Key()),
        Restart(),
    )
    sequence += (*more, Compile(Key(region="b")))
    return SequenceFinding(
        signature, sequence, LONG, "detail", backend=backend, mode="interpret", versions={"torch": "2.13.0"}
    )


def test_a_finding_survives_its_file(tmp_path):
    folder = FindingsFolder(tmp_path)
    script = folder.save(finding(FAULTY, NewProcess(Key())))

    (kept,) = folder
    assert kept == finding(FAULTY, NewProcess(Key()))
    assert "# compile in a new process: plain, region 'a', size 3" in script.read_text()


def test_a_finding_is_replayed(tmp_path):
    FindingsFolder(tmp_path).save(finding(FAULTY))

    assert [main(["replay", str(tmp_path), f"--backend={backend}"]) for backend in (FAULTY, "reference")] == [1, 0]


def test_its_script_exits_with_1_and_says_why(tmp_path, monkeypatch, capsys):
    script = FindingsFolder(tmp_path).save(finding(FAULTY))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "put back")

    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 1
    assert "still fails: oracle 'caches' is violated (restart)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sequence", "features"),
    [
        ([Compile(Key())], set()),
        ([Compile(Key(training=True)), Restart(), Compile(Key(training=True))], {"event:restart", "key:training"}),
        ([Compile(Key(fusion=8, size=7)), Compile(Key(size=7)), Compile(Key())], {"changed:size"}),
        ([Compile(Key()), NewProcess(Key())], {"event:new process"}),
        ([Compile(Key()), Damage(0, "everything lost"), Restart(), Compile(Key(size=7))], {"event:damage"}),
    ],
)
def test_features_tell_sequences_apart(sequence, features):
    assert features_of_sequence(sequence) == features


def test_a_sequence_is_shown_event_by_event():
    shown = finding(FAULTY).text.splitlines()
    assert shown[0].startswith("compile: plain, region 'a'")
    assert shown[1:3] == ["damage file 1: a flipped bit", "clear the cache"]
    assert shown[4] == "restart"


def test_reduction_ends_with_its_time():
    assert reduce_sequence(LONG, lambda shorter: True, seconds=-1) == LONG
    assert reduce_sequence(LONG, lambda shorter: True) == ()
