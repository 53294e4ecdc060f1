"""How one fault is planted in the reference backend: functions are replaced while it compiles, and put back after."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_regional import BackendSpec, Capabilities
from pytest_regional.backends import adapters

REFERENCE = "pytest_regional.reference."
CALLS_FOLDER = "PYTEST_REGIONAL_MUTANT_CALLS"
"""Environment variable: a folder in which every replaced function leaves a file when it is first called."""

# An annotation oracle, a suite assertion: what a kill may be raised as, where the fault does not say otherwise.
ASSERTIONS = (
    "AssertionError",
    "BackendLeakError",
    "CodeAssertionError",
    "CompileForbiddenError",
    "CounterExpectationError",
    "Failed",
    "FallbackError",
    "NewProcessError",
    "OrderError",
    "ParityError",
    "VacuousTestError",
)


class PlantingError(RuntimeError):
    """A mutant does not fit the reference backend any more: what it replaces is gone, or is never called."""


@dataclass(frozen=True)
class Patch:
    """One attribute that is replaced.

    Attributes:
        target: ``module:attribute`` or ``module:Class.attribute``, the module below ``pytest_regional.reference`` where
            it names no other package.
        replace: returns the replacement, given the original.
        counted: whether calls are counted; a constant has none.
    """

    target: str
    replace: Callable[[Any], Any]
    counted: bool = True

    def owner(self) -> tuple[Any, str]:
        """Return what holds the attribute, and the attribute's name.

        Raises:
            PlantingError: there is no such thing.
        """
        module, _, path = self.target.partition(":")
        known = module.startswith(("pytest_regional.", "torch.", "bench."))
        *owners, name = path.split(".")
        try:
            owner: Any = importlib.import_module(module if known else REFERENCE + module)
            for part in owners:
                owner = getattr(owner, part)
            getattr(owner, name)
        except (ImportError, AttributeError) as error:
            raise PlantingError(f"{self.target} is not there to be replaced: {error}") from error
        return owner, name


@dataclass(frozen=True)
class Mutant:
    """A changed reference backend.

    Attributes:
        name: of the backend; a Python identifier.
        sentence: what is wrong with it, or odd.
        oracles: which oracles of the fuzzer are meant to notice; none for what is right.
        suites: files of ``suites/`` that are meant to notice.
        patches: what is replaced while it compiles.
        wrap: applied to the callable that it returns for a Dynamo graph.
        errors: exceptions that count as noticing, by name.
        capabilities: what it claims; all that the reference claims by default.
        needs: words of programs (``tests.faults.needs``), one of which the fault needs to act. Programs without are
            counted as examples, and not checked.
        modes: of the fuzzer, in which it can show, in this order. What is interpreted shows no fault of generated code.
    """

    name: str
    sentence: str
    oracles: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    patches: tuple[Patch, ...] = ()
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    errors: tuple[str, ...] = ASSERTIONS
    capabilities: type[Capabilities] = Capabilities
    needs: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("interpret", "caches")

    @functools.cached_property
    def planted(self) -> Planted:
        """The state of the mutant in this process."""
        return Planted(self)


_one_at_a_time = threading.RLock()


@dataclass
class Planted:
    """A mutant at work: its patches are in place while anybody is inside :meth:`active`, in whatever thread."""

    mutant: Mutant
    calls: Counter[str] = field(default_factory=Counter)
    _depth: int = 0
    _originals: list[tuple[Any, str, Any]] = field(default_factory=list)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Have the patches in place inside."""
        with _one_at_a_time:
            self._depth += 1
            if self._depth == 1:
                self._plant()
        try:
            yield
        finally:
            with _one_at_a_time:
                self._depth -= 1
                if not self._depth:
                    self._uproot()

    def _plant(self) -> None:
        for patch in (*self.mutant.patches, self._also_in_backwards()):
            owner, name = patch.owner()
            original = getattr(owner, name)
            replacement = patch.replace(original)
            self._originals.append((owner, name, inspect.getattr_static(owner, name)))
            setattr(owner, name, self._counting(patch.target, original, replacement) if patch.counted else replacement)

    def _uproot(self) -> None:
        while self._originals:
            setattr(*self._originals.pop())

    def _counting(self, target: str, original: Callable[..., Any], replacement: Callable[..., Any]) -> Any:
        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            self._note(target)
            return replacement(*args, **kwargs)

        return counted

    def _note(self, target: str) -> None:
        self.calls[target] += 1
        folder = os.environ.get(CALLS_FOLDER)
        if folder and self.calls[target] == 1:
            Path(folder, f"{self.mutant.name} {target.replace(':', ' ')}").touch()

    def _also_in_backwards(self) -> Patch:
        """Where no cache is asked, a backward compiles when it first runs: long after the backend has returned."""

        def replace(original: Callable[..., Any]) -> Callable[..., Any]:
            def seen(compile_graph: Callable[..., Any]) -> Any:
                def compile_planted(*args: Any) -> Any:
                    with self.active():
                        return compile_graph(*args)

                return original(compile_planted)

            return seen

        return Patch("dynamo_backend:_seen_by_pytorch_cache", replace, counted=False)

    def variant(self, option: str, value: str) -> Callable[..., Any]:
        """Return the Dynamo backend with an option."""
        return functools.partial(self.backend(), **{option: value})

    def without(self, option: str) -> Callable[..., Any]:
        """Return the Dynamo backend with an option off."""
        return functools.partial(self.backend(), **{option: False})

    def backend(self) -> Callable[..., Any]:
        """Return the Dynamo backend."""
        from pytest_regional.reference import regional

        def compile_planted(gm: Any, example_inputs: Any, **options: Any) -> Any:
            with self.active():
                compiled = regional(gm, example_inputs, **options)
            if self.mutant.wrap is None:
                return compiled
            self.calls["the returned callable"] += 1
            return self.mutant.wrap(compiled)

        return compile_planted

    def cache_key(self, gm: Any, example_inputs: Any) -> Any:
        """Return the key that the faulty backend looks a Dynamo graph up with."""
        from pytest_regional.reference.dynamo_backend import explain_key

        with self.active():
            return explain_key(gm, example_inputs)

    def graph_pass(self) -> Any:
        """Return the pass that compiles one graph of AOTAutograd's."""
        from pytest_regional.reference import RegionalInductor

        class Planted(RegionalInductor):
            def __call__(this, *args: Any, **kwargs: Any) -> Any:
                with self.active():
                    return super().__call__(*args, **kwargs)

        return Planted()


def spec_of(mutant: Mutant) -> BackendSpec:
    """Return ``mutant`` as a backend that the harness, or ``--regional-backend``, takes."""
    reference = adapters.reference()
    return BackendSpec(
        mutant.name,
        mutant.planted.backend,
        mutant.capabilities(),
        forget=reference.forget,
        graph_pass=mutant.planted.graph_pass,
        compile_options=reference.compile_options,
        variants={option: functools.partial(mutant.planted.variant, option) for option in reference.variants},
        alternatives={
            words: functools.partial(mutant.planted.without, option) for words, option in adapters.ALTERNATIVES.items()
        },
        cache_key=mutant.planted.cache_key,
        origin=f"tests.faults.backends:{mutant.name}",
    )
