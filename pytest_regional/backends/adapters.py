"""Specifications of the built-in backends: the reference, and PyTorch's own."""

from __future__ import annotations

import functools
from typing import Any

from pytest_regional.backends import capabilities as c
from pytest_regional.backends.capabilities import Capabilities, Support
from pytest_regional.backends.spec import BackendSpec


def reference() -> BackendSpec:
    """Return the reference backend of this package."""

    def factory() -> Any:
        from pytest_regional.reference.dynamo_backend import regional

        return regional

    def variant(option: str, value: str) -> Any:
        return functools.partial(factory(), **{option: value})

    def forget() -> None:
        from pytest_regional.reference.dynamo_backend import forget

        forget()

    def graph_pass() -> Any:
        from pytest_regional.reference.passes import RegionalInductor

        return RegionalInductor()

    return BackendSpec(
        "reference",
        factory,
        Capabilities(),
        graph_pass=graph_pass,
        forget=forget,
        compile_options=frozenset({"pre_grad_pass_timing"}),
        variants={option: functools.partial(variant, option) for option in ("partitioner", "on_region_error")},
    )


class NoWholeGraphStages(Capabilities):
    """Neither pre-grad passes nor a cache for whole graphs."""

    _no_pass = ""
    _no_cache = ""

    @property
    def pre_grad_passes(self) -> Support:
        """A custom pre-grad pass runs once per Dynamo graph."""
        return c.unsupported(self._no_pass)

    @property
    def pre_grad_pass_lists(self) -> Support:
        """``pre_grad_custom_pass`` may be a list of passes, which run in its order."""
        return c.unsupported(self._no_pass)

    @property
    def pre_grad_timing(self) -> Support:
        """``pre_grad_pass_timing`` says whether passes run before the cache is asked or on a miss alone."""
        return c.unsupported(self._no_pass)

    @property
    def pre_grad_timing_checked(self) -> Support:
        """A misspelt timing is an error, and so is a uuid that identifies nothing."""
        return c.unsupported(self._no_pass)

    @property
    def outer_cache(self) -> Support:
        """The result of a whole Dynamo graph is kept on disk: the same program in another process is a hit."""
        return c.unsupported(self._no_cache)

    @property
    def outer_cache_before_backward(self) -> Support:
        """The result of a graph that trains is kept before any backward ran."""
        return c.unsupported(self._no_cache)

    @property
    def outer_cache_of_functions(self) -> Support:
        """An ``autograd.Function`` does not keep a graph out of that cache."""
        return c.unsupported(self._no_cache)


class TorchRegionalCapabilities(NoWholeGraphStages):
    """PyTorch's ``regional_inductor``."""

    _no_pass = "Inductor's pre-grad stage runs once for every region, never on the whole graph"
    _no_cache = "regions are cached one by one; the whole result only under force_autograd_cache"

    @property
    def region_ids(self) -> Support:
        """Nodes with different ``inductor_region`` ids never share a partition."""
        return c.supported_for(">=2.13", "torch 2.11 ignores inductor_region: all annotated nodes are one region")

    @property
    def pytorch_outer_cache(self) -> Support:
        """PyTorch's own cache, once ``force_autograd_cache`` is on, keeps what this backend makes of a whole graph."""
        return c.supported()

    @property
    def share_identical(self) -> Support:
        """Identical partitions are compiled once."""
        return c.unsupported("every partition is compiled on its own")

    @property
    def region_edges(self) -> Support:
        """An order edge (``control_deps``) inside a region holds in the code generated for it."""
        return c.unsupported("an edge inside a region does not compile: docs/findings/control_deps_in_region.py")

    @property
    def region_order(self) -> Support:
        """Annotations may ask for a region to run after others: ``region("comm", after=["mlp"])``."""
        return c.unsupported("what an annotation asks for is read over in silence")


def torch_regional() -> BackendSpec:
    """Return PyTorch's ``regional_inductor`` through ``aot_autograd``."""

    def factory() -> Any:
        from pytest_regional._torch.dynamo import regional_inductor_backend

        return regional_inductor_backend()

    def graph_pass() -> Any:
        from pytest_regional._torch.dynamo import regional_inductor_pass

        return regional_inductor_pass()

    def compilers() -> Any:
        from pytest_regional._torch.dynamo import regional_inductor

        return (regional_inductor(),)

    def with_partitioner(partitioner: str) -> Any:
        from pytest_regional._torch.dynamo import regional_inductor_backend

        return regional_inductor_backend(partitioner)

    return BackendSpec(
        "torch",
        factory,
        TorchRegionalCapabilities(),
        graph_pass=graph_pass,
        variants={"partitioner": with_partitioner},
        compilers=compilers,
    )


