"""Texts and values that cannot be sent, written or shown as they are: in failures, output, names, warnings."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from pytest_regional._plain_data import MOST_CHARACTERS, plain, shortened, text_of
from pytest_regional._text import encodable

from .runs import run

#: What a test does, and what the report has to hold of it; all of these fail.
FAILS = {
    "assert": ("assert False, '\\udc80 assert'", "\\udc80 assert"),
    "raise": ("raise ValueError('\\udc80 raise')", "\\udc80 raise"),
    "chain": (
        "try: raise ValueError('\\udcff inner')\n    except ValueError as e: raise KeyError('x') from e",
        "\\udcff inner",
    ),
    "compare": ("assert ['\\udc80 left'] == ['\\udc80 right']", "left"),
    "pytest_fail": ("pytest.fail('\\udc80 fails', pytrace=False)", "\\udc80 fails"),
    "nul": ("raise ValueError('\\x00 \\x1b[31m \\x07 <script>')", "<script>"),
    "bytes": ("raise ValueError(b'\\xff bytes')", "bytes"),
    "str_raises": ("class E(Exception):\n        def __str__(self): 1 / 0\n    raise E", "locals>.E"),
    "repr_raises": ("class E(Exception):\n        def __repr__(self): 1 / 0\n    raise E('said')", "said"),
    "str_is_none": ("class E(Exception):\n        def __str__(self): return None\n    raise E", "locals>.E"),
    "memory_error": ("class E(MemoryError):\n        def __str__(self): 1 / 0\n    raise E", "locals>.E"),
    "no_module": ("class E(Exception): __module__ = None\n    raise E('nowhere')", "nowhere"),
    "property": ("record_property('\\udc80', '\\udc80'); assert False, 'behind'", "behind"),
    "local": ("x = Odd(); assert False, 'with locals'", "with locals"),
    "printed": ("print('\\udc80 printed'); sys.stderr.write('\\udc80 printed'); assert False, 'out'", "out"),
    "bytes_printed": ("os.write(1, b'\\xff\\xfe'); assert False, 'out'", "out"),
    "logged": ("import logging; logging.error('\\udc80 logged'); assert False, 'log'", "log"),
    "large": ("raise ValueError('x' * 20_000_000 + 'the end')", "the end"),
    "large_output": ("print('x' * 20_000_000); assert False, 'after much'", "after much"),
    "group": ("raise BaseExceptionGroup('\\udc80 group', [ValueError('\\udc80')])", "\\udc80"),
    "note": ("e = ValueError('x'); e.add_note('\\udc80 noted'); raise e", "\\udc80 noted"),
}
PASSES = {
    "object": "record_property('it', Odd())",
    "objects": "record_property('it', [Odd(), {1: Odd()}, {2, 3}, b'\\xff', 1j])",
    "itself": "x = []; x.append(x); record_property('it', x)",
    "tensor": "record_property('it', torch.ones(2)); record_property('n', torch.ones(1).numpy()[0])",
    "number": "import enum; record_property('it', enum.IntEnum('E', 'a').a); record_property('big', 10 ** 50)",
    "text": "record_property('it', type('T', (str,), {})('text'))",
    "infinity": "record_property('it', float('nan'))",
    "warning": "warnings.warn('\\udc80 warned')",
    "warning_of_bytes": "warnings.warn(UserWarning(b'\\xff'))",
    "warning_at": "warnings.warn_explicit('x', UserWarning, '\\udc80.py', 1)",
}
CLASSES = """
class Odd:
    def __str__(self): raise RuntimeError("\\udc80")
    __repr__ = __str__
"""
TEST = """
@marked
def test_{name}(regional, record_property):
    {body}
"""
IDS = """
@marked
@pytest.mark.parametrize("text", ["\\udc80", "\\x00\\n\\x1b", "é", b"\\xff", "x" * 300, "::", "[", "\\r"])
def test_id(regional, text):
    assert text

