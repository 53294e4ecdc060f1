"""What happens when a region does not compile: an error that names it, or eager code that is counted."""

from __future__ import annotations

import pytest
import torch

from .annotations import in_region
from .variants import variant

pytestmark = pytest.mark.regional_compile(requires=("regions", "inductor_code"), expects_regions=False)


class PlantedError(RuntimeError):
    """What the compiler raises in these tests."""


@pytest.fixture(autouse=True)
def _compiler_that_fails(monkeypatch):
    import torch._inductor

    def fail(*arguments, **keywords):
        raise PlantedError("planted")

    monkeypatch.setattr(torch._inductor, "standalone_compile", fail)


def program(x, w):
    with in_region("culprit"):
        h = x @ w
    return h.sin()


def test_by_default_the_error_reaches_the_caller(regional):
    with pytest.raises(Exception, match="planted"):
        regional.compile(program)(regional.randn(4, 8), regional.randn(8, 8))


def test_on_demand_the_region_runs_eager_and_is_counted(regional):
    compiled = torch.compile(program, backend=variant(regional, "on_region_error", "eager"), fullgraph=True)
    x, w = regional.randn(4, 8, requires_grad=True), regional.randn(8, 8, requires_grad=True)

    def train():
        output = compiled(x, w)
        return output, torch.autograd.grad(output.sum(), (x, w))

    # The backward compiles with the forward where both are cached, else when it first runs.
    with regional.expect(fallbacks=2, region_compiles=0), pytest.warns(UserWarning, match="culprit") as said:
        output, gradients = train()
    assert sum("culprit" in str(warning.message) for warning in said) == 2

    expected = program(x, w)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (x, w)))