class WholeGraphCapabilities(Capabilities):
    """A backend that does not look at annotations."""

    _reason = "the whole graph is compiled as one"

    @property
    def regions(self) -> Support:
        """Annotated regions are compiled apart and the rest of the graph stays eager."""
        return c.unsupported(self._reason)

    @property
    def region_ids(self) -> Support:
        """Nodes with different ``inductor_region`` ids never share a partition."""
        return c.unsupported(self._reason)

    @property
    def region_configs(self) -> Support:
        """``inductor_configs`` of an annotation hold while that region compiles."""
        return c.unsupported(self._reason)

    @property
    def distinct_region_configs(self) -> Support:
        """Nodes of one region id with different ``inductor_configs`` are compiled apart, each with its own."""
        return c.unsupported(self._reason)

    @property
    def interleaved_regions(self) -> Support:
        """Regions that depend on each other both ways (a1 -> b2, b1 -> a2) compile."""
        return c.unsupported(self._reason)

    @property
    def nested_regions(self) -> Support:
        """Regions inside the body of a higher-order operator are found and compiled."""
        return c.unsupported(self._reason)

    @property
    def share_identical(self) -> Support:
        """Identical partitions are compiled once."""
        return c.unsupported(self._reason)

    @property
    def region_edges(self) -> Support:
        """An order edge (``control_deps``) inside a region holds in the code generated for it."""
        return c.unsupported(self._reason)

    @property
    def region_order(self) -> Support:
        """Annotations may ask for a region to run after others: ``region("comm", after=["mlp"])``."""
        return c.unsupported(self._reason)


class GraphCapabilities(NoWholeGraphStages, WholeGraphCapabilities):
    """A backend of which nothing is known but its name for ``torch.compile``: it is handed graphs.

    It claims what every such backend has to do right: values, gradients, mutation, random numbers, dynamic shapes,
    operators that it does not know.
    """

    _reason = "a backend that torch.compile knows by name is not taken to look at annotations; a BackendSpec says more"
    _no_pass = (
        "a backend that torch.compile knows by name is not taken to run Inductor's passes; a BackendSpec says more"
    )
    _no_cache = "a backend that torch.compile knows by name is not taken to keep results; a BackendSpec says more"
    _no_inductor = "a backend that torch.compile knows by name is not taken to use Inductor; a BackendSpec says more"

    @property
    def inductor_code(self) -> Support:
        """Inductor generates the code: its settings and passes apply, and what it generated can be read."""
        return c.unsupported(self._no_inductor)


class InductorCapabilities(WholeGraphCapabilities):
    """Whole-graph Inductor."""

    @property
    def pre_grad_pass_lists(self) -> Support:
        """``pre_grad_custom_pass`` may be a list of passes, which run in its order."""
        return c.supported_for(">=2.12", "torch 2.11 calls the list itself")

    @property
    def pre_grad_timing(self) -> Support:
        """``pre_grad_pass_timing`` says whether passes run before the cache is asked or on a miss alone."""
        return c.supported_for(">=2.12", "torch 2.11 runs passes before the cache is asked, always")

    @property
    def pre_grad_timing_checked(self) -> Support:
        """A misspelt timing is an error, and so is a uuid that identifies nothing."""
        return c.unsupported(
            "with a misspelt timing the pass never runs, with an empty uuid the cache is bypassed, in silence: "
            "docs/findings/misspelt_pre_grad_timing.py and docs/findings/empty_pass_uuid.py"
        )

    @property
    def outer_cache_before_backward(self) -> Support:
        """The result of a graph that trains is kept before any backward ran."""
        return c.unsupported("AOTAutograd's cache saves a graph that trains when its backward has compiled")

    @property
    def outer_cache_of_functions(self) -> Support:
        """An ``autograd.Function`` does not keep a graph out of that cache."""
        return c.unsupported("a bypass, unless autograd_cache_allow_custom_autograd_functions is set")


def inductor() -> BackendSpec:
    """Return whole-graph Inductor; of graphs captured ahead of time, through the reference's ``FullInductor``."""

    def graph_pass() -> Any:
        from pytest_regional.reference.full_inductor import FullInductor

        return FullInductor()

    return BackendSpec("inductor", lambda: "inductor", InductorCapabilities(), graph_pass=graph_pass)


class EagerCapabilities(NoWholeGraphStages, WholeGraphCapabilities):
    """A backend that compiles nothing by design."""

    _reason = "nothing is compiled: the graph runs eager"
    _no_pass = "Inductor's pre-grad stage is never reached"
    _no_cache = _reason

    @property
    def compiles_regions(self) -> Support:
        """At least one subgraph of an annotated program is compiled; without it, vacuity is not checked."""
        return c.unsupported(self._reason)

    @property
    def inductor_code(self) -> Support:
        """Inductor generates the code: its settings and passes apply, and what it generated can be read."""
        return c.unsupported(self._reason)


def aot_eager() -> BackendSpec:
    """Return ``aot_eager``: AOTAutograd without a compiler behind it."""
    return BackendSpec("aot_eager", lambda: "aot_eager", EagerCapabilities(), graph_pass=lambda: _as_it_is)


def _as_it_is(gm: Any, example_inputs: Any) -> Any:
    return gm
