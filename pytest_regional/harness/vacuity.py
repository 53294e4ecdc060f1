"""Checks that fail an otherwise passing test: nothing compiled, a fallback to eager, leaked settings."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from pytest_regional._base.errors import RegionalError
from pytest_regional._base.region import AnnotationWarning, misspelt_text
from pytest_regional._base.text import plural
from pytest_regional.harness.counters import CounterLog, Counters, describe
from pytest_regional.harness.observe.annotated import DYNAMOS_CAPTURE
from pytest_regional.harness.parity.state import contents, functions_of, names_in

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional


class VacuousTestError(RegionalError, AssertionError):
    """A test that compiled nothing, so that whatever it asserted was asserted of eager code."""


class FallbackError(RegionalError, AssertionError):
    """Something that was asked to compile ran eager instead."""


class BackendLeakError(RegionalError, AssertionError):
    """The backend under test left a setting changed when it returned from a compile."""


def check_backend_leaks(regional: Regional) -> None:
    """Raise :class:`BackendLeakError` when the backend left settings changed; they are restored all the same."""
    found = regional.observer.left_by_backend.found
    if found:
        changed = "\n".join(f"  {leak}" for leak in found)
        raise BackendLeakError(
            f"the backend {regional.backend!r} left {plural(len(found), 'setting')} changed when it returned from a "
            f"compile (restored after it):\n{changed}\n"
            f"If a compiler that the backend loads at its first compile sets this, import that compiler at the top of "
            f"the module with the backend's specification: what an import changes is not reported, and stays."
        )


def check_fallbacks(regional: Regional) -> None:
    """Raise :class:`FallbackError` when anything ran eager that was asked to compile, and no ``expect`` allowed it.

    Ops ran eager as well whose annotation no backend reads because its key is next to that of regions: a warning.
    """
    for key in regional.observer.misspelt_annotations:
        warnings.warn(AnnotationWarning(misspelt_text(key)), stacklevel=2)
    expected = set(map(id, regional._expected_fallbacks))
    events = [e for e in regional.observer.log.since() if e.counter == "fallbacks" and id(e) not in expected]
    if events:
        causes = "\n".join(f"  {event.cause}" for event in events)
        raise FallbackError(f"what should have been compiled ran eager:\n{causes}")


def compiled_something(regional: Regional) -> bool:
    """Say whether the backend under test compiled anything, or loaded what it had compiled.

    Of a backend of regions it is a region; of one that does not look at annotations, a graph that is not empty; of one
    that says what it compiled, that. A lookup of a whole result that was answered shows no region, as results without
    any are kept as well: what shows one is that code of Inductor's was loaded.
    """
    if regional._spec.compiled is not None:
        return regional._spec.compiled() > regional._compiled_before or regional.observer.called_compiled_region
    observer = regional.observer
    counters = _own_counters(regional)
    loaded = counters.region_cache_hits or observer.loaded_code
    if counters.region_compiles or loaded or observer.called_compiled_region:
        return True
    if regional.supports("regions"):
        return False
    return counters.cache_hits > 0 or any(graph.ops and not graph.other for graph in observer.graphs)


def _own_counters(regional: Regional) -> Counters:
    """Return what the backend under test moved, and no other that the test used."""
    return CounterLog([event for event in regional.observer.log.since() if not event.other]).counters()


def check_not_vacuous(regional: Regional) -> None:
    """Raise :class:`VacuousTestError` when a comparison, or the whole test, shows nothing of the backend under test."""
    if regional._compared_eager:
        raise VacuousTestError(
            f"assert_parity compared eager with eager: {', '.join(regional._compared_eager)} never got to backend "
            f"{regional.backend!r}. Dynamo may have skipped the program, or a stance or torch.compiler.disable kept it "
            f"from compiling. {_INTENDED}"
        )
    if not regional.supports("compiles_regions") or compiled_something(regional):
        return
    if regional._passes_on_graphs and not regional.observer.graphs:
        return
    what = "region" if regional.supports("regions") else "graph"
    misspelt = "".join(f"{misspelt_text(key)}.\n" for key in regional.observer.misspelt_annotations)
    events = "\n".join(describe(regional.observer.log.since()))
    raise VacuousTestError(
        f"no {what} was compiled or loaded with backend {regional.backend!r}, so the test proves nothing: "
        f"{_why(regional)}\n{misspelt}Counters that moved:\n{events}"
    )


def _why(regional: Regional) -> str:
    others = [one for one in regional.observer.others_that_compiled() if one != DYNAMOS_CAPTURE]
    if others:
        names = " and ".join(map(repr, others))
        return (
            f"{names} compiled, which the test gave to torch.compile. Use regional.compile(fn), or "
            f"torch.compile(fn, backend=regional.dynamo_backend) for the backend under test. If another one is meant, "
            f"name it in the mark: regional_compile(backend=...)."
        )
    if not regional.observer.log.since():
        return (
            f"the test called no compiled program. regional.run(fn, x) and assert_parity(fn, x) call it; "
            f"regional.compile(fn) returns what is to be called. {_INTENDED}"
        )
    if not regional.supports("regions"):
        return f"the compiled programs had no ops. {_INTENDED}"
    hits = _own_counters(regional).cache_hits
    if hits:
        return (
            f"{plural(hits, 'result')} came from a cache, with no code of Inductor's in "
            f"{'it' if hits == 1 else 'them'}. Were the annotations lost? A backend that loads regions in another way "
            f"says so with BackendSpec(compiled=...). {_INTENDED}"
        )
    handed = [graph for graph in regional.observer.graphs if graph.ops and not graph.other]
    if regional._spec.plain and handed:
        return (
            f"Were the annotations lost? The backend {regional.backend!r} was handed {plural(len(handed), 'graph')}. "
            f"If it compiles graphs, not regions, say so: [tool.pytest-regional.backends.{regional.backend}] disclaims "
            f'= {{ regions = "it compiles graphs" }} in pyproject.toml. {_INTENDED}'
        )
    annotated = next(filter(None, map(_annotated, regional._programs)), "")
    if annotated:
        return (
            f"{annotated} has an annotation, and no op under it reached the backend. Another branch ran, the region "
            f"holds no op, or its code ran outside of Dynamo. {_INTENDED}"
        )
    what = "the program has no" if regional._programs else "no op that the backend was given has an"
    return (
        f"{what} annotation. Write 'with pytest_regional.region(\"name\"):' around what is to be compiled. {_INTENDED}"
    )


def _annotated(program: Any) -> str:
    """Return which of a program's functions has an annotation; empty where none has."""
    for function in functions_of(program):
        code = function.__code__
        # A function that an annotation decorates is one of contextlib's, which holds the annotation.
        managers = (value for cell in function.__closure__ or () for value in contents(cell))
        names = {*names_in(code), *(getattr(getattr(one, "func", None), "__name__", "") for one in managers)}
        if names & {"annotate", "region"}:
            code = inspect.unwrap(function).__code__
            return f"{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    return ""


_INTENDED = "If that is intended, mark the test regional_compile(expects_regions=False)."
