"""What must not be read in a log: users and passwords in URLs, and the values of environment variables."""

from __future__ import annotations

import re
from urllib.parse import unquote

#: What stands for a secret.
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
