"""Small helpers for messages: the nearest valid name, lists a person can read, what two messages have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

#: How many differences a failed comparison shows; ``pytest -v`` shows all of them.
SHOWN_MISMATCHES = 3


def unknown_name(
    what: str,
    name: object,
    valid: Iterable[str],
    aliases: Mapping[str, str] | None = None,
    unlisted: Iterable[str] = (),
) -> str:
    """Return a sentence saying that ``name`` is no ``what``, the nearest valid name, and all valid ones.

    Args:
        what: the kind of name.
        name: what was written.
        valid: all names that there are.
        aliases: valid names by what people call them elsewhere, in lower case; they come before similar spellings.
        unlisted: more names that may be the nearest; they are not listed.
    """
    names = sorted(valid)
    near = (aliases or {}).get(str(name).lower()) or nearest(name, names) or nearest(name, unlisted)
    hint = f" Did you mean {near!r}?" if near else ""
    return f"unknown {what} {name!r}.{hint} Known: {', '.join(names)}."


def nearest(name: object, valid: Iterable[str], likeness: float = 0.6) -> str:
    """Return the valid name that ``name`` is most like; empty where none is like it."""
    import difflib  # every pytest run imports this module

    written, names = str(name), list(valid)
    same = [one for one in names if one.lower() == written.lower()]
    return next(iter(same or difflib.get_close_matches(written, names, n=1, cutoff=likeness)), "")


def tuple_text(items: Sequence[str]) -> str:
    """Return the source of a tuple: ``(1,)``."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def plural(count: int, noun: str) -> str:
    """Return ``1 region`` or ``3 regions``, ``2 entries``."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("ry") else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """Return ``seconds`` as people write them."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min" + (f" {rest} s" if rest else "")


def first_line(error: BaseException) -> str:
    """Return the kind of ``error`` and the first line of what it says, 300 characters at most."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


def printable(text: str) -> str:
    """Return ``text`` with escapes for what a terminal obeys or no encoding has; ends of lines and tabs stay."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def encodable(text: str, encoding: str | None = None) -> str:
    """Return ``text`` with backslash escapes for the characters that ``encoding`` lacks.

    UTF-8, the default, lacks halves of surrogate pairs alone.
    """
    if text.isascii():
        return text
    return text.encode(encoding or "utf-8", "backslashreplace").decode(encoding or "utf-8")


def shown(value: object, most: int = 60) -> str:
    """Return a given value for a message: short, and without control characters of a terminal."""
    text = str(value)
    short = text if len(text) <= most else f"{text[:most]}..."
    return short if short.isprintable() else short.encode("unicode_escape").decode("ascii")


_LONGEST_REASON = 160


def without_numbers(text: str) -> str:
    """Return the first line of ``text`` without what differs from one program to the next: numbers, addresses."""
    plain = re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?", "N", text.strip().partition("\n")[0])
    return plain if len(plain) <= _LONGEST_REASON else f"{plain[:_LONGEST_REASON]} ..."


def without_middle(text: str, limit: int = 3000) -> str:
    """Return ``text``, of a long one its first third and its end: compilers put a command or a dump between.

    The end holds the user's line and the message of a C++ compiler.
    """
    if len(text) <= limit:
        return text
    start = text[: limit // 3].rpartition("\n")[0] or text[: limit // 3]
    end = text[-(limit - len(start)) :]
    return f"{start}\n... {len(text) - len(start) - len(end)} characters ...\n{end}"
