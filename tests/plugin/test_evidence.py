"""``--regional-report=DIR/``: of each failed test its trace, generated code, failure and command."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from pytest_regional._base.errors import CampaignError
from pytest_regional.harness.record import GeneratedSource
from pytest_regional.plugin import environment
from pytest_regional.plugin.evidence import Evidence

from .conftest import in_a_process

SOURCE = """
    import os

    @pytest.mark.regional_compile
    def test_right(regional):
        regional.assert_parity(block, *pair(regional))

    @pytest.mark.regional_compile
    def test_wrong(regional):
        regional.compile(block)(*pair(regional))
        assert not "wrong"

    @pytest.mark.regional_compile
    def test_vacuous(regional):
        pass
"""

RUN = ("--regional-backend=reference", "--regional-device=cpu", "--regional-report=kept/")


def kept(pytester):
    """Return the directory of each test by a part of its name."""
    return {
        path.name.partition("test_it.py-")[2].rpartition("-")[0]: path for path in (pytester.path / "kept").iterdir()
    }


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def traced(folder):
    """Return what the events of a test's trace are called: ``dynamo_output_graph`` and others."""
    (log,) = (folder / "trace").iterdir()
    assert log.name.startswith("dedicated_log_torch_trace_")  # where tlparse looks
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("V")]
    return {name for line in lines for name in json.loads(line.partition("] ")[2])}


def test_a_failed_test_leaves_what_a_person_needs(downstream, pytester):
    result = downstream(SOURCE, *RUN)
    result.assert_outcomes(passed=1, failed=2)
    folders = kept(pytester)
    assert set(folders) == {"test_wrong", "test_vacuous"}
    wrong = folders["test_wrong"]
    assert names(wrong) == ["code", "failure.txt", "rerun.txt", "test.json", "trace"]
    assert {"dynamo_output_graph", "inductor_output_code"} <= traced(wrong)
    assert names(wrong / "code") == ["00-inference-mlp.py"]
    assert "extern_kernels.mm" in (wrong / "code" / "00-inference-mlp.py").read_text(encoding="utf-8")
    assert 'assert not "wrong"' in (wrong / "failure.txt").read_text(encoding="utf-8")
    assert "test_it.py::test_wrong" in (wrong / "rerun.txt").read_text(encoding="utf-8")
    assert json.loads((wrong / "test.json").read_text(encoding="utf-8"))["outcome"] == "failed"
    assert names(folders["test_vacuous"]) == ["failure.txt", "rerun.txt", "test.json"]


def test_the_trace_is_in_no_log_and_without_the_directory_there_is_none(downstream, pytester):
    asked = downstream(SOURCE, *RUN)
    plain = downstream(SOURCE, *RUN[:2])
    for result in (asked, plain):
        result.stdout.no_fnmatch_line("*captured log*")
        result.stdout.no_fnmatch_line("*torch.__trace*")
    assert set(names(pytester.path)) - {"__pycache__"} == {"kept", "program.py", "test_it.py"}


def test_of_an_earlier_run_nothing_is_mixed_in(downstream, pytester):
    downstream(SOURCE, *RUN)
    (kept(pytester)["test_wrong"] / "old.txt").touch()
    (pytester.path / "kept" / "mine.txt").touch()
    downstream(SOURCE, *RUN)
    assert not (kept(pytester)["test_wrong"] / "old.txt").exists()
    assert (pytester.path / "kept" / "mine.txt").exists()


def evidence_of(process, run, kept):
    """Return what holds the evidence of a process of a run whose folder is ``run``."""
    config = SimpleNamespace(stash={environment.FOLDER: run / process}, rootpath=kept.parent)
    settings = SimpleNamespace(reports=SimpleNamespace(directories=(kept,)))
    return Evidence(SimpleNamespace(config=config, settings=settings))


FACT = {
    "test": "test_it.py::test_wrong",
    "backend": "reference",
    "device": "cpu",
    "outcome": "crashed",
    "failure": "crashed while running",
}


def test_a_trace_is_copied_from_the_process_that_wrote_it(tmp_path):
    folder = evidence_of("gw0", tmp_path / "run", tmp_path / "kept").trace_folder(FACT["test"])
    folder.mkdir(parents=True)
    (folder / "dedicated_log_torch_trace_1.log").touch()
    evidence_of("main", tmp_path / "run", tmp_path / "kept").write([FACT])
    (kept,) = (tmp_path / "kept").iterdir()
    assert names(kept) == ["failure.txt", "test.json", "trace"]
    assert names(kept / "trace") == ["dedicated_log_torch_trace_1.log"]


def test_of_a_fuzz_test_the_code_of_its_finding_is_kept(tmp_path):
    """And not that of the programs which it checked before or after it."""
    wrong, *others = (
        GeneratedSource("inference", ("mlp",), f"\n\ndef call(args): {n}", loaded=False) for n in range(99)
    )
    regional = SimpleNamespace(observer=SimpleNamespace(sources=[*others]))
    evidence = evidence_of("main", tmp_path / "run", tmp_path / "kept")
    (line,) = evidence.code_at_fault(FACT, CampaignError("1 new finding", {"a-finding": [wrong]}), regional)
    evidence.write([FACT])
    (kept,) = (tmp_path / "kept").iterdir()
    assert names(kept / "code") == ["00-inference-mlp.py"]
    assert (kept / "code" / "00-inference-mlp.py").read_text() == wrong.text
    assert line == {
        "path": str(kept / "code" / "00-inference-mlp.py"),
        "file": f"kept/{kept.name}/code/00-inference-mlp.py",
        "line": 3,
        "what": "the code of the inference graph, regions mlp of finding a-finding",
        "finding": "a-finding",
    }


@pytest.mark.slow(
    "starts runs with two workers, which import torch",
    fast="test_a_trace_is_copied_from_the_process_that_wrote_it",
)
def test_a_test_that_takes_its_worker_with_it_leaves_its_trace(repository, pytester):
    repository(SOURCE.replace('assert not "wrong"', "os.kill(os.getpid(), 9)"))
    in_a_process(pytester, *RUN, "-n1", "-p", "no:randomly").assert_outcomes(passed=1, failed=2)
    wrong = kept(pytester)["test_wrong"]
    assert "dynamo_output_graph" in traced(wrong)
    assert "crashed while running" in (wrong / "failure.txt").read_text(encoding="utf-8")


def test_a_name_that_is_a_file_is_a_usage_error(downstream, pytester):
    result = downstream(SOURCE, *RUN[:2], "--regional-report=program.py/")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--regional-report*program.py*is not a writable directory*"])


def test_a_directory_that_cannot_be_written_in_the_end_fails_the_run_and_says_why(downstream):
    source = (
        SOURCE
        + """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_takes_the_name():
        open("kept", "w").close()
    """
    )
    result = downstream(source, *RUN)
    result.stdout.fnmatch_lines(["--regional-report: */kept could not be written: *"])
    assert os.path.isfile("kept")
