"""What a backend can do: a table of capabilities with a sentence each, strict both ways.

A suite test names what it needs in ``requires=(...)``; a backend without it skips with the reason given here. The
model is SQLAlchemy's dialect suite: a class of predicates, not a list of skipped tests.
"""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import unknown_name
from pytest_regional._torch import installed_version, release_of


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
        raise ValueError("unsupported() needs a reason: it is shown with the skip")
    return Support(False, reason)


def supported_for(torch: str, reason: str) -> Support:
    """Claim the capability for the torch versions in ``torch`` (such as ``">=2.13"``), elsewhere disclaim it."""
    return (
        Support(True)
        if torch_matches(torch)
        else unsupported(f"{reason} (supported for torch {torch}, this is {installed_version()})")
    )


def torch_matches(specifier: str) -> bool:
    """Say whether the installed torch is in ``specifier``; pre-releases count as their release.

    Raises:
        ValueError: when ``specifier`` is no version specifier.
    """
    return versions_in(specifier).contains(release_of(installed_version()))


def versions_in(specifier: object) -> SpecifierSet:
    """Return the versions that ``specifier`` means; torch need not be installed.

    Raises:
        ValueError: when ``specifier`` is no version specifier.
    """
    try:
        return SpecifierSet(specifier if isinstance(specifier, str) else "not a string")
    except InvalidSpecifier as error:
        raise ValueError(f"{specifier!r} is no version specifier such as '>=2.13' or '>=2.11,<2.14'") from error


#: Capabilities until 0.9, whose names work until 1.0, and what each is part of.
_FORMER = {
    "full_graph_artifacts": "full_graph",
    "outer_cache_before_backward": "outer_cache_of_training",
    "outer_cache_of_functions": "outer_cache_of_training",
    "pre_grad_timing_checked": "annotation_checks",
    "region_edges": "region_order",
}


def present_name(name: str) -> str:
    """Return the name that capability ``name`` has now.

    Warns:
        DeprecationWarning: ``name`` is a former one.
    """
    if name not in _FORMER:
        return name
    present = _FORMER[name]
    warnings.warn(f"capability {name!r} goes with 1.0: it is part of {present!r}", DeprecationWarning, stacklevel=3)
    return present


def capability(sentence: str, *, not_claimed: str = "") -> property:
    """Return a capability for the body of a class; ``not_claimed`` is the reason why a backend lacks it by default.

    Args:
        sentence: what a backend claims with it, which reports show.
        not_claimed: empty for what a correct regional backend does.
    """
    return _answering(unsupported(not_claimed) if not_claimed else supported(), sentence)


def _answering(support: Support, sentence: str) -> property:
    return property(lambda capabilities: support, doc=sentence)


