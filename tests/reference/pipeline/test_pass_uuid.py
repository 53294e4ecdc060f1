"""The uuid of a pipeline, and what caches make of it."""

from __future__ import annotations

import dataclasses
import os
import pickle

import pytest
import torch

from pytest_regional.reference.pipeline import (
    InvalidPassError,
    Pass,
    PassFailedError,
    PassPipeline,
    PipelineError,
    as_inductor_pass,
    graph_pass,
)
from pytest_regional.testing import regional
from tests.warm_process import run_module

from .pass_examples import aten, block, note, traced


@dataclasses.dataclass(frozen=True)
class Scale(Pass):
    """A pass with a setting."""

    version = 1
    by: float = 1.0

    def __call__(self, gm, example_inputs=()):
        return None


class Scale3(Scale):
    name = "scale3"


def named(name, uuid=1, **declarations):
    return graph_pass(name=name, uuid=uuid, **declarations)(note(name))


def test_the_uuid_is_made_of_the_enabled_passes_in_order():
    base = PassPipeline([named("a"), named("b"), Scale(2.0)])
    others = {
        "order": PassPipeline([named("b"), named("a"), Scale(2.0)]),
        "name": PassPipeline([named("a"), named("c"), Scale(2.0)]),
        "uuid": PassPipeline([named("a"), named("b", 2), Scale(2.0)]),
        "type": PassPipeline([named("a"), named("b", True), Scale(2.0)]),
        "setting": PassPipeline([named("a"), named("b"), Scale(3.0)]),
        "disabled": base.without("b"),
        "graphs": PassPipeline([named("a"), named("b", graphs="forward"), Scale(2.0)]),
        "nested": PassPipeline([PassPipeline([named("a"), named("b")]), Scale(2.0)]),
    }
    uuids = {name: one.uuid() for name, one in others.items()} | {"base": base.uuid()}
    assert len(set(uuids.values())) == len(uuids), uuids
    assert PassPipeline([named("a"), named("b"), named("off"), Scale(2.0)], disable="off").uuid() == base.uuid()
    assert PassPipeline([named("b", after="a"), Scale(2.0), named("a", before="scale")]).names == ("a", "b", "scale")


def test_the_uuid_is_a_digest_that_another_process_computes_too(tmp_path):
    program = (
        "from pytest_regional.reference.pass_protocol import graph_pass\n"
        "from pytest_regional.reference.pipeline.pass_pipeline import PassPipeline\n"
        "print(PassPipeline([graph_pass(name='a', uuid=frozenset(('x', 'y', 'z')))(print)]).uuid())"
    )
    (tmp_path / "elsewhere.py").write_text(program)
    there = run_module("elsewhere", [], tmp_path, os.environ).stdout.strip()
    here = PassPipeline([named("a", frozenset(("x", "y", "z")))]).uuid()
    assert there == here
    assert len(here) == 64


def test_torchs_version_may_stand_in_a_uuid():
    assert PassPipeline([named("a", torch.__version__)]).uuid() is not None
    assert PassPipeline([named("a", torch.__version__)]).uuid() != PassPipeline([named("a", "2.0")]).uuid()


def test_a_pickled_pipeline_is_the_same_pipeline():
    pipeline = PassPipeline([Scale(2.0), Scale3()], disable="scale3", name="mine")
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.names, again.disabled, again.name) == (pipeline.names, pipeline.disabled, "mine")
    assert again.uuid() == pipeline.uuid()
    adapter = as_inductor_pass(pipeline, "joint")
    assert pickle.loads(pickle.dumps(adapter)).uuid() == adapter.uuid()


def test_one_pass_without_a_uuid():
    pipeline = PassPipeline([named("a"), note("b"), note("c"), note("off")], disable="off")
    assert pipeline.uuid() is None
    assert pipeline.passes_without_uuid == ("b", "c")
    assert pipeline.without("b", "c").uuid() is not None
    assert pipeline.without("b", "c").passes_without_uuid == ()


@pytest.mark.parametrize(
    ("uuid", "said"),
    [
        (lambda: object(), "means nothing in another process"),
        (lambda: [1], "cannot be hashed"),
        (lambda: "", "identifies nothing"),
        (iter(range(9)).__next__, "0 and then 1: no cache entry would ever be found again"),
    ],
)
def test_a_uuid_that_no_cache_could_use(uuid, said):
    custom = named("mine")
    object.__setattr__(custom, "uuid", uuid)
    with pytest.raises(PipelineError, match=f"uuid\\(\\) of the pass 'mine' returned .*{said}") as caught:
        PassPipeline([custom]).uuid()
    assert "pre-grad" not in str(caught.value)


