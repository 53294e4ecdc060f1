"""Specifications of the built-in backends: the reference, and PyTorch's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_regional._base.cache_keys import CacheKey
from pytest_regional._torch.autograd_cache import pytorchs_key
from pytest_regional._torch.config import forced_autograd_cache
from pytest_regional._torch.dynamo import (
    aot_eager_backend,
    regional_inductor,
    regional_inductor_backend,
    regional_inductor_pass,
    registered_backend,
)
from pytest_regional.backends.capabilities import Capabilities, Support, declared, supported, supported_for, unsupported
from pytest_regional.backends.spec import BackendSpec

#: Options of the reference that leave one thing out, by what is then so.
ALTERNATIVES = {
    "equal regions compiled one by one": "share_identical",
    "no result stored or loaded": "outer_cache",
}


def reference() -> BackendSpec:
    """Return the reference backend of this package."""

    def backend() -> Any:
        from pytest_regional.reference import dynamo_backend

        return dynamo_backend

    def graph_pass() -> Any:
        from pytest_regional.reference.passes import RegionalInductor

        return RegionalInductor()

    def cache_key(gm: Any, example_inputs: Sequence[Any]) -> CacheKey:
        return backend().explain_key(gm, example_inputs)  # type: ignore[no-any-return]

    def variant(option: str, value: object) -> Any:
        return functools.partial(backend().regional, **{option: value})

    return BackendSpec(
        "reference",
        lambda: backend().regional,
        Capabilities(),
        graph_pass=graph_pass,
        forget=lambda: backend().clear_caches(),
        compile_options=frozenset({"pre_grad_pass_timing"}),
        variants={option: functools.partial(variant, option) for option in ("partitioner", "on_region_error")},
        alternatives={words: functools.partial(variant, option, False) for words, option in ALTERNATIVES.items()},
        cache_key=cache_key,
    )


def _key_in_pytorchs_cache(backend: Callable[[], Any]) -> Callable[[Any, Sequence[Any]], CacheKey]:
    """Return the ``cache_key`` of a backend whose whole results AOTAutograd's cache keeps, where it is made to."""

    def cache_key(gm: Any, example_inputs: Sequence[Any]) -> CacheKey:
        with forced_autograd_cache():
            return pytorchs_key(backend(), gm, example_inputs)

    return cache_key


#: Capabilities of backends that look at annotations, of the pre-grad stage, and of caches of whole graphs.
REGIONS = (
    "regions",
    "few_partitions",
    "region_ids",
    "region_configs",
    "distinct_region_configs",
    "interleaved_regions",
    "nested_regions",
    "share_identical",
    "region_order",
)
PRE_GRAD_PASSES = ("pre_grad_passes", "pre_grad_pass_lists", "pre_grad_timing")
OUTER_CACHE = ("outer_cache", "outer_cache_of_training")


def _precompile() -> Support:
    return supported_for(">=2.13", "caching_precompile was not tried with an older torch")


def without(names: Iterable[str], reason: str) -> dict[str, Support]:
    """Return answers that disclaim ``names`` with ``reason``."""
    return dict.fromkeys(names, unsupported(reason))


def torch_regional() -> BackendSpec:
    """Return PyTorch's ``regional_inductor`` through ``aot_autograd``."""
    capabilities = declared(
        **without(PRE_GRAD_PASSES, "Inductor's pre-grad stage runs once for every region, never on the whole graph"),
        **without(OUTER_CACHE, "regions are cached one by one; the whole result only under force_autograd_cache"),
        region_ids=supported_for(">=2.13", "torch 2.11 ignores inductor_region: all annotated nodes are one region"),
        share_identical=unsupported("every partition is compiled on its own"),
        annotation_checks=unsupported("what an annotation holds is not checked: docs/findings/annotation_mistakes.py"),
        region_order=unsupported(
            "an edge inside a region does not compile (docs/findings/control_deps_in_region.py), and the order in an "
            "annotation is ignored"
        ),
        pytorch_outer_cache=supported(),
        precompile=_precompile(),
    )
    return BackendSpec(
        "torch",
        regional_inductor_backend,
        capabilities(),
        graph_pass=regional_inductor_pass,
        variants={"partitioner": regional_inductor_backend},
        compilers=lambda: (regional_inductor(),),
        cache_key=_key_in_pytorchs_cache(regional_inductor_backend),
    )


_BY_NAME = "a backend that torch.compile knows by name is not taken to {}; a BackendSpec says more"


class GraphCapabilities(
    Capabilities,
    **without((*REGIONS, "annotation_checks"), _BY_NAME.format("look at annotations")),
    **without(PRE_GRAD_PASSES, _BY_NAME.format("run Inductor's passes")),
    **without(OUTER_CACHE, _BY_NAME.format("keep results")),
    **without(("inductor_code", "region_counts"), _BY_NAME.format("use Inductor")),
):
    """A backend of which nothing is known but its name for ``torch.compile``: it is handed graphs.

    It claims what every such backend has to do right: values, gradients, mutation, random numbers, dynamic shapes,
    operators that it does not know.
    """


def inductor() -> BackendSpec:
    """Return whole-graph Inductor; of graphs captured ahead of time, through the reference's ``FullInductor``."""

    def graph_pass() -> Any:
        from pytest_regional.reference.full_inductor import FullInductor

        return FullInductor()

    capabilities = declared(
        **without(REGIONS, "the whole graph is compiled as one"),
        pre_grad_pass_lists=supported_for(">=2.12", "torch 2.11 calls the list itself"),
        pre_grad_timing=supported_for(">=2.12", "torch 2.11 always runs passes before the cache is looked up"),
        annotation_checks=unsupported(
            "annotations are not read; with a misspelt timing the pass never runs, with an empty uuid the cache is "
            "bypassed, in silence: docs/findings/misspelt_pre_grad_timing.py and docs/findings/empty_pass_uuid.py"
        ),
        outer_cache_of_training=unsupported(
            "AOTAutograd's cache saves a graph that trains when its backward has compiled, and one with an "
            "autograd.Function only if autograd_cache_allow_custom_autograd_functions is set"
        ),
        precompile=_precompile(),
    )

    return BackendSpec(
        "inductor",
        lambda: "inductor",
        capabilities(),
        graph_pass=graph_pass,
        partitioner="min_cut",
        cache_key=_key_in_pytorchs_cache(lambda: registered_backend("inductor")),
    )


def aot_eager() -> BackendSpec:
    """Return ``aot_eager``: AOTAutograd without a compiler."""
    capabilities = declared(
        **without(
            (*REGIONS, *OUTER_CACHE, "annotation_checks", "compiles_regions", "inductor_code", "region_counts"),
            "nothing is compiled: the graph runs eager",
        ),
        **without(PRE_GRAD_PASSES, "Inductor's pre-grad stage is never reached"),
    )
    return BackendSpec(
        "aot_eager",
        lambda: "aot_eager",
        capabilities(),
        graph_pass=lambda: lambda gm, example_inputs: gm,
        partitioner="min_cut",
        variants={"partitioner": aot_eager_backend},
    )
