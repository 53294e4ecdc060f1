"""What the URL of a store says: a folder, or a server with the name of a campaign."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from pytest_regional._secrets import SecretUrl, masked, unescaped_in
from pytest_regional._text import shown, unknown_name
from pytest_regional.fuzz.store.documents import NAME
from pytest_regional.fuzz.store.errors import UrlError

SCHEMES = ("file", "redis", "rediss", "unix")

#: What may stand in the query of a server's URL.
_OPTIONS = {
    "redis": ("campaign",),
    "rediss": ("campaign", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"),
    "unix": ("campaign", "db"),
}

_ACCEPTED = (
    "A store is the path of a folder, file:///path, redis://[user:password@]host:port/db[?campaign=NAME], rediss://... "
    "for TLS, or unix:///path/of/socket[?db=0&campaign=NAME]"
)


@dataclass(frozen=True)
class ServerUrl:
    """A server and a campaign.

    Attributes:
        url: as redis-py reads it.
        campaign: the name that keys begin with.
        where: both for messages, without user and password.
    """

    url: SecretUrl
    campaign: str
    where: str


def parsed(url: str | os.PathLike[str]) -> Path | ServerUrl:
    """Return what ``url`` names.

    Raises:
        UrlError: nothing that a store can be in.
    """
    if not isinstance(url, str):
        return Path(os.path.abspath(url))
    scheme, colon, rest = str.__str__(url).partition(":")
    if colon and (rest.startswith("//") or scheme in SCHEMES) and re.fullmatch("[A-Za-z][A-Za-z0-9+.-]*", scheme):
        if scheme not in SCHEMES or not rest.startswith("//"):
            raise _error(url, unknown_name("scheme", f"{scheme}:", [f"{one}://" for one in SCHEMES]).rstrip("."))
        return _folder(url) if scheme == "file" else _server(url)
    if re.fullmatch(r"[\w.-]+:\d+(/\d+)?", url) and not os.path.exists(url):
        raise _error(url, "there is no such folder; for a server write redis:// before it")
    if not url or "\0" in url:
        raise _error(url, "it is empty, or holds a zero byte")
    return Path(os.path.abspath(url))


def _folder(url: str) -> Path:
    parts = _split(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or path in ("", "/") or "\0" in path:
        raise _error(url, "file:// and an absolute path name a folder of this machine, and nothing may follow")
    return Path(os.path.abspath(path))


def _server(url: str) -> ServerUrl:
    parts = _split(url)
    if unescaped_in(url):
        raise _error(url, "a character of its user or password has to be escaped (/ as %2F), or its port is no number")
    options = _options(url, parts)
    campaign = options.pop("campaign", "default")
    if not re.fullmatch(NAME, campaign):
        raise _error(url, "the name of a campaign is letters, digits and _.-, the first a letter or digit")
    place = parts.path if parts.scheme == "unix" else f"{_host(url, parts)}/{_database(url, parts.path.strip('/'))}"
    if parts.scheme == "unix":
        if len(place) < 2:
            raise _error(url, "unix:// is followed by the absolute path of a socket")
        _database(url, options.get("db", ""))
    plain = urlunsplit(parts._replace(query=urlencode(options), fragment=""))
    return ServerUrl(SecretUrl(plain), campaign, f"{shown(place, 200)} (campaign {campaign})")


def _options(url: str, parts: SplitResult) -> dict[str, str]:
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    known = _OPTIONS[parts.scheme]
    for name, _ in pairs:
        if name not in known:
            raise _error(url, unknown_name("option", shown(name), known).rstrip("."))
    if len(dict(pairs)) < len(pairs) or parts.fragment:
        raise _error(url, "an option stands twice, or a # follows")
    return dict(pairs)


def _host(url: str, parts: SplitResult) -> str:
    if not parts.hostname:
        raise _error(url, "the host is missing")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{parts.port or 6379}"


def _database(url: str, number: str) -> int:
    if not re.fullmatch(r"[0-9]{0,4}", number):
        raise _error(url, "the database is a number")
    return int(number or 0)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(str.__str__(url))
    except ValueError:
        raise _error(url, "it is no URL") from None


def _error(url: str, problem: str) -> UrlError:
    # Without the "from": what a parser says of a URL may hold pieces of its password.
    plain = masked(re.sub(r"^(\w+:)(?!//).*@", r"\1***@", str.__str__(url)))
    return UrlError(f"{shown(plain, 200)!r} names no store: {problem}. {_ACCEPTED}")