def test_a_uuid_that_is_no_method():
    custom = named("mine")
    object.__setattr__(custom, "uuid", "v1")
    with pytest.raises(PipelineError, match="the pass 'mine' has a uuid that is no method but 'v1'"):
        PassPipeline([custom]).uuid()


def test_settings_that_another_process_lacks():
    with pytest.raises(
        PipelineError, match=r"uuid\(\) of the pass 'scale' returned .*means nothing in another process"
    ):
        PassPipeline([Scale(print)]).uuid()


# Inductor's own settings.


def compiled_with(r, pipeline, program=block):
    x, w = r.randn(4, 8), r.randn(8, 8)
    return r.compile(program, inductor_configs={"post_grad_custom_post_pass": as_inductor_pass(pipeline)})(x, w)


def doubled_product(x, w):
    return (x @ w) @ w


def test_the_uuid_is_in_inductors_key():
    with regional("inductor") as r:
        with r.expect(region_cache_hits=0, region_compiles=1):
            compiled_with(r, PassPipeline([named("a")]), doubled_product)
        r.restart()
        with r.expect(region_cache_hits=1, region_compiles=0):
            compiled_with(r, PassPipeline([named("a")]), doubled_product)
        r.restart()
        with r.expect(region_cache_hits=0, region_compiles=1):
            compiled_with(r, PassPipeline([named("a", 2)]), doubled_product)
        r.restart()
        with r.expect(region_cache_hits=0, region_compiles=1):
            compiled_with(r, PassPipeline([named("a"), named("b")]), doubled_product)


def test_without_a_uuid_nothing_is_cached():
    with regional("inductor") as r:
        for _ in range(2):
            with r.expect(region_cache_hits=0, region_compiles=1):
                compiled_with(r, PassPipeline([note("a")]), doubled_product)
            r.restart()


def test_a_pipeline_at_inductors_stages():
    with regional("inductor") as r:
        x, w = r.randn(4, 8, requires_grad=True), r.randn(8, 8, requires_grad=True)
        kinds = []

        def kind(gm, example_inputs, *, graph):
            kinds.append((graph, len(example_inputs), [one is not None for one in example_inputs]))

        result = r.run_pass(as_inductor_pass(PassPipeline([kind])), doubled_product, x, w, stage="post_grad")
        assert [one.kind for one in result.graphs] == [graph for graph, *_ in kinds] == ["forward", "backward"]
        assert all(count and all(known) for _, count, known in kinds)
        result.assert_same_numerics()


def test_kinds_by_the_names_of_inputs():
    def kind(*names):
        made = torch.fx.Graph()
        for name in names:
            made.placeholder(name)
        made.output(())
        torch.fx.GraphModule({}, made)
        as_inductor_pass(PassPipeline([see]))(made)
        return seen.pop()

    seen = []

    def see(gm, example_inputs, *, graph):
        seen.append(graph)

    assert kind("primals_1") == "forward"
    assert kind("primals_1", "tangents_1") == "backward"
    assert kind("arg0_1") == "inference"


def test_pipelines_that_inductor_cannot_use():
    with pytest.raises(InvalidPassError, match="ends with a terminal pass"):
        as_inductor_pass(PassPipeline([named("t", terminal=True)]))
    with pytest.raises(PipelineError):
        as_inductor_pass(PassPipeline([]), graph="post_grad")
    with pytest.raises(PassFailedError, match="made another GraphModule, which Inductor would drop"):
        as_inductor_pass(PassPipeline([lambda gm: traced()]))(traced().graph)
    loose = torch.fx.Graph()
    loose.output(())
    with pytest.raises(InvalidPassError, match="without a GraphModule"):
        as_inductor_pass(PassPipeline([]))(loose)


def test_the_pass_does_run_in_inductor():
    def zero_for_clamp(gm, example_inputs):
        for node in gm.graph.find_nodes(op="call_function", target=aten.mm.default):
            node.args = (node.args[1], node.args[1])

    with regional("inductor") as r:
        x, w = r.randn(8, 8), r.randn(8, 8)
        configs = {"post_grad_custom_post_pass": as_inductor_pass(PassPipeline([zero_for_clamp]))}
        got = r.compile(doubled_product, inductor_configs=configs)(x, w)
        torch.testing.assert_close(got, w @ w)
