"""The outer cache: what hits, what misses, and what a hit is worth."""

import contextlib
import pickle

import pytest
import torch
import torch.utils.checkpoint
from torch.fx.traceback import annotate

from pytest_regional import region
from pytest_regional.reference import CacheWarning
from pytest_regional.reference.caching import program as program_module
from pytest_regional.reference.caching import store
from pytest_regional.reference.caching.program import load_program
from tests.reference.caches import compiled, entries, outcomes


def program(x, w, name="mlp", configs=None):
    h = x @ w
    with region(name, configs=configs):
        h = h @ w.T
    return h + x


def unmarked(x, w):
    h = x @ w
    h = h @ w.T
    return h + x


def tensors(size=4, **kwargs):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, size, generator=generator).to(**kwargs) for _ in range(2)]


def leaves():
    return [value.requires_grad_() for value in tensors()]


def run(fn, *inputs, **options):
    """Compile anew, run, and return output and outcomes."""
    with outcomes() as seen:
        output = compiled(fn, **options)(*inputs)
    return output, seen


def test_a_miss_then_a_hit():
    first, miss = run(program, *tensors())
    assert miss == {"hit": 0, "miss": 1, "bypass": 0, "saved": 1, "regions": 1}
    second, hit = run(program, *tensors())
    assert hit == {"hit": 1, "miss": 0, "bypass": 0, "saved": 0, "regions": 0}
    assert torch.equal(first, second)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_hit_of_a_float64_without_dimensions_is_one_hit(reverse, monkeypatch):
    """Dynamo takes it for a Python number and starts over; the restart and the result have one key."""
    candidates = store.Store.candidates
    in_order = lambda self, key: sorted(candidates(self, key), key=len, reverse=reverse)  # noqa: E731
    monkeypatch.setattr(store.Store, "candidates", in_order)
    number = torch.tensor(1.5, dtype=torch.float64)
    _, seen = run(exponential, number)
    assert (seen["miss"], seen["saved"]) == (2, 2)
    output, seen = run(exponential, number)
    assert (seen["hit"], seen["miss"]) == (1, 0)
    assert torch.equal(output, number.exp())


def exponential(x):
    with region("exponential"):
        return x.exp()


def test_the_number_of_threads_is_in_the_key():
    run(program, *tensors())
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        _, seen = run(program, *tensors())
    finally:
        torch.set_num_threads(threads)
    assert (seen["hit"], seen["miss"]) == (0, 1)


@pytest.mark.parametrize("option", [{"partitioner": "min_cut"}, {"share_identical": False}])
def test_options_are_in_the_key(option):
    run(program, *tensors())
    _, seen = run(program, *tensors(), options=option)
    assert (seen["hit"], seen["miss"]) == (0, 1)


def blocks(x, w):
    for index in range(4):
        with region(f"block{index}"):
            x = (x @ w) @ w
        x = x.sin()
    return x


def test_equal_regions_are_stored_once():
    def one(x, w):
        with region("block0"):
            x = (x @ w) @ w
        return x.sin()

    run(one, *tensors())
    size_of_one = sum(path.stat().st_size for path in entries())
    run(blocks, *tensors())
    size_of_four = sum(path.stat().st_size for path in entries()) - size_of_one
    assert size_of_four < 1.5 * size_of_one
    output, seen = run(blocks, *tensors())
    assert (seen["hit"], seen["regions"]) == (1, 0)
    torch.testing.assert_close(output, blocks(*tensors()))


@pytest.mark.parametrize("how", ["option", "torch.compiler", "functorch"])
def test_the_cache_can_be_switched_off(how):
    off = {
        "option": contextlib.nullcontext(),
        "torch.compiler": torch.compiler.config.patch(force_disable_caches=True),
        "functorch": torch._functorch.config.patch(enable_autograd_cache=False),
    }
    options = {"outer_cache": False} if how == "option" else {}
    with off[how]:
        for _ in range(2):
            _, seen = run(program, *tensors(), options=options)
            assert (seen["hit"], seen["miss"], seen["saved"]) == (0, 0, 0)
    assert entries() == []


def test_pytorchs_cache_does_not_look_up_the_whole_graph():
    """Its key does not tell programs apart that differ in annotations alone."""
    with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
        run(unmarked, *tensors())
        _, seen = run(program, *tensors())
    assert (seen["hit"], seen["miss"], seen["regions"]) == (0, 1, 1)


def test_pytorchs_cache_in_place_of_ours_tells_annotations_apart():
    """Who switches ours off and PyTorch's on gets a key with annotations in it."""
    with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
        outcomes = []
        for function in (unmarked, program, unmarked, program):
            _, seen = run(function, *tensors(), options={"outer_cache": False})
            outcomes.append((seen["hit"], seen["miss"], seen["saved"]))
    assert outcomes == [(0, 1, 1), (0, 1, 1), (1, 0, 0), (1, 0, 0)]


