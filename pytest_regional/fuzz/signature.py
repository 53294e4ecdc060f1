"""What makes two failures the same defect."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

#: Laws whose breaches are told apart by what the program computes. Of the others the origin says it all: an exception
#: and the place that raised it, or the change that the cache overlooked.
_BY_FEATURES = ("parity", "borders", "inference", "warm", "order", "caches")

#: Features that name a defect; the rest says how the program that met it happens to look.
_OF_PROGRAMS = ("op:", "dtype:", "layout:", "region:", "input:", "output:", "context:", "training", "dynamic")
#: The same of histories of caches.
_OF_HISTORIES = ("event:", "changed:", "key:")


@dataclass(frozen=True)
class Signature:
    """The identity of a defect, as far as one can tell from outside.

    Attributes:
        law: the law that is broken; see ``docs/fuzzing-laws.md``.
        stage: ``"compile"``, ``"run"``, ``"backward"`` or ``"restart"``.
        origin: exception type and innermost frame, or the kinds of mismatch.
        features: what the reduced program has that matters; empty before it is reduced.
    """

    law: str
    stage: str
    origin: str
    features: frozenset[str] = frozenset()

    def with_features(self, features: frozenset[str]) -> Signature:
        """Return the signature of a program with ``features``, those kept that name a defect."""
        kept = (
            frozenset(f for f in features if f.startswith(_OF_PROGRAMS + _OF_HISTORIES))
            if self.law in _BY_FEATURES
            else frozenset()
        )
        return Signature(self.law, self.stage, self.origin, kept)

    def covers(self, other: Signature, features: frozenset[str]) -> bool:
        """Whether a failure with signature ``other`` of a program with ``features`` may be this defect again."""
        same = (self.law, self.stage, self.origin) == (other.law, other.stage, other.origin)
        return same and self.features <= features

    @property
    def name(self) -> str:
        """A short name that is a file name: law, stage, and eight digits that tell it from others."""
        digits = hashlib.sha256(repr((self.origin, sorted(self.features))).encode()).hexdigest()[:8]
        return f"{self.law}-{self.stage}-{digits}"

    @property
    def exception(self) -> str:
        """The name of the exception that the origin begins with; empty where it is none."""
        name, at, _ = self.origin.partition(" at ")
        return name if at else ""

    def __str__(self) -> str:
        return f"{self.law} ({self.stage}): {self.origin}"
