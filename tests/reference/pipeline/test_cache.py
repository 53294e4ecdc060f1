"""The outer cache for whole modules: hit and miss, what enters the key, what cannot be kept."""

import pytest
import torch

import pytest_regional.testing
from pytest_regional import region
from pytest_regional.reference import CacheWarning, pipeline
from pytest_regional.reference.caching.store import default_folder
from pytest_regional.reference.regional_inductor import compile_annotated
from tests.reference.caches import outcomes
from tests.reference.pipeline.models import assert_same_bits, model_and_inputs, step

NOTHING = {"cache_hits": 0, "cache_misses": 0, "cache_saves": 0, "cache_bypasses": 0}
MISS = {**NOTHING, "cache_misses": 1, "cache_saves": 1}
HIT = {**NOTHING, "cache_hits": 1, "region_compiles": 0}


def compile_regions(gm, example_inputs):
    return compile_annotated(gm, example_inputs)


def regions(uuid="v1"):
    return pipeline.graph_pass(name="regions", terminal=True, uuid=uuid)(compile_regions)


@pytest.fixture
def harness():
    with pytest_regional.testing.regional("reference", expects_regions=False) as made:
        yield made


def compiled(name="Block", **options):
    model, inputs = model_and_inputs(name)
    return pipeline.compile(model, inputs, cache=True, **options), inputs


def test_the_same_again_is_loaded(harness):
    with harness.expect(**MISS, region_compiles=2):
        first, inputs = compiled(passes=[regions()])
    harness.restart()
    with harness.expect(**HIT):
        second, _ = compiled(passes=[regions()])
    with harness.no_compile():
        assert_same_bits(step(second, inputs), step(first, inputs))
    assert str(second.report) == str(first.report)


def in_another_process(regional):
    with regional.expect(**HIT):
        second, inputs = compiled(passes=[regions()])
    return step(second, inputs)


@pytest.mark.usefixtures("warm_process")
def test_another_process_loads_it(harness):
    first, inputs = compiled(passes=[regions()])
    found = harness.in_new_process(in_another_process).value
    assert_same_bits(found, step(first, inputs))


def without_cache(harness, **options):
    with harness.expect(**NOTHING):
        pipeline.compile(*model_and_inputs("Tied"), **options)


@pytest.mark.parametrize(
    "change",
    [
        {"passes": [pipeline.graph_pass(name="none", uuid="v2")(lambda gm, inputs: None)]},
        {"passes": [pipeline.graph_pass(name="other", uuid="v1")(lambda gm, inputs: None)]},
        {"passes": []},
        {"partitioner": "min_cut"},
        {"dynamic": True},
    ],
)
def test_whatever_decides_the_result_is_in_the_key(harness, change):
    base = {"passes": [pipeline.graph_pass(name="none", uuid="v1")(lambda gm, inputs: None)]}
    compiled("Tied", **base)
    harness.restart()
    with harness.expect(**HIT):
        compiled("Tied", **base)
    with harness.expect(**MISS):
        compiled("Tied", **(base | change))


def test_graphs_annotations_constants_and_settings_are_in_the_key(harness):
    def cached(function, constant=1.0, **settings):
        value = torch.full((3,), constant)
        with torch._inductor.config.patch(settings):
            pipeline.compile(lambda x: function(x) + value, (torch.randn(3),), cache=True)

    def annotated(name):
        def function(x):
            with region(name):
                return x.sin()

        return function

    for arguments in (
        {"function": torch.sin},
        {"function": torch.cos},
        {"function": annotated("one")},
        {"function": annotated("other")},
        {"function": torch.sin, "constant": 2.0},
        {"function": torch.sin, "epilogue_fusion": False},
    ):
        with harness.expect(**MISS):
            cached(**arguments)
    with harness.expect(**HIT):
        cached(torch.sin)


def test_a_partitioned_graph_is_kept_as_it_is_now(harness):
    model, inputs = model_and_inputs("Tied")
    graphs = pipeline.partition(pipeline.capture(model, inputs))
    with harness.expect(**MISS):
        pipeline.compile(graphs, cache=True)
    with harness.expect(**HIT):
        pipeline.compile(graphs, cache=True)
    for node in graphs.forward.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default):
        node.target = torch.ops.aten.sin.default
    with harness.expect(**MISS):
        pipeline.compile(graphs, cache=True)


def test_a_pass_without_a_uuid_keeps_all_out(harness):
    with harness.expect(**{**NOTHING, "cache_bypasses": 1}), outcomes() as seen:
        compiled(passes=[regions(None)])
    assert [reason.partition(";")[0] for reason in seen.reasons] == ["passes without a uuid: 'regions'"]


def test_a_function_as_partitioner_keeps_all_out(harness):
    with harness.expect(**{**NOTHING, "cache_bypasses": 1}):
        compiled("Tied", partitioner=lambda *args, **kw: torch._functorch.partitioners.default_partition(*args, **kw))


def test_unsavable_programs_are_compiled_every_time(harness):
    @pipeline.graph_pass(name="mine", terminal=True, uuid="v1")
    def mine(gm, example_inputs):
        return lambda *values: gm(*values)

    with harness.expect(**{**NOTHING, "cache_misses": 1, "cache_bypasses": 1}):
        compiled("Tied", passes=[mine])
    with harness.expect(**{**NOTHING, "cache_misses": 1, "cache_bypasses": 1}):
        compiled("Tied", passes=[mine])


def test_a_damaged_entry_is_compiled_again(harness):
    compiled("Tied")
    entries = [path for path in default_folder().rglob("*") if path.is_file()]
    assert entries
    for path in entries:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    harness.restart()
    with pytest.warns(CacheWarning), harness.expect(cache_hits=0, cache_misses=1):
        again, inputs = compiled("Tied")
    twin, _ = model_and_inputs("Tied")
    assert_same_bits(step(again, inputs), step(twin, inputs))


def test_switched_off_with_pytorchs_caches(harness):
    compiled("Tied")
    with torch._functorch.config.patch(enable_autograd_cache=False), harness.expect(**NOTHING):
        compiled("Tied")


def test_not_asked_for_by_default(harness):
    without_cache(harness)
