"""Findings that somebody else wrote: each is read as valid or refused by one typed error, and nothing in it runs."""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_regional._base.documents import DocumentError
from pytest_regional._base.limits import crash_markers
from pytest_regional.cli import main
from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.findings.files import PARAMETERS
from pytest_regional.fuzz.findings.folder import FindingsFolder, to_data
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.operators.table import operators
from pytest_regional.report.terminal import _shown
from tests.attacks.malformed import DOCUMENTS, PAYLOADS, RAN, ROOT, injections
from tests.warm_process import run_script


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What injected code calls, and whose calls are collected."""
    calls: list[str] = []
    monkeypatch.setattr(builtins, RAN, lambda *given: calls.append("called"), raising=False)
    compiled = builtins.compile

    def watched(text: Any, filename: Any, *given: Any, **named: Any) -> Any:
        if str(filename).startswith("<program "):
            calls.extend(f"executed as {kind}" for kind in _foreign(text))
        return compiled(text, filename, *given, **named)

    monkeypatch.setattr(builtins, "compile", watched)
    return calls


def _foreign(text: str) -> Iterator[str]:
    """Yield the kinds of nodes, constants aside, in which source names the injected function."""
    for node in ast.walk(ast.parse(text)):
        named = [value for name, value in ast.iter_fields(node) if isinstance(value, str) and name != "value"]
        if any(RAN in name for name in named):
            yield type(node).__name__


def outcome(folder: Path, data: bytes) -> str:
    """Return ``"read"`` or ``"refused"`` for a file, or the exception that a user would see a traceback of."""
    path = folder / "finding.json"
    path.write_bytes(data)
    try:
        finding = FindingsFolder(folder).read(path)
        _check_read(finding)
    except DocumentError as error:
        return "refused" if "finding.json" in str(error) and len(str(error)) < 5000 else f"unclear: {error}"
    except Exception as error:  # noqa: BLE001 - what is looked for
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "read"


def _check_read(finding: Any) -> None:
    """Whatever is read can be listed, written and named; its scripts are Python and hold no foreign code."""
    again = json.loads(json.dumps(to_data(finding)))
    assert again["oracle"] == finding.signature.oracle
    assert finding.name == Path(finding.name).name
    assert finding.size >= 0
    assert isinstance(finding.title + finding.text, str)
    assert isinstance(finding.features, frozenset)
    for script in filter(None, (finding.script, finding.script_with_torch_alone)):
        script.encode()
        assert not list(_foreign(script)), "a script holds foreign code"


# What the attacks are worth


def test_the_attacked_documents_are_valid(tmp_path):
    assert {outcome(tmp_path, json.dumps(document).encode()) for document in DOCUMENTS} == {"read"}


def test_code_that_runs_is_noticed(ran):
    """What no file can say any more: texts that go into source as they are."""
    bad = TensorInput((f"2, {RAN}() or 3",))  # type: ignore[arg-type]
    Program((bad,), (), (0,)).inputs()

    assert ran == ["executed as Name", "called"]


def test_code_that_would_run_later_is_noticed(ran):
    Program((TensorInput((2,)),), (Step(**UNSOUND),), (1,))

    assert ran == ["executed as Name"]


UNSOUND: dict[str, Any] = {
    "operator": "mul_number",
    "operands": (0,),
    "parameters": (("value", type("Odd", (), {"__repr__": lambda self: f"{RAN}()"})()),),
    "results": (1,),
}


def test_every_parameter_of_an_operator_can_be_read():
    names = {name for operator in operators().values() for name in operator.parameter_names}

    assert names == PARAMETERS.keys()


def test_what_the_generator_draws_can_be_read():
    for program in itertools.islice(random_programs(2), 80):
        assert files.from_data(json.loads(json.dumps(files.to_data(program)))) == program


# Attacks


def test_no_text_of_a_finding_runs(tmp_path, ran):
    """Code in each value and as each name of a field, wherever one stands in the documents."""
    tried = wrong = 0
    for what, document in injections(DOCUMENTS):
        tried += 1
        how = outcome(tmp_path, json.dumps(document).encode())
        if how not in ("read", "refused") or ran:
            wrong += 1
            print(what, how, ran)
            ran.clear()

    assert tried > 1500
    assert wrong == 0, f"{wrong} of {tried}"


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_name_of_a_region_is_a_literal(payload):
    made = ast.parse(Region(payload, (("max_fusion_size", 8),), (payload,)).source, mode="eval")

    assert [node.value for node in ast.walk(made) if isinstance(node, ast.Constant)].count(payload) == 2


ACTIONS = """\
import sys

done = []


def note(event, arguments):
    planted = event == "import" and "planted" in arguments[0]
    if planted or event in ("os.system", "subprocess.Popen", "os.mkdir", "os.posix_spawn", "os.exec"):
        done.append(f"{event} {arguments[0]}")


from pytest_regional._base.documents import DocumentError
from pytest_regional.fuzz.findings.folder import from_data
from tests.attacks.malformed import DOCUMENTS, RAN, injections
import itertools
import json

call = "(__import__('os').system('true'), open('planted_file', 'w'), __import__('planted_module'))"
tried = 0
for what, document in itertools.islice(injections(DOCUMENTS), 0, None, 3):
    tried += 1
    text = json.dumps(document).replace(f"{RAN}()", call)
    if tried == 1:
        sys.addaudithook(note)
    try:
        finding = from_data(json.loads(text))
        finding.script, finding.title, finding.text
    except DocumentError:
        pass
print(f"{tried} tried: {done}")
try:
    eval(call)
except ImportError:
    print(f"noticed: {done}")
