"""Outcomes kept in a store: found again by other processes, never for another question, nothing that may change."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import triton
import triton.language as tl
import z3

from pytest_regional._torch.triton import jit_key
from pytest_regional.emulation import GeneratedGraph
from pytest_regional.harness.kernel_store import KernelFiles
from pytest_regional.verify import PROVED, REFUTED, UNKNOWN, Outcome, outcomes, verifier, verify_graph
from pytest_regional.verify.outcomes import MEMORY, RACES, keep, kept
from pytest_regional.verify.properties import covered, memory_safe, race_free
from pytest_regional.verify.question import Question
from pytest_regional.verify.wrappers import graph_of
from tests.faults.emulation.generated import NO_STORE_MASK, replaced
from tests.faults.verify.planted import DYNAMIC, compiled

PAIR = (Outcome(MEMORY, PROVED, seconds=0.5), Outcome(RACES, UNKNOWN, "a pointer to a pointer", 0.25))


class Shelf(dict[str, bytes]):
    """A store in memory."""

    def read(self, key: str) -> bytes | None:
        return self.get(key)

    def keep(self, key: str, content: bytes) -> None:
        self[key] = content


@pytest.fixture(scope="module")
def made(emulation):
    return cache(lambda program: compiled(emulation, program, DYNAMIC))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each question to z3."""
    found: list[int] = []
    ask = Question.refute

    def counted(self, *arguments):
        found.append(len(found))
        return ask(self, *arguments)

    monkeypatch.setattr(Question, "refute", counted)
    return found


@pytest.fixture
def again(emulation, made, asked, monkeypatch):
    """Verify a program's first kernel as another process would, and return what is found and how much was asked."""

    def verify(program, store, mutate=lambda source: source, blocks=None, known=()):
        from torch._inductor.codecache import PyCodeCache

        monkeypatch.setattr(verifier, "_KNOWN", {})
        code = made(program)
        with emulation.device_mock.held():
            module = PyCodeCache.load(mutate(code.source))
        for kernel in (value for value in vars(module).values() if hasattr(value, "triton_meta")):
            kernel.configs = kernel.configs[-1:]
            kernel.configs[0].kwargs.update(blocks or {})
        graph = graph_of(GeneratedGraph(module.call, code.graph.inputs, code.graph.donated))
        before = len(asked)
        found = verify_graph(replace(graph, known=[*graph.known, *known]), emulation, 20.0, store)[0]
        return found, len(asked) - before

    return verify


def test_another_process_does_not_ask_again(again):
    store = Shelf()
    first, questions = again("even", store)
    assert questions > 0
    assert [outcome.verdict for outcome in first.outcomes] == [PROVED] * 4
    second, questions = again("even", store)
    assert (second, questions) == (first, 0)


def test_without_a_store_it_does(again):
    again("even", None)
    assert again("even", None)[1] > 0


@pytest.mark.parametrize(
    "changed",
    [
        {"mutate": replaced("2.0", "2.001")},
        {"blocks": {"XBLOCK": 2}},
        {"known": [z3.Int("s77") < 100]},
    ],
    ids=["text", "configuration", "guards"],
)
def test_another_question_is_asked(again, changed):
    store = Shelf()
    again("even", store)
    assert again("even", store, **changed)[1] > 0
    assert len(store) == 2
    assert again("even", store, **changed)[1] == 0


@pytest.mark.parametrize(("key", "count"), [("other", 2), ("", 1)])
def test_a_kernel_that_calls_something_else_is_another_one(again, monkeypatch, key, count):
    """And one that calls what cannot be told is not kept."""
    store = Shelf()
    again("even", store)
    monkeypatch.setattr(verifier, "jit_key", lambda function: key)
    assert again("even", store)[1] > 0
    assert len(store) == count


@pytest.mark.parametrize("part", ["_versions", "own_code"])
def test_other_code_asks_again(again, monkeypatch, part):
    store = Shelf()
    again("even", store)
    here = getattr(outcomes, part)
    monkeypatch.setattr(outcomes, part, lambda *packages: here(*packages)[1:])
    assert again("even", store)[1] > 0


@pytest.mark.parametrize("proved", [0, 1, 3])
def test_what_is_out_of_time_is_not_kept(again, monkeypatch, proved):
    """Neither where nothing is reached, nor where a property after others is not."""
    start, asked = Question.start, [memory_safe, race_free, covered]
    store = Shelf()
    if proved:
        name = asked[proved - 1].__name__
        monkeypatch.setattr(
            verifier, name, lambda question, *more: late(question) or asked[proved - 1](question, *more)
        )
    else:
        monkeypatch.setattr(Question, "start", lambda self: start(self) or late(self))
    found, _ = again("even", store)
    assert "out of time" in {one.reason for one in found.outcomes}
    assert store == {}


def late(question):
    question.deadline = 0.0


def test_what_is_refuted_is_not_kept(again):
    store = Shelf()
    found, _ = again("even", store, NO_STORE_MASK)
    assert REFUTED in {one.verdict for one in found.outcomes}
    assert store == {}
    again("even", store)
    assert len(store) == 1


def test_what_another_run_may_find_otherwise_is_not_kept():
    store = Shelf()
    keep(store, "kernel", [PAIR[0], replace(PAIR[1], final=False)], 1.0)
    assert store == {}
    keep(store, "kernel", PAIR, 1.0)
    assert kept(store, "kernel") == (PAIR, 1.0)
    assert kept(store, "another kernel") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[1.0, []]",
        b"{}",
        b'[1.0, [["memory", "proved", "", 0.1]]]',
        b'[1.0, [["memory", "proved", "", 0.1], ["races", "refuted", "", 0.1]]]',
        b'[1.0, [["memory", "proved", "", 0.1], ["races", "proved"]]]',
        b'["x", [["memory", "proved", "", 0.1], ["races", "proved", "", 0.1]]]',
    ],
)
def test_what_is_no_entry_is_not_taken_for_one(content):
    store = Shelf()
    keep(store, "kernel", PAIR, 1.0)
    store.update(dict.fromkeys(store, content))
    assert kept(store, "kernel") is None


def test_a_damaged_file_of_the_kernel_store_is_not_read(tmp_path):
    store = KernelFiles(tmp_path)
    keep(store, "kernel", PAIR, 1.0)
    assert kept(store, "kernel") == (PAIR, 1.0)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(file.read_bytes().replace(b"unknown", b"proved "))
    assert kept(store, "kernel") is None


@triton.jit
def doubled(x):
    return 2 * x


@triton.jit
def tripled(x):
    return 3 * x


def offsetting(offset, factor):
    @triton.jit
    def kernel(out):
        tl.store(out + offset(tl.program_id(0)), factor)

    return kernel


def test_what_a_kernel_calls_and_its_constants_tell_it_from_others():
    kernels = [offsetting(offset, factor) for offset in (doubled, tripled) for factor in (1, 2)]
    assert len({kernel.src for kernel in kernels}) == 1
    assert len({jit_key(kernel) for kernel in kernels}) == 4
    assert jit_key(kernels[0]) == jit_key(offsetting(doubled, 1))
    assert jit_key(offsetting(abs, 1)) == ""
