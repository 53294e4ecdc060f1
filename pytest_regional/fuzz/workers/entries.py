"""What the entries of a campaign's store are called and hold, read field by field: a stranger may have written them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pytest_regional.fuzz.findings.strict_json import Field, MalformedError, as_json
from pytest_regional.fuzz.store import Entry, Store
from pytest_regional.fuzz.workers.plan import Batch
from pytest_regional.fuzz.workers.records import batch_of

T = TypeVar("T")


@dataclass(frozen=True)
class Left:
    """A failure that is to be reduced, left by a worker that could not do it.

    Attributes:
        name: of its entry.
        claim: the name of the claim for its signature.
        part: the number of the part that shows it.
        program: as plain data.
        attempts: how many workers died of it.
    """

    name: str
    claim: str
    part: int
    program: Any
    attempts: int = 0


def read_entry(read: Callable[[Field], T], entry: Entry | None) -> T | None:
    """Return what ``read`` makes of an entry; None where that is none, as a stranger may have written it."""
    try:
        return None if entry is None else read(Field(entry.data))
    except (KeyError, MalformedError):
        return None


def batch_name(environment: str, number: int) -> str:
    """Return the name of a batch's entry."""
    return f"{environment}-{number}"


def claim_name(signature: str) -> str:
    """Return the name of the claim for a signature."""
    return hashlib.sha256(signature.encode()).hexdigest()[:16]


def counter_name(environment: str) -> str:
    """Return the name of the counter of an environment's batches."""
    return f"batches-{environment}"


def count_in(name: str, entry: Entry) -> int:
    """Return a number that an entry holds; 0 where it holds none, as a stranger may have written it."""
    return read_entry(lambda at: at.mapping()[name].integer(0, 10_000), entry) or 0


def number_token(worker: str, taken: int) -> str:
    """Return the token with which a worker that took so many batches asks for the next number."""
    return f"{worker}-{taken}"


def number_in(environment: str, document: Field) -> int | None:
    """Return the number of the batch that an entry says is open, if that is one of ``environment``."""
    at = document.fields(("environment", "number"))
    return at["number"].integer(0, 2**53) if at["environment"].line() == environment else None


def holder_in(document: Field) -> str | None:
    """Return the name of the worker that holds what an entry describes, if one does."""
    found = document.mapping()
    return found["holder"].or_none(Field.line) if "holder" in found else None


def open_batch_in(document: Field) -> Batch | None:
    """Return the batch that an entry describes, if nobody holds it and it is not done."""
    at = document.mapping()
    if holder_in(document) is not None or at["done"].flag():
        return None
    return batch_in(document)


def left_in(name: str, document: Field) -> Left:
    """Return the failure that the entry ``name`` holds."""
    at = document.fields(("holder", "claim", "part", "program", "attempts"))
    return Left(
        name, at["claim"].line(), at["part"].integer(0, 1000), at["program"].value, at["attempts"].integer(0, 1000)
    )


def leave(store: Store, name: str, left: Left) -> None:
    """Leave a program for some worker to check, under a name of its own."""
    data = {
        "holder": None,
        "claim": left.claim,
        "part": left.part,
        "program": as_json(left.program),
        "attempts": left.attempts,
    }
    store.write("postponed", name, data, version=0)


def batch_in(document: Field) -> Batch:
    """Return the batch that an entry describes."""
    at = document.mapping()
    return batch_of(Field({name: at[name].value for name in ("number", "part", "begin", "drawn")}))


__all__ = [
    "Left",
    "batch_in",
    "batch_name",
    "claim_name",
    "count_in",
    "counter_name",
    "holder_in",
    "leave",
    "left_in",
    "number_in",
    "number_token",
    "open_batch_in",
    "read_entry",
]