@marked
@pytest.mark.parametrize("text", [1, 2], ids=["\\udc80 id", "two\\nlines"])
def test_own_id(regional, text):
    assert text

@pytest.fixture
def fails():
    raise ValueError("\\udc80 in a fixture")

@marked
def test_setup(fails, regional):
    pass

@marked
def test_skipped(regional):
    pytest.skip("\\udc80 skipped")

@marked
@pytest.mark.xfail(reason="\\udc80 known")
def test_known(regional):
    raise ValueError("\\udc80")

def test_of_somebody_else(record_property):
    record_property("it", Odd())
    assert False, "\\udc80 of somebody else"
"""


@pytest.fixture(scope="module", params=[(), ("-n2",)], ids=["serial", "n2"])
def ended(request, tmp_path_factory):
    tests = [TEST.format(name=name, body=body) for name, (body, _) in FAILS.items()]
    tests += [TEST.format(name=name, body=body) for name, body in PASSES.items()]
    options = (*request.param, "-oregional_memory=8G", "-l", "-v")
    return run(tmp_path_factory.mktemp("run"), CLASSES + "".join(tests) + IDS, *options)


def test_each_test_ends_as_it_should(ended):
    outcomes = {**dict.fromkeys(FAILS, "failed"), **dict.fromkeys(PASSES, "passed")}
    outcomes |= {"setup": "error", "skipped": "skipped", "known": "known failure"}
    found = {name.removeprefix("test_"): outcome for name, outcome in ended.ended.items()}
    ids = [name for name in found if name.startswith(("id[", "own_id["))]
    assert {name: found[name] for name in outcomes} == outcomes
    assert {name: found[name] for name in ids} == dict.fromkeys(ids, "passed")
    assert (len(ids), len(found)) == (10, len(outcomes) + 10)
    assert ended.status == 1
    assert "INTERNALERROR" not in ended.printed
    assert "regional reporting errors" not in ended.printed


def test_the_report_says_what_went_wrong(ended):
    failures = {fact["test"].partition("::test_")[2]: fact["failure"] for fact in ended.report["tests"]}
    wrong = {name: failures[name] for name, (_, said) in FAILS.items() if said not in failures[name]}
    assert not wrong
    json.dumps(ended.report, ensure_ascii=False).encode()


def test_every_file_is_whole(ended):
    ElementTree.parse(ended.folder / "junit.xml")
    assert len(ended.in_junit) == len(ended.ended) + 1
    assert all(f"test_{name}" in ended.page for name in [*FAILS, *PASSES])
    assert "\0" not in ended.page
    assert ended.compare().returncode == 0
    assert "warned" in ended.printed
    assert max((ended.folder / name).stat().st_size for name in ("report.json", "report.html")) < 5_000_000


@pytest.mark.parametrize("text", ["", "é", "\udc80", "a\ud800b", "😀", "\x00"])
def test_encodable(text):
    assert encodable(text).encode().decode("utf-8") == text.encode(errors="backslashreplace").decode()


def test_a_long_text_keeps_both_ends():
    text = "begin" + "x" * 3 * MOST_CHARACTERS + "end"
    kept = shortened(text)
    assert kept.startswith("begin")
    assert kept.endswith("end")
    assert f"{2 * MOST_CHARACTERS + 8:,} characters left out" in kept
    assert shortened("x" * MOST_CHARACTERS) == "x" * MOST_CHARACTERS


class Odd:
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"\udc80": ["\udc80", ("\udc80",)]}, {"\\udc80": ["\\udc80", ("\\udc80",)]}),
        (b"\xff", b"\xff"),
        (True, True),
        (1 + 2j, 1 + 2j),
    ],
)
def test_plain(value, expected):
    assert plain(value) == expected


def test_what_holds_itself_has_an_end():
    value: list[object] = []
    value.append(value)
    assert "[...]" in repr(plain(value))
    assert plain([Odd()]) == ["<Odd whose __str__ raises RuntimeError>"]
    assert text_of(Odd()) == "<Odd whose __str__ raises RuntimeError>"
