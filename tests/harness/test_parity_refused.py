"""``assert_parity(..., raises=...)``: a program that eager refuses has to be refused by the compiled one, too."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec, BadProgramError, NotRefusedError, ParityError
from pytest_regional.testing import regional


def subtracted(x, flag):
    return x - flag


def selected(x):
    return torch.select(x, 0, 7)


def checked(x):
    torch._check(x.shape[0] == 3, lambda: "three rows")
    return x


def harness(backend="aot_eager"):
    return regional(backend, expects_regions=False)


@pytest.mark.parametrize(
    ("program", "expected", "dtype"), [(selected, IndexError, torch.float32), (checked, RuntimeError, torch.float32)]
)
def test_both_refuse(program, expected, dtype):
    with harness() as r:
        report = r.assert_parity(program, torch.ones(4, 4, dtype=dtype), raises=expected)
    assert report.ok
    assert report.compared == 1
    assert "the class of the exception" in report.summary()


def test_without_the_keyword_it_is_a_bad_program():
    with harness() as r, pytest.raises(BadProgramError, match="raises=IndexError"):
        r.assert_parity(selected, torch.ones(4, 4))


def lenient(gm, example_inputs):
    return lambda *inputs: (torch.zeros(4),)


def other(gm, example_inputs):
    raise KeyError("no such operator")


@pytest.mark.parametrize(
    ("backend", "said"), [(lenient, "compiled raised nothing, eager raised IndexError"), (other, "KeyError")]
)
def test_a_backend_that_runs_it_or_raises_another_class_fails(backend, said):
    def program(x, index):
        return x[index]

    with harness(BackendSpec("faulty", lambda: backend)) as r, pytest.raises(ParityError) as caught:
        r.assert_parity(program, torch.ones(4, 4), torch.tensor([7]), raises=IndexError)
    (mismatch,) = caught.value.report.mismatches
    assert mismatch.kind == "exception"
    assert said in mismatch.detail


def test_a_program_that_runs_in_eager_or_fails_otherwise_is_an_error():
    with harness() as r:
        with pytest.raises(NotRefusedError, match="raises= says that it fails with IndexError"):
            r.assert_parity(torch.sin, torch.ones(4), raises=IndexError)
        with pytest.raises(BadProgramError, match="IndexError"):
            r.assert_parity(selected, torch.ones(4, 4), raises=TypeError)


def test_a_backward_that_is_refused():
    def program(x):
        y = x.exp()
        y.detach().add_(1)
        return y

    with harness() as r:
        r.assert_parity(program, r.randn(4, requires_grad=True), raises=RuntimeError)
