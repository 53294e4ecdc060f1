"""Machines unlike ours: no place to write, a locale without UTF-8, files of other editors."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_regional
from pytest_regional._base.errors import RegionalRuntimeError, RegionalValueError
from pytest_regional._torch import inductor
from pytest_regional.backends.registry import ProjectFile
from pytest_regional.harness.process import run_interpreter
from pytest_regional.plugin import settings
from pytest_regional.plugin.marks import KnownFailures
from pytest_regional.report.document import RunReport

PACKAGE = Path(pytest_regional.__file__).parent


# A root folder that cannot be written to


@pytest.fixture
def read_only(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Say of the root folder that it cannot be written to; who runs these tests may be root, whom nothing stops."""
    real = os.access
    root = str(pytester.path)
    monkeypatch.setattr(
        os, "access", lambda path, mode, **more: not str(path).startswith(root) and real(path, mode, **more)
    )
    return pytester.path


def test_only_findings_that_were_asked_for_have_to_be_writable(pytester: pytest.Pytester, read_only: Path) -> None:
    config = pytester.parseconfig("--regional-backend=aot_eager", "--regional-fuzz=5")
    assert settings.resolve(config).findings == read_only / "regional-findings"
    config = pytester.parseconfig("--regional-backend=aot_eager", "--regional-findings=found")
    with pytest.raises(pytest.UsageError, match=r"--regional-findings: .*found cannot be written"):
        settings.resolve(config)


# Encodings


def _without_encoding(path: Path) -> Iterator[str]:
    """Yield the calls in a source file that read or write text in whatever encoding the locale has."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        values = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        modes = [value for value in (*values, getattr(keywords.get("mode"), "value", None)) if isinstance(value, str)]
        binary = any("b" in mode and len(mode) <= 3 for mode in modes)
        texts = name in ("read_text", "write_text") or (name in ("open", "fdopen") and not _is_no_file(node, name))
        streams = any(getattr(keywords.get(key), "value", None) is True for key in ("text", "universal_newlines"))
        positional = name == "read_text" and values
        if ((texts and not binary) or streams) and "encoding" not in keywords and not positional:
            yield f"{path}:{node.lineno}"


def _is_no_file(node: ast.Call, name: str) -> bool:
    owner = getattr(getattr(node.func, "value", None), "id", "")
    return name == "open" and owner in ("os", "self", "opening")


def test_every_text_has_its_encoding() -> None:
    assert [place for path in sorted(PACKAGE.rglob("*.py")) for place in _without_encoding(path)] == []


def test_the_check_of_encodings_sees(tmp_path: Path) -> None:
    calls = ("open(p, 'w')", "Path(p).read_text()", "p.write_text(t)", "run(c, text=True)", "p.open('a')")
    (tmp_path / "it.py").write_text("\n".join(calls), encoding="utf-8")
    assert len(list(_without_encoding(tmp_path / "it.py"))) == len(calls)


FOREIGN = """
import pytest

@pytest.mark.regional_compile(expects_regions=False)
@pytest.mark.parametrize("what", ["\\u2603", "\\xe9"])
def test_snow(regional, what):
    print("gedr\\xfcckt")
    assert what == "\\u2603", f"it is {what}"
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}


def test_an_inductor_that_this_locale_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot_read(name: str) -> None:
        raise UnicodeDecodeError("ascii", b"\xe9", 0, 1, "ordinal not in range(128)")

    monkeypatch.setattr(importlib, "import_module", cannot_read)
    with pytest.raises(RegionalRuntimeError, match=r"as ascii, this locale's encoding\. Set PYTHONUTF8=1"):
        inductor.import_compilers.__wrapped__()


