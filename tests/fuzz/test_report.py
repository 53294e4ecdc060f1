"""What the summary says of several shards."""

from pytest_regional.report import fuzzing


class Reporter:
    def __init__(self):
        self.lines = []

    def section(self, title, **how):
        self.lines.append(title)

    def write_line(self, line, **how):
        self.lines.append(line)


def finding(name, steps):
    return {"name": name, "title": f"title of {name}", "size": steps, "first_seen": 3, "script": f"{name}-{steps}.py"}


def fact(shard, findings=(), **fuzz):
    numbers = {
        "examples": 10,
        "passed_over": 0,
        "bad": 0,
        "interrupted": False,
        "seconds": 5.0,
        "reducing": 0.0,
        "met": {},
        **fuzz,
    }
    return {
        "backend": "torch",
        "device": "cpu",
        "suite": "fuzz/programs",
        "fuzz": {"lane": "structure", "unit": "program", "shard": shard, "findings": list(findings), **numbers},
    }


def written(*facts, notes):
    reporter = Reporter()
    fuzzing.write(reporter, facts, notes)
    return reporter.lines


def test_what_several_shards_found_is_told_once_with_the_smallest_program(tmp_path):
    lines = written(
        fact(0, [finding("one", 4)], met={"one": 2, "known": 1}, seconds=4.0, reducing=2.0),
        fact(1, [finding("one", 2), finding("two", 1)], met={"one": 1, "two": 1}, passed_over=7, bad=1),
        notes=tmp_path,
    )

    assert lines == [
        "regional fuzzing",
        "torch (cpu), fuzz/programs, lane structure: 20 programs in 5 s (5.71 a second), 5 failed, 2 new findings, "
        "7 passed over as known, 1 that eager refuses",
        "  one: title of one",
        "    2 steps, first seen at program 3, met 3 times: one-2.py",
        "  two: title of two",
        "    1 step, first seen at program 3, met 1 times: two-1.py",
    ]


def test_nothing_is_said_where_nothing_was_fuzzed(tmp_path):
    assert written({**fact(0), "fuzz": None}, notes=tmp_path / "nowhere") == []


def test_a_note_that_was_left_is_a_crash(tmp_path):
    (tmp_path / "judging-full-0-1.json").write_text("the program")

    assert written(notes=tmp_path) == [
        "regional fuzzing",
        "the process died while it judged this program:\nthe program",
    ]
