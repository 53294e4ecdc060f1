"""Backends with options of their own, as ``BackendSpec.variants`` names them and suites ask for them."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec
from pytest_regional.testing import regional
from suites.regions.variants import variant

from .programs import pair, product


def asked_for(taken):
    """Return a backend that notes which partitioner it was asked for."""

    def with_partitioner(value):
        taken.append(value)
        return lambda gm, example_inputs: gm.forward

    return with_partitioner


def test_a_suite_gets_the_variant_that_the_specification_names():
    taken = []
    spec = BackendSpec("mine", factory=lambda: "eager", variants={"partitioner": asked_for(taken)})
    with regional(spec, "cpu", expects_regions=False) as r:
        torch.compile(product, backend=variant(r, "partitioner", "min_cut"))(*pair(r))

    assert taken == ["min_cut"]


def test_a_variant_that_is_not_there_is_a_skip():
    spec = BackendSpec("mine", factory=lambda: "eager")
    with regional(spec, "cpu", expects_regions=False) as r:
        with pytest.raises(pytest.skip.Exception, match="BackendSpec of 'mine' has no variant 'partitioner'"):
            variant(r, "partitioner", "min_cut")


@pytest.mark.parametrize(
    ("variants", "error", "problem"),
    [
        ({"partitoner": str}, ValueError, "unknown variant 'partitoner'. Did you mean 'partitioner'?"),
        ({"partitioner": "min_cut"}, TypeError, "the variant 'partitioner' must be a function"),
    ],
)
def test_a_specification_with_wrong_variants_is_refused(variants, error, problem):
    with pytest.raises(error, match=problem.replace("?", r"\?")):
        BackendSpec("mine", factory=lambda: "eager", variants=variants)


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("partitioner", ["default", "min_cut"])
def test_built_in_backends_take_both_partitioners(backend, partitioner):
    with regional(backend, "cpu") as r:
        inputs = pair(r, requires_grad=True)
        found = torch.compile(product, backend=variant(r, "partitioner", partitioner))(*inputs)
        torch.testing.assert_close(found, product(*inputs))
