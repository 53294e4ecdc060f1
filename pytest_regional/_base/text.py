"""Text: sentences about names, plurals, durations, text safe to print, seeds from names, and masks for secrets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

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


def fenced(text: str, language: str = "") -> str:
    """Return ``text`` as a code block of Markdown, in a fence that is longer than any in it."""
    ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    return f"{ticks}{language}\n{text}\n{ticks}"


def printable(text: str) -> str:
    """Return ``text`` with escapes for what a terminal obeys or no encoding has; ends of lines and tabs stay."""
    return "".join(char if char in "\n\t" or char.isprintable() else repr(char)[1:-1] for char in text)


def encodable(text: str) -> str:
    """Return ``text`` with backslash escapes for halves of surrogate pairs, which UTF-8 lacks."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


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


def without_middle(text: str) -> str:
    """Return ``text``, of a long one its first third and its end: compilers put a command or a dump between.

    The end holds the user's line and the message of a C++ compiler.
    """
    limit = 3000
    if len(text) <= limit:
        return text
    start = text[: limit // 3].rpartition("\n")[0] or text[: limit // 3]
    end = text[-(limit - len(start)) :]
    return f"{start}\n... {len(text) - len(start) - len(end)} characters ...\n{end}"


DEFAULT_SEED = 20251006

#: What crosses to workers of pytest-xdist, and every generator takes.
MOST_SEED = 2**63 - 1


def seed_for(test_id: str, seed: int = DEFAULT_SEED) -> int:
    """Return a seed that depends on ``seed`` and the test's id alone: the same in any order and on any worker."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{test_id}".encode()).digest()[:4], "big")


#: Shown in place of a secret.
MASK = "***"

# Up to the last "@": a password may hold what it should not, unescaped.
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://|^//)(.*)@", re.DOTALL)
# Without a host: what stands where a port is due may be a password.
_NO_HOST = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)((?!\[)[^@/?#]*:(?!\d*([/?#]|$))[^@]*)$")
# The same as the first in a text, where a URL ends at the next blank or quote.
_USER_IN_TEXT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"]*@")
_QUERY = re.compile(r"(?i)\b(\w*(?:password|passwd|secret|token|user|username|key)\w*=)[^&\s'\"]*")


class SecretVariables(dict[str, str]):
    """Environment variables for a new process, which a traceback shows the number of."""

    def __repr__(self) -> str:
        return f"<{len(self)} environment variables>"


def masked(url: str) -> str:
    """Return ``url`` with ``***`` for what stands before its last ``@``, and for passwords in its query."""
    without_user = _NO_HOST.sub(rf"\1{MASK}", _USER.sub(rf"\1{MASK}@", url, count=1))
    return _QUERY.sub(rf"\1{MASK}", without_user)


def masked_urls(text: str) -> str:
    """Return ``text`` with every URL in it masked."""
    return _QUERY.sub(rf"\1{MASK}", _USER_IN_TEXT.sub(rf"\1{MASK}@", text))


def without_secrets_of(url: str, text: str) -> str:
    """Return ``text``, most often an error's, with ``***`` for every piece of user and password in ``url``.

    A parser that stumbles over a password names the piece that it took for a port or a host.
    """
    pieces = sorted(_secret_pieces(url), key=len, reverse=True)
    for piece in pieces:
        # A short one, such as a user `me`, is part of many words that say nothing of it.
        word = re.escape(piece) if len(piece) > 3 else rf"(?<!\w){re.escape(piece)}(?!\w)"
        text = re.sub(word, MASK, text)
    return text


def _secret_pieces(url: str) -> set[str]:
    found = _USER.search(url) or _NO_HOST.search(url)
    user = found[2] if found else ""
    values = [pair.partition("=")[2] for pair in re.split("[?&]", url) if _QUERY.match(pair)]
    pieces = {user, *re.split(r"[:/?#@&=\[\]\s]", user), *values}
    return {piece for whole in pieces for piece in (whole, unquote(whole), whole.lower()) if piece} - _HARMLESS


# Users that servers name by themselves.
_HARMLESS = {"default"}
