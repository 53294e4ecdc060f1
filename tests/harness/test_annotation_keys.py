"""The key of an annotation: a near miss is noticed with any backend, keys of others are theirs; ``@region`` alone."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.fx.traceback import annotate

from pytest_regional import RegionalWarning, VacuousTestError, region
from pytest_regional._torch.fx_graphs import is_misspelt
from pytest_regional.testing import regional

NEAR = (
    "compile_with_inducter",
    "compile-with-inductor",
    "compile with inductor",
    "Compile_With_Inductor",
    "compileWithInductor",
    "compile_with_inductor_",
    "compile_with_inductors",
    "compiled_with_inductor",
    "compile_with_indcutor",
    "compil_with_inductor",
)
OTHERS = (
    "compile_with_inductor",
    "compile_with_tensorrt",
    "compile_without_inductor",
    "no_compile_with_inductor",
    "compile_with_inductor_v2",
    "inductor",
    "stream",
    "ac_region_id",
    "pp_stage",
    "",
)


@pytest.mark.parametrize("key", NEAR)
def test_near_misses(key):
    assert is_misspelt(key)


@pytest.mark.parametrize("key", OTHERS)
def test_keys_of_others(key):
    assert not is_misspelt(key)


def misspelt(x):
    with annotate({"compile_with_inducter": {"inductor_region": "a"}}):
        return torch.sin(x)


def two_regions(x):
    with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
        x = x @ x
    with annotate({"compile-with-inductor": {"inductor_region": "b"}}):
        return x @ x


def of_others(x):
    with annotate({"stage": 1, "compile_with_inductor": {}}):
        return x @ x


@pytest.mark.parametrize("backend", ["reference", "torch", "inductor", "aot_eager"])
def test_any_backend_warns_of_a_near_miss(backend):
    with pytest.warns(RegionalWarning, match="the key 'compile-with-inductor', .* did you mean 'compile_with_ind"):
        with regional(backend, expects_regions=False) as r:
            r.assert_parity(two_regions, r.randn(4, 4))


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_vacuous_test_names_it(backend):
    with pytest.warns(RegionalWarning), pytest.raises(VacuousTestError, match="has the key 'compile_with_inducter'"):
        with regional(backend) as r:
            r.assert_parity(misspelt, r.randn(4))


def test_the_reference_names_the_line(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # a hit would not look at annotations
    with pytest.warns(RegionalWarning, match=r"'compile_with_inducter'.*test_annotation_keys\.py:\d+"):
        torch.compile(misspelt, backend="regional")(torch.ones(4))


def test_nothing_is_said_of_keys_of_others():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RegionalWarning)
        with regional("torch") as r:
            r.assert_parity(of_others, r.randn(4, 4))


@region
def alone(x):
    """A docstring."""
    return x @ x


class Gate(torch.nn.Module):
    @region
    def forward(self, x):
        return x @ x @ x


@pytest.mark.parametrize(
    ("program", "ops"), [(alone, ("aten.mm.default",)), (Gate(), ("aten.mm.default", "aten.mm.default"))]
)
def test_region_without_parentheses_is_the_default_region(program, ops):
    with regional("torch") as r:
        record = r.run(program, r.randn(4, 4))
    assert [(found.name, found.ops) for found in record.regions] == [("default", ops)]
    assert alone.__doc__ == "A docstring."


@pytest.mark.parametrize(("decorated", "what"), [(Gate, "the class Gate"), (torch.nn.ReLU(), "a ReLU")])
def test_what_cannot_be_decorated_is_refused(decorated, what):
    with pytest.raises(TypeError, match=f"decorates functions and methods, not {what}: put it above forward"):
        region(decorated)


def test_one_id_to_run_after_is_no_list():
    with pytest.raises(TypeError, match=r"after takes a list of region ids, as in after=\['mlp'\]"):
        region("comm", after="mlp")
