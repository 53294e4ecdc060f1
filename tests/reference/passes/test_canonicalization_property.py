"""Random chains of views: canonicalization changes nothing that a program can see, forward and backward."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional._torch.fx_graphs import region_mark
from pytest_regional.reference.passes import canonicalize
from pytest_regional.reference.pipeline.call import count_ops

from .test_canonicalization import seen

aten = torch.ops.aten
RELAXED = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


def transpose(y, n):
    return y.transpose(n % y.dim(), (n // 3) % y.dim())


def permute(y, n):
    dims = [*range(y.dim())]
    return y.permute(*dims[n % y.dim() :], *dims[: n % y.dim()])


def reshape(y, n):
    shapes = [(24,), (4, 6), (2, 12), (2, 3, 4), (1, 24), (24, 1), (2, 1, 12)]
    fitting = [shape for shape in shapes if math.prod(shape) == y.numel()]
    return y.reshape(fitting[n % len(fitting)]) if fitting else y.reshape(-1)


def cut(y, n):
    return y[n % 2 :] if y.shape[0] > 1 else y[:]


def widen(y, n):
    return y.unsqueeze(n % (y.dim() + 1)) if y.dim() < 4 else y.squeeze()


def narrow(y, n):
    return y.squeeze(0)


def same(y, n):
    ways = (lambda: y.view_as(y), lambda: y.expand_as(y), lambda: aten.alias.default(y), lambda: y[...], lambda: y[:])
    return ways[n % len(ways)]()


def spread(y, n):
    return y.unsqueeze(0).expand(1 + n % 2, *y.shape) if y.dim() < 4 else y


def copied(y, n):
    return (y.clone(), y.contiguous(), aten._to_copy.default(y), y.double().float())[n % 4]


def cut_off(y, n):
    return y.detach() if n % 3 == 0 else y


def compute(y, n):
    return y.sin() if n % 2 else y * 2


STEPS = (transpose, permute, reshape, cut, widen, narrow, same, spread, copied, cut_off, compute)


def chains(steps):
    """Return lists of what comes next, with which argument, on which of the values there are."""
    return st.lists(st.tuples(st.sampled_from(steps), st.integers(0, 11), st.integers(0, 3)), min_size=1, max_size=9)


CHAINS = chains(STEPS)


def program(chain, *, writes=()):
    """Return a function of one tensor: its last values are its results."""

    def run(x):
        values = [x]
        for step, number, back in chain:
            values.append(_whole(step, values[-1 - back % len(values)], number))
        for back in writes:
            written = values[-1 - back % len(values)]
            if 0 not in written.stride():
                written.add_(1)
        return tuple(values[-2:]) + tuple(value.cos() for value in values[1:])

    return run


def _whole(step, y, n):
    return step(y, n) if y.dim() else y.reshape(1)


def check(chain, writes):
    x = torch.randn(2, 3, 4)
    gm = make_fx(program(chain, writes=writes), tracing_mode="fake")(x)
    before, ops = seen(gm, [x]), sum(count_ops(gm).values())
    names = [node.name for node in gm.graph.output_node().all_input_nodes]
    removed = canonicalize(gm.graph)
    gm.graph.lint()
    gm.recompile()
    assert seen(gm, [x]) == before
    assert [node.name for node in gm.graph.output_node().all_input_nodes] == names
    assert ops - sum(count_ops(gm).values()) == removed
    assert canonicalize(gm.graph) == 0


WRITES = st.lists(st.integers(0, 8), max_size=2)
test_values_strides_and_aliases_are_the_same = RELAXED(given(chain=CHAINS, writes=WRITES)(check))


def check_borders(chain, regions):
    gm = make_fx(program(chain), tracing_mode="fake")(torch.randn(2, 3, 4))
    marks, read = {}, {}
    for index, node in enumerate(node for node in gm.graph.nodes if node.op == "call_function"):
        name = regions[index % len(regions)]
        node.meta.pop("custom", None)
        if name is not None:
            node.meta["custom"] = {"compile_with_inductor": {"inductor_region": name}}
        marks[node], read[node] = region_mark(node), (node.target, node.args)
    canonicalize(gm.graph)
    left = [node for node in gm.graph.nodes if node in marks]
    assert {node: region_mark(node) for node in left} == {node: marks[node] for node in left}
    for node in left:
        target, args = read[node]
        rewritten = node.target is not target or (target is aten.view.default and node.args[0] is not args[0])
        if rewritten and node.target is not aten.alias.default and args[0] in left:
            assert marks[node] == marks[args[0]]


REGIONS = st.lists(st.sampled_from([None, "a", "b"]), min_size=1, max_size=5)
test_no_op_moves_across_the_border_of_a_region = RELAXED(given(chain=CHAINS, regions=REGIONS)(check_borders))


@settings(RELAXED, max_examples=8)
@given(chain=chains((transpose, permute, spread, cut, compute)))
def test_gradients_are_the_same_bits(chain):
    """Forward and backward graph compute what they computed before."""
    graphs = []

    def compiler(gm, inputs):
        before = copy.deepcopy(gm)
        canonicalize(gm.graph)
        gm.recompile()
        graphs.append(gm)
        return make_boxed_func(lambda *values: same_results(before(*values), gm(*values)))

    results = aot_function(program(chain), compiler)(torch.randn(2, 3, 4, requires_grad=True))
    weighted = [result.double().pow(2).sum() for result in results if result.requires_grad]
    if weighted:
        torch.stack(weighted).sum().backward()
    assert len(graphs) == 1 + bool(weighted)


def same_results(expected, got):
    for one, other in zip(got, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.stride() == other.stride()
            assert torch.equal(one, other)
    return got


MODULE = "pytest_regional.reference.passes.canonicalization"

#: Wrong rules, and steps of which every tenth chain shows it; of all steps, every hundredth.
WRONG = {
    "same_tensor": (lambda first, second: first.shape == second.shape, (spread, cut)),
    "storages_kept_apart": (lambda graph: set(), (transpose, copied)),
    "permutation": (lambda node: (1, 0, 2) if node.target is aten.permute.default else None, (permute, reshape)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_property_can_fail(fault, monkeypatch):
    """With a wrong rule planted, the property above finds a chain that shows it."""
    wrong, steps = WRONG[fault]
    few = chains(steps)
    monkeypatch.setattr(f"{MODULE}.{fault}", wrong)
    quickly = settings(RELAXED, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    # A wrong view shows in a value, or fails when it runs.
    with pytest.raises((AssertionError, RuntimeError)):
        quickly(given(chain=few, writes=WRITES)(lambda chain, writes: check(chain, writes)))()


def test_the_property_of_borders_can_fail(monkeypatch):
    monkeypatch.setattr(f"{MODULE}.read_region_keys", lambda graph: {})
    quickly = settings(RELAXED, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    few = chains((transpose, permute, reshape))  # with less to choose from, a chain that shows it comes earlier
    with pytest.raises(AssertionError):
        quickly(given(chain=few, regions=REGIONS)(lambda chain, regions: check_borders(chain, regions)))()