class Capabilities:
    """Everything that a test may require of a backend: one property each.

    A subclass overrides what differs, as properties that return :func:`supported`, :func:`unsupported` or
    :func:`supported_for`, or as keywords: ``class Mine(Capabilities, rng=unsupported("no seeds are kept"))``. The
    defaults claim everything that a correct regional backend does, so that an adopter starts strict and disclaims on
    purpose.
    """

    compiles_regions = capability(
        "At least one subgraph of an annotated program is compiled; without it, vacuity is not checked."
    )
    inductor_code = capability(
        "Inductor generates the code: its settings and passes apply, and what it generated can be read."
    )
    regions = capability("Annotated regions are compiled apart and the rest of the graph stays eager.")
    region_counts = capability(
        "What is compiled of regions is counted: Inductor compiles it, or ``pytest_regional.report_region`` is called."
    )
    few_partitions = capability("A region is compiled in as few parts as dependencies allow.")
    region_ids = capability("Nodes with different ``inductor_region`` ids never share a partition.")
    region_configs = capability("``inductor_configs`` of an annotation hold while that region compiles.")
    distinct_region_configs = capability(
        "Nodes of one region id with different ``inductor_configs`` are compiled apart, each with its own."
    )
    annotation_checks = capability(
        "A mistake in an annotation is an error that names it; so is a misspelt timing of passes, and a uuid of a pass "
        "that identifies nothing."
    )
    interleaved_regions = capability("Regions that depend on each other both ways (a1 -> b2, b1 -> a2) compile.")
    nested_regions = capability("Regions inside the body of a higher-order operator are found and compiled.")
    share_identical = capability("Identical partitions are compiled once.")
    backward = capability("Programs that train are compiled, backward included.")
    dynamic_shapes = capability("One compile serves several sizes of a dynamic dimension.")
    mutation = capability("Inputs and buffers mutated inside a region are mutated for the caller.")
    aliasing = capability(
        "Outputs that are inputs, or views of inputs or of each other, stay so; inputs may share memory."
    )
    results_kept = capability(
        "What a call returned stays as it was when the program is called again: no memory is handed out twice."
    )
    channels_last = capability("Channels-last memory format survives regions, forward and gradients.")
    strides = capability(
        "Results have eager's strides: an output that is transposed in eager is transposed, not contiguous."
    )
    custom_ops = capability("Operators made with ``torch.library.custom_op``, mutating ones too, run inside regions.")
    higher_order_operators = capability(
        "Higher-order operators (``cond``, loops, checkpoints, nested compile regions, autograd functions) compile."
    )
    rng = capability("Random operators draw what eager draws under ``fallback_random``.")
    flex_attention = capability("``flex_attention`` inside a region compiles for inference.")
    flex_attention_backward = capability(
        "``flex_attention`` inside a region trains (skipped on CPU, where PyTorch refuses it)."
    )
    nested_region_options = capability(
        "The compilers named in the ``options`` of a ``nested_compile_region`` compile its body.",
        not_claimed="a backend has to ask for these options; PyTorch's regional_inductor_invoke_subgraph does",
    )
    region_order = capability(
        "An order holds in the code generated: of an edge (``control_deps``) inside a region, and of an annotation "
        'that asks for a region to run after others, ``region("comm", after=["mlp"])``.'
    )
    pre_grad_passes = capability("A custom pre-grad pass runs once per Dynamo graph.")
    pre_grad_pass_lists = capability("``pre_grad_custom_pass`` may be a list of passes, which run in its order.")
    pre_grad_timing = capability(
        "``pre_grad_pass_timing`` says whether passes run before the cache lookup or only on a miss."
    )
    outer_cache = capability(
        "The result of a whole Dynamo graph is kept on disk: the same program in another process is a hit."
    )
    outer_cache_of_training = capability(
        "The result of a graph that trains is kept before any backward ran, with an ``autograd.Function``, too."
    )
    pytorch_outer_cache = capability(
        "PyTorch's own cache, once ``force_autograd_cache`` is on, keeps what this backend makes of a whole graph.",
        not_claimed="PyTorch's cache of whole graphs is tested with PyTorch's regional backend",
    )
    precompile = capability(
        "PyTorch's storage of traces (``caching_precompile``) keeps what this backend makes of a graph: the next "
        "process traces nothing.",
        not_claimed=("PyTorch stores traces with results that its own cache of whole graphs keeps, and with no others"),
    )
    full_graph = capability(
        "A graph captured ahead of time, forward or backward, can be compiled by it as the last pass of a pipeline; "
        "the result can be saved, and loaded in another process without a compile."
    )

    _disclaimed: Mapping[str, Support] = {}

    def __init_subclass__(cls, **answers: Support | bool) -> None:
        """Answer as the keywords of the class say.

        Raises:
            RegionalValueError: a keyword that is no capability.
        """
        super().__init_subclass__()
        for name in _FORMER.keys() & vars(cls):
            setattr(cls, present_name(name), vars(cls)[name])
            delattr(cls, name)
        for name, answer in answers.items():
            support = answer if isinstance(answer, Support) else Support(answer, "" if answer else "declared absent")
            known = cls._known(name)
            setattr(cls, known, _answering(support, cls.sentence(known)))

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
            RegionalValueError: a name that is no capability.
            TypeError: a property that returns anything but a :class:`Support`.
        """
        known = self._known(name)
        value = self._disclaimed[known] if known in self._disclaimed else getattr(self, known)
        if not isinstance(value, Support):
            raise TypeError(
                f"{type(self).__qualname__}.{name} returned {value!r}; return supported(), unsupported(reason) or "
                f"supported_for(torch, reason)"
            )
        return value

    def disclaiming(self, reasons: Mapping[str, str]) -> Capabilities:
        """Return a copy whose :meth:`get` disclaims the capabilities in ``reasons``.

        Raises:
            RegionalValueError: a name that is no capability.
        """
        changed = copy.copy(self)
        disclaimed = {self._known(name): unsupported(reason) for name, reason in reasons.items()}
        vars(changed)["_disclaimed"] = {**self._disclaimed, **disclaimed}
        return changed

    @classmethod
    def _known(cls, name: str) -> str:
        # As names() finds them, without reading all: this is asked many times for each fuzzed program.
        present = present_name(name)
        if not isinstance(getattr(cls, present, None), property):
            raise RegionalValueError(unknown_name("capability", name, cls.names()))
        return present


def declared(**answers: Support | bool) -> Callable[[], Capabilities]:
    """Return a :class:`Capabilities` subclass with the given answers: the short form for small backends.

    Raises:
        RegionalValueError: a name that is no capability.
    """
    return types.new_class("DeclaredCapabilities", (Capabilities,), answers)
