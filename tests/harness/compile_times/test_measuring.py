"""``compile_times``: phases that add up, regions, warm compiles, and what stays as it was."""

from __future__ import annotations

import inspect
import time

import pytest
import torch

from pytest_regional import region
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.harness.compile_times import CompileTimes
from pytest_regional.testing import regional

from .programs import plain

PHASES = ["dynamo", "aot_autograd", "passes", "inductor", "compiler", "cache", "other"]


def one_kernel(x):
    with region("first"):
        y = x.sin() @ x
    with region("second"):
        return y @ y  # a library has the kernel


MEASURED = pytest.mark.slow("compiles C++ again", fast="test_phases_where_no_kernel_is_compiled")


@pytest.mark.parametrize(
    "backend", ["reference", pytest.param("torch", marks=MEASURED), pytest.param("inductor", marks=MEASURED)]
)
def test_phases_of_cold_compiles_add_up_and_each_takes_time(backend):
    with regional(backend) as r:
        x = r.randn(8, 8, requires_grad=backend != "reference")
        began = time.perf_counter()
        times = r.compile_times(one_kernel, x, repeat=1, clock="wall")
        wall = time.perf_counter() - began
    assert list(times.phases) == PHASES, "this torch logs all"
    assert sum(time.median for time in times.phases.values()) == pytest.approx(times.total.median)
    assert all(time.median > 0 for time in times.phases.values()), str(times)
    # The compiler ran, though the store has the kernels: nothing else takes as long.
    assert times.phase("compiler").median > 0.3
    assert times.total.median < wall
    if backend != "reference":
        return
    assert (r.counters["region_compiles"], r.counters["recompiles"]) == (2, 0), "of the first compile alone"
    # It compiles regions alone, and tells them apart.
    regions = {f"region {name} of the inference graph" for name in ("first", "second")}
    assert regions < set(times.parts())
    assert regions <= set(times.parts("passes")) | set(times.parts("inductor"))
    assert times.parts()["region first of the inference graph"].median > 0.1


@pytest.mark.parametrize("backend", ["torch", "inductor"])
def test_phases_where_no_kernel_is_compiled(backend):
    def squared(x):
        with region("only"):
            return x @ x

    with regional(backend) as r:
        times = r.compile_times(squared, r.randn(8, 8, requires_grad=True), repeat=1, clock="wall")
    assert {phase for phase, time in times.phases.items() if time.median} >= {*PHASES} - {"compiler"}, str(times)


def test_a_warm_compile_only_looks_up():
    with regional("reference") as r:
        times = r.compile_times(one_kernel, r.randn(8, 8), repeat=1, warm=True)
    assert times.phase("cache").median > 0
    assert times.phase("inductor").median < 0.01
    assert times.phase("compiler").median < 0.05


def test_arguments_stay_as_they_were():
    def writes(x):
        with region("first"):
            return x.add_(1)

    with regional("aot_eager", expects_regions=False) as r:
        x = torch.zeros(4, device=r.device)
        r.compile_times(writes, x, repeat=1)
        assert x.tolist() == [0, 0, 0, 0]


def test_compiles_that_are_measured_draw_nothing():
    drawn = []
    for repeat in (1, 3):
        with regional("aot_eager", "cpu", expects_regions=False) as r:
            r.compile_times(lambda x: x + torch.rand_like(x), torch.zeros(4), repeat=repeat)
            drawn.append(torch.rand(2).tolist())
    assert drawn[0] == drawn[1]


def test_what_a_torch_does_not_log_is_not_measured(monkeypatch):
    source = inspect.getsource

    def without_a_step(of):
        return source(of).replace('"_recursive_joint_graph_passes"', '"of another name"')

    with regional("aot_eager", expects_regions=False) as r, monkeypatch.context() as patch:
        patch.setattr(inspect, "getsource", without_a_step)
        times = r.compile_times(plain, r.randn(8, 8), repeat=1)
    assert list(times.phases) == [phase for phase in PHASES if phase != "passes"]


def test_a_record_without_a_phase_says_so():
    times = CompileTimes("inductor", "f", ({("dynamo", ""): 1.0, ("inductor", "the forward graph"): 2.0},), ("cache",))
    assert "cache" not in times.phases
    assert "cache         not measured with this torch" in str(times)
    assert times.total.seconds == (3.0,)
    assert "2.000 s (noise 0%)  the forward graph" in str(times)


def test_an_unknown_phase_names_the_nearest():
    times = CompileTimes("inductor", "f", ({("dynamo", ""): 1.0},))
    with pytest.raises(RegionalValueError, match="Did you mean 'dynamo'"):
        times.phase("dinamo")


def test_nothing_is_measured_in_no_compiles():
    with regional("reference", expects_regions=False) as r, pytest.raises(ValueError, match="repeat=0"):
        r.compile_times(plain, r.randn(2, 2), repeat=0)
