"""Why something is not cached: in words, of what could not be; an error where PyTorch's strict mode asks for one."""

import functools
import pickle
import threading

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch.utils.checkpoint
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, CustomRuntimeEstimator
from torch.fx.traceback import annotate
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytest_regional import region, torch_matches
from pytest_regional._base.errors import RegionalError
from pytest_regional.reference import CacheWarning, cache_key, compile_region
from pytest_regional.reference.artifacts import UnsavableArtifactError
from pytest_regional.reference.caching import outer, program
from pytest_regional.reference.caching.container import dumped, reset_warnings
from tests.reference.caches import compiled, entries, outcomes


@pytest.fixture(autouse=True)
def _warn_again():
    reset_warnings()


def inputs(training=False):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, generator=generator).requires_grad_(training) for _ in range(2)]


def mlp(x, w, **keywords):
    with region("mlp", **keywords):
        return x @ w


def configured(**configs):
    return functools.partial(mlp, configs=configs)


@torch._dynamo.allow_in_graph
def untraced(x):
    return x @ x


def not_traced(x, w):
    return mlp(x, w) + untraced(x)


def not_traced_in_a_checkpoint(x, w):
    return torch.utils.checkpoint.checkpoint(not_traced, x, w, use_reentrant=False) + 1


def condition(x, w):
    return torch.cond(x.sum() > 0, mlp, lambda x, w: w @ x, (x, w))


def checked(x, w):
    """``linalg.inv`` raises for a matrix without an inverse, which takes an effect token."""
    return mlp(x, w) + torch.linalg.inv(x @ x.mT + 2 * torch.eye(4))


class Owner:
    pass


def annotated(x, w):
    with annotate({"owner": Owner}):
        return mlp(x, w)


def chosen(context, op, *args, **kwargs):
    return torch.utils.checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


def selective(context_fn):
    def call(x, w):
        return torch.utils.checkpoint.checkpoint(mlp, x, w, use_reentrant=False, context_fn=context_fn).sin()

    return call


def nameless_policy():
    return torch.utils.checkpoint.create_selective_checkpoint_contexts(chosen)


def policy(name):
    made = functools.partial(torch.utils.checkpoint.create_selective_checkpoint_contexts, chosen)
    made.cache_hash = name
    return made


# Program, whether it trains, and words of the reason. Nothing of it is ever cached.
BYPASSES = {
    "a function that is not traced": (not_traced, False, "untraced"),
    "a function that is not traced, in a checkpoint": (not_traced_in_a_checkpoint, False, "untraced"),
    "a condition": (condition, False, "cond"),
    "an annotation": (annotated, False, "Owner'> of type type means nothing in another process"),
    "frozen weights in a region": (configured(freezing=True), False, "region .*mlp.* freezing enabled"),
    "a region that caches nothing": (configured(force_disable_caches=True), False, "region .*mlp.* caches were off"),
    "a region without Inductor's cache": (
        configured(fx_graph_cache=False),
        False,
        "region .*mlp.* FX graph cache is not enabled",
    ),
    "a policy without a name": (selective(nameless_policy), True, "cache_hash"),
}
if torch_matches(">=2.13"):  # before, ``linalg.inv`` took no token
    BYPASSES |= {
        "an effect": (checked, False, "effect tokens"),
        "an effect in training": (checked, True, "effect tokens"),
    }


def look_up(fn, training=False):
    with outcomes() as seen:
        values = compiled(fn)(*inputs(training))
    return values, seen


@pytest.mark.parametrize("name", BYPASSES)
def test_the_reason_says_what_is_not_cached(name):
    fn, training, words = BYPASSES[name]
    for _ in range(2):
        values, seen = look_up(fn, training)
        assert (seen["hit"], seen["saved"], len(seen.reasons)) == (0, 0, 1)
        assert pytest.approx(values.detach()) == fn(*inputs(training)).detach()
        assert_matches(words, seen.reasons[0])
    assert entries() == []


