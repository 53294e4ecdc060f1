"""``assert_compile_time``: passes equal programs, and finds slow passes by name."""

from __future__ import annotations

import time

import pytest
import torch

from pytest_regional import CompileTimeError
from pytest_regional._base.errors import RegionalRuntimeError, RegionalValueError
from pytest_regional.harness.compile_times import CLOCKS, CompileTimeCheck, CompileTimes, Measured, measure_in_turns
from pytest_regional.testing import regional

from .programs import SlowPass, equal, marked, plain


def times(*seconds, phase="passes", other=0.001, program="f", not_measured=()):
    compiles = tuple({(phase, "region mlp of the forward graph"): one, ("dynamo", ""): other} for one in seconds)
    return CompileTimes("inductor", program, compiles, not_measured)


@pytest.mark.slow(
    "measures a dozen compiles",
    fast="tests/harness/compile_times/test_measuring.py::test_phases_of_cold_compiles_add_up_and_each_takes_time",
)
def test_equal_programs_pass():
    with regional("reference") as r:
        found = r.assert_compile_time(plain, r.randn(8, 8), against=equal, at_most=2.0, phase="inductor")
    assert 0.5 < found.ratio < 2


@pytest.mark.slow("measures a dozen compiles", fast="test_a_ratio_above_the_limit_fails")
@pytest.mark.parametrize(
    ("backend", "setting"), [("reference", "pre_grad_custom_pass"), ("inductor", "post_grad_custom_post_pass")]
)
def test_a_slow_pass_fails_and_is_named(backend, setting):
    with regional(backend) as r, torch._inductor.config.patch({setting: SlowPass()}):
        with pytest.raises(CompileTimeError) as caught:
            r.assert_compile_time(marked, r.randn(8, 8), against=plain, at_most=1.5, phase="passes", clock="wall")
    said = str(caught.value)
    assert said.startswith(f"compile time in phase passes of marked on {backend}: ")
    assert f"times that of plain on {backend}, at most 1.5 allowed (medians of 5 compiles)" in said
    assert "passes" in said
    assert "0.2" in said


@pytest.mark.slow("measures a dozen compiles", fast="test_cpu_time_sees_work_and_no_waiting")
def test_cpu_time_is_the_default_and_sees_work_and_no_waiting(monkeypatch):
    with regional("reference") as r, torch._inductor.config.patch(pre_grad_custom_pass=SlowPass()):
        given = {"against": plain, "at_most": 3, "phase": "passes"}
        r.assert_compile_time(marked, r.randn(8, 8), **given)

        def work(seconds):
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass

        monkeypatch.setattr(time, "sleep", work)
        with pytest.raises(CompileTimeError, match="CPU time of compiles in phase passes of marked"):
            r.assert_compile_time(marked, r.randn(8, 8), **given)


def test_the_phase_that_grew_is_named_where_all_are_compared():
    check = CompileTimeCheck(times(*[0.3] * 5), times(*[0.1] * 5, program="g"), "total", 1.2)
    said = str(check.error())
    assert "CPU time of compiles of f on inductor: 2.98 times that of g on inductor, at most 1.2 allowed" in said
    assert "phase passes grew most" in said
    assert "slowest: region mlp of the forward graph 0.300 s" in said


@pytest.mark.slow("measures a dozen compiles", fast="test_what_is_compared")
def test_another_backend_is_compared_on_the_same_program():
    with regional("reference") as r:
        found = r.assert_compile_time(plain, r.randn(8, 8), against="inductor", at_most=20, phase="dynamo")
    assert (found.new.backend, found.old.backend) == ("reference", "inductor")


@pytest.mark.slow("measures a dozen compiles", fast="test_what_is_compared")
def test_a_kept_record_is_compared():
    with regional("reference") as r:
        x = r.randn(8, 8)
        kept = r.compile_times(plain, x, repeat=5)
        found = r.assert_compile_time(plain, x, against=kept, at_most=5, phase="dynamo")
    assert found.old is kept


