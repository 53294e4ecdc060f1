"""What a user reads when an annotation is wrong or a region does not compile: the region and a line of this file."""

import inspect
import re

import pytest
import torch
import torch._inductor
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters
from torch.fx.traceback import annotate

from pytest_regional import region
from pytest_regional._torch.inductor import interpreting_regions
from pytest_regional.reference import (
    RegionAnnotationError,
    RegionCompileError,
    RegionConfigError,
    RegionFallbackWarning,
    regional,
)

BAD_CONFIG = {"inductor_region": "mlp", "inductor_configs": {"max_autotun": True}}


def compiled(fn, **keywords):
    return torch.compile(fn, backend=regional, fullgraph=True, **keywords)


def line_of(code):
    """Return the number of the one line of this file that ends with the comment ``# code``."""
    lines = inspect.getsource(inspect.getmodule(line_of)).splitlines()
    (number,) = [n for n, text in enumerate(lines, 1) if text.endswith(f"  # {code}")]
    return f"{__file__}:{number}: "


def marked(mark):
    def fn(x):
        h = x.sin()
        with annotate({"compile_with_inductor": mark}):
            h = h @ h  # marked
        return h.cos()

    return fn


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("mark", "cls", "message"),
    [
        ({"inductor_region": [1]}, RegionAnnotationError, r"inductor_region=\[1\] of type list is not a region id"),
        ({"inductor_region": None}, RegionAnnotationError, "inductor_region=None of type NoneType is not a region id"),
        ({"inductor_region": 1.5}, RegionAnnotationError, "inductor_region=1.5 of type float is not a region id"),
        ({"inductor_region": True}, RegionAnnotationError, "of type bool is not a region id"),
        (
            {"inductor_region": "mlp", "inductor_config": {}},
            RegionAnnotationError,
            r"of region 'mlp' has an unknown entry 'inductor_config' \(nearest: inductor_configs",
        ),
        (BAD_CONFIG, RegionConfigError, r"'max_autotun' in region 'mlp' \(nearest: max_autotune"),
        (
            {"inductor_region": "mlp", "inductor_configs": {"max_autotune": "yes"}},
            RegionConfigError,
            "'max_autotune' of region 'mlp' is 'yes' of type str, where bool is expected",
        ),
        (
            {"inductor_region": "mlp", "inductor_configs": {"max_fusion_size": True}},
            RegionConfigError,
            "'max_fusion_size' of region 'mlp' is True of type bool, where int is expected",
        ),
        (
            {"inductor_region": "mlp", "inductor_configs": [("max_autotune", True)]},
            RegionConfigError,
            "of region 'mlp' is not a dictionary",
        ),
        ([1], RegionAnnotationError, r"compile_with_inductor=\[1\] is not understood"),
        (("mlp",), RegionAnnotationError, r"compile_with_inductor=\('mlp',\) is not understood"),
    ],
)
def test_wrong_annotations(mark, cls, message, training):
    with pytest.raises(BackendCompilerFailed, match=message) as info:
        compiled(marked(mark))(torch.randn(3, 3, requires_grad=training))
    assert type(info.value.inner_exception) is cls
    assert line_of("marked") in str(info.value)


