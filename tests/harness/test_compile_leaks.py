"""Settings that a backend leaves changed while it compiles: whose doing a difference is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pytest_regional.harness.observe.annotated import CompileLeaks


@pytest.fixture(autouse=True)
def _as_before():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def names(leaks):
    return [leak.name for leak in leaks.found]


def compiling(leaks, other=""):
    with leaks.around(other):
        torch.set_default_dtype(torch.float64)


def test_leaks_of_a_compile():
    leaks = CompileLeaks()
    compiling(leaks)
    assert names(leaks) == ["default dtype"]


def test_another_backends_compile_does_not_count():
    leaks = CompileLeaks()
    compiling(leaks, other="another")
    assert names(leaks) == []


def test_a_compile_in_another_is_part_of_it():
    leaks = CompileLeaks()
    with leaks.around():
        compiling(leaks)
        torch.set_default_dtype(torch.float32)
    assert names(leaks) == []


def test_a_compile_in_another_thread_does_not_count():
    leaks = CompileLeaks()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(compiling, leaks).result()
    assert names(leaks) == []


@pytest.mark.parametrize("begins", ["before", "meanwhile"])
def test_nor_does_one_next_to_it(begins):
    """Default dtypes are the process's: who changed it cannot be told."""
    leaks, begun, over = CompileLeaks(), threading.Event(), threading.Event()

    def beside():
        with leaks.around():
            begun.set()
            over.wait(10)

    with ThreadPoolExecutor(1) as pool:
        if begins == "before":
            pool.submit(beside)
            begun.wait(10)
        with leaks.around():
            if begins == "meanwhile":
                pool.submit(beside)
                begun.wait(10)
                over.set()
            torch.set_default_dtype(torch.float64)
        over.set()
    assert names(leaks) == []


def test_afterwards_they_count_again():
    leaks = CompileLeaks()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(compiling, leaks).result()
    torch.set_default_dtype(torch.float32)
    compiling(leaks)
    assert names(leaks) == ["default dtype"]