def assert_matches(words, reason):
    with pytest.raises(ValueError, match=words):
        raise ValueError(reason)
    assert "NoneType" not in reason


@pytest.mark.parametrize("module", ["_functorch", "_dynamo"])
@pytest.mark.parametrize("name", BYPASSES)
def test_a_bypass_is_an_error_in_strict_mode(name, module):
    fn, training, words = BYPASSES[name]
    config = {"_functorch": "strict_autograd_cache", "_dynamo": "strict_precompile"}[module]
    # Where the region itself is what PyTorch does not cache, its own lookup raises first.
    expected = words.rpartition("* ")[2] if "region" in words else words
    if "caches were off" in words:
        expected = words
    with getattr(torch, module).config.patch({config: True}), pytest.raises(Exception, match=expected):
        compiled(fn)(*inputs(training))


@pytest.mark.parametrize("training", [False, True])
def test_strict_mode_leaves_misses_and_hits_alone(training):
    with torch._functorch.config.patch(strict_autograd_cache=True):
        for name in ("miss", "hit"):
            _, seen = look_up(mlp, training)
            assert (seen[name], seen["bypass"]) == (1, 0)


def test_the_key_ahead_names_the_reason_in_strict_mode_as_well():
    with torch._functorch.config.patch(strict_autograd_cache=True):
        with pytest.raises(RegionalError, match="untraced"):
            cache_key(not_traced, *inputs())
        assert cache_key(mlp, *inputs())


def unpicklable(monkeypatch, error):
    """Make every result one that cannot be pickled."""

    def fail(self, obj):
        if getattr(obj, "__name__", "") == "mm.default":
            raise error
        return original(self, obj)

    original = program._Pickler.reducer_override
    monkeypatch.setattr(program._Pickler, "reducer_override", fail)


def outside(x, w):
    return mlp(x, w) @ w


@pytest.mark.parametrize("error", [TypeError("cannot pickle it"), ValueError("pointers"), RuntimeError("no state")])
def test_a_result_that_cannot_be_stored_names_its_node(monkeypatch, error):
    unpicklable(monkeypatch, error)
    values, seen = look_up(outside)
    assert (seen["miss"], seen["saved"]) == (1, 0)
    (reason,) = seen.reasons
    assert_matches(r"the result cannot be stored: node mm\w* \(call_function of aten.mm.default\) cannot be", reason)
    assert str(error) in reason
    torch.testing.assert_close(values, outside(*inputs()))
    with torch._functorch.config.patch(strict_autograd_cache=True), pytest.raises(Exception, match="node mm"):
        compiled(outside)(*inputs())


def test_a_field_of_the_entry_that_cannot_be_stored_is_named(monkeypatch):
    original = outer.OuterCache._as_bytes

    def with_a_lock(self, entry):
        entry.guards_expr = threading.Lock()
        return original(self, entry)

    monkeypatch.setattr(outer.OuterCache, "_as_bytes", with_a_lock)
    _, seen = look_up(mlp)
    assert_matches(
        "the result cannot be stored: guards_expr of the entry cannot be pickled: TypeError", seen.reasons[0]
    )


def test_a_field_of_the_entry_is_stored_outside_of_the_fake_mode(monkeypatch):
    """It may hold a tensor, as that of a view does: one on a GPU cannot be pickled in the mode."""
    original, modes = outer.OuterCache._as_bytes, []

    class Field:
        def __reduce__(self):
            modes.append(tuple(_get_current_dispatch_mode_stack()))
            return str, ()

    def with_a_field(self, entry):
        entry.guards_expr = Field()
        return original(self, entry)

    monkeypatch.setattr(outer.OuterCache, "_as_bytes", with_a_field)
    look_up(mlp)
    assert modes
    assert set(modes) == {()}


# What no user's value is to blame for is an error, and never a reason.


def test_a_mistake_of_ours_is_no_reason(monkeypatch):
    monkeypatch.setattr(program, "_describe", None)
    with pytest.raises(Exception, match="'NoneType' object is not callable"):
        compiled(mlp)(*inputs())


