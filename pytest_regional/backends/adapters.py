"""Specifications of the built-in backends: the reference, and PyTorch's own."""

from __future__ import annotations

from typing import Any

from . import capabilities as c
from .capabilities import Capabilities, Support
from .spec import BackendSpec


def reference() -> BackendSpec:
    """Return the reference backend of this package."""

    def factory() -> Any:
        from pytest_regional.reference.dynamo_backend import regional

        return regional

    return BackendSpec("reference", factory, Capabilities(), compile_options=frozenset({"pre_grad_pass_timing"}))


class TorchRegionalCapabilities(Capabilities):
    """PyTorch's ``regional_inductor``."""

    @property
    def region_ids(self) -> Support:
        """Nodes with different ``inductor_region`` ids never share a partition."""
        return c.supported_for(">=2.13", "torch 2.11 ignores inductor_region: all annotated nodes are one region")

    @property
    def share_identical(self) -> Support:
        """Identical partitions are compiled once."""
        return c.unsupported("every partition is compiled on its own")

    @property
    def pre_grad_passes(self) -> Support:
        """A custom pre-grad pass runs once per Dynamo graph."""
        return c.unsupported("Inductor's pre-grad stage runs once for every region, never on the whole graph")


def torch_regional() -> BackendSpec:
    """Return PyTorch's ``regional_inductor`` through ``aot_autograd``."""

    def factory() -> Any:
        from pytest_regional._torch.backends import regional_inductor_backend

        return regional_inductor_backend()

    return BackendSpec("torch", factory, TorchRegionalCapabilities())


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


def inductor() -> BackendSpec:
    """Return whole-graph Inductor."""
    return BackendSpec("inductor", lambda: "inductor", WholeGraphCapabilities())


class EagerCapabilities(WholeGraphCapabilities):
    """A backend that compiles nothing by design."""

    _reason = "nothing is compiled: the graph runs eager"

    @property
    def compiles_regions(self) -> Support:
        """At least one subgraph of an annotated program is compiled; without it, vacuity is not checked."""
        return c.unsupported(self._reason)

    @property
    def pre_grad_passes(self) -> Support:
        """A custom pre-grad pass runs once per Dynamo graph."""
        return c.unsupported("Inductor's pre-grad stage is never reached")


def aot_eager() -> BackendSpec:
    """Return ``aot_eager``: AOTAutograd without a compiler behind it."""
    return BackendSpec("aot_eager", lambda: "aot_eager", EagerCapabilities())
