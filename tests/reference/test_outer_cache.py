"""The outer cache: what hits, what misses, and what a hit is worth."""

import contextlib
import pickle

import pytest
import torch
import torch.utils.checkpoint
from torch.fx.traceback import annotate

from pytest_regional import region
from pytest_regional.reference.caching import program as program_module
from pytest_regional.reference.caching import store
from pytest_regional.reference.caching.container import CacheWarning
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


def test_training_is_saved_before_any_backward_ran():
    _, miss = run(program, *leaves())
    assert (miss["miss"], miss["saved"], miss["regions"]) == (1, 1, 2)  # one region forward, one backward
    inputs, expected = leaves(), leaves()
    with outcomes() as hit:
        compiled(program)(*inputs).sum().backward()
    assert (hit["hit"], hit["regions"]) == (1, 0)
    program(*expected).sum().backward()
    torch.testing.assert_close([x.grad for x in inputs], [x.grad for x in expected])


def test_a_hit_is_bitwise_the_miss_that_made_it():
    results = []
    for _ in range(2):
        inputs = leaves()
        output = compiled(program)(*inputs)
        output.sum().backward()
        results.append([output, *(value.grad for value in inputs)])
    assert all(map(torch.equal, *results))


def test_annotations_are_in_the_key():
    run(unmarked, *tensors())
    _, seen = run(program, *tensors())
    assert (seen["hit"], seen["miss"], seen["regions"]) == (0, 1, 1)


@pytest.mark.parametrize("change", [{"name": "other"}, {"configs": {"max_autotune": True}}], ids=["id", "config"])
def test_a_change_of_the_annotation_alone_misses(change):
    def changed(x, w):
        return program(x, w, **change)

    run(program, *tensors())
    _, seen = run(changed, *tensors())
    assert (seen["hit"], seen["miss"]) == (0, 1)


def test_a_moved_border_misses():
    def moved(x, w):
        with region("mlp"):
            h = x @ w
        h = h @ w.T
        return h + x

    run(program, *tensors())
    _, seen = run(moved, *tensors())
    assert (seen["hit"], seen["miss"]) == (0, 1)


def test_values_of_weights_are_not_in_the_key():
    model = torch.nn.Linear(4, 4)
    run(model_in_region(model), torch.randn(2, 4))
    with torch.no_grad():
        model.weight.add_(1)
    x = torch.randn(2, 4)
    output, seen = run(model_in_region(model), x)
    assert (seen["hit"], seen["miss"]) == (1, 0)
    torch.testing.assert_close(output, model(x))


def model_in_region(model):
    def call(x):
        with region():
            return model(x)

    return call


def test_another_size_misses():
    run(program, *tensors(4))
    _, seen = run(program, *tensors(6))
    assert (seen["hit"], seen["miss"]) == (0, 1)


def test_another_size_hits_where_sizes_are_symbolic():
    run(program, *tensors(4), dynamic=True)
    inputs = tensors(6)
    output, seen = run(program, *inputs, dynamic=True)
    assert (seen["hit"], seen["miss"]) == (1, 0)
    torch.testing.assert_close(output, program(*inputs))


def guarded(x, w):
    if x.shape[0] > 5:
        return program(x, w)
    return program(x, w) * 2


def test_a_size_outside_the_guards_misses_and_both_entries_stay():
    for size in (4, 8):
        _, seen = run(guarded, *tensors(size), dynamic=True)
        assert (seen["hit"], seen["miss"]) == (0, 1)
    for size in (3, 9):
        inputs = tensors(size)
        output, seen = run(guarded, *inputs, dynamic=True)
        assert (seen["hit"], seen["miss"]) == (1, 0)
        torch.testing.assert_close(output, guarded(*inputs))


def made_constant(x, w):
    """The number of rows may be another until the trace finds that there are five."""
    with region():
        return x.reshape(5, -1) @ w


@pytest.mark.parametrize("first", [True, False], ids=["marked first", "marked later"])
def test_a_mark_that_the_trace_made_nothing_of_is_not_in_the_key(first):
    for marked, expected in ((first, (0, 1)), (not first, (1, 0))):
        x, w = torch.randn(5, 4), torch.randn(4, 3)
        if marked:
            torch._dynamo.maybe_mark_dynamic(x, 0)
        output, seen = run(made_constant, x, w)
        assert (seen["hit"], seen["miss"]) == expected
        torch.testing.assert_close(output, made_constant(x, w))


