"""What Inductor's comments above launches and calls say."""

from __future__ import annotations

import contextlib
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

NODES, OPERATORS = "Source Nodes: [", "], Original ATen: ["


@dataclass(frozen=True)
class Comment:
    """A comment naming the operators behind one launch or call.

    Attributes:
        line: where it stands, from 1.
        sorted: whether its names are in graph order; not so where they come from several graphs.
        nodes: names of the nodes that contributed.
        operators: their operators, such as ``"aten.mm"``, without overloads.
    """

    line: int
    sorted: bool
    nodes: tuple[str, ...]
    operators: tuple[str, ...]


def comments_between(lines: list[str], first: int, last: int) -> dict[int, str]:
    """Return the comments of lines ``first`` to ``last`` (from 1, both included) by line, without the ``#``."""
    chunk = lines[first - 1 : last]
    if any("'''" in line or '"""' in line or line.endswith("\\") for line in chunk):
        return {first + row: text for row, text in _comments("\n".join(chunk))}
    # No string and no statement that goes on unseen: the few lines that may hold a comment are enough.
    candidates = [(number, line) for number, line in enumerate(chunk, first) if "#" in line]
    return {number: text for number, line in candidates for _, text in _comments(line.strip())}


def _comments(text: str) -> Iterator[tuple[int, str]]:
    """Yield row, from 0, and text of each comment; an open bracket at the end is no error."""
    with contextlib.suppress(tokenize.TokenError):
        for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0] - 1, token.string.lstrip("# ")


def origin_comments(comments: dict[int, str]) -> list[Comment]:
    """Return those comments that name operators, in order."""
    found = []
    for line, text in sorted(comments.items()):
        kind, nodes, rest = text.partition(NODES)
        names, _, operators = rest.partition(OPERATORS)
        if nodes:
            in_order = kind.startswith("Topologically")
            found.append(Comment(line, in_order, _items(names), _items(operators.rpartition("]")[0])))
    return found


def _items(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
