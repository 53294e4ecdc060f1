"""What a backend can do: one documented property a capability, strict both ways.

A suite test names what it needs in ``requires=(...)``; a backend without it skips with the reason given here. The
model is SQLAlchemy's dialect suite: a class of predicates, not a list of skipped tests.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from pytest_regional._text import unknown_name


@dataclass(frozen=True)
class Support:
    """Whether something is supported and, when not, why."""

    supported: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.supported

    def __or__(self, other: Support) -> Support:
        return self if self else other


def supported() -> Support:
    """Claim the capability: a test that needs it must pass."""
    return Support(True)


def unsupported(reason: str) -> Support:
    """Disclaim the capability: tests that need it are skipped with ``reason``."""
    if not reason:
        raise ValueError("unsupported() needs a reason: it is what people read beside the skip")
    return Support(False, reason)


def supported_for(torch: str, reason: str) -> Support:
    """Claim the capability for the torch versions in ``torch`` (such as ``">=2.13"``), elsewhere disclaim it."""
    return (
        Support(True)
        if torch_matches(torch)
        else unsupported(f"{reason} (supported for torch {torch}, this is {torch_version()})")
    )


@cache
def torch_version() -> Version:
    """Return the installed torch's version without importing it, local part (``+cpu``) removed."""
    return Version(Version(importlib.metadata.version("torch")).public)


def torch_matches(specifier: str) -> bool:
    """Say whether the installed torch is in ``specifier``; pre-releases count as their release.

    Raises:
        ValueError: when ``specifier`` is no version specifier.
    """
    return versions_in(specifier).contains(torch_version().base_version)


def versions_in(specifier: object) -> SpecifierSet:
    """Return the versions that ``specifier`` means; no torch is asked for.

    Raises:
        ValueError: when ``specifier`` is no version specifier.
    """
    try:
        return SpecifierSet(specifier if isinstance(specifier, str) else "not a string")
    except InvalidSpecifier as error:
        raise ValueError(f"{specifier!r} is no version specifier such as '>=2.13' or '>=2.11,<2.14'") from error


class UnknownCapabilityError(LookupError):
    """A capability name that does not exist; the message lists the known ones."""


