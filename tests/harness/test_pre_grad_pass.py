"""The counting pre-grad pass: runs by graph, by outcome of the lookup, by process; each claim with what breaks it."""

from __future__ import annotations

import functools
import operator
import pickle

import pytest
import torch

from pytest_regional import BackendSpec, region, torch_matches
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch import symbol
from pytest_regional.testing import pre_grad_pass, regional, replacing

from .programs import pair, two_products

has_timing = pytest.mark.skipif(not torch_matches(">=2.12"), reason="torch 2.11 runs pre-grad passes early, always")


def plain(x, w):
    """A product alone needs no C++ compiler."""
    return x @ w


def counts(counting):
    return counting.calls_by_compile, {k: v for k, v in counting.calls_by_outcome.items() if v}


def test_a_new_pass_has_seen_nothing():
    counting = pre_grad_pass()
    assert (counting.calls, counting.region_calls, counting.calls_by_compile) == (0, 0, ())
    assert counting.calls_by_outcome == {"hit": 0, "miss": 0, "bypass": 0, "none": 0}


def test_a_run_outside_any_compile_counts_in_calls_alone():
    counting = pre_grad_pass()
    with regional("aot_eager", expects_regions=False):
        counting(torch.fx.Graph())
    assert (counting.calls, *counts(counting)) == (1, (), {})


@has_timing
@pytest.mark.parametrize(
    ("timing", "by_compile", "by_outcome"),
    [("late", (1, 0), {"miss": 1}), ("early", (1, 1), {"miss": 1, "hit": 1})],
)
def test_runs_by_compile_and_outcome(timing, by_compile, by_outcome):
    """An early pass runs before the outcome of its lookup is known, a late one after: both are told which it was."""
    counting = pre_grad_pass(uuid="v1")
    with regional("inductor") as r:
        x = pair(r)
        for _ in range(2):
            r.restart()
            r.compile(plain, pre_grad_pass=counting, pre_grad_pass_timing=timing)(*x)
    assert counts(counting) == (by_compile, by_outcome)


def test_a_lookup_that_is_bypassed():
    counting = pre_grad_pass(uuid="v1", transform=replacing(operator.matmul, torch.matmul))
    with regional("inductor") as r, r.expect(cache_bypasses=1, pre_grad_calls=1):
        r.compile(plain, pre_grad_pass=counting, inductor_configs={"joint_custom_pre_pass": lambda graph: None})(
            *pair(r)
        )
    assert counts(counting) == ((1,), {"bypass": 1})


def test_graphs_compiled_without_the_pass_are_not_listed():
    counting, other = pre_grad_pass(uuid="v1"), pre_grad_pass(uuid="v2")
    with regional("inductor") as r:
        x = pair(r)
        r.compile(plain)(*x)
        r.compile(lambda x, w: w @ x.T, pre_grad_pass=other)(*x)
        r.compile(lambda x, w: x @ w @ w, pre_grad_pass=counting)(*x)
    assert (counting.calls_by_compile, other.calls_by_compile) == ((1,), (1,))


def broken(x, w):
    x = x @ w
    torch._dynamo.graph_break()
    return x @ w.T


def test_each_piece_between_graph_breaks_is_a_compile():
    counting = pre_grad_pass(uuid="v1")
    with regional("inductor", fullgraph=False) as r:
        r.compile(broken, pre_grad_pass=counting)(*pair(r))
    assert counting.calls_by_compile == (1, 1)


nested = torch.compiler.nested_compile_region(plain)


def in_body(x, w):
    return nested(nested(x, w), w)


def runs_a_copy(gm, example_inputs):
    """A backend that runs the pass on the body, and on a copy of the graph."""
    (custom,) = [symbol("torch._inductor.config", "pre_grad_custom_pass")]
    (body,) = [child for child in gm.children() if isinstance(child, torch.fx.GraphModule)]
    custom(body.graph)
    custom(torch.fx.Graph())
    return gm.forward


def test_runs_on_bodies_of_operators_are_counted_apart():
    counting = pre_grad_pass(uuid="v1")
    spec = BackendSpec(name="runs_a_copy", factory=lambda: runs_a_copy)
    with regional(spec, expects_regions=False) as r, r.expect(pre_grad_calls=1), torch.no_grad():
        r.compile(in_body, pre_grad_pass=counting)(*pair(r))
    assert (counting.calls, counting.body_calls, counting.calls_by_compile) == (2, 1, (1,))


