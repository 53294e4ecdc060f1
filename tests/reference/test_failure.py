"""Regions that do not compile."""

import pytest
import torch
from torch._dynamo.exc import RestartAnalysis
from torch._dynamo.utils import counters

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional.reference import RegionCompileError, RegionFallbackWarning, regional_inductor
from tests.reference.graphs import chain


def broken(request):
    for node in list(request.module.graph.nodes):
        node.meta.clear()
    request.module.graph.erase_node(request.module.graph.output_node())
    raise AssertionError("no kernel\nsecond line")


def test_failure_names_region_ops_and_cause():
    with pytest.raises(
        RegionCompileError, match=r"region 'a' \(compiled_region_a_0: aten.sin.default\) .*no kernel$"
    ) as info:
        regional_inductor(chain("ua"), torch.randn(3), compiler=broken)
    assert isinstance(info.value.__cause__, AssertionError)


def test_eager_policy_runs_the_region_as_it_was():
    counters.clear()
    x = torch.randn(3)
    with pytest.warns(RegionFallbackWarning, match="region '[ab]'.*runs eagerly") as warned:
        gm = regional_inductor(chain("uaub"), x, compiler=broken, on_region_error="eager", share_identical=False)
    assert len(warned) == 2
    assert counters["regional"]["fallbacks"] == 2
    torch.testing.assert_close(gm([x])[0], x.sin().sin().sin().sin())


@pytest.mark.parametrize("error", [RestartAnalysis, MissingTorchSymbolError])
def test_other_exceptions_than_failures_of_the_region_propagate(error):
    def raising(request):
        raise error

    with pytest.raises(error):
        regional_inductor(chain("a"), torch.randn(3), compiler=raising, on_region_error="eager")


def test_unknown_policy():
    with pytest.raises(ValueError, match="use 'raise' or 'eager'"):
        regional_inductor(chain("a"), torch.randn(3), on_region_error="ignore")