class Capabilities:
    """Everything that a test may require of a backend. Subclass it and override what differs.

    Each property returns :func:`supported`, :func:`unsupported` or :func:`supported_for`. The defaults claim everything
    that a correct regional backend does, so that an adopter starts strict and disclaims on purpose.
    """

    @property
    def compiles_regions(self) -> Support:
        """At least one subgraph of an annotated program is compiled; without it, vacuity is not checked."""
        return supported()

    @property
    def inductor_code(self) -> Support:
        """Inductor generates the code: its settings and passes apply, and what it generated can be read."""
        return supported()

    @property
    def regions(self) -> Support:
        """Annotated regions are compiled apart and the rest of the graph stays eager."""
        return supported()

    @property
    def region_ids(self) -> Support:
        """Nodes with different ``inductor_region`` ids never share a partition."""
        return supported()

    @property
    def region_configs(self) -> Support:
        """``inductor_configs`` of an annotation hold while that region compiles."""
        return supported()

    @property
    def distinct_region_configs(self) -> Support:
        """Nodes of one region id with different ``inductor_configs`` are compiled apart, each with its own."""
        return supported()

    @property
    def interleaved_regions(self) -> Support:
        """Regions that depend on each other both ways (a1 -> b2, b1 -> a2) compile."""
        return supported()

    @property
    def nested_regions(self) -> Support:
        """Regions inside the body of a higher-order operator are found and compiled."""
        return supported()

    @property
    def share_identical(self) -> Support:
        """Identical partitions are compiled once."""
        return supported()

    @property
    def backward(self) -> Support:
        """Programs that train are compiled, backward included."""
        return supported()

    @property
    def dynamic_shapes(self) -> Support:
        """One compile serves several sizes of a dynamic dimension."""
        return supported()

    @property
    def mutation(self) -> Support:
        """Inputs and buffers mutated inside a region are mutated for the caller."""
        return supported()

    @property
    def aliasing(self) -> Support:
        """Outputs that are inputs, or views of inputs or of each other, stay so; inputs may share memory."""
        return supported()

    @property
    def results_kept(self) -> Support:
        """What a call returned stays as it was when the program is called again: no memory is handed out twice."""
        return supported()

    @property
    def channels_last(self) -> Support:
        """Channels-last memory format survives regions, forward and gradients."""
        return supported()

    @property
    def custom_ops(self) -> Support:
        """Operators made with ``torch.library.custom_op``, mutating ones too, run inside regions."""
        return supported()

    @property
    def higher_order_operators(self) -> Support:
        """Higher-order operators (``cond``, loops, checkpoints, nested compile regions, autograd functions) compile."""
        return supported()

    @property
    def rng(self) -> Support:
        """Random operators draw what eager draws under ``fallback_random``."""
        return supported()

    @property
    def flex_attention(self) -> Support:
        """``flex_attention`` inside a region compiles for inference."""
        return supported()

    @property
    def flex_attention_backward(self) -> Support:
        """``flex_attention`` inside a region trains (skipped on CPU, where PyTorch refuses it)."""
        return supported()

    @property
    def nested_region_options(self) -> Support:
        """The compilers named in the ``options`` of a ``nested_compile_region`` compile its body."""
        return unsupported("a backend has to ask for these options; PyTorch's regional_inductor_invoke_subgraph does")

    @property
    def region_edges(self) -> Support:
        """An order edge (``control_deps``) inside a region holds in the code generated for it."""
        return supported()

    @property
    def region_order(self) -> Support:
        """Annotations may ask for a region to run after others: ``region("comm", after=["mlp"])``."""
        return supported()

    @property
    def pre_grad_passes(self) -> Support:
        """A custom pre-grad pass runs once per Dynamo graph."""
        return supported()

    @property
    def pre_grad_pass_lists(self) -> Support:
        """``pre_grad_custom_pass`` may be a list of passes, which run in its order."""
        return supported()

    @property
    def pre_grad_timing(self) -> Support:
        """``pre_grad_pass_timing`` says whether passes run before the cache is asked or on a miss alone."""
        return supported()

    @property
    def pre_grad_timing_checked(self) -> Support:
        """A misspelt timing is an error, and so is a uuid that identifies nothing."""
        return supported()

    @property
    def outer_cache(self) -> Support:
        """The result of a whole Dynamo graph is kept on disk: the same program in another process is a hit."""
        return supported()

    @property
    def outer_cache_before_backward(self) -> Support:
        """The result of a graph that trains is kept before any backward ran."""
        return supported()

    @property
    def outer_cache_of_functions(self) -> Support:
        """An ``autograd.Function`` does not keep a graph out of that cache."""
        return supported()

    @property
    def pytorch_outer_cache(self) -> Support:
        """PyTorch's own cache, once ``force_autograd_cache`` is on, keeps what this backend makes of a whole graph."""
        return unsupported("PyTorch's cache of whole graphs is tested with PyTorch's regional backend")

    @property
    def full_graph(self) -> Support:
        """A graph captured ahead of time, forward or backward, can be compiled by it as the last pass of a pipeline."""
        return supported()

    @property
    def full_graph_artifacts(self) -> Support:
        """What such a pipeline made can be saved, and loaded in another process without a compile."""
        return supported()

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return every capability's name, those that a subclass adds included."""
        return tuple(sorted(name for name in dir(cls) if isinstance(getattr(cls, name), property)))

    @classmethod
    def sentence(cls, name: str) -> str:
        """Return the documentation of capability ``name``: the sentence that reports show."""
        return str(getattr(cls, cls._known(name)).__doc__)

    def get(self, name: str) -> Support:
        """Return whether capability ``name`` is supported.

        Raises:
            UnknownCapabilityError: a name that is no capability.
            TypeError: a property that returns anything but a :class:`Support`.
        """
        value = getattr(self, self._known(name))
        if not isinstance(value, Support):
            raise TypeError(
                f"{type(self).__qualname__}.{name} returned {value!r}; return supported(), unsupported(reason) or "
                f"supported_for(torch, reason)"
            )
        return value

    @classmethod
    def _known(cls, name: str) -> str:
        if name not in cls.names():
            raise UnknownCapabilityError(unknown_name("capability", name, cls.names()))
        return name


def declared(**answers: Support | bool) -> Callable[[], Capabilities]:
    """Return a :class:`Capabilities` subclass with the given answers: the short form for small backends.

    Raises:
        UnknownCapabilityError: a name that is no capability.
    """
    members: dict[str, Any] = {}
    for name, answer in answers.items():
        Capabilities._known(name)
        support = answer if isinstance(answer, Support) else Support(answer, "" if answer else "declared absent")
        members[name] = property(_answering(support), doc=Capabilities.sentence(name))
    return type("DeclaredCapabilities", (Capabilities,), members)


def _answering(support: Support) -> Callable[[Any], Support]:
    return lambda capabilities: support
