"""Machines unlike ours: no place to write, relative folders, a locale without UTF-8, files of other editors."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytest_regional
from pytest_regional import _config, _environment, _text
from pytest_regional._known_failures import KnownFailures
from pytest_regional.backends.registry import ProjectFile, ProjectFileError
from pytest_regional.harness import process
from pytest_regional.report.document import RunReport

PACKAGE = Path(pytest_regional.__file__).parent


@pytest.fixture(autouse=True)
def environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a run sets, as these configurations are never ended."""
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())


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


@pytest.mark.parametrize(
    "arguments", [(), ("--regional-seed=1",), ("--regional-fuzz=5",), ("--regional-timeout=5",), ("-q",)]
)
def test_default_findings_may_be_unwritable(
    pytester: pytest.Pytester, read_only: Path, arguments: tuple[str, ...]
) -> None:
    config = pytester.parseconfig("--regional-backend=aot_eager", *arguments)
    assert _config.resolve(config).findings == read_only / "regional-findings"


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize("source", ["option", "ini"])
def test_requested_findings_that_cannot_be_written_are_an_error(pytester: pytest.Pytester, source: str) -> None:
    pytester.makeini("[pytest]\n" + ("regional_findings = found\n" if source == "ini" else ""))
    arguments = ["--regional-findings=found"] if source == "option" else []
    config = pytester.parseconfig("--regional-backend=aot_eager", *arguments)
    with pytest.raises(pytest.UsageError, match=r"--regional-findings: .*found cannot be written"):
        _config.resolve(config)


def test_a_campaign_that_cannot_keep_its_findings_says_so(pytester: pytest.Pytester) -> None:
    from pytest_regional.fuzz.budget import Budget
    from pytest_regional.fuzz.fuzz_test import FuzzTest

    (pytester.path / "regional-findings").write_text("in the way", encoding="utf-8")
    fuzz = FuzzTest.__new__(FuzzTest)
    fuzz.folder, fuzz.budget = pytester.path / "regional-findings", Budget(1)
    with pytest.raises(pytest.fail.Exception, match=r"cannot be written: File exists.*--regional-findings=DIR"):
        fuzz._made_folder()


# Folders for temporary files


@pytest.fixture
def prepared(pytester: pytest.Pytester) -> Iterator[Callable[[], pytest.Config]]:
    configs = []

    def prepare() -> pytest.Config:
        config = pytester.parseconfig()
        configs.append(config)
        _environment.prepare(config)
        return config

    yield prepare
    for config in configs:
        config._ensure_unconfigure()


@pytest.mark.parametrize("given", [".", "below", "./below/../below", ""])
def test_a_relative_folder_for_temporary_files(
    prepared: Callable[[], pytest.Config], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    pytester.mkdir("below")
    for name in ("TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", given)
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = tempfile.gettempdir()
    folder = prepared().stash[_environment.FOLDER]
    assert folder.is_absolute()
    assert Path(os.environ[_environment.FOLDER_VARIABLE]).is_absolute()
    assert Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).is_absolute()
    assert not given or os.path.isabs(os.environ["TMPDIR"])
    assert os.path.isabs(tempfile.gettempdir())
    assert os.path.samefile(tempfile.gettempdir(), before)


@pytest.mark.parametrize("make", [None, Path.touch])
def test_no_folder_for_temporary_files(
    prepared: Callable[[], pytest.Config],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None] | None,
) -> None:
    folder = pytester.path / "no\x1b[2Jfolder"
    if make:
        make(folder)
    monkeypatch.setenv("TMPDIR", str(folder))
    with pytest.raises(pytest.UsageError, match=r"TMPDIR=.*no\\x1b\[2Jfolder: no folder that can be written to"):
        prepared()


