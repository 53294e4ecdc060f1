"""The emulated GPU around a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_regional.emulation import EmulationError
from pytest_regional.harness import emulating
from pytest_regional.harness.emulating import causes
from pytest_regional.testing import regional


@pytest.fixture
def self_tests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Record for which GPUs the self-test runs, as in a process in which none ran."""
    tested: list[str] = []
    monkeypatch.setattr("pytest_regional.emulation.selftest.run_self_test", tested.append)
    monkeypatch.delenv(emulating.SELF_TESTED, raising=False)
    emulating._problem_of_self_test.cache_clear()
    yield tested
    emulating._problem_of_self_test.cache_clear()


def use(device: str) -> None:
    with regional("aot_eager", device, expects_regions=False):
        pass


def test_the_self_test_runs_once_for_each_gpu(self_tests: list[str]) -> None:
    for device in ("cuda-emulated", "cuda-emulated", "cuda-emulated:a100", "cpu"):
        use(device)
    assert self_tests == ["h200", "a100"]


def test_processes_that_tests_start_do_not_run_it_again(self_tests: list[str]) -> None:
    use("cuda-emulated")
    emulating._problem_of_self_test.cache_clear()  # as in a process that inherits the environment
    use("cuda-emulated")
    assert self_tests == ["h200"]


def test_when_it_fails_every_emulated_test_says_so(self_tests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(profile: str) -> None:
        self_tests.append(profile)
        raise EmulationError("self-test of the emulated GPU: sort")

    monkeypatch.setattr("pytest_regional.emulation.selftest.run_self_test", fail)
    for _ in range(2):
        with pytest.raises(EmulationError, match="self-test of the emulated GPU: sort"):
            use("cuda-emulated")
    assert self_tests == ["h200"]
    use("cpu")


def test_causes_are_those_of_python_and_of_pytorch() -> None:
    inner, cause, outer = ValueError("inner"), KeyError("cause"), RuntimeError("outer")
    outer.__cause__ = cause
    cause.inner_exception = inner  # type: ignore[attr-defined]  # as torch._dynamo.exc.BackendCompilerFailed has it
    inner.__context__ = outer
    assert list(causes(outer)) == [outer, cause, inner]
