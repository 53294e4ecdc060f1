"""Limits and seeds that no clock, machine or generator can keep: a usage error that says what can be given."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from pytest_regional._base.limits import LEAST_BYTES, memory_limit, time_limit
from pytest_regional.fuzz.budget import Budget
from pytest_regional.plugin import settings
from pytest_regional.testing import regional

NONSENSE = ("inf", "nan", "1e18", "-1", "0", "1K", "9" * 400, "1.5.5", "\x1b[2J")
RANGES = {
    "timeout": "from 0.1 to 31536000",
    "memory": "from 64M, which the smallest test takes, to 1024T",
    "fuzz": "from 1 to 1000000000",
    "seed": "from 0 to 2**63 - 1",
}
#: What is no nonsense for one of the options.
TAKEN = {("seed", "0")}
MORE = {
    "timeout": ["31536001", "0.01", "1h"],
    "memory": ["63M", "2000T", "65535K", "1e3G"],
    "fuzz": ["1.5", "0s", "0.05s", "9000h", "1000000001", "500 programs"],
    "seed": [str(2**63), "1.0"],
}
GIVEN = [(option, value) for option in RANGES for value in (*NONSENSE, *MORE[option]) if (option, value) not in TAKEN]


def _resolve(pytester: pytest.Pytester, *arguments: str) -> settings.Settings:
    return settings.resolve(pytester.parseconfig("-p", "no:randomly", *arguments))


def _argument(option: str, value: str) -> str:
    return f"-oregional_memory={value}" if option == "memory" else f"--regional-{option}={value}"


@pytest.fixture(autouse=True)
def environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put back what a run sets, as these configurations are never ended."""
    for name, value in os.environ.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("source", ["option", "ini"])
def test_what_cannot_be_kept_is_refused(pytester: pytest.Pytester, source: str) -> None:
    # Where a value is from changes nothing in how it is read, so that a fourth of them shows that both are.
    for option, value in GIVEN if source == "option" else GIVEN[::4]:
        if source == "ini":
            pytester.makeini(f"[pytest]\nregional_{option} = {value}\n")
        arguments = [_argument(option, value)] if source == "option" else []
        with pytest.raises(pytest.UsageError) as refused:
            _resolve(pytester, "--regional-backend=aot_eager", *arguments)
        said = str(refused.value)
        assert said.startswith("regional_memory" if option == "memory" else f"--regional-{option}"), value
        assert RANGES[option] in said, value
        assert len(said) < 400
        assert said.isprintable()


def test_the_ends_of_the_ranges_are_taken(pytester: pytest.Pytester) -> None:
    for option, value, kept in (
        ("timeout", "0.1", 0.1),
        ("memory", "1024T", 2**50),
        ("seed", str(2**63 - 1), 2**63 - 1),
        ("fuzz", "0.1s", Budget(seconds=0.1)),
        ("fuzz", "1000000000", Budget(examples=10**9)),
    ):
        assert getattr(_resolve(pytester, "--regional-backend=aot_eager", _argument(option, value)), option) == kept


def test_the_ends_of_the_ranges_work() -> None:
    with memory_limit(2**50), time_limit(31536000.0):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 31535000
    with regional("aot_eager", expects_regions=False) as r, memory_limit(LEAST_BYTES):
        assert r.run(lambda x: x + 1, r.randn(2)) is not None


@pytest.mark.parametrize("timeout", [float("nan"), 10**400, 0, "soon", True])
def test_the_time_of_a_new_process(timeout: Any) -> None:
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(
            ValueError, match=r"in_new_process: timeout=.*expected a number of seconds from 0.1 to 31536"
        ):
            r.in_new_process(time.sleep, 60, timeout=timeout)
