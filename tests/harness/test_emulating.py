"""The emulated GPU around a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pytest_regional.harness.devices.emulated as emulated
from pytest_regional.emulation import EmulationError
from pytest_regional.harness.kernel_store import VARIABLE
from pytest_regional.harness.raised import causes
from pytest_regional.testing import regional


@pytest.fixture
def self_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """Record for which GPUs the self-test runs, as on a machine on which none ran."""
    tested: list[str] = []
    monkeypatch.setenv(VARIABLE, str(tmp_path / "store"))
    monkeypatch.setattr("pytest_regional.emulation.selftest.run_self_test", tested.append)
    monkeypatch.delenv(emulated.SELF_TESTED, raising=False)
    emulated._problem_of_self_test.cache_clear()
    yield tested
    emulated._problem_of_self_test.cache_clear()


def use(device: str) -> None:
    with regional("aot_eager", device, expects_regions=False):
        pass


def test_the_self_test_runs_once_for_each_gpu(self_tests: list[str]) -> None:
    for device in ("cuda-emulated", "cuda-emulated", "cuda-emulated:a100", "cpu"):
        use(device)
    assert self_tests == ["h200", "a100"]


def test_processes_that_tests_start_do_not_run_it_again(self_tests: list[str]) -> None:
    use("cuda-emulated")
    emulated._problem_of_self_test.cache_clear()  # as in a process that inherits the environment
    use("cuda-emulated")
    assert self_tests == ["h200"]


@pytest.fixture
def new_process(self_tests: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What makes this process know no more of self-tests than one that the user starts."""

    def forget() -> None:
        monkeypatch.delenv(emulated.SELF_TESTED, raising=False)
        emulated._problem_of_self_test.cache_clear()

    return forget


def test_other_processes_of_the_user_do_not_run_it_again(
    self_tests: list[str], new_process: Callable[[], None]
) -> None:
    for device in ("cuda-emulated", "cuda-emulated", "cuda-emulated:a100", "cuda-emulated"):
        use(device)
        new_process()
    assert self_tests == ["h200", "a100"]


@pytest.mark.parametrize("module", ["platform.python_version", "version", "code_keys"])
def test_another_python_or_torch_is_tested_again(
    module: str, self_tests: list[str], new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use("cuda-emulated")
    new_process()
    monkeypatch.setattr(f"pytest_regional.harness.devices.emulated.{module}", lambda *_: "9.9")
    use("cuda-emulated")
    assert self_tests == ["h200"] * 2


def test_other_code_of_ours_is_tested_again(
    self_tests: list[str], new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use("cuda-emulated")
    for digest in ("one", "two", "two"):
        monkeypatch.setattr("pytest_regional.harness.devices.emulated.own_code", lambda *_, digest=digest: digest)
        new_process()
        use("cuda-emulated")
    assert self_tests == ["h200"] * 3


def test_without_a_kernel_store_each_process_runs_it(
    self_tests: list[str], new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    for _ in range(2):
        use("cuda-emulated")
        new_process()
    assert self_tests == ["h200"] * 2


def test_when_it_fails_every_emulated_test_says_so(
    self_tests: list[str], new_process: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(profile: str) -> None:
        self_tests.append(profile)
        raise EmulationError("self-test of the emulated GPU: sort")

    monkeypatch.setattr("pytest_regional.emulation.selftest.run_self_test", fail)
    for _ in range(2):
        with pytest.raises(EmulationError, match="self-test of the emulated GPU: sort"):
            use("cuda-emulated")
    assert self_tests == ["h200"]
    use("cpu")
    new_process()  # what failed is not kept
    with pytest.raises(EmulationError, match="self-test of the emulated GPU: sort"):
        use("cuda-emulated")


def test_causes_are_those_of_python_and_of_pytorch() -> None:
    inner, cause, outer = ValueError("inner"), KeyError("cause"), RuntimeError("outer")
    outer.__cause__ = cause
    cause.inner_exception = inner  # type: ignore[attr-defined]  # as torch._dynamo.exc.BackendCompilerFailed has it
    inner.__context__ = outer
    assert list(causes(outer)) == [outer, cause, inner]
