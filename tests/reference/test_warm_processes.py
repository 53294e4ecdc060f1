"""Warm starts in processes that are really new, and after processes that were killed while they stored."""

from __future__ import annotations

import time

import pytest
import torch

from pytest_regional import region
from pytest_regional._torch.frames import why_no_frames
from pytest_regional.harness.counters import CounterExpectationError
from pytest_regional.reference.caching import store
from pytest_regional.testing import regional as harness
from tests.reference.caches import entries
from tests.reference.warm_kills import kill_while_storing_traces
from tests.reference.warm_programs import Programs, misses, warm_run

pytestmark = pytest.mark.skipif(bool(why_no_frames()), reason=f"no traces are stored: {why_no_frames()}")


class Block(torch.nn.Module):
    """A block with a region."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with region("mlp"):
            h = self.down(torch.nn.functional.silu(self.up(x)))
        return x + h


def broken(x):
    with region("mlp"):
        y = x.sin() + 1
    torch._dynamo.graph_break()
    with region("mlp"):
        return y.cos() * 2


def sized(x):
    with region("mlp"):
        return (x * x).sum(0) * x.shape[0]


def everything(regional):
    """Compile and run a module that trains, a function with a graph break, and one with symbolic sizes."""
    with regional.warm_starts():
        torch.manual_seed(0)
        model = torch.nn.Sequential(Block(), Block())
        x = regional.randn(4, 8, requires_grad=True)
        output = regional.compile(model)(x)
        output.sum().backward()
        found = [output.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]
        found.append(regional.compile(broken, fullgraph=False)(x.detach()))
        compiled = regional.compile(sized, dynamic=True)
        found += [compiled(regional.randn(size, 8)) for size in (3, 5)]
    return found


def test_the_next_process_traces_and_compiles_nothing():
    with harness("reference") as regional:
        first, second = (regional.in_new_process(everything) for _ in range(2))
    assert (first.counters.traces, first.counters.cache_misses) == (4, 4)
    assert first.counters.region_compiles > 0
    assert (second.counters.traces, second.counters.region_compiles, second.counters.graphs) == (0, 0, 0)
    assert (second.counters.cache_hits, second.counters.cache_misses, second.counters.cache_bypasses) == (0, 0, 0)
    assert all(map(torch.equal, first.value, second.value))


def test_a_warm_start_is_no_compile():
    with harness("reference") as regional, regional.warm_starts():
        x = regional.randn(4, 8)
        expected = regional.compile(sized)(x)
        regional.restart()
        with regional.no_compile(), regional.expect(traces=0, graphs=0):
            assert torch.equal(regional.compile(sized)(x), expected)
        with pytest.raises(CounterExpectationError, match="sized"), regional.expect(traces=0):
            regional.compile(sized)(regional.randn(5, 8))


def test_a_backend_without_traces_says_so():
    with harness("aot_eager", expects_regions=False) as regional, pytest.raises(LookupError, match="stores no traces"):
        regional.warm_starts()


def test_with_an_older_torch_no_backend_stores_traces(monkeypatch):
    """Sequences of the cache would wait for them otherwise."""
    with harness("reference", expects_regions=False) as regional:
        assert regional.stores_traces
        monkeypatch.setattr("pytest_regional.harness.regional.why_no_frames", lambda: "it is too old")
        assert not regional.stores_traces


SOURCE = "class fn(torch.nn.Module):\n    def forward(self, x): return x * 2 + 1\n"


@pytest.mark.parametrize("lost", [0, 1], ids=["the result", "the trace"])
def test_a_trace_or_a_result_alone_is_a_miss(tmp_path, monkeypatch, lost):
    monkeypatch.syspath_prepend(str(tmp_path))
    programs = Programs(tmp_path)
    programs.write(SOURCE)
    x = torch.ones(3)
    warm_run(programs.begin().fn(), x)
    # The result is stored first: a process that ends between the two leaves no trace without one.
    sorted(entries(), key=lambda path: path.stat().st_mtime_ns)[lost].unlink()
    outputs = [warm_run(programs.begin().fn(), x) for _ in range(2)]
    assert [traced for _, traced in outputs] == [1, 0], misses()
    assert all(torch.equal(output, x * 2 + 1) for output, _ in outputs)


def test_killed_processes_leave_whole_entries_or_none(tmp_path):
    killed = kill_while_storing_traces(tmp_path, 8, longest=1.5)
    assert (killed.trials, killed.broken, killed.wrong, killed.next_store_failed) == (8, 0, 0, 0)
    assert killed.loaded > 0


def write_slowly_in_place(path, data, *, scratch=None):
    with path.open("wb") as file:
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            file.write(part)
            file.flush()
            time.sleep(0.1)


def test_entries_that_are_written_in_place_are_found_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "write_atomically", write_slowly_in_place)
    assert kill_while_storing_traces(tmp_path, 4).broken > 0


def test_traces_travel_in_portable_artifacts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    programs = Programs(tmp_path)
    programs.write(SOURCE)
    warm_run(programs.begin().fn(), torch.ones(3))
    content, _ = torch.compiler.save_cache_artifacts()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "another"))
    torch.compiler.load_cache_artifacts(content)
    output, traced = warm_run(programs.begin().fn(), torch.ones(3))
    assert traced == 0, misses()
    assert torch.equal(output, torch.full((3,), 3.0))
