"""``no_compile``: any compile inside is an error."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CompileForbiddenError
from pytest_regional.testing import regional

from .programs import pair, product


def test_what_is_compiled_runs():
    with regional("torch") as r:
        compiled, x = r.compile(product), pair(r)
        expected = compiled(*x)
        with r.no_compile():
            assert torch.equal(compiled(*x), expected)


def test_a_first_compile_is_an_error_that_names_the_function():
    with (
        regional("torch", expects_regions=False) as r,
        pytest.raises(CompileForbiddenError, match="Dynamo compiled product"),
        r.no_compile(),
    ):
        r.compile(product)(*pair(r))


def test_a_recompile_is_an_error():
    with regional("torch", dynamic=False) as r:
        compiled = r.compile(product)
        compiled(*pair(r, 4))
        with pytest.raises(CompileForbiddenError), r.no_compile():
            compiled(*pair(r, 5))


def test_a_lazy_backward_is_an_error():
    with regional("torch") as r:
        output = r.compile(product)(*pair(r, requires_grad=True))
        with pytest.raises(CompileForbiddenError, match="backward graph"), r.no_compile():
            output.sum().backward()


def test_compiling_is_allowed_again_afterwards():
    with regional("torch") as r:
        with r.no_compile():
            pass
        r.compile(product)(*pair(r))
        assert r.counters.region_compiles == 1
