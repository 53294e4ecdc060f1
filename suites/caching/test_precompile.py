"""What PyTorch stores of a trace (``torch._dynamo.config.caching_precompile``): the next process traces nothing.

Programs are modules in files, and each process imports its own: an edit is another directory. They are products of
matrices alone, whose number the edits change.
"""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
import torch._dynamo
import torch._functorch.config

from .lookups import run
from .programs import pair

pytestmark = pytest.mark.regional_compile(requires=("precompile",), dynamic=False, expects_regions=False)

SOURCE = """
from pytest_regional import region

NUMBER = 1

class Holder:
    number = 1

def power(x, w, n):
    for _ in range(n):
        x = x @ w
    return x

def program(x, w, number=1):
    with region("r"):
        h = power(x, w, Holder.number)
    return power(h, w.t(), number + NUMBER)
"""


def call(regional, source, training=False, sizes=(4,)):
    """Call the program in ``source`` compiled, as a process that begins; return its last values, and eager's."""
    sys.path.insert(0, source)
    program = importlib.import_module("precompiled").program
    with (
        torch._dynamo.config.patch(caching_precompile=True),
        torch._functorch.config.patch(force_autograd_cache=True),
    ):
        compiled = regional.compile(program)
        for size in sizes:
            inputs = pair(regional, size, training=training)
            values = run(compiled, inputs, training)
        torch.compiler.save_cache_artifacts()
    return values, run(program, inputs, training)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes the program, after an edit, and returns its directory."""

    def written(before="", after=""):
        assert SOURCE.count(before) == 1 or not before
        folder = tmp_path / ("edited" if before else "first")
        folder.mkdir()
        (folder / "precompiled.py").write_text(SOURCE.replace(before, after) if before else SOURCE)
        return str(folder)

    return written


def known(finding):
    """Return marks for a failure of PyTorch's, whatever the backend."""
    return [
        pytest.mark.regional_known_failure(backend, reason=f"docs/findings/{finding}.py", torch=">=2.13")
        for backend in ("inductor", "torch")
    ]


BLOCKED, STALE = known("loaded_trace_blocks_the_next"), known("stored_trace_of_class_attribute")


TRAINS = pytest.mark.regional_compile(requires=("precompile", "backward"), dynamic=False, expects_regions=False)


@pytest.mark.quick
@pytest.mark.parametrize("training", [False, pytest.param(True, marks=TRAINS)])
def test_the_next_process_traces_nothing(regional, write, training):
    source = write()
    first, second = (regional.in_new_process(call, source, training) for _ in range(2))

    assert first.counters.traces == 1
    assert (second.counters.traces, second.counters.graphs, second.counters.region_compiles) == (0, 0, 0)
    assert (second.counters.cache_hits, second.counters.cache_misses) == (0, 0)
    assert all(map(torch.equal, first.value[0], second.value[0]))
    torch.testing.assert_close(*second.value)


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(("return power(h, w.t(),", "return power(w.t(), h,"), id="program"),
        pytest.param(("x = x @ w", "x = w @ x"), id="function"),
        pytest.param(("number=1)", "number=2)"), id="default"),
        pytest.param(("NUMBER = 1", "NUMBER = 2"), id="global", marks=BLOCKED),
        pytest.param(("    number = 1", "    number = 2"), id="class", marks=STALE),
    ],
)
def test_an_edit_is_noticed(regional, write, edit):
    regional.in_new_process(call, write())
    after = regional.in_new_process(call, write(*edit))

    torch.testing.assert_close(*after.value)
    assert after.counters.traces == 1


@BLOCKED[0]
@BLOCKED[1]
def test_a_loaded_program_is_compiled_for_another_size(regional, write):
    source = write()
    regional.in_new_process(call, source)

    torch.testing.assert_close(*regional.in_new_process(call, source, False, (4, 5)).value)