def test_only_a_part_that_cannot_be_pickled_alone_is_to_blame():
    with pytest.raises(ValueError, match="second cannot be pickled: TypeError"):
        dumped([1, lambda: None], [("first", 1), ("second", (i for i in ()))], lambda part: pickle.dumps((0, part)))

    def mistaken(value):
        raise TypeError("'NoneType' object is not callable") if isinstance(value, list) else ValueError

    with pytest.raises(TypeError, match="NoneType"):
        dumped([1], [("first", 1)], lambda value: mistaken(value) if isinstance(value, list) else b"")


def test_a_symbol_that_pytorch_lacks_is_no_reason(monkeypatch):
    monkeypatch.delattr("torch._functorch._aot_autograd.autograd_cache.check_node_safe")
    with pytest.raises(Exception, match="check_node_safe does not exist"):
        compiled(mlp)(*inputs())


def test_an_error_in_pytorchs_key_says_where_and_warns(monkeypatch):
    def failing(*args):
        raise TypeError("'NoneType' object is not callable")

    monkeypatch.setattr("torch._functorch._aot_autograd.autograd_cache.check_cacheable", failing)
    words = "PyTorch failed while it computed its key of the graph: TypeError.*in failing, .*py:"
    with pytest.warns(CacheWarning, match=words):
        _, seen = look_up(mlp)
    assert seen.reasons[0].startswith("PyTorch failed while it computed its key")
    assert (seen["miss"], seen["saved"]) == (0, 0)


def test_an_artifact_of_what_cannot_be_stored_says_why(tmp_path):
    gm = torch.fx.symbolic_trace(lambda x: (torch.ops.aten.sin.default(x),))
    made = compile_region(gm, torch.ones(3), configs={"fx_graph_cache": False})
    with pytest.raises(UnsavableArtifactError, match="has no result that can be stored"):
        made.save(tmp_path / "region")


# What is named is cached, and a new name is another entry.


class Estimator(CustomRuntimeEstimator):
    def __init__(self, name):
        self.name = name

    def __call__(self, node):
        return 1.0

    def uuid(self):
        return self.name


class Solver(CustomKnapsackSolver):
    def __init__(self, name):
        self.name = name

    def __call__(self, memory, joint_graph, max_memory, node_info, all_recomputable_banned_nodes):
        return 0.0, list(range(len(memory))), []

    def uuid(self):
        return self.name


ESTIMATES = {
    "activation_memory_budget_runtime_estimator": Estimator,
    "activation_memory_budget_solver": Solver,
}


@pytest.mark.parametrize("setting", ESTIMATES)
def test_estimators_by_their_names(setting):
    for name, outcome in [("v1", "miss"), ("v1", "hit"), ("v2", "miss"), ("v1", "hit")]:
        with torch._functorch.config.patch({setting: ESTIMATES[setting](name)}):
            _, seen = look_up(mlp, training=True)
        assert (seen[outcome], seen["hit"] + seen["miss"] + seen["bypass"]) == (1, 1)


@pytest.mark.parametrize("setting", ESTIMATES)
@pytest.mark.parametrize("what", ["no name", "a function"])
def test_estimators_without_a_name(setting, what):
    value = ESTIMATES[setting](None) if what == "no name" else (lambda *args: 1.0)
    with torch._functorch.config.patch({setting: value}):
        for _ in range(2):
            _, seen = look_up(mlp, training=True)
            assert (seen["hit"], seen["saved"]) == (0, 0)
            assert_matches(r"uuid\(\)", seen.reasons[0])


def test_checkpoint_policies_by_their_names():
    for name, outcome in [("v1", "miss"), ("v1", "hit"), ("v2", "miss"), ("v1", "hit")]:
        _, seen = look_up(selective(policy(name)), training=True)
        assert (seen[outcome], seen["bypass"]) == (1, 0)
