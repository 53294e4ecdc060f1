"""A known bug: where it was reported, where it stands, what notices it; and what that means for a backend."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from packaging.specifiers import SpecifierSet

from pytest_regional import ParityError, torch_matches

#: By the layer that a bug is in: the backends whose programs go through it. A region is compiled by Inductor, too.
LAYERS = {
    "dynamo": ("eager", "aot_eager", "inductor", "torch", "reference"),
    "aot_autograd": ("aot_eager", "inductor", "torch", "reference"),
    "inductor": ("inductor", "torch", "reference"),
    "regions": ("torch",),
}
BACKENDS = LAYERS["dynamo"]
REGIONAL = ("torch", "reference")

#: What can notice a bug: a comparison of :meth:`Regional.assert_parity`, or a check of its own.
ORACLES = (
    "value",
    "gradient",
    "missing gradient",
    "input state",
    "alias",
    "dtype",
    "strides",
    "exception",
    "refusal",
    "second call",
    "random state",
    "cache",
    "partitions",
    "recompile",
)
_OF_KINDS = {"nan": "value", "stride": "strides", "missing-grad": "missing gradient"}


class BugNoticedError(AssertionError):
    """A check that is no parity found the bug; ``by`` is one of :data:`ORACLES`."""

    def __init__(self, by: str, text: str) -> None:
        super().__init__(text)
        self.by = by


class BugTableError(AssertionError):
    """What a case found is not what the table says; the message names the case, the torch version and the backend."""


@dataclass(frozen=True)
class KnownBug:
    """One bug of PyTorch.

    Attributes:
        number: the issue of pytorch/pytorch, or ``None`` for a finding of this project.
        name: the name of the check; for a finding, of its script in ``docs/findings``.
        title: one sentence: the check's docstring.
        kind: the class of the bug, which is the file that it is in.
        layer: one of :data:`LAYERS`.
        torch: the versions of torch in which it stands, such as ``"<2.15"``; an empty text for all that are supported.
        notices: which of :data:`ORACLES` notices it.
        check: raises where the bug stands; takes the ``regional`` fixture.
        but: by backend, other versions of torch than ``torch``; ``None`` where it never stands.
        in_region: whether the program is a region, so that regional backends compile it with Inductor.
        marks: keywords of the ``regional_compile`` marker.
    """

    number: int | None
    name: str
    title: str
    kind: str
    layer: str
    torch: str
    notices: str
    check: Callable[[Any], None] = field(repr=False)
    but: Mapping[str, str | None]
    in_region: bool
    marks: Mapping[str, Any]

    @property
    def id(self) -> str:
        """The bug as test ids and messages show it: ``#198033-foreach_add_reads_what_it_writes``."""
        return f"#{self.number}-{self.name}" if self.number else self.name

    @property
    def source(self) -> str:
        """Where the bug is described."""
        return f"pytorch/pytorch#{self.number}" if self.number else f"docs/findings/{self.name}.py"

    def torch_for(self, backend: str) -> str | None:
        """Return the versions in which ``backend``, one of :data:`BACKENDS`, has the bug; ``None`` for none."""
        if backend in self.but:
            return self.but[backend]
        through = backend in LAYERS[self.layer] and (
            self.in_region or self.layer != "inductor" or backend not in REGIONAL
        )
        return self.torch if through else None

    def stands(self, backend: str, version: str) -> bool:
        """Return whether ``backend``, one of :data:`BACKENDS`, has the bug in ``version`` of torch."""
        versions = self.torch_for(backend)
        return versions is not None and SpecifierSet(versions).contains(version)

    def stands_here(self, backend: str) -> bool:
        """Return whether ``backend``, one of :data:`BACKENDS`, has the bug in the installed torch."""
        versions = self.torch_for(backend)
        return versions is not None and torch_matches(versions)

    def stands_in(self, version: str) -> bool:
        """Return whether any of :data:`BACKENDS` has the bug in ``version`` of torch."""
        return any(self.stands(backend, version) for backend in BACKENDS)

    def case(self) -> Any:
        """Return the bug as a value for ``pytest.mark.parametrize``."""
        marks = {"expects_regions": self.in_region, **self.marks}
        return pytest.param(self, id=self.id, marks=pytest.mark.regional_compile(**marks))


