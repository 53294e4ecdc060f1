"""The rule's arithmetic, its levels, and what a failing report says."""

from __future__ import annotations

import functools

import pytest
import torch

from pytest_regional import BadProgramError, ParityError
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.harness.parity.compare import check_program, compare
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.tolerance import DEFAULT_TOLERANCES, Tolerance, judge, ulp
from tests.faults.parity.compared import parity_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ulp_is_the_distance_to_the_next_number(dtype):
    values = torch.tensor([1.0, 1.5, 2.0, 100.0, -3.0, 0.1]).to(dtype)
    step = torch.nextafter(values.abs(), torch.full_like(values, float("inf"))).double() - values.abs().double()
    assert torch.equal(ulp(values.double(), dtype), step)
    assert ulp(torch.zeros(1, dtype=torch.float64), dtype).item() == torch.finfo(dtype).tiny * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", list(DEFAULT_TOLERANCES))
def test_the_default_tolerances_are_those_of_assert_close(dtype):
    rtol, atol = DEFAULT_TOLERANCES[dtype]
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    seen = []
    for base, allowed in ((zero, atol), (one, rtol + atol)):
        for share in (0.99, 1.01):
            seen.append(_passes((base + allowed * share, base), dtype))
    assert seen == [True, False, True, False]


def _passes(pair, dtype):
    from torch.testing._comparison import default_tolerances

    rtol, atol = default_tolerances(dtype)
    try:
        torch.testing.assert_close(*pair, rtol=rtol, atol=atol)
    except AssertionError:
        return False
    return True


def test_four_times_the_largest_eager_error_and_two_ulp():
    fp64 = torch.ones(20, dtype=torch.float64)
    eager = fp64.float()
    eager[3] += 2**-10
    limit = 4 * 2**-10 + 2 * 2**-23
    inside, outside = eager.clone(), eager.clone()
    inside[7] += limit
    outside[7] += limit + 2**-22
    assert judge(Tolerance(), inside, eager, fp64).evidence == ()
    assert judge(Tolerance(), inside, eager, fp64).ratio == pytest.approx(1)
    (found,) = judge(Tolerance(), outside, eager, fp64).evidence
    assert (found.index, found.mismatched, found.total, found.allowed) == ((7,), 1, 20, limit)


def test_bits_of_one_element_with_a_stride():
    one = torch.tensor([1.5, 2.5, 3.5, 4.5])[::2][:1]
    assert one.stride() == (2,)
    assert judge(Tolerance("bitwise"), one, torch.tensor([1.5]), None).evidence == ()
    assert judge(Tolerance("bitwise"), one, torch.tensor([1.25]), None).evidence
    assert judge(Tolerance("bitwise"), one.to(torch.complex64), torch.tensor([1.5 + 0j]), None).evidence == ()


def test_a_float64_reference_beyond_the_range_of_the_dtype_excuses_nothing():
    def masked(x):
        return x.masked_fill(x > 0, torch.finfo(x.dtype).min)

    def wrong(x):
        y = masked(x)
        y[y > -1] += 1
        return y

    x = torch.randn(64)
    assert not parity_of(masked, wrong, x).ok
    assert parity_of(masked, lambda x: masked(x), x).ok


def test_explicit_tolerances_override_the_rule():
    x = torch.ones(32)
    nudged = lambda t: t * 1.01  # noqa: E731
    assert not parity_of(torch.clone, nudged, x).ok
    assert parity_of(torch.clone, nudged, x, rtol=0.1).ok
    assert parity_of(torch.clone, nudged, x, atol=0.1, rtol=0).ok
    assert not parity_of(torch.clone, nudged, x, atol=0.001, rtol=0).ok


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"level": "closest"}, ValueError, "close, dtype, bitwise. Did you mean 'close'"),
        ({"rtol": -1}, ValueError, "negative"),
        ({"atol": float("nan")}, ValueError, "NaN"),
        ({"atol": "1"}, TypeError, "must be a number"),
        ({"rtol": True}, TypeError, "must be a number"),
        ({"level": "bitwise", "rtol": 1e-3}, ValueError, "contradicts"),
    ],
)
def test_senseless_tolerances_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Tolerance.resolve(**options)


def test_the_message_names_place_values_errors_and_blame():
    def candidate(x):
        y = x.sin() * 2
        y[1, 2] += 1
        return {"h": y}

    report = parity_of(lambda x: {"h": x.sin() * 2}, candidate, torch.randn(4, 8), label="reference on cpu")
    text = str(ParityError(report, blame="region 'mlp': with it left eager the programs agree"))
    for part in ("reference on cpu", "output['h']", "1 of 32 elements", "[1, 2]", "compiled", "eager", "float64"):
        assert part in text
    assert "error against float64: compiled 1" in text
    assert "blame: region 'mlp'" in text
    assert report.mismatches[0].evidence.candidate_error == pytest.approx(1, rel=1e-3)


def test_no_float64_reference_is_said_with_its_reason():
    program = lambda x: torch.nn.functional.rrelu(x, training=True)  # noqa: E731
    # Positive elements draw nothing.
    report = parity_of(program, program, torch.linspace(-1, 1, 3))
    assert (report.ok, report.anchored) == (True, False)
    assert "random numbers" in report.fp64_unavailable_reason
    assert "random numbers" in report.summary()


def test_flipped_choices_make_the_float64_run_unavailable():
    x = torch.tensor([1.0, 1.0 + 1e-7])
    report = parity_of(lambda t: (t * 1e-30 * 1e-15).argmax(), lambda t: (t * 1e-30 * 1e-15).argmax(), x)
    assert "flipped" in report.fp64_unavailable_reason


def test_nothing_compared_is_visible():
    assert parity_of(lambda x: None, lambda x: None, torch.randn(2)).compared == 0
    assert parity_of(lambda x: "text", lambda x: "text", torch.randn(2)).compared == 0


def test_comparing_with_itself_is_refused():
    run = execute(torch.sin, (torch.randn(3),))
    with pytest.raises(RegionalValueError, match="execute the program twice"):
        compare(run, run)
    cached = functools.lru_cache(lambda: torch.randn(3))
    with pytest.raises(RegionalValueError, match="comparing a tensor with itself"):
        parity_of(lambda x: cached(), lambda x: cached(), torch.randn(3))
    assert parity_of(lambda x: x, lambda x: x, torch.randn(3)).ok


def test_a_failing_eager_program_is_the_tests_fault():
    run = execute(lambda x: x @ torch.ones(7), (torch.randn(3),))
    with pytest.raises(BadProgramError, match="the test's program fails in eager") as caught:
        check_program(run)
    assert caught.value.__cause__ is run.exception
    check_program(execute(torch.sin, (torch.randn(3),)))
