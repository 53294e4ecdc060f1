"""Annotations are part of the program: whatever changes them alone is never answered with what was there before."""

from __future__ import annotations

import pytest
import torch
from torch.fx.traceback import annotate

from .lookups import check, cold_and_warm, run, whole_results_cached
from .programs import annotated, mlp, pair

pytestmark = pytest.mark.regional_compile(requires=("regions",), dynamic=False)

ALL = ("regions", "region_ids", "region_configs", "outer_cache")
cached = pytest.mark.regional_compile(requires=ALL)
stale = pytest.mark.regional_known_failure(
    "torch",
    reason="AOTAutograd's key holds no annotations: docs/findings/stale_hit_annotations.py",
    torch=">=2.11",
)

IN_A, IN_B = {"name": "a"}, {"name": "b"}
UNFUSED = {"name": "a", "configs": {"epilogue_fusion": False}}
FUSED = {"name": "a", "configs": {"epilogue_fusion": True}}

# What changes, what is annotated before and after, and what a backend has to know of to tell them apart.
CHANGES = [
    ("annotated", {}, {"first": IN_A}, "regions"),
    ("no longer annotated", {"first": IN_A}, {}, "regions"),
    ("moved", {"first": IN_A}, {"second": IN_A}, "regions"),
    ("grown", {"first": IN_A}, {"first": IN_A, "second": IN_A}, "regions"),
    ("shrunk", {"first": IN_A, "second": IN_A}, {"first": IN_A}, "regions"),
    ("another id", {"first": IN_A}, {"first": IN_B}, "region_ids"),
    ("one divided in two", {"first": IN_A, "second": IN_A}, {"first": IN_A, "second": IN_B}, "region_ids"),
    ("two exchanged", {"first": IN_A, "second": IN_B}, {"first": IN_B, "second": IN_A}, "region_ids"),
    ("a config", {"first": IN_A}, {"first": UNFUSED}, "region_configs"),
    ("another value of a config", {"first": UNFUSED}, {"first": FUSED}, "region_configs"),
    ("no config any more", {"first": UNFUSED}, {"first": IN_A}, "region_configs"),
]


def changes(*needed, names=tuple(change[0] for change in CHANGES)):
    """Parametrize with ``before`` and ``after``; a case requires ``needed`` and what it changes."""
    cases = [
        pytest.param(before, after, id=name, marks=pytest.mark.regional_compile(requires=("regions", kind, *needed)))
        for name, before, after, kind in CHANGES
        if name in names
    ]
    return pytest.mark.parametrize(("before", "after"), cases)


def regions_of(keywords):
    """Return names and configs of the regions that :func:`annotated` makes, in their order."""
    found = [(k["name"], k.get("configs", {})) for k in keywords.values()]
    return [region for index, region in enumerate(found) if region not in found[:index]]


def check_that_a_change_is_seen(regional, before, after, training):
    """With AOTAutograd's cache of whole results switched on, for a backend that has none of its own."""
    inputs, values = pair(regional, training=training), []
    with whole_results_cached(regional):
        run(regional.compile(annotated(**before)), inputs, training)
        regional.restart()
        compiled = regional.compile(annotated(**after))
        record = regional.run(
            lambda *args: values.extend(run(compiled, args, training)), *inputs, backward=False, as_is=True
        )

    kinds = ["forward", "backward"] if training else ["inference"]
    assert [graph.kind for graph in record.graphs] == kinds
    assert [(r.name, r.configs) for r in record.regions if r.graph == kinds[0]] == regions_of(after)
    torch.testing.assert_close(values, run(annotated(**after), inputs, training))


@pytest.mark.quick
@stale
@changes()
def test_inference(regional, before, after):
    check_that_a_change_is_seen(regional, before, after, training=False)


@stale
@changes("backward", names=("annotated", "moved", "another id", "a config"))
def test_training(regional, before, after):
    check_that_a_change_is_seen(regional, before, after, training=True)


@cached
def test_each_annotation_has_its_own_entry(regional):
    """None replaces another: afterwards every one of them is a hit."""
    inputs = pair(regional)
    programs = {str(keywords): keywords for _, *both, _ in CHANGES for keywords in both}
    for outcome in ("miss", "hit"):
        for keywords in programs.values():
            check(regional, outcome, annotated(**keywords), inputs)


def keyed(key, value):
    def program(x, w):
        with annotate({key: value}):
            return mlp(x, w)

    return program


@cached
def test_annotations_of_other_tools_are_annotations(regional):
    """A graph pass of the backend may go by them."""
    inputs = pair(regional)
    for program in (mlp, keyed("stage", 1), keyed("stage", 2), keyed("step", 1), keyed("stage", "1")):
        cold_and_warm(regional, program, inputs)


@cached
def test_the_order_of_configs_does_not_matter(regional):
    first, second = ({"epilogue_fusion": False}, {"max_fusion_size": 3})
    inputs = pair(regional)
    check(regional, "miss", annotated(first={"name": "a", "configs": first | second}), inputs)
    check(regional, "hit", annotated(first={"name": "a", "configs": second | first}), inputs)


@pytest.mark.regional_compile(requires=("regions", "outer_cache", "nested_regions"))
def test_annotations_in_the_body_of_an_operator(regional):
    def nested(name):
        @torch.compiler.nested_compile_region
        def body(x, w):
            return annotated(first={"name": name} if name else None)(x, w)

        return lambda x, w: body(body(x, w), w)

    inputs = pair(regional)
    for name in (None, "a", "b"):
        cold_and_warm(regional, nested(name), inputs)