class BugClass:
    """The known bugs of one class, in one test file; an instance is a decorator of checks.

    Args:
        kind: the name of the class.
        needs: the capabilities that all of its checks need.
    """

    def __init__(self, kind: str, needs: Sequence[str] = ()) -> None:
        self.kind, self.needs = kind, tuple(needs)
        self.bugs: list[KnownBug] = []

    def __call__(
        self,
        number: int | None = None,
        *,
        layer: str,
        torch: str = "",
        notices: str,
        but: Mapping[str, str | None] | None = None,
        in_region: bool = True,
        requires: Sequence[str] = (),
        **marks: Any,
    ) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
        """Add the decorated check; the keywords are the fields of :class:`KnownBug` and of the marker."""

        def added(check: Callable[[Any], None]) -> Callable[[Any], None]:
            title = " ".join((check.__doc__ or "").split())
            named = {"requires": (*self.needs, *requires), **marks}
            how = (layer, torch, notices, check, but or {}, in_region, named)
            self.bugs.append(KnownBug(number, check.__name__, title, self.kind, *how))
            return check

        return added

    def cases(self) -> list[Any]:
        """Return the bugs as values for ``pytest.mark.parametrize``."""
        return [bug.case() for bug in self.bugs]


def all_bugs() -> list[KnownBug]:
    """Return the bugs of all test files of this folder."""
    package = importlib.import_module(__package__)
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names if name.startswith("test_")]
    return [bug for module in modules for bug in module.bugs.bugs]


# What a backend has


def assert_as_listed(bug: KnownBug, regional: Any, record: Callable[[str, Any], None]) -> None:
    """Check ``bug`` with the backend under test; ``record`` is pytest's ``record_property``.

    Where the table says that the bug stands, that is an expected failure. For a backend or a device that the table does
    not speak of, it is one wherever it happens: what the backend has is a result, and no more is expected.

    Raises:
        BugTableError: the table says otherwise, or something else notices the bug.
    """
    found = _found(bug, regional)
    record("known_bug", bug.id)
    record("known_bug_class", bug.kind)
    record("known_bug_state", "stands" if found else "does not stand")
    where = f"on torch {torch.__version__} with {regional.backend!r}"
    expected = bug.stands_here(regional.backend) if is_measured(bug, regional) else bool(found)
    if expected and not found:
        raise BugTableError(
            f"{bug.id} no longer stands {where}: {bug.title} Say so in torch= or but= of its entry ({bug.source})"
        )
    if found and not expected:
        raise BugTableError(f"{bug.id} stands {where}, where the table says that it does not: {found}") from found
    if found:
        pytest.xfail(f"{regional.backend} has {bug.id} ({bug.kind}, {bug.layer}): {bug.title}")


def is_measured(bug: KnownBug, regional: Any) -> bool:
    """Return whether the table speaks of the backend and the device under test."""
    device = bug.marks.get("device", "cpu")
    return regional.backend in BACKENDS and regional.device_under_test.kind == device


def _found(bug: KnownBug, regional: Any) -> Exception | None:
    """Return what the check raised, if the bug can be told by it."""
    try:
        bug.check(regional)
    except Exception as error:
        noticed = noticed_by(error)
        if bug.notices not in noticed:
            raise BugTableError(
                f"{bug.id}: noticed by {', '.join(sorted(noticed))}, where the table says {bug.notices!r}: another "
                f"bug, or a fault of the check: {error}"
            ) from error
        return error
    return None


def noticed_by(error: Exception) -> set[str]:
    """Return which of :data:`ORACLES` an error of a check stands for."""
    if isinstance(error, BugNoticedError):
        return {error.by}
    if not isinstance(error, ParityError):
        return {"exception"}
    mismatches = error.report.mismatches
    later = {"second call"} if all(m.where.startswith("second call") for m in mismatches) else set()
    return later | {_oracle(mismatch) for mismatch in mismatches}


def _oracle(mismatch: Any) -> str:
    if mismatch.kind != "value" and mismatch.kind != "nan":
        return _OF_KINDS.get(mismatch.kind, mismatch.kind)
    if "grad of " in mismatch.where:
        return "gradient"
    return "input state" if "mutated" in mismatch.where else "value"