def test_the_guards_of_a_hit_hold_for_later_calls():
    run(guarded, *tensors(4), dynamic=True)
    again = compiled(guarded, dynamic=True)
    for size in (3, 9):
        inputs = tensors(size)
        torch.testing.assert_close(again(*inputs), guarded(*inputs))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_dtype_misses(dtype):
    run(program, *tensors())
    _, seen = run(program, *tensors(dtype=dtype))
    assert (seen["hit"], seen["miss"]) == (0, 1)


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


def test_inference_and_training_are_two_entries():
    run(program, *tensors())
    _, seen = run(program, *leaves())
    assert (seen["hit"], seen["miss"]) == (0, 1)


@pytest.mark.parametrize(
    "setting", [("torch._inductor.config", {"max_fusion_size": 3}), ("torch._functorch.config", {"cse": False})]
)
def test_settings_are_in_the_key(setting):
    name, values = setting
    run(program, *tensors())
    config = __import__(name, fromlist=["config"])
    with config.patch(values):
        _, seen = run(program, *tensors())
    assert (seen["hit"], seen["miss"]) == (0, 1)
    _, seen = run(program, *tensors())
    assert (seen["hit"], seen["miss"]) == (1, 0)


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


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with region("cube"):
            return x @ x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * gradient @ x


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with region("cube"):
            return x @ x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * gradient @ x


def test_a_function_with_a_backward_of_its_own():
    for expected in ({"hit": 0, "miss": 1}, {"hit": 1, "miss": 0}):
        inputs = leaves()[0]
        output, seen = run(Cube.apply, inputs)
        assert {name: seen[name] for name in expected} == expected
        output.sum().backward()
        torch.testing.assert_close(inputs.grad, 2 * torch.ones(4, 4) @ inputs.detach())
    _, seen = run(Square.apply, leaves()[0])
    assert (seen["hit"], seen["miss"]) == (0, 1)


def test_mutation_and_aliasing_survive_a_hit():
    def mutating(x, w):
        with region():
            x.add_(w @ w)
        return x.view(-1), x

    run(mutating, *tensors())
    inputs, expected = tensors(), tensors()
    output, seen = run(mutating, *inputs)
    assert seen["hit"] == 1
    torch.testing.assert_close([*output, *inputs], [*mutating(*expected), *expected])
    assert output[1] is inputs[0]
    assert output[0].data_ptr() == inputs[0].data_ptr()


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


def test_a_body_of_a_higher_order_op_with_a_region_inside():
    @torch.compiler.nested_compile_region
    def body(x, w):
        with region("body"):
            return x @ w

    def nested(x, w):
        return body(body(x, w), w).sin()

    run(nested, *tensors())
    output, seen = run(nested, *tensors())
    assert (seen["hit"], seen["regions"]) == (1, 0)
    torch.testing.assert_close(output, nested(*tensors()))


def test_a_recomputed_region():
    def block(x, w):
        with region("block"):
            return (x @ w).relu() @ w

    def recomputed(x, w):
        return torch.utils.checkpoint.checkpoint(block, x, w, use_reentrant=False).sin()

    run(recomputed, *leaves())
    inputs, expected = leaves(), leaves()
    with outcomes() as seen:
        compiled(recomputed)(*inputs).sum().backward()
    assert (seen["hit"], seen["regions"]) == (1, 0)
    recomputed(*expected).sum().backward()
    torch.testing.assert_close([x.grad for x in inputs], [x.grad for x in expected])


def test_a_condition_is_a_bypass_as_in_pytorch():
    def branching(x, w):
        def marked(x, w):
            with region("branch"):
                return x @ w

        return torch.cond(x.sum() > 0, marked, lambda x, w: x - w, (x, w))

    output, seen = run(branching, *tensors())
    assert (seen["bypass"], seen["miss"]) == (1, 0)
    assert "cond" in seen.reasons[0]
    torch.testing.assert_close(output, branching(*tensors()))


def test_constants_are_stored_with_their_values():
    table = torch.arange(16.0).reshape(4, 4)

    def with_constant(x, w):
        with region():
            return x @ (w + torch.tensor([1.0, 2.0, 3.0, 4.0]))

    run(with_constant, table, table)
    output, seen = run(with_constant, table, table)
    assert seen["hit"] == 1
    torch.testing.assert_close(output, with_constant(table, table))


def test_a_graph_break_makes_two_entries():
    def broken(x, w):
        x = program(x, w)
        torch._dynamo.graph_break()
        return program(x, w, name="second")

    for expected in ((0, 2), (2, 0)):
        torch._dynamo.reset()
        with outcomes() as seen:
            torch.compile(broken, backend="regional")(*tensors())
        assert (seen["hit"], seen["miss"]) == expected


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
    (key,) = store.LocalStore(store.default_folder()).keys()
    (payload,) = store.open_store().candidates(key)
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