@pytest.mark.slow("two interpreters in another locale", fast="test_an_inductor_that_this_locale_cannot_read")
def test_a_locale_without_utf8(pytester: pytest.Pytester) -> None:
    """Files are UTF-8 all the same, nothing that is printed stops the run, and where PyTorch gives up it says why."""
    (pytester.path / "test_it.py").write_text(FOREIGN, encoding="utf-8")
    known = "aot_eager | test_it.py::test_snow*xe9* | weiß nicht | https://x\n"
    (pytester.path / "known.txt").write_text(known, encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=pytester.path,
            env={**os.environ, **ASCII},
            capture_output=True,
            check=False,
        )
        return done.returncode, (done.stdout + done.stderr).decode("ascii")

    reports = "--regional-report=report.html,report.json"
    known_failures = "--regional-known-failures=known.txt"
    status, said = run("pytest", "-p", "no:randomly", "-rxf", "--regional-backend=aot_eager", reports, known_failures)
    assert status == 0 or "RegionalRuntimeError: PyTorch's Inductor cannot be imported" in said, said
    assert "regional reporting errors" not in said
    assert "wei\\xdf nicht" in said
    assert "snow" in (pytester.path / "report.html").read_text(encoding="utf-8")
    assert len(RunReport.read(pytester.path / "report.json").tests) == 2
    status, said = run("pytest_regional", "merge", "report.json", "--output=merged.json")
    assert (status, said) == (0, "merged.json: 2 tests of 1 report\n")


def test_output_of_a_new_process_is_read_in_any_locale(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text("print('gedr\\xfcckt \\u2603 \\udcff')", encoding="utf-8")
    environment = {**os.environ, **ASCII, "PYTHONPATH": str(tmp_path)}
    done = run_interpreter("says", [], environment, 60)
    assert done.stdout == "gedr\xfcckt ☃ \\udcff\n"


# Files that people write


LINE = b"aot_eager | test_it.py::test_a | why | https://example.org\n"
WRITTEN: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (LINE + LINE + b"aot_eager | x | gr\xfcn | y\n", r":3: b'\\xfc' is not UTF-8"),
    "UTF-16": (LINE.decode().encode("utf-16"), r":1: a zero byte"),
    "a zero byte": (LINE + b"\r\n" + LINE + b"a\0", r":4: a zero byte"),
    "cut in a character": (LINE + "\N{SNOWMAN}".encode()[:2], r":2: .* is not UTF-8"),
    "three fields": (LINE + b"\r\naot_eager | b | c", r":3: expected 'backend"),
}


def test_known_failures_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "known.txt"
    for content, said in WRITTEN.values():
        file.write_bytes(content)
        with pytest.raises(pytest.UsageError, match=rf"known\.txt{said}"):
            KnownFailures.read([file], {"aot_eager"})
    file.unlink()
    with pytest.raises(pytest.UsageError, match=r"known failures: cannot read .*known\.txt: "):
        KnownFailures.read([file], {"aot_eager"})


def test_known_failures_of_other_editors(tmp_path: Path) -> None:
    for content in (b"\xef\xbb\xbf" + LINE, LINE.replace(b"\n", b"\r\n"), b"# \xe2\x80\xa8 x\x0c\n" + LINE):
        (tmp_path / "known.txt").write_bytes(content)
        (line,) = KnownFailures.read([tmp_path / "known.txt"], {"aot_eager"}).lines
        assert (line.backend, line.link) == ("aot_eager", "https://example.org"), content


PROJECTS: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (b"[tool]\nx = '\xfc'\n", r":2: b'\\xfc' is not UTF-8"),
    "a zero byte": (b"[tool]\n\0", ":2: a zero byte"),
    "no TOML": (b"[tool\n", ": .*line 1"),
    "a backend that is none": (b"[tool.pytest-regional]\nbackends = 1", "expected a table for each backend"),
}


def test_a_project_file_that_is_none(tmp_path: Path) -> None:
    for content, said in PROJECTS.values():
        (tmp_path / "pyproject.toml").write_bytes(content)
        with pytest.raises(RegionalValueError, match=rf"pyproject\.toml.*{said}"):
            ProjectFile.read(tmp_path)


def test_a_project_file_of_other_editors(tmp_path: Path) -> None:
    given = b"\xef\xbb\xbf[tool.pytest-regional.backends.a]\r\ndisclaims = { rng = 'no' }\r\n"
    for content, found in ((given, {"a": {"rng": "no"}}), (b"tool = 1", {}), (b"", {})):
        (tmp_path / "pyproject.toml").write_bytes(content)
        assert ProjectFile.read(tmp_path).disclaimed == found
