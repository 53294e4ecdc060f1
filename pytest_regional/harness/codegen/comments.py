"""What Inductor's comments above launches and calls say."""

from __future__ import annotations

import io
import tokenize
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
    text = "\n".join(lines[first - 1 : last]) + "\n"
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {first - 1 + token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


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