@pytest.fixture
def nothing_measured(monkeypatch):
    """Have a compile take three times as long where it is one of ``marked``, by the clock of the CPU alone."""

    def measure(measured, *, kept=True):
        seconds = 0.3 if (measured.fn, measured.clock) == (marked, "cpu") else 0.1
        measured.compiles += [{("passes", ""): seconds}] if kept else []

    monkeypatch.setattr(Measured, "measure", measure)


@pytest.mark.usefixtures("nothing_measured")
def test_a_ratio_above_the_limit_fails():
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(CompileTimeError, match=r"marked on aot_eager: 3\.00 times .* \(medians of 5 compiles\)"):
            r.assert_compile_time(marked, r.randn(2, 2), against=plain, at_most=2)
        assert r.assert_compile_time(marked, r.randn(2, 2), against=plain, at_most=4).ratio == pytest.approx(3)
        assert r.assert_compile_time(marked, r.randn(2, 2), against=plain, clock="wall").ratio == pytest.approx(1)


@pytest.mark.usefixtures("nothing_measured")
def test_what_is_compared():
    with regional("aot_eager", expects_regions=False) as r:
        x = r.randn(2, 2)
        found = r.assert_compile_time(plain, x, against="inductor")
        assert (found.new.backend, found.old.backend) == ("aot_eager", "inductor")
        assert {found.new.program, found.old.program} == {"plain"}
        kept = r.compile_times(plain, x)
        assert r.assert_compile_time(plain, x, against=kept).old is kept


def test_cpu_time_sees_work_and_no_waiting():
    began = CLOCKS["cpu"]()
    time.sleep(0.3)
    waited = CLOCKS["cpu"]() - began
    end = time.thread_time() + 0.2
    while time.thread_time() < end:
        pass
    assert waited < 0.1
    assert CLOCKS["cpu"]() - began - waited > 0.1


def test_programs_compile_in_turns_and_each_is_first_as_often():
    made = []

    class Fake:
        def measure(self, *, kept=True):
            made.append(self if kept else "warm")

    new, old = Fake(), Fake()
    measure_in_turns([new, old], 3)
    assert made == ["warm", "warm", new, old, old, new, new, old]


def test_the_ratio_is_that_of_the_medians():
    check = CompileTimeCheck(times(0.1, 0.3, 9.0), times(0.1, 0.2, 0.1, program="g"), "passes", 3)
    assert check.ratio == pytest.approx(3)


@pytest.mark.parametrize(("name", "meant"), [("pases", "passes"), ("inductr", "inductor"), ("Dynamo", "dynamo")])
def test_an_unknown_phase_is_refused_before_anything_compiles(name, meant):
    with regional("reference", expects_regions=False) as r:
        with pytest.raises(RegionalValueError, match=f"Did you mean '{meant}'"):
            r.assert_compile_time(plain, r.randn(2, 2), against=equal, phase=name)
        assert r.counters["graphs"] == 0


def test_a_phase_without_time_has_no_ratio():
    one, other = times(*[0.1] * 5), times(*[0.1] * 5, phase="inductor", program="g")
    with pytest.raises(RegionalRuntimeError, match="g on inductor spends no time in phase passes"):
        _ = CompileTimeCheck(one, other, "passes", 1.2).ratio
    with pytest.raises(RegionalRuntimeError, match="this torch"):
        _ = CompileTimeCheck(times(*[0.1] * 5, not_measured=("cache",)), one, "cache", 1.2).ratio


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"against": equal, "repeat": 0}, ValueError, "1 or more compiles"),
        ({"against": equal, "at_most": 0}, ValueError, "expected a ratio above 0"),
        ({"against": equal, "clock": "cpus"}, ValueError, "Did you mean 'cpu'"),
        ({"against": times(*[0.1] * 5), "clock": "wall"}, ValueError, "measured with clock='cpu'"),
        ({"against": 3.0}, TypeError, "against= is of type float"),
        ({"against": equal, "limit": 2}, TypeError, "unexpected keyword argument 'limit'"),
        ({"against": "inductr"}, LookupError, "inductor"),
    ],
)
def test_wrong_arguments_are_refused(given, error, said):
    with regional("reference", expects_regions=False) as r, pytest.raises(error, match=said):
        r.assert_compile_time(plain, r.randn(2, 2), **given)
