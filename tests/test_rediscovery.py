"""``bench.rediscovery``: which findings are read as known bugs, and what a campaign may use."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import rediscovery
from bench.known_bug_signatures import OUT_OF_REACH, SIGNATURES, FindingData
from pytest_regional.fuzz.operators.table import operators
from suites.history.known_bugs import all_bugs

FINDING = {
    "backend": "inductor",
    "oracle": "parity",
    "stage": "run",
    "origin": "stride of output, stride of output (second call)",
    "features": ["op:cat_itself"],
    "program": {"arguments": [], "steps": [{"operator": "cat_itself"}]},
}


def folder_with(tmp_path, **changed):
    part = tmp_path / "inductor-native"
    part.mkdir(parents=True)
    (part / "a-finding.json").write_text(json.dumps({**FINDING, **changed}))
    return tmp_path


def recorded(folder, **changed):
    """Write the record of a run into its folder."""
    record = {"part": "inductor-native", "core_seconds": 60.0, "starts": 1, "seed": 5, **changed}
    (folder / "inductor-native.json").write_text(json.dumps(record))
    return folder


def reported(*folders, file=Path("none")):
    return list(rediscovery.report(rediscovery.columns_of(folders, "2.13.0", file), "2.13.0"))


def test_every_known_bug_has_a_signature_or_a_reason():
    names = {bug.name for bug in all_bugs()}

    assert names == {*SIGNATURES, *OUT_OF_REACH}
    assert not set(SIGNATURES) & set(OUT_OF_REACH)


def test_signatures_name_operators_that_are_drawn():
    for name, signature in SIGNATURES.items():
        for wanted in signature.operators or ():
            matching = [operator for operator in operators() if re.fullmatch(wanted, operator)]
            assert matching, f"{name}: no operator matches {wanted!r}"


def test_a_finding_is_read_as_the_bug_that_it_looks_like(tmp_path):
    findings = rediscovery.read(folder_with(tmp_path))

    found = rediscovery.match(findings, all_bugs(), "2.13.0")

    assert found["cat_strides"] == ["a-finding"]
    assert [name for name, names in found.items() if names] == ["cat_strides"]


@pytest.mark.parametrize(
    "changed",
    [
        {"backend": "reference"},  # the table says that it does not have this bug
        {"origin": "value of output"},
        {"program": {"arguments": [], "steps": [{"operator": "sin"}]}},
    ],
)
def test_another_finding_is_no_such_bug(tmp_path, changed):
    findings = rediscovery.read(folder_with(tmp_path, **changed))

    assert not rediscovery.match(findings, all_bugs(), "2.13.0")["cat_strides"]


def test_of_several_bugs_the_one_that_asks_for_most_is_meant():
    """A program that was not reduced holds an ``erf``, and draws that change places when a region is entered again."""
    whole = FindingData("a-finding", "torch", "parity run value of output", frozenset({"erf", "dropout"}), frozenset())
    again = dataclasses.replace(whole, features=frozenset({"region:entered again"}))
    names = {
        one: {
            name
            for name, found in rediscovery.match([one], all_bugs(), "2.15.0").items()
            if found and name in ("erf_near_zero", "draws_change_order")
        }
        for one in (whole, again)
    }
    assert names == {whole: {"erf_near_zero"}, again: {"draws_change_order"}}


def test_a_number_in_the_program_may_be_what_is_large(tmp_path):
    steps = [
        {"operator": "mul_number", "parameters": {"value": 1e20}},
        {"operator": "deviation_of_large", "parameters": {"dim": 0}},
    ]
    shown = {"origin": "nan of output", "program": {"arguments": [], "steps": steps}}
    smaller = {**shown, "program": {"arguments": [], "steps": steps[1:]}}
    for folder, changed, expected in (("large", shown, ["a-finding"]), ("small", smaller, [])):
        findings = rediscovery.read(folder_with(tmp_path / folder, **changed))
        assert rediscovery.match(findings, all_bugs(), "2.13.0")["deviation_of_large_numbers"] == expected


@pytest.mark.parametrize("backend", ["aot_eager", "torch", "reference"])
def test_the_partitioner_is_drawn_where_autograd_is_captured(tmp_path, backend):
    program = {"arguments": [], "steps": [{"operator": "dropout"}], "training": True}
    changed = {"backend": backend, "origin": "draws of random state", "program": program}
    findings = rediscovery.read(folder_with(tmp_path, **changed))
    found = rediscovery.match(findings, all_bugs(), "2.13.0")["dropout_draws_again"]
    assert bool(found) == (backend != "reference")


def test_the_report_counts_by_class_and_lists_what_is_unmatched(tmp_path):
    known = recorded(folder_with(tmp_path / "known"))
    other = recorded(folder_with(tmp_path / "other", origin="something else"))

    lines = reported(known, other)

    assert "| strides | 7 | 7 | 1 | 0 |" in lines
    assert any(re.fullmatch(r"\| all \| \d+ \| \d+ \| 1 \| 0 \|", line) for line in lines)
    assert any(re.fullmatch(r"\| of these, reported by others \| \d+ \| \d+ \| 0 \| 0 \|", line) for line in lines)
    assert "  found cat_strides: a-finding" in lines
    assert any(line.startswith("  no known bug: a-finding: parity run something else") for line in lines)


def test_processor_time_of_children_counts():
    burn = "import time\nwhile time.process_time() < 0.3: pass"  # the kernel counts whole ticks: a little may be lost
    parent = f"import subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {burn!r}])\n"
    parent += "print(flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True)
    try:
        process.stdout.readline()
        assert 0.25 <= rediscovery.processor_seconds(process.pid) < 30
    finally:
        process.kill()
        process.wait()
    assert rediscovery.processor_seconds(process.pid) == 0


def test_a_campaign_ends_when_its_processor_time_is_used(tmp_path, monkeypatch):
    """The process would run for a minute; and one that ends at once is an error, not an endless loop."""
    monkeypatch.setattr(rediscovery, "INTERVAL", 0.1)
    monkeypatch.setattr(rediscovery, "GRACE", 5.0)  # where the interrupt is ignored, as in a job in the background
    tree = tmp_path / "tree"
    tree.mkdir()
    pytest_in_its_place = tree / "pytest.py"
    burn = "import pathlib, time\nwhile time.process_time() < 60: pass\n"
    pytest_in_its_place.write_text(burn + f"pathlib.Path({str(tmp_path / 'ended')!r}).touch()\n")
    part = rediscovery.Part("inductor", "native", 1.0)

    used = rediscovery.run(part, tmp_path / "busy", 0.3, tree=tree, python=sys.executable, seed=1)

    assert used["core_seconds"] < 20
    assert not (tmp_path / "ended").exists()
    pytest_in_its_place.write_text("")
    with pytest.raises(RuntimeError, match="21 campaigns ended"):
        rediscovery.run(part, tmp_path / "idle", 60.0, tree=tree, python=sys.executable, seed=1)


def test_a_run_that_was_ended_goes_on(tmp_path, monkeypatch):
    """What was used counts, its findings stay, and the seeds that follow are of the run's own seed."""
    monkeypatch.setattr(rediscovery, "INTERVAL", 0.1)
    monkeypatch.setattr(rediscovery, "GRACE", 5.0)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "pytest.py").write_text(
        "import sys, time\nprint(sys.argv, flush=True)\nwhile time.process_time() < 60: pass\n"
    )
    part = rediscovery.Part("inductor", "native", 1.0)
    (tmp_path / "inductor-native").mkdir()
    record = tmp_path / "inductor-native.json"
    ended = json.dumps({"part": part.name, "core_seconds": 100.0, "starts": 2, "seed": 7})
    record.write_text(ended)
    (tmp_path / "linked").hardlink_to(record)

    rest = rediscovery.run(part, tmp_path, 100.3, tree=tree, python=sys.executable, seed=5)

    assert 100.3 <= rest["core_seconds"] < 120
    assert json.loads(record.read_text()) == rest
    assert (tmp_path / "linked").read_text() == ended, "a run that is killed while it writes must not lose its record"
    assert "--regional-seed=3007" in (tmp_path / "inductor-native" / "log-3.txt").read_text()
    assert rediscovery.run(part, tmp_path, 100.3, tree=tree, python=sys.executable, seed=5) == rest


