"""Reproduce a failure with a backend under changes, and search for what it comes from."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._base.region import AnnotationError
from pytest_regional._base.text import without_numbers
from pytest_regional._torch.dynamo import aot_eager_within, registered_backend
from pytest_regional._torch.inductor import interpreting_regions
from pytest_regional._torch.vetoes import settings_to_try, vetoing
from pytest_regional.backends import registry
from pytest_regional.backends.spec import PARTITIONERS
from pytest_regional.harness import isolation
from pytest_regional.harness.blame.culprit import ASSERTED, RAISED, Change, Culprit, Experiments, Signature
from pytest_regional.harness.blame.facts import CompileFacts
from pytest_regional.harness.blame.layers import Suspects, search
from pytest_regional.harness.parity.report import BadProgramError, ParityError
from pytest_regional.harness.raised import asserted_at, message_of, origin_of, root_of

if TYPE_CHECKING:
    from pytest_regional.harness.regional import Regional


def culprit_of(regional: Regional, check: Callable[[], object], *, seconds: float | None = None) -> Culprit:
    """Return where it comes from what a check raises, which compiles with the harness; called inside of its context.

    It is called again and again, each time with fresh caches. Counters and records are afterwards as they were. All
    calls may take ``seconds`` of CPU time, by default ``regional.blame_seconds``; the last call may take longer.
    """
    searches = regional.folder / "blame"
    searches.mkdir(parents=True, exist_ok=True)
    # Each experiment has an empty cache folder: a shared one would answer with what another experiment compiled.
    folders = map(Path(tempfile.mkdtemp(dir=searches)).joinpath, map(str, itertools.count()))

    seen: dict[str, CompileFacts] = {}
    spec, has_regions = regional._spec, bool(regional.supports("regions"))
    compared = len(regional._parity_reports)

    def reproduce(change: Change) -> Signature:
        regional.restart()
        facts = seen[change.sentence] = CompileFacts()
        with (
            isolation.cache_folder(next(folders)),
            isolation.random_state_kept(),  # the same draws for all
            regional.observer.from_zero(facts),
            regional._changed(change),
        ):
            settings, goldens = isolation.Snapshot.take(), regional.goldens
            # No experiment decides which goldens the test is to write.
            regional.goldens = dataclasses.replace(goldens, used={}) if goldens else None
            try:
                signature = failure_of(check)
            finally:
                regional.goldens = goldens
                settings.restore()
            events = [event.counter for event in regional.observer.log.since()]
            facts.note(events, regional.observer.graph_records(), spec.supports)
        del regional._parity_reports[compared:]
        return signature

    with vetoing() as applied:
        usual = reproduce(Change())
    if not usual:
        return Culprit("nothing")
    with_partitioner = spec.variants.get("partitioner")
    # Another backend that compiles regions: with it the same check shows whether this one is at fault.
    peer = registry.resolve("torch" if spec.name == "reference" else "reference") if has_regions else None
    suspects = Suspects(
        applied=applied.applications,
        captures=_captures(regional._options.partitioner or spec.partitioner),
        passes=regional._passes_applied,
        alternatives={words: make() for words, make in spec.alternatives.items()},
        partitioners={f"the {one} partitioner": with_partitioner(one) for one in PARTITIONERS if with_partitioner},
        regions=regional._region_names(seen[""].graphs) if has_regions else (),
        settings=settings_to_try(gpu=regional.device_under_test.kind != "cpu"),
        not_tried=applied.missing,
        interpreting=interpreting_regions,
        peers={peer.name: dataclasses.replace(peer, name=spec.name)} if peer else {},
        seen=seen,
    )
    try:
        seconds = regional.blame_seconds if seconds is None else seconds
        return search(Experiments(reproduce, usual, seconds=seconds), suspects)
    finally:
        regional.restart()


def failure_of(check: Callable[[], object]) -> Signature:
    """Call ``check`` and return what its exception says that fails; empty where it raises none.

    Raises:
        BadProgramError: the program fails in eager: no change to a compiler says anything.
        AnnotationError: the program has a wrong annotation, which is no failure of a compiler either.
    """
    try:
        check()
    except (BadProgramError, AnnotationError):
        raise
    except ParityError as error:
        differs = {f"{one.kind} of {one.where}" for one in error.report.mismatches if one.kind != "exception"}
        return frozenset(differs) or _raised(error.__cause__ or error)
    except Exception as error:  # noqa: BLE001 - whatever the check or a compiler raises is the failure
        return _raised(error)
    return frozenset()


def _raised(error: BaseException) -> Signature:
    """Return where an exception comes from, and what it says: either makes two of them the same.

    Of an assertion of the check's also the line, as it may say something else each time.
    """
    origin = getattr(error, "origin", None)  # an oracle's violation says itself what makes two of them the same
    if isinstance(origin, str):
        oracle = getattr(error, "oracle", "")
        return frozenset({f"{RAISED if oracle == 'compiles' else ''}{oracle} {origin}"})
    root = root_of(error)
    said = f"{type(root).__name__}: {without_numbers(message_of(root))}"
    line = asserted_at(root)
    return frozenset({RAISED + origin_of(error), RAISED + said, *([ASSERTED + line] if line else [])})


def _captures(partitioner: str) -> dict[str, Callable[..., Any]]:
    """Return backends that capture as others do, and run what they captured eagerly: first with ``partitioner``."""
    (other,) = (name for name in PARTITIONERS if name != partitioner)
    made = {
        "dynamo": registered_backend("eager"),
        "aot_autograd": aot_eager_within(partitioner, contextlib.nullcontext),
        "other_partitioner": aot_eager_within(other, contextlib.nullcontext),
    }

    def without_options(backend: Callable[..., Any]) -> Callable[..., Any]:
        return lambda gm, inputs, **options: backend(gm, inputs)

    return {name: without_options(backend) for name, backend in made.items()}
