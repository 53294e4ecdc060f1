"""Programs that people compile with PyTorch's ``regional_inductor``, with ours in its place: values and compiles."""

import warnings

import pytest
import torch
from torch.compiler import nested_compile_region
from torch.fx.traceback import annotate

from pytest_regional._torch import torch_version
from tests.reference.user_backends import compile_for_user, counted_compiles, user_backend, values_and_gradients

MARK = {"compile_with_inductor": 0}


def leaves(*shapes):
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def simple(x, y):
    sin = torch.sin(x)
    with annotate(MARK):
        product = sin * y
        total = product + 1
    return torch.sin(total)


def block(x, y):
    sin = torch.sin(x)
    with annotate(MARK):
        product = sin * y
        total = product + 1
    return torch.sin(total)


def repeated(x, y):
    return block(block(x, y), y)


@nested_compile_region
def plain_body(x, y):
    return torch.sin(x * y)


def annotated_call(x, y):
    sin = torch.sin(x)
    with annotate(MARK):
        product = plain_body(sin, y)
        total = product + 1
    return torch.sin(total)


@nested_compile_region
def body_with_region(x, y):
    sin = torch.sin(x)
    with annotate(MARK):
        product = sin * y
        total = product + 1
    return torch.sin(total)


def annotated_body_twice(x, y):
    return body_with_region(body_with_region(torch.sin(x), y), y)


def matches_eager(fn, *inputs, **options):
    """Compare values and gradients with eager; return the ops of every ``standalone_compile`` call."""
    expected = values_and_gradients(fn, *inputs)
    with counted_compiles() as calls:
        actual = values_and_gradients(compile_for_user(fn, **options), *inputs)
    torch.testing.assert_close(actual, expected)
    return calls


@pytest.mark.slow(
    "compiles drawn programs with gradients", fast="tests/reference/test_options.py::test_share_identical"
)
@pytest.mark.parametrize("pickled", [False, True], ids=["as_is", "through_pickle"])
@pytest.mark.parametrize(
    ("fn", "calls", "unshared_calls"),
    [
        (simple, 2, 2),
        # The two blocks are equal: one compile forward and one backward, where PyTorch takes two each.
        (repeated, 2, 4),
        (annotated_call, 2, 2),
        # One body stands for both calls, forward and backward, so there is nothing to share.
        (annotated_body_twice, 2, 2),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_compiles_of_training_programs(fn, calls, unshared_calls, pickled):
    inputs = leaves(10, 10)
    assert len(matches_eager(fn, *inputs, pickled=pickled, share_identical=False)) == unshared_calls
    assert len(matches_eager(fn, *inputs, pickled=pickled)) == calls


def test_no_warning_about_unboxed_arguments():
    def unannotated(x, y):
        return torch.sin(x * y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for fn in (simple, unannotated):
            values_and_gradients(compile_for_user(fn), *leaves(10, 10))
    assert not [str(w.message) for w in caught if "boxed" in str(w.message)]


def test_each_compile_sees_its_configs_and_gives_its_graph_away():
    configs = {"max_autotune": True, "triton.cudagraphs": False}

    def fn(x, y):
        sin = torch.sin(x)
        with annotate({"compile_with_inductor": {"inductor_configs": configs}}):
            product = sin * y
            total = product + 1
        return torch.sin(total)

    seen = []
    original = torch._inductor.standalone_compile

    def spy(*args, **kwargs):
        config = torch._inductor.config
        seen.append((config.max_autotune, config.triton.cudagraphs, kwargs.get("donate_graph_module")))
        return original(*args, **kwargs)

    with torch._inductor.config.patch({"triton.cudagraphs": True}), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._inductor, "standalone_compile", spy)
        inputs = leaves(10, 10)
        torch.testing.assert_close(
            values_and_gradients(compile_for_user(fn), *inputs), values_and_gradients(fn, *inputs)
        )
        assert torch._inductor.config.triton.cudagraphs
    donated = True if torch_version() >= (2, 13) else None
    assert seen == [(True, False, donated)] * 2


def test_ahead_of_time_precompile(tmp_path):
    backend = user_backend()
    inputs = leaves(10, 10)
    expected = values_and_gradients(simple, *inputs)
    with torch._dynamo.config.patch(enable_aot_compile=True):
        with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
            compiled = torch.compile(simple, backend=backend, fullgraph=True).aot_compile((tuple(inputs), {}))
            torch.testing.assert_close(values_and_gradients(compiled, *inputs), expected)
            compiled.save_compiled_function(str(tmp_path / "simple.pt"))
        torch._dynamo.reset()
        with counted_compiles() as calls, (tmp_path / "simple.pt").open("rb") as file:
            loaded = torch.compiler.load_compiled_function(file)
            torch.testing.assert_close(values_and_gradients(loaded, *inputs), expected)
    assert calls == []
