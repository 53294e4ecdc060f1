"""Suites of an installed package, run with ``--pyargs``: ids, known failures and lines that run a test again."""

from __future__ import annotations

import json
import shlex

import pytest

from .conftest import in_a_process
from .test_rerun import rerun_lines

TEST = """
import pytest

@pytest.mark.regional_compile(expects_regions=False)
def test_parity(regional):
    assert regional.randn(1).item() > 100, f"drew {regional.randn(1).item()}"
"""
RUN = ("--pyargs", "--regional-backend=aot_eager", "--regional-device=cpu", "-p", "no:cacheprovider")


@pytest.fixture
def installed(pytester):
    """Two packages outside of pytest's root directory, one of them this one's suites as a wheel installs them.

    The package ``pytest_regional`` has a second folder, in which they are.
    """
    for suites in ("elsewhere/theirs", "wheel/pytest_regional/suites"):
        for folder in (pytester.path / suites / "one", pytester.path / suites / "other"):
            folder.mkdir(parents=True)
            (folder / "test_it.py").write_text(TEST)
            for package in (folder, folder.parent):
                (package / "__init__.py").touch()
    (pytester.path / "wheel" / "pytest_regional" / "__init__.py").touch()
    root = pytester.path / "root"
    root.mkdir()
    (root / "pytest.ini").write_text("[pytest]\npythonpath = ../elsewhere\n")
    (root / "conftest.py").write_text(
        f"import pytest_regional\npytest_regional.__path__.append({str(pytester.path / 'wheel' / 'pytest_regional')!r})\n"
    )
    pytester.chdir()
    pytester._path = root
    return root


@pytest.mark.parametrize(("package", "prefix"), [("theirs", "theirs"), ("pytest_regional.suites", "suites")])
def test_ids_name_the_file_and_the_line_runs_the_test_again(pytester, installed, package, prefix):
    files = [f"{prefix}/{folder}/test_it.py" for folder in ("one", "other")]
    for arguments in ([package], [f"{package}.one.test_it", f"{package}.other.test_it"]):
        result = in_a_process(pytester, *RUN, *arguments, "--regional-report=r.json", "-rf")
        result.assert_outcomes(failed=2)
        tests = json.loads((installed / "r.json").read_text())["tests"]
        assert sorted(one["test"] for one in tests) == [f"{file}::test_parity" for file in files], arguments
    line = min(rerun_lines(result))
    assert line.startswith(f"python -m pytest --pyargs {package}.one.test_it::test_parity ")
    again = in_a_process(pytester, *shlex.split(line.removeprefix("python -m pytest")))
    again.assert_outcomes(failed=1)
    drawn = [{one for one in each.outlines if one.startswith("E ") and "drew" in one} for each in (result, again)]
    assert len(drawn[1]) == 1
    assert drawn[1] < drawn[0]


@pytest.mark.slow("runs two suites, in processes", fast="test_a_line_that_matches_nothing_is_an_error")
def test_lines_of_known_failures_match_as_in_a_clone(pytester, installed):
    (installed / "known.txt").write_text("aot_eager | suites/one/test_it.py::test_* | draws little | here\n")
    for what in ("pytest_regional.suites", "pytest_regional.suites.one.test_it"):
        result = in_a_process(pytester, *RUN, what, "--regional-known-failures=known.txt")
        result.assert_outcomes(xfailed=1, failed=int(what == "pytest_regional.suites"))


def test_a_line_that_matches_nothing_is_an_error(pytester, installed):
    (installed / "known.txt").write_text("aot_eager | suites/one/test_it.py::test_gone | draws little | here\n")
    result = in_a_process(pytester, *RUN, "pytest_regional.suites.one", "--regional-known-failures=known.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'suites/one/test_it.py::test_gone' matches no test*"])


def test_files_beside_the_root_directory_have_their_paths(pytester, installed):
    for folder in ("one", "other"):
        (pytester.path.parent / folder).mkdir()
        (pytester.path.parent / folder / "test_it.py").write_text(TEST)
    result = in_a_process(
        pytester, *RUN[1:], "--rootdir=.", "--import-mode=importlib", "../one/test_it.py", "../other/test_it.py", "-rf"
    )
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines_random([f"FAILED ../{folder}/test_it.py::test_parity*" for folder in ("one", "other")])
