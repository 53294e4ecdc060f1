"""What the summary says of several shards."""

import subprocess
import sys
import time

from pytest_regional._base.limits import crash_marker
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.report import terminal


class Reporter:
    def __init__(self):
        self.lines = []

    def section(self, title, **how):
        self.lines.append(title)

    def write_line(self, line, **how):
        self.lines.append(line)


def finding(name, steps):
    return {
        "name": name,
        "title": f"title of {name}",
        "size": steps,
        "discovered_at": 3,
        "script": f"{name}-{steps}.py",
    }


def fact(shard, findings=(), mode="interpret", **fuzz):
    numbers = {
        "examples": 10,
        "skipped_known": 0,
        "refused": {},
        "unclaimed": {},
        "unconfirmed": {},
        "interrupted": False,
        "seconds": 5.0,
        "reducing": 0.0,
        "hits": {},
        **fuzz,
    }
    return {
        "backend": "torch",
        "device": "cpu",
        "suite": "fuzz/programs",
        "fuzz": {"unit": "program", **numbers, "mode": mode, "shard": shard, "findings": list(findings)},
    }


def written(*facts, notes):
    reporter = Reporter()
    terminal.write_fuzzing(reporter, facts, notes, since=0.0)
    return reporter.lines


def test_findings_of_several_shards_are_reported_once_with_the_smallest_program(tmp_path):
    lines = written(
        fact(0, [finding("one", 4)], hits={"one": 2, "known": 1}, seconds=4.0, reducing=2.0),
        fact(
            1,
            [finding("one", 2), finding("two", 1)],
            hits={"one": 1, "two": 1},
            skipped_known=7,
            refused={"forward: no": 1},
            unclaimed={"backward": 2},
        ),
        notes=tmp_path,
    )

    assert lines == [
        "regional fuzzing",
        "torch (cpu), fuzz/programs, mode interpret: 20 programs in 5 s (5.71 a second beside 1 s of reducing), "
        "5 failed, 2 new findings, 7 skipped as known, 1 that eager refuses",
        "  2 not checked: they need backward, which the backend disclaims",
        "  1 refused by eager and skipped: forward: no",
        "  one: title of one",
        "    2 steps, discovered at program 3, 3 hits: one-2.py",
        "  two: title of two",
        "    1 step, discovered at program 3, 1 hit: two-1.py",
    ]


def test_what_one_mode_alone_shows_is_counted_apart(tmp_path):
    lines = written(
        fact(0, mode="graph", unconfirmed={"plan (compile): why": 2}), fact(1, mode="graph"), notes=tmp_path
    )
    assert lines[1:] == [
        "torch (cpu), fuzz/programs, mode graph: 20 programs in 5 s (4 a second), 0 failed, 0 new findings, "
        "only mode graph: 2",
        "  2 that Dynamo's path does not show, so no finding: plan (compile): why",
    ]


def test_programs_and_sequences_of_one_file_are_counted_apart(tmp_path):
    lines = written(fact(0), fact(0, unit="sequence", examples=3), fact(1), notes=tmp_path)
    assert [line.split(" in ")[0] for line in lines[1:]] == [
        "torch (cpu), fuzz/programs, mode interpret: 20 programs",
        "torch (cpu), fuzz/programs, mode interpret: 3 sequences",
    ]


def test_nothing_is_said_where_nothing_was_fuzzed(tmp_path):
    assert written({**fact(0), "fuzz": None}, notes=tmp_path / "nowhere") == []


PROGRAM = Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)


def test_the_program_that_a_process_died_of_is_shown(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    note = crash_marker(tmp_path, "full-0")
    assert written(notes=tmp_path) == []  # nothing is there
    files.save(PROGRAM, note)
    assert written(notes=tmp_path) == []  # this process lives

    note = note.rename(note.with_name(f"full-0-{ended.pid}.json"))
    title, sentence, source = written(notes=tmp_path)
    assert (title, sentence) == ("regional fuzzing", f"a process died while it checked the program in {note}:")
    assert "torch.neg(x0)" in source


def test_crashes_of_an_earlier_run_are_reported_when_fuzzing(tmp_path):
    note = crash_marker(tmp_path, "full-0")
    note = note.with_name("full-0-broken.json")
    note.write_text("{}")
    reporters = Reporter(), Reporter()
    for reporter, facts in zip(reporters, ([], [fact(0)]), strict=True):
        terminal.write_fuzzing(reporter, facts, tmp_path, since=time.time() + 9)

    assert reporters[0].lines == []
    assert "version None" in reporters[1].lines[-1]
