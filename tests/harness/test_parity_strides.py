"""Strides of results are compared for a backend that claims ``strides``, and only for one."""

from __future__ import annotations

import contextlib

import pytest

from pytest_regional import BackendSpec, ParityError, declared, unsupported
from pytest_regional.testing import regional


def contiguous(gm, example_inputs):
    """A backend whose results are contiguous, whatever eager's are."""
    return lambda *inputs: tuple(value.contiguous() for value in gm.forward(*inputs))


@pytest.mark.parametrize("claims", [True, False])
def test_a_result_that_is_contiguous_where_eagers_is_transposed(claims):
    answer = {} if claims else {"strides": unsupported("results are contiguous")}
    spec = BackendSpec("contiguous", factory=lambda: contiguous, capabilities=declared(**answer)())
    noticed = pytest.raises(ParityError, match="stride") if claims else contextlib.nullcontext()
    with regional(spec, expects_regions=False) as r, noticed:
        r.assert_parity(lambda x: x.t() + 1, r.randn(3, 4))
