"""Annotations that cannot be meant are errors that name what is wrong, never silence."""

from __future__ import annotations

import pytest
from torch.fx.traceback import annotate

pytestmark = pytest.mark.regional_compile(requires=("regions",), expects_regions=False)

# What is written in the annotation, and what the error has to name.
MISTAKES = {
    "misspelt_entry": ({"inductor_regoin": "r"}, "inductor_regoin"),
    "no_id": ({"inductor_region": None}, "inductor_region"),
    "unhashable_id": ({"inductor_region": ["r"]}, r"\['r'\]"),
    "floating_id": ({"inductor_region": 1.5}, r"1\.5"),
    "config_of_another_type": ({"inductor_configs": {"epilogue_fusion": "yes"}}, "epilogue_fusion"),
    "not_a_region": (["r"], r"\['r'\]"),
}
MISTAKEN_CONFIGS = {
    "configs_are_no_dictionary": ({"inductor_configs": "epilogue_fusion"}, "inductor.config"),
    "misspelt_config": ({"inductor_configs": {"epilogue_fusoin": True}}, "epilogue_fusoin"),
}


def refused(regional, value, named):
    def program(x, w):
        with annotate({"compile_with_inductor": value}):
            return x @ w

    # Dynamo wraps whatever a backend raises, in a type of its own.
    with pytest.raises(Exception, match=named):
        regional.run(program, regional.randn(4, 8), regional.randn(8, 8))
    assert regional.counters["region_compiles"] == 0


@pytest.mark.quick
@pytest.mark.regional_compile(requires=("regions", "annotation_checks"))
@pytest.mark.parametrize(("value", "named"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_an_error_that_names_it(regional, value, named):
    refused(regional, value, named)


@pytest.mark.regional_compile(requires=("regions", "region_configs"))
@pytest.mark.parametrize(("value", "named"), MISTAKEN_CONFIGS.values(), ids=MISTAKEN_CONFIGS)
def test_a_mistaken_config_is_an_error_that_names_it(regional, value, named):
    refused(regional, value, named)


@pytest.mark.regional_compile(requires=("regions", "region_counts"))
@pytest.mark.parametrize("value", [0, False, "", {}], ids=repr)
def test_a_falsy_annotation_is_an_annotation(regional, value):
    def program(x, w):
        with annotate({"compile_with_inductor": value}):
            return x @ w

    record = regional.run(program, regional.randn(4, 8), regional.randn(8, 8))
    assert [(r.name, r.partitions) for r in record.regions] == [("default", 1)]