def runs_twice(gm, example_inputs):
    """A backend that runs every configured pass twice, and looks nothing up."""
    for custom in symbol("torch._inductor.config", "pre_grad_custom_pass"):
        custom(gm.graph)
        custom(gm.graph)
    gm.recompile()
    return gm.forward


def runs_never(gm, example_inputs):
    """A backend that forgets the passes."""
    return gm.forward


@pytest.mark.parametrize(("backend", "runs"), [(runs_twice, 2), (runs_never, 0)])
def test_a_backend_never_seen_before(backend, runs):
    counting = pre_grad_pass(uuid="v1")
    spec = BackendSpec(name=backend.__name__, factory=lambda: backend)
    with regional(spec, expects_regions=False) as r, r.expect(pre_grad_calls=runs):
        r.compile(plain, pre_grad_pass=[counting])(*pair(r))
    assert (counting.calls_by_compile, counting.calls_by_outcome["none"]) == ((runs,), runs)


@pytest.mark.parametrize("direct", [False, True])
def test_runs_on_regions_are_counted_apart(direct):
    """PyTorch's regional backend runs the pass once a region; here forward and backward of two regions."""
    counting = pre_grad_pass(uuid="v1")
    with regional("torch") as r:
        x = pair(r, requires_grad=True)
        if direct:
            from pytest_regional._torch.dynamo import regional_inductor_backend

            with torch._inductor.config.patch(pre_grad_custom_pass=counting):
                torch.compile(two_products, backend=regional_inductor_backend())(*x)
        else:
            r.run(two_products, *x)
            r.restart()
            r.compile(two_products, pre_grad_pass=counting)(*x)
    assert counting.calls == counting.region_calls > 0
    assert counts(counting) == ((0,), {})


def test_a_pass_in_pytorchs_own_config_counts_its_graph():
    counting = pre_grad_pass(uuid="v1")
    with regional("inductor") as r, torch._inductor.config.patch(pre_grad_custom_pass=counting):
        torch.compile(plain, backend="inductor")(*pair(r))
    assert counts(counting) == ((1,), {"miss": 1})


def test_a_pass_that_raises_has_run():
    def fail(graph):
        raise KeyError("mine")

    counting = pre_grad_pass(uuid="v1", transform=fail)
    with regional("inductor", expects_regions=False) as r, pytest.raises(Exception, match="mine"):
        r.compile(plain, pre_grad_pass=counting)(*pair(r))
    assert counting.calls_by_compile == (1,)


def test_replacing_changes_the_results():
    """The proof that the pass ran is the wrong answer."""
    with regional("inductor") as r:
        x, w = pair(r)
        wrong = pre_grad_pass(uuid="v1", transform=replacing(operator.add, operator.sub))
        torch.testing.assert_close(r.compile(lambda x, w: x + w[0], pre_grad_pass=wrong)(x, w), x - w[0])


def compile_there(regional, counting):
    regional.compile(plain, pre_grad_pass=counting)(*pair(regional))
    return counting.calls, counting.calls_by_compile, counting.calls_by_outcome


@pytest.mark.usefixtures("warm_process")
def test_each_process_counts_for_itself():
    """A pass that crosses to another process has seen nothing there, whatever it saw here."""
    counting = pre_grad_pass(uuid="v1", transform=remember)
    with regional("inductor") as r:
        r.compile(plain, pre_grad_pass=counting)(*pair(r))
        there = r.in_new_process(compile_there, counting)
    assert counting.calls_by_outcome["miss"] == counting.calls == 1
    calls, by_compile, by_outcome = there.value
    # torch 2.11 runs the pass before the lookup, later ones not at all on a hit.
    runs = 0 if torch_matches(">=2.12") else 1
    assert (calls, by_compile, by_outcome["hit"]) == (runs, (runs,), runs)
    assert (there.counters.pre_grad_calls, there.counters.cache_hits) == (runs, 1)


def remember(graph):
    """A transform that another process can find by its name."""


def test_the_same_passes_in_another_list_are_the_same_options():
    """So that Dynamo, which tells backends apart by identity, does not compile again."""
    counting = pre_grad_pass(uuid="v1")
    with regional(BackendSpec(name="runs_twice", factory=lambda: runs_twice), expects_regions=False) as r:
        x = pair(r)
        r.compile(plain, pre_grad_pass=[counting])(*x)
        with r.expect(pre_grad_calls=0, graphs=0):
            r.compile(plain, pre_grad_pass=[counting])(*x)
        with r.expect(pre_grad_calls=4, graphs=1):
            r.compile(plain, pre_grad_pass=[counting, counting])(*x)