def test_nowhere_to_write_at_all(prepared: Callable[[], pytest.Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: (_ for _ in ()).throw(FileNotFoundError(2, "No usable")))
    with pytest.raises(pytest.UsageError, match="no folder can be made for the caches of tests: No usable"):
        prepared()


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


@pytest.mark.parametrize(
    "call",
    [
        "open(p)",
        "open(p, 'w')",
        "Path(p).read_text()",
        "p.write_text(t)",
        "os.fdopen(1, 'w')",
        "run(c, text=True)",
        "p.open('a')",
    ],
)
def test_the_check_of_encodings_sees(tmp_path: Path, call: str) -> None:
    (tmp_path / "it.py").write_text(f"{call}\n", encoding="utf-8")
    assert list(_without_encoding(tmp_path / "it.py")) == [f"{tmp_path / 'it.py'}:1"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", None])
def test_characters_that_a_terminal_lacks_are_escaped(encoding: str | None) -> None:
    text = _text.encodable("a \N{SNOWMAN} \ud800", encoding)
    assert text.encode(encoding or "utf-8")


FOREIGN = """
import pytest

@pytest.mark.regional_compile(expects_regions=False)
@pytest.mark.parametrize("what", ["\\u2603", "\\xe9"])
def test_snow(regional, what):
    print("gedr\\xfcckt")
    assert what == "\\u2603", f"it is {what}"
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}


@pytest.mark.slow
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
    assert status == 0 or "LocaleEncodingError: PyTorch's Inductor cannot be imported" in said, said
    assert "regional reporting errors" not in said
    assert "wei\\xdf nicht" in said
    assert "snow" in (pytester.path / "report.html").read_text(encoding="utf-8")
    assert len(RunReport.read(pytester.path / "report.json").tests) == 2
    assert run("pytest_regional", "compare", "report.json", "report.json") == (0, "no difference in 2 tests\n")


def test_output_of_a_new_process_is_read_in_any_locale(tmp_path: Path) -> None:
    (tmp_path / "says.py").write_text("print('gedr\\xfcckt \\u2603 \\udcff')", encoding="utf-8")
    environment = {**os.environ, **ASCII, "PYTHONPATH": str(tmp_path)}
    done = process.run_interpreter("says", [], environment, 60)
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


@pytest.mark.parametrize(("content", "said"), WRITTEN.values(), ids=WRITTEN)
def test_known_failures_that_are_no_text(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "known.txt").write_bytes(content)
    with pytest.raises(pytest.UsageError, match=rf"known\.txt{said}"):
        KnownFailures.read([tmp_path / "known.txt"], {"aot_eager"})


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path), lambda path: None])
def test_known_failures_that_are_no_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "known.txt")
    with pytest.raises(pytest.UsageError, match=r"known failures: cannot read .*known\.txt: "):
        KnownFailures.read([tmp_path / "known.txt"], {"aot_eager"})


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + LINE,
        LINE.replace(b"\n", b"\r\n"),
        LINE.replace(b"\n", b"\r"),
        b"# \xe2\x80\xa8 x\x0c\n" + LINE,
    ],
    ids=["byte order mark", "CRLF", "CR", "other line ends in a comment"],
)
def test_known_failures_of_other_editors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "known.txt").write_bytes(content)
    (line,) = KnownFailures.read([tmp_path / "known.txt"], {"aot_eager"}).lines
    assert (line.backend, line.link) == ("aot_eager", "https://example.org")


PROJECTS: dict[str, tuple[bytes, str]] = {
    "not UTF-8": (b"[tool]\nx = '\xfc'\n", r":2: b'\\xfc' is not UTF-8"),
    "a zero byte": (b"[tool]\n\0", ":2: a zero byte"),
    "no TOML": (b"[tool\n", ": .*line 1"),
    "nested": (b"x = " + b"[" * 10_000, ": .*"),
    "a backend that is none": (b"[tool.pytest-regional]\nbackends = 1", "expected a table for each backend"),
}


@pytest.mark.parametrize(("content", "said"), PROJECTS.values(), ids=PROJECTS)
def test_a_project_file_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    with pytest.raises(ProjectFileError, match=rf"pyproject\.toml.*{said}"):
        ProjectFile.read(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf[tool.pytest-regional.backends.a]\r\ndisclaims = { rng = 'no' }\r\n",
        b"tool = 1",
        b"tool = []",
        b"",
    ],
)
def test_a_project_file_of_other_editors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    assert ProjectFile.read(tmp_path).disclaimed == ({"a": {"rng": "no"}} if len(content) > 20 else {})
