"""What a law is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_regional.fuzz.oracles.errors import LawBrokenError
    from pytest_regional.fuzz.oracles.trial import Trial


@dataclass(frozen=True)
class Law:
    """Something that holds for every program on every backend that declares what it needs.

    Attributes:
        name: what errors, findings and tables call it.
        summary: one sentence.
        check: raises :class:`~pytest_regional.fuzz.oracles.errors.LawBrokenError` where a trial breaks it, and
            :class:`NoClaim` where it says nothing about the trial.
        lanes: in which lanes it can be judged.
        requires: capabilities of a backend without which it is not demanded.
        every: where laws are not chosen by name, one program in so many is judged by it: laws that compile once more.
    """

    name: str
    summary: str
    check: Callable[[Trial], None] = field(repr=False)
    lanes: tuple[str, ...] = ("structure", "fast", "full")
    requires: tuple[str, ...] = ()
    every: int = 1


class NoClaim(Exception):
    """A law says nothing about this program on this backend; the message is the reason."""


@dataclass(frozen=True)
class Judgement:
    """What :func:`judge` found where no law is broken.

    Attributes:
        laws: names of the laws that were judged and hold.
        skipped: names of the others, with reasons.
        seconds: how long all took.
        spent: the seconds of each law; ``"compile"`` is what they share.
        known: broken laws that the caller knew of.
    """

    laws: tuple[str, ...]
    skipped: Mapping[str, str]
    seconds: float
    spent: Mapping[str, float] = field(default_factory=dict, compare=False)
    known: tuple[LawBrokenError, ...] = ()