def test_an_annotation_without_meaning_elsewhere_stays_out_of_pytorchs_cache():
    def marked(x, w):
        with annotate({"owner": Owner}):
            return program(x, w)

    with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
        for _ in range(2):
            _, seen = run(marked, *tensors(), options={"outer_cache": False})
            assert (seen["hit"], seen["saved"]) == (0, 0)


def test_an_annotation_that_means_nothing_elsewhere_is_a_bypass():
    def marked(x, w):
        with annotate({"owner": Owner}):
            return program(x, w)

    _, seen = run(marked, *tensors())
    assert (seen["bypass"], seen["miss"], seen["saved"]) == (1, 0, 0)
    assert len(seen.reasons) == 1
    assert "annotation of node" in seen.reasons[0]
    assert "Owner'> of type type means nothing in another process" in seen.reasons[0]


class Owner:
    pass


def test_what_pytorch_does_not_cache_is_a_bypass_with_its_reason():
    def impure(x, w):
        return program(x, w) + untraced(x)

    _, seen = run(impure, *tensors())
    assert (seen["bypass"], seen["saved"]) == (1, 0)
    assert "untraced" in seen.reasons[0]


@torch.compiler.allow_in_graph
def untraced(x):
    return x + 1


def test_a_region_left_eager_is_not_stored(monkeypatch):
    original = torch._inductor.standalone_compile

    def failing(*args, **kwargs):
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(torch._inductor, "standalone_compile", failing)
    with pytest.warns(UserWarning, match="it runs eagerly"):
        _, seen = run(program, *tensors(), options={"on_region_error": "eager"})
    assert (seen["miss"], seen["saved"]) == (1, 0)
    assert seen.reasons == ("a region did not compile and runs eager",)
    monkeypatch.setattr(torch._inductor, "standalone_compile", original)
    _, seen = run(program, *tensors(), options={"on_region_error": "eager"})
    assert (seen["miss"], seen["saved"], seen["regions"]) == (1, 1, 1)


def test_a_region_left_eager_in_a_body_is_not_stored(monkeypatch):
    @torch.compiler.nested_compile_region
    def body(x, w):
        with region("body"):
            h = x @ w
        return h.cos()

    def nested(x, w):
        return body(body(x, w), w).sin()

    def failing(*args, **kwargs):
        raise NotImplementedError("no kernel")

    monkeypatch.setattr(torch._inductor, "standalone_compile", failing)
    with pytest.warns(UserWarning, match="it runs eagerly"):
        _, seen = run(nested, *tensors(), options={"on_region_error": "eager"})
    assert seen.reasons == ("a region did not compile and runs eager",)


def test_a_result_that_cannot_be_stored_is_used_all_the_same(monkeypatch):
    monkeypatch.setattr(store.LocalStore, "save", lambda self, key, payload: False)
    output, seen = run(program, *tensors())
    assert (seen["miss"], seen["saved"]) == (1, 0)
    torch.testing.assert_close(output, program(*tensors()))


def test_an_entry_that_this_process_cannot_use_is_compiled_again(monkeypatch):
    run(program, *tensors())

    def missing(self):
        raise ImportError("libmissing.so: cannot open shared object file")

    with monkeypatch.context() as patch:
        patch.setattr(program_module.RegionCode, "load", missing)
        with pytest.warns(CacheWarning, match="cannot be used here .*libmissing"):
            output, seen = run(program, *tensors())
    assert (seen["hit"], seen["miss"], seen["regions"]) == (0, 1, 1)
    torch.testing.assert_close(output, program(*tensors()))


def test_a_region_loaded_from_the_cache_is_called_as_directly_as_a_compiled_one():
    for _ in range(2):
        function = compiled(program)
        function(*tensors())
    targets = [node.target for node in loaded_graph().graph.nodes if hasattr(node.target, "makes_plain_values")]
    assert [target.makes_plain_values for target in targets] == [True]


def loaded_graph():
    """Return the one graph that the cache's only entry holds."""
    (path,) = store.default_folder().glob("*/*.artifact")
    (payload,) = store.open_store().candidates(path.parent.name)
    return load_program(pickle.loads(payload).compiled_fw.result._program)


def test_a_second_process_hits_where_dynamo_keeps_its_own_results_too():
    """Dynamo gives each compile a name of its own then, which is no part of the key."""
    with torch._dynamo.config.patch(caching_precompile=True):
        for expected in ({"hit": 0, "miss": 1}, {"hit": 1, "miss": 0}):
            torch._dynamo.reset()
            with outcomes() as seen:
                output = torch.compile(program, backend="regional")(*tensors())
            assert {name: seen[name] for name in expected} == expected
            torch.testing.assert_close(output, program(*tensors()))
