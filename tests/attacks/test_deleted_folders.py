"""A test that removes folders which others need: it is named, and the others run."""

from __future__ import annotations

import pytest

from .runs import run

#: What a test removes; behind each another test compiles and asks for folders.
REMOVED = {
    "run": "os.environ['PYTEST_REGIONAL_FOLDER']",
    "process": "os.path.dirname(os.path.dirname(os.environ['TORCHINDUCTOR_CACHE_DIR']))",
    "all_tests": "os.path.dirname(os.environ['TORCHINDUCTOR_CACHE_DIR'])",
    "notes": "regional.folder.parents[2] / 'fuzzing'",
    "temporary": "tempfile.gettempdir()",
    "of_pytest": "tmp_path.parent.parent",
    "working": "os.getcwd()",
}
#: What names the test: folders below the process's own are made by whoever needs them.
NAMED = {"run", "process", "temporary", "of_pytest", "working"}

#: Another process, the one that reports, may write a file while the directory is emptied: then again.
REMOVE = """
def remove(folder):
    for _ in range(10):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
    shutil.rmtree(folder)
"""
SOURCE = """
@marked
def test_removes_{name}(regional, tmp_path):
    remove({folder})

@marked
@pytest.mark.parametrize("n", [2, 3])
def test_behind_{name}(regional, tmp_path, n):
    assert os.path.isdir(os.getcwd())
    (tmp_path / "file").write_text("")
    regional.reset()
    regional.assert_parity(torch.sin, regional.randn(n))
"""
#: A worker that replaces one begins while nothing is there.
DIES = """
@marked
def test_dies(regional):
    remove(tempfile.gettempdir())
    os.kill(os.getpid(), signal.SIGKILL)
"""
TEARDOWN = """
@pytest.fixture
def removes():
    yield
    remove(os.environ["PYTEST_REGIONAL_FOLDER"])

@marked
def test_teardown(removes, regional):
    pass

@marked
def test_behind_teardown(regional):
    regional.assert_parity(torch.sin, regional.randn(2))
"""


@pytest.fixture(scope="module", params=[(), ("-n1",)], ids=["serial", "n1"])
def ended(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    tests = "".join(SOURCE.format(name=name, folder=removed) for name, removed in REMOVED.items())
    return run(folder, REMOVE + tests + TEARDOWN + (DIES if request.param else ""), *request.param), bool(request.param)


def test_all_others_end_as_they_should(ended):
    run, with_workers = ended
    outcomes = dict.fromkeys((f"test_removes_{name}" for name in REMOVED), "passed")
    outcomes |= {f"test_behind_{name}[{n}]": "passed" for name in REMOVED for n in (2, 3)}
    outcomes |= {"test_teardown": "passed", "test_behind_teardown": "passed"}
    outcomes |= {"test_dies": "crashed"} if with_workers else {}
    assert run.ended == outcomes
    assert run.in_junit == set(outcomes)
    assert all(name in run.page for name in outcomes)
    assert run.left == []
    assert (run.status, "INTERNALERROR" in run.printed) == (int(with_workers), False)
    run.lines.no_fnmatch_line("*regional reporting errors*")


@pytest.mark.parametrize("name", [*sorted(NAMED), "teardown"])
def test_the_test_that_removed_it_is_named(ended, name):
    test = "test_teardown" if name == "teardown" else f"test_removes_{name}"
    ended[0].lines.fnmatch_lines([f"*RegionalLeakWarning: *removed while *test_it.py::{test} ran*(made again, empty)*"])