def test_no_run_searches_for_what_is_to_blame(tmp_path, monkeypatch):
    monkeypatch.setattr(rediscovery, "INTERVAL", 0.05)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "pytest.py").write_text("import sys\nprint(sys.argv, flush=True)\nwhile True: pass\n")
    rediscovery.run(rediscovery.PARTS[0], tmp_path, 0.5, tree=tree, python=sys.executable, seed=5)
    assert "--regional-blame=off" in (tmp_path / "aot_eager-native" / "log-1.txt").read_text()


def test_what_a_run_found_is_kept_in_a_file(tmp_path):
    """A file says the same as the folder; a later call replaces what an earlier one kept of the same campaign."""
    folder, file = folder_with(tmp_path / "run"), tmp_path / "kept.jsonl"
    for seconds in (60.0, 120.0):
        rediscovery.keep(recorded(folder, core_seconds=seconds), "2.13.0", "today", file)
    (kept,) = rediscovery.kept(file)
    assert (kept.torch, kept.generator, kept.part, kept.seed) == ("2.13.0", "today", "inductor-native", 5)
    assert kept.core_seconds == 120.0
    assert [*kept.findings] == rediscovery.read(folder) != []

    rediscovery.keep(recorded(folder, seed=6), "2.13.0", "today", file)
    rediscovery.keep(folder, "2.13.0", "yesterday", file)
    rediscovery.keep(folder, "2.11.0", "today", file)
    columns = rediscovery.columns_of([folder], "2.13.0", file)
    assert {name: [one.seed for one in run] for name, run in columns.items()} == {
        "today": [5, 6],
        "yesterday": [6],
        "run": [6],
    }
    assert "  found cat_strides: a-finding, a-finding" in reported(file=file)