"""


@pytest.mark.slow("starts processes that import torch", fast="test_no_text_of_a_finding_runs")
def test_nothing_is_started_or_imported(tmp_path):
    """In a process of its own, whose audit hook sees what Python itself tells of."""
    script = tmp_path / "actions.py"
    script.write_text(ACTIONS)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    run = run_script(script, {**os.environ, "PYTHONPATH": path}, timeout=300)

    assert "tried: []\nnoticed: ['os.system b'true'', 'import planted_module']\n" in run.stdout.replace('"', "'")


BOMBS: dict[str, dict[str, Any]] = {
    "a shape of a trillion": {"arguments": [{"shape": [10**6, 10**6]}]},
    "an exponential chain": {
        "arguments": [{"shape": [64]}],
        "steps": [
            {"operator": "cat", "operands": [n, n], "parameters": {"dim": 0}, "results": [n + 1]} for n in range(40)
        ],
    },
    "loops": {
        "arguments": [{"shape": [2]}],
        "blocks": [{"parameters": [0], "steps": [{"operator": "sin", "operands": [0], "results": [1]}], "result": 1}],
        "steps": [
            {"operator": "while_loop", "operands": [0], "parameters": {"count": 10**6}, "blocks": [0], "results": [1]}
        ],
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_takes_no_memory(name, tmp_path):
    """Each is refused before a tensor is made that takes more than a moment, or the machine's memory."""
    base = {"version": 1, "blocks": [], "steps": [], "outputs": [0], "training": False, "dynamic": None}
    document = {**DOCUMENTS[0], "program": {**base, **BOMBS[name]}}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    assert outcome(tmp_path, json.dumps(document).encode()) == "refused"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB, on Linux


def _folder(path: Path) -> None:
    path.mkdir()


def _link(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


ODD_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a folder": (_folder, "cannot be read: it is not a regular file"),
    "a FIFO": (os.mkfifo, "cannot be read: it is not a regular file"),
    "a link to a device": (_link("/dev/zero"), "cannot be read: it is not a regular file"),
    "a link to nothing": (_link("nowhere"), "cannot be read: No such file"),
    "a link to itself": (_link("odd.json"), "cannot be read: Too many levels"),
    "a terabyte": (_large, "is larger than 16 MiB"),
    "nothing": (Path.touch, "is empty"),
}


@pytest.fixture
def good(tmp_path: Path) -> str:
    """A folder with one valid finding: ``tmp_path``; the name of it."""
    (tmp_path / "zzz.json").write_text(json.dumps(DOCUMENTS[-1]))
    return "zzz"


@pytest.mark.parametrize("kind", ODD_FILES)
def test_other_files_are_reported_and_skipped(kind, good, tmp_path, capsys):
    make, problem = ODD_FILES[kind]
    make(tmp_path / "odd.json")

    assert main(["findings", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert f"odd.json {problem}" in said.err
    assert said.out.startswith(f"{good} (torch, ")
    assert said.out.endswith("1 finding, 1 file that cannot be read\n")


@pytest.mark.parametrize("command", ["findings", "replay"])
def test_a_path_that_leads_nowhere_is_a_usage_error(command, tmp_path, capsys):
    assert main([command, str(tmp_path / "nowhere")]) == 2
    assert "give a directory of findings" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["9" * 30, "x", "0", ""])
def test_a_note_of_an_unknown_process_is_reported(number, tmp_path):
    """What a campaign checked when its process died lies in the folder of findings, too."""
    notes = tmp_path / "checking"
    notes.mkdir()
    (notes / "link-1.json").symlink_to("nowhere")
    (notes / "folder-1.json").mkdir()
    (notes / f"full-0-{number}.json").write_text('{"version": 1, "steps": "\x1b"}')

    told = [_shown(note) for note in crash_markers(tmp_path)]
    assert len(told) == (number != "0")
    assert all("is not JSON" in one and "\x1b" not in one for one in told)


def test_a_finding_moves_no_cursor(tmp_path, capsys):
    odd = {"detail": "\x1b[2J\r", "origin": "\x1b]0;title\x07\ud800 at torch", "region": "\x9b2J"}
    (tmp_path / "odd.json").write_text(json.dumps({**DOCUMENTS[0], **odd}))

    assert main(["findings", str(tmp_path / "odd.json")]) == 0
    assert not {"\x1b", "\x07", "\x9b", "\r", "\ud800"} & set(capsys.readouterr().out)


PLANTED = """\
from pathlib import Path

Path(__file__).with_suffix(".imported").touch()


def backend(gm, example_inputs):
    return gm
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, in which commands are given, with a module and a finding that names it; the trace of its import."""
    (tmp_path / "planted_backend.py").write_text(PLANTED)
    document = {**DOCUMENTS[2], "backend": "planted_backend:backend"}
    (tmp_path / "finding.json").write_text(json.dumps(document))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "planted_backend", raising=False)
    return tmp_path / "planted_backend.imported"


@pytest.mark.parametrize("command", ["findings", "replay"])
def test_a_module_that_a_finding_names_is_not_imported(command, planted, capsys):
    status = main([command, str(planted.parent)])

    assert not planted.exists()
    if command == "replay":
        assert status == 2
        said = capsys.readouterr().out
        assert "error       finding: its backend planted_backend:backend is not imported unasked" in said
        assert f"replay --backend=planted_backend:backend {planted.parent / 'finding.json'}\n" in said


def test_a_module_that_the_user_names_is_imported(planted, capsys):
    assert main(["replay", "--backend=planted_backend:backend", str(planted.parent)]) in (0, 1), capsys.readouterr().out
    assert planted.exists()
