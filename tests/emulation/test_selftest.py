"""The self-test of the emulation passes here, and fails by name where something is wrong."""

import pytest
import torch

from pytest_regional.emulation import EmulationError, emulated, selftest


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
    torch._dynamo.reset()


@pytest.fixture
def inputs():
    return selftest._inputs()


def test_it_passes():
    selftest.run_self_test("h200")


def off_by_a_little(i):
    return i.vector * (1.001 if torch.compiler.is_compiling() else 1.0)


def refused(i):
    if torch.compiler.is_compiling():
        raise NotImplementedError("no such instruction")
    return i.vector


def twice(i):
    return i.vector * 2


def test_a_wrong_value_is_named(monkeypatch, inputs):
    monkeypatch.setattr(selftest, "_functions", lambda: {"twice": twice, "off": off_by_a_little})
    with emulated("h200"), pytest.raises(EmulationError, match=r"self-test.*: off: .*off by 1\.0e-03(?s:.*)triton"):
        selftest._check_functions(inputs)


def test_of_functions_that_fail_together_the_guilty_one_is_named(monkeypatch, inputs):
    monkeypatch.setattr(selftest, "_functions", lambda: {"twice": twice, "refused": refused})
    with emulated("h200"), pytest.raises(EmulationError, match=r"emulated GPU: refused \(") as raised:
        selftest._check_functions(inputs)
    assert "twice (" not in str(raised.value)


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (lambda source: source + "\n# harmless\n", "a broken kernel was not noticed"),
        (lambda source: source, "cannot be planted"),
    ],
)
def test_a_fault_that_goes_unnoticed_is_a_failure(monkeypatch, inputs, mutate, message):
    monkeypatch.setattr(selftest, "_FAULTS", {"no fault": mutate})
    with (
        emulated("h200") as emulation,
        pytest.raises(EmulationError, match=f"no fault: .*{message}"),
    ):
        selftest._check_faults(emulation, selftest._one_kernel(emulation, inputs))


def test_a_missing_assertion_is_a_failure(monkeypatch, inputs):
    monkeypatch.setattr(selftest, "_compiled", lambda function: lambda matrix, index: matrix)
    with pytest.raises(EmulationError, match="index assertion: no KernelAssertionError"):
        selftest._check_assertion(inputs)
