"""A backend under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_regional._base.cache_keys import CacheKey
from pytest_regional._base.text import unknown_name
from pytest_regional.backends.capabilities import Capabilities, Support, unsupported

COMPILE_OPTIONS = frozenset({"pre_grad_pass_timing"})

#: Options that suites ask for. ``partitioner``: ``"default"`` or ``"min_cut"``, as AOTAutograd's are called;
#: ``on_region_error``: ``"raise"``, or ``"eager"`` for a region that runs eager where it does not compile.
VARIANTS = frozenset({"partitioner", "on_region_error"})

#: AOTAutograd's partitioners, as the variant ``partitioner`` calls them.
PARTITIONERS = ("default", "min_cut")

#: Precisions that a backend may compute in, coarsest first.
PRECISIONS = ("bfloat16", "float16", "tf32", "float32")

DynamoBackend = Callable[..., Any]
"""``backend(gm, example_inputs) -> callable``, as ``torch.compile(..., backend=...)`` takes it."""


@dataclass(frozen=True)
class BackendSpec:
    """Everything the harness needs to know about a backend.

    Attributes:
        name: what ``--regional-backend`` and test ids call it.
        factory: returns the Dynamo backend (a callable, or the name of a registered one); called when a test compiles,
            so that importing a specification costs nothing.
        capabilities: what the backend claims and disclaims.
        known_failures: a text file of known failures kept by the adopter (see ``docs/backends.md``), or ``None``.
        forget: called by isolation and ``restart()``; drops what the backend itself keeps in memory.
        graph_pass: returns the pass that compiles one graph of AOTAutograd's, ``pass(gm, example_inputs)``, as the last
            of a full-graph pipeline; ``None`` for a backend that compiles what Dynamo hands it and nothing else, which
            then lacks the capability ``full_graph``.
        compile_options: which ``torch.compile(..., options={...})`` the backend takes where torch has no such setting:
            ``pre_grad_pass_timing`` is the only one there is, and torch 2.11 the only torch without the setting.
        variants: by the name of one of its options, a function of the option's value that returns the Dynamo backend
            with it: ``{"partitioner": lambda value: mine(partitioner=value)}``. A suite skips
            where it needs a variant that is not there. Suites use ``partitioner`` and ``on_region_error``.
        partitioner: which of AOTAutograd's partitioners it uses: ``"default"``, which is AOTAutograd's own, or
            ``"min_cut"``. The search for a culprit asks.
        alternatives: by what is then otherwise, in words (``"equal regions compiled one by one"``), a function that
            returns the Dynamo backend so. The search for a culprit tries each: where one is right, the step that
            it leaves out is to blame.
        compilers: returns functions that do its work wherever they are called from, such as what stands in
            ``aot_autograd(fw_compiler=...)``: a Dynamo backend that a test puts together from them counts as this one.
        precision: the precision that it computes in where the program's is finer: ``"bfloat16"``, ``"float16"``,
            ``"tf32"`` or ``"float32"`` (also as a ``torch.dtype``); or a function that returns one for this machine, or
            ``None``. Tolerances are then earned at that precision; see ``docs/other-backends.md``.
        compiled: returns how many graphs, or parts of graphs, it has compiled in this process, or loaded from what it
            keeps; it never counts down, not even when the backend forgets. A test during which it stays as it was is
            vacuous. ``None``: a graph that the backend was handed counts as compiled.
        inductor: whether code that Inductor generates while the backend compiles is its own doing; where not, it is
            counted as a fallback.
        cache_key: returns the key under which the backend's cache of whole results looks up a Dynamo graph, and what
            the key is made of: ``cache_key(gm, example_inputs)``, a :class:`CacheKey`; it compiles nothing, and
            may change ``gm``. ``pytest-regional explain-key`` asks. ``None``: the backend has no such cache, or does
            not say.
        plain: whether there is no written specification: the registry was given a Dynamo backend alone.
        origin: the name that the registry resolved to this specification; another process finds it by that name.
    """

    name: str
    factory: Callable[[], DynamoBackend | str]
    capabilities: Capabilities = field(default_factory=Capabilities)
    known_failures: Path | None = None
    forget: Callable[[], None] | None = None
    compile_options: frozenset[str] = frozenset()
    graph_pass: Callable[[], Any] | None = None
    variants: Mapping[str, Callable[[str], DynamoBackend]] = field(default_factory=dict)
    partitioner: str = "default"
    alternatives: Mapping[str, Callable[[], DynamoBackend]] = field(default_factory=dict)
    compilers: Callable[[], Sequence[Callable[..., Any]]] = tuple
    precision: Any = None
    compiled: Callable[[], int] | None = None
    inductor: bool = True
    cache_key: Callable[[Any, Sequence[Any]], CacheKey] | None = None
    plain: bool = False
    origin: str = ""

    def __post_init__(self) -> None:
        """Refuse what would fail later with a less clear message."""
        if not self.name or any(c in self.name for c in ", []\n"):
            raise ValueError(f"a backend's name may not be empty or hold commas, brackets or spaces: {self.name!r}")
        if not callable(self.factory):
            raise TypeError(f"backend {self.name!r}: factory must be callable and return the Dynamo backend")
        if not isinstance(self.capabilities, Capabilities):
            raise TypeError(
                f"backend {self.name!r}: capabilities must be an instance of Capabilities, not {self.capabilities!r}; "
                f"a class, such as declared(...) returns, wants calling: declared(...)()"
            )
        for argument, returned in (
            ("graph_pass", "the pass"),
            ("compilers", "the functions"),
            ("cache_key", "the key of a Dynamo graph"),
            ("compiled", "a number"),
        ):
            given = getattr(self, argument)
            if not callable(given) and (given is not None or argument == "compilers"):
                raise TypeError(f"backend {self.name!r}: {argument} must be callable and return {returned}")
        if self.precision is not None and not callable(self.precision):
            self._checked_precision(self.precision)
        for option in self.compile_options - COMPILE_OPTIONS:
            raise ValueError(f"backend {self.name!r}: {unknown_name('compile option', option, COMPILE_OPTIONS)}")
        if self.partitioner not in PARTITIONERS:
            raise ValueError(f"backend {self.name!r}: {unknown_name('partitioner', self.partitioner, PARTITIONERS)}")
        for words, alternative in self.alternatives.items():
            if not callable(alternative):
                raise TypeError(
                    f"backend {self.name!r}: the alternative {words!r} must be a function that returns a Dynamo backend"
                )
        for option, variant in self.variants.items():
            if option not in VARIANTS:
                raise ValueError(f"backend {self.name!r}: {unknown_name('variant', option, VARIANTS)}")
            if not callable(variant):
                raise TypeError(
                    f"backend {self.name!r}: the variant {option!r} must be a function of the option's value"
                )

    def computes_in(self) -> str | None:
        """Return the name of the precision that the backend computes in on this machine; ``None`` for the program's.

        Raises:
            ValueError: ``precision`` is no precision, or returned none.
        """
        given = self.precision() if callable(self.precision) else self.precision
        return None if given is None else self._checked_precision(given)

    def _checked_precision(self, given: Any) -> str:
        name = str(given).removeprefix("torch.")
        if name not in PRECISIONS:
            raise ValueError(f"backend {self.name!r}: {unknown_name('precision', name, PRECISIONS)}")
        return name

    def supports(self, capability: str) -> Support:
        """Return whether a capability is there: as claimed, and with what it needs.

        Raises:
            RegionalValueError: a name that is no capability.
        """
        support = self.capabilities.get(capability)
        if support and self.graph_pass is None and capability.startswith("full_graph"):
            return unsupported("its BackendSpec gives no graph_pass")
        return support
