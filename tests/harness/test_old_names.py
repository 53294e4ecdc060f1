"""Names that ``Regional`` had before 1.0: they work, and say what to write instead."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import VacuousTestError, testing
from pytest_regional.testing import regional

from .programs import pair, product


def test_factories():
    arguments = {"arange": (3,), "empty": (2,), "full": ((2,), 1.5), "linspace": (0, 1, 5), "ones": (2,), "zeros": (2,)}
    with regional("aot_eager", "cpu", expects_regions=False) as r:
        for name, given in {**arguments, "randperm": (4,)}.items():
            with pytest.warns(DeprecationWarning, match=rf"use torch.{name}\(..., device=regional.device\)"):
                made = getattr(r, name)(*given, dtype=torch.float64)
            assert (made.dtype, made.device) == (torch.float64, r.device)
            assert made.shape == getattr(torch, name)(*given).shape


def test_calls_of_what_is_compiled():
    with regional("torch", "cpu", expects_regions=False) as r:
        compiled = r.compile(product)
        with pytest.warns(DeprecationWarning, match="as_is=True"):
            record = r.observe(compiled, *pair(r))
        assert record.counters.graphs == 1
        with r.no_compile():
            assert r.run(compiled, *pair(r), as_is=True).counters.graphs == 0
            assert r.run(torch.neg, r.randn(3), as_is=True).counters.traces == 0
        with pytest.warns(DeprecationWarning, match="spec.variants"):
            assert r.variants is r.spec.variants
        with pytest.warns(DeprecationWarning, match="spec.graph_pass"):
            assert r.compiles_graphs == (r.spec.graph_pass is not None)


def test_the_check_at_the_end():
    with regional("torch", "cpu", expects_regions=False) as r:
        with pytest.warns(DeprecationWarning, match="testing.regional"), pytest.raises(VacuousTestError):
            r.check_not_vacuous()
        r.compile(product)(*pair(r))


def test_a_name_that_never_was():
    with regional("aot_eager", "cpu", expects_regions=False) as r, pytest.raises(AttributeError, match="'onse'"):
        r.onse(2)


def test_the_fake_process_group_has_the_name_of_its_fixture_no_more():
    with pytest.warns(DeprecationWarning, match="fake_process_group"):
        assert testing.fake_pg is testing.fake_process_group
    with pytest.raises(AttributeError, match="fake_gp"):
        testing.fake_gp  # noqa: B018