def test_lines_of_torch_nn_are_not_the_users():
    def fn(x):
        with annotate({"compile_with_inductor": BAD_CONFIG}):
            return torch.nn.functional.layer_norm(x, (3,))  # library

    with pytest.raises(BackendCompilerFailed) as info:
        compiled(fn)(torch.randn(3, 3))
    assert line_of("library") in str(info.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_annotation_that_only_the_backward_has(dynamic):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            with annotate({"compile_with_inductor": BAD_CONFIG}):
                return gradient @ x  # backward

    x = torch.randn(3, 3, requires_grad=True)
    with pytest.raises(BackendCompilerFailed, match="'max_autotun' in region 'mlp'") as info:
        compiled(Cube.apply, dynamic=dynamic)(x)
    assert isinstance(info.value.inner_exception, RegionConfigError)
    assert line_of("backward") in str(info.value)


def break_inductor(monkeypatch, op):
    """Let ``standalone_compile`` fail on graphs that hold ``op``."""
    original = torch._inductor.standalone_compile

    def failing(gm, *args, **kwargs):
        if any(op in str(node.target) for node in gm.graph.nodes):
            raise NotImplementedError(f"no kernel for {op}\nand a second line")
        return original(gm, *args, **kwargs)

    monkeypatch.setattr(torch._inductor, "standalone_compile", failing)


def block(x, w):
    with region("attention"):
        h = x @ w  # attention
    h = h.sin()
    with region("mlp"):
        h = h.tanh()  # mlp
    return h.cos()


def leaves():
    return [torch.randn(4, 4, requires_grad=True) for _ in range(2)]


def gradients(fn, inputs):
    output = fn(*inputs)
    return output, *torch.autograd.grad(output.sum(), inputs)


def test_a_region_that_does_not_compile(monkeypatch):
    break_inductor(monkeypatch, "aten.tanh.default")
    with pytest.raises(BackendCompilerFailed) as info:
        compiled(block)(*leaves())
    message = str(info.value)
    assert re.search(r"RegionCompileError: region 'mlp' \(compiled_region_mlp_0: aten\.tanh\.default.*, from ", message)
    assert line_of("mlp") in message
    assert "did not compile: NotImplementedError: no kernel for aten.tanh.default\n" in message
    assert isinstance(info.value.inner_exception.__cause__, NotImplementedError)


def test_a_region_that_does_not_compile_in_the_backward(monkeypatch):
    break_inductor(monkeypatch, "aten.tanh_backward")
    failure = pytest.raises(BackendCompilerFailed, match=r"region 'mlp' .*tanh_backward")
    with interpreting_regions(), failure as info:
        compiled(block)(*leaves())  # the backward is compiled with the forward, so that the cache can keep both
    assert line_of("mlp") in str(info.value)
    assert isinstance(info.value.inner_exception, RegionCompileError)


def test_a_region_that_does_not_compile_in_a_backward_of_its_own_time(monkeypatch):
    break_inductor(monkeypatch, "aten.tanh_backward")
    with interpreting_regions():
        output = compiled(block, options={"outer_cache": False})(*leaves())
        with pytest.raises(RegionCompileError, match=r"region 'mlp' .*tanh_backward"):
            output.sum().backward()


@pytest.mark.parametrize("op", ["aten.tanh.default", "aten.tanh_backward"])
def test_a_region_left_eager_among_compiled_ones(monkeypatch, op):
    break_inductor(monkeypatch, op)
    counters.clear()
    inputs = leaves()
    warning = pytest.warns(RegionFallbackWarning, match=re.escape(op) + ".*runs eagerly")
    with interpreting_regions(), warning as warned:
        actual = gradients(compiled(block, options={"on_region_error": "eager"}), inputs)
    torch.testing.assert_close(actual, gradients(block, inputs))
    assert len([w for w in warned if w.category is RegionFallbackWarning]) == 1
    assert counters["regional"]["fallbacks"] == 1


def test_both_directions_left_eager(monkeypatch):
    break_inductor(monkeypatch, "aten.")
    counters.clear()
    inputs = leaves()
    with pytest.warns(RegionFallbackWarning):
        actual = gradients(compiled(block, options={"on_region_error": "eager"}), inputs)
    torch.testing.assert_close(actual, gradients(block, inputs), rtol=0, atol=0)
    assert counters["regional"]["fallbacks"] == 4  # two regions, forward and backward


def test_a_config_that_is_no_function():
    mark = {"inductor_region": "mlp", "inductor_configs": {"post_grad_custom_post_pass": 3}}
    with pytest.raises(BackendCompilerFailed, match="'post_grad_custom_post_pass' of region 'mlp' is 3 of type int"):
        compiled(marked(mark))(torch.randn(3, 3))