# How a timing reaches a backend


def takes_options(gm, example_inputs, options=None):
    """A backend with an option of its own."""
    seen.append(options)
    return gm.forward


seen: list[object] = []


def spec_of(compile_options=frozenset()):
    return BackendSpec(name="takes_options", factory=lambda: takes_options, compile_options=frozenset(compile_options))


@pytest.mark.parametrize("timing", [None, "early"])
def test_a_timing_reaches_the_backend_by_option_only_where_torch_has_no_setting(timing):
    seen.clear()
    with regional(spec_of({"pre_grad_pass_timing"}), expects_regions=False) as r:
        r.compile(plain, pre_grad_pass_timing=timing)(*pair(r))
    by_option = timing is not None and not torch_matches(">=2.12")
    assert seen == [{"pre_grad_pass_timing": timing} if by_option else None]


@pytest.mark.skipif(torch_matches(">=2.12"), reason="torch has the setting")
def test_a_timing_that_the_backend_does_not_take():
    with regional(spec_of(), expects_regions=False) as r:
        with pytest.raises(RegionalValueError, match=r"no pre_grad_pass_timing.*compile_options"):
            r.compile(plain, pre_grad_pass_timing="early")


def test_an_unknown_compile_option():
    with pytest.raises(ValueError, match=r"unknown compile option 'pre_grad_timing'. Did you mean"):
        spec_of({"pre_grad_timing"})


# Passes that do not count themselves


class Own(symbol("torch._inductor.custom_graph_pass", "CustomGraphPass")):
    """A pass as users write it; ``ran`` says how often it did."""

    def __init__(self, uuid: str | None = "own") -> None:
        self.ran, self._uuid = 0, uuid

    def __call__(self, graph):
        self.ran += 1

    def uuid(self):
        return self._uuid


def by_option(r, passes):
    r.compile(pair_in_region, pre_grad_pass=passes)(*pair(r))


def by_configuration(r, passes):
    with torch._inductor.config.patch(pre_grad_custom_pass=passes):
        r.compile(pair_in_region)(*pair(r))


def pair_in_region(x, w):
    with region("r"):
        return nested(x, w) @ w


def runs_them(gm, example_inputs):
    """A backend of another author, which takes one pass or several."""
    configured = symbol("torch._inductor.config", "pre_grad_custom_pass")
    for custom in configured if isinstance(configured, list | tuple) else [configured]:
        custom(gm.graph)
    return gm.forward


@pytest.mark.filterwarnings("ignore:the pre-grad pass:pytest_regional.RegionalWarning")
@pytest.mark.parametrize("backend", ["reference", "inductor", "runs_them"])
def test_the_users_own_passes_are_counted_whichever_backend_runs_them(backend):
    """Each form of pass, given by option and by configuration: counted once a graph, not on the bodies inside."""
    spec = BackendSpec(name="runs_them", factory=lambda: runs_them) if backend == "runs_them" else backend
    with regional(spec, expects_regions=False) as r:
        for give in (by_option, by_configuration):
            for wanted, make in {
                1: lambda own: own,
                2: lambda own: [own, Own("second")],
                3: lambda own: (own, pre_grad_pass(uuid="counts itself"), Own()),
                4: lambda own: [own.__call__, functools.partial(own), lambda graph: own(graph), Own(None)],
            }.items():
                own = Own()
                with r.expect(pre_grad_calls=wanted, region_pre_grad_calls=0):
                    give(r, make(own))
                assert own.ran >= 1, (give, wanted)
                r._reset()


def test_a_pass_that_is_counted_is_itself_to_the_backend():
    seen = []

    def looks(gm, example_inputs):
        seen.append(symbol("torch._inductor.config", "pre_grad_custom_pass"))
        return gm.forward

    own = Own()
    with regional(BackendSpec(name="looks", factory=lambda: looks), expects_regions=False) as r:
        r.compile(plain, pre_grad_pass=own)(*pair(r))
    assert seen == [own]
    assert isinstance(seen[0], Own)
    assert (seen[0].uuid(), type(seen[0]).__qualname__, hash(seen[0])) == ("own", "Own", hash(own))
    assert pickle.loads(pickle.dumps(seen[0])).uuid() == "own"