def test_the_kept_campaigns_are_those_of_the_record():
    """docs/history.md counts them."""
    found = {
        (version, name): sum(one.core_seconds for one in run) / 60
        for version in ("2.11.0", "2.13.0", "2.15.0")
        for name, run in rediscovery.columns_of([], version).items()
    }
    assert {minutes > 59 for minutes in found.values()} == {True}
    assert {name for _, name in found} == {"before", "2026-11-27", "2026-11-28", "2026-11-30"}


def test_what_was_found_within_a_part_of_the_budget(tmp_path):
    """A share of the budget is each part's own; the campaigns of a part follow each other; unknown times are late."""
    folder, run = folder_with(tmp_path / "run"), []
    for seed, found_after in ((5, {"a-finding": 200.0}), (6, {"a-finding": 10.0}), (7, {})):
        times = {**found_after, "without-a-file": 1.0}
        run += rediscovery.campaigns(recorded(folder, core_seconds=300.0, seed=seed, found_after=times))

    share = next(part.share for part in rediscovery.PARTS if part.name == "inductor-native")
    counts = {
        seconds: len(rediscovery.found_within(run, seconds / 60 / share))
        for seconds in (198, 200, 308, 310, 601, 898, 900)
    }

    assert counts == {198: 0, 200: 1, 308: 1, 310: 2, 601: 2, 898: 2, 900: 3}


def test_the_report_says_how_many_were_found_in_parts_of_the_budget(tmp_path):
    folder = folder_with(tmp_path / "run")
    written = {}
    for name, found_after in {"early": {"a-finding": 100.0}, "late": {"a-finding": 400.0}, "unknown": {}}.items():
        recorded(folder, core_seconds=900.0, found_after=found_after)
        written[name] = [line for line in reported(folder) if "core-minutes" in line]

    assert written == {
        "early": ["  in 15 core-minutes: 1"],
        "late": ["  in 15 core-minutes: 0"],
        "unknown": [],
    }, "a part has its share of 15 minutes, and 30 were not used"


def test_what_is_saved_when_the_budget_is_spent_counts_at_its_end(tmp_path):
    folder = folder_with(tmp_path / "run")
    (folder / "inductor-native" / "late.json").write_text(json.dumps(FINDING))
    recorded(folder, core_seconds=900.6, found_after={"a-finding": 400.0})
    run = rediscovery.campaigns(folder)
    counts = {minutes: len(rediscovery.found_within(run, minutes)) for minutes in (20, 30, 59, 60)}
    assert counts == {20: 0, 30: 1, 59: 1, 60: 2}
    assert "  in 15 core-minutes: 0" in reported(folder)


def test_a_run_notes_when_it_found_something(tmp_path, monkeypatch):
    monkeypatch.setattr(rediscovery, "GRACE", 5.0)
    monkeypatch.setattr(rediscovery, "INTERVAL", 0.1)
    tree = tmp_path / "tree"
    tree.mkdir()
    part = rediscovery.Part("inductor", "native", 1.0)
    (tree / "pytest.py").write_text(
        "import pathlib, time\n"
        "while time.process_time() < 0.5: pass\n"
        f"pathlib.Path({str(tmp_path / part.name / 'one.json')!r}).write_text('')\n"
        f"pathlib.Path({str(tmp_path / part.name / 'corpus.json')!r}).write_text('')\n"
        f"record = pathlib.Path({str(tmp_path / f'{part.name}.json')!r})\n"
        "for _ in range(2000):\n"
        "    if 'one' in record.read_text(): break\n"
        "    time.sleep(0.01)\n"
        "while time.process_time() < 60: pass\n"
    )
    used = rediscovery.run(part, tmp_path, 1.0, tree=tree, python=sys.executable, seed=5)
    assert list(used["found_after"]) == ["one"]
    assert 0.4 <= used["found_after"]["one"] < 1
