"""``torch.compile(fn, backend="regional", options={...})``."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from pytest_regional import region
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.reference import regional
from pytest_regional.reference.options import BackendOptions
from tests.reference.user_backends import counted_compiles


@region("r")
def product(x):
    return x @ x


def twice(x):
    return product(product(x).sin())


def compiled(fn, **keywords):
    return torch.compile(fn, backend=regional, fullgraph=True, **keywords)


@pytest.mark.parametrize(("options", "calls"), [(None, 1), ({"share_identical": False}, 2)])
def test_share_identical(options, calls):
    x = torch.randn(4, 4)
    with counted_compiles() as seen:
        torch.testing.assert_close(compiled(twice, options=options)(x), twice(x))
    assert len(seen) == calls


def test_partitioner():
    """Min-cut recomputes cheap ops in the backward, where the default partitioner saves what they returned."""

    def fn(x):
        return product(x).cos().sin().cos().sin().cos()

    def saved_with(partitioner):
        torch._dynamo.reset()
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda value: saved.append(value) or value, lambda value: value):
            compiled(fn, options={"partitioner": partitioner})(torch.randn(4, 4, requires_grad=True))
        return len(saved)

    assert saved_with("default") > saved_with("min_cut")


def test_all_at_once_train():
    options = {"partitioner": "min_cut", "share_identical": False, "on_region_error": "eager"}
    x = torch.randn(4, 4, requires_grad=True)
    (expected,) = torch.autograd.grad(twice(x).sum(), x)
    (actual,) = torch.autograd.grad(compiled(twice, options=options)(x).sum(), x)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"options": {"share_identicl": True}}, r"no option 'share_identicl' \(nearest: share_identical\)"),
        ({"options": {"max_autotune": True}}, "no option 'max_autotune'.*as inductor_configs"),
        ({"options": {"share_identical": 1}}, "option 'share_identical' of backend 'regional' is 1: use True or False"),
        ({"options": {"partitioner": "max_cut"}}, "is 'max_cut': use 'default' or 'min_cut'"),
        ({"options": {"on_region_error": ["raise"]}}, "use 'raise' or 'eager'"),
        ({"mode": "max-autotune"}, "takes no mode"),
    ],
)
def test_what_is_refused(keywords, message):
    with pytest.raises(BackendCompilerFailed, match=message) as info:
        compiled(product, **keywords)(torch.randn(2, 2))
    assert isinstance(info.value.inner_exception, RegionalValueError)


def test_an_option_given_twice():
    assert BackendOptions.merged({"partitioner": "min_cut"}, partitioner="min_cut").partitioner == "min_cut"
    with pytest.raises(RegionalValueError, match="given twice: 'default' and 'min_cut'"):
        BackendOptions.merged({"partitioner": "min_cut"}, partitioner="default")


@pytest.mark.skipif("regional" not in torch._dynamo.list_backends(), reason="the package is not installed here")
def test_options_reach_the_backend_by_its_name():
    with pytest.raises(BackendCompilerFailed, match="no option 'x'"):
        torch.compile(product, backend="regional", options={"x": 1})(torch.randn(2, 2))
