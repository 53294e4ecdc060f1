"""Which URLs name a store, who may write to it, and what messages show."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_regional import RegionalWarning
from pytest_regional.fuzz.store import Entry, StoreError, StoreWarning, UrlError, open_store
from pytest_regional.fuzz.store.opening import SECRET, UNAUTHENTICATED
from pytest_regional.fuzz.store.urls import ServerUrl, parsed
from tests.fuzz.store.conftest import KEY


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/a/b", "/a/b"),
        ("/a/../b/", "/b"),
        (Path("/a"), "/a"),
        ("file:///a/b%20c", "/a/b c"),
        ("file://localhost/a", "/a"),
        ("here", os.path.abspath("here")),
        ("C:\\campaign", os.path.abspath("C:\\campaign")),
    ],
)
def test_folders(url: Any, path: str) -> None:
    assert parsed(url) == Path(path)


@pytest.mark.parametrize(
    ("url", "campaign", "where"),
    [
        ("redis://host", "default", "host:6379/0 (campaign default)"),
        ("redis://host:1/2?campaign=nightly-1.2", "nightly-1.2", "host:1/2 (campaign nightly-1.2)"),
        ("rediss://u:p%2F@[::1]:1/", "default", "[::1]:1/0 (campaign default)"),
        ("unix:///run/redis.sock?db=3&campaign=a", "a", "/run/redis.sock (campaign a)"),
        ("rediss://host?ssl_ca_certs=/ca.pem", "default", "host:6379/0 (campaign default)"),
    ],
)
def test_servers(url: str, campaign: str, where: str) -> None:
    found = parsed(url)
    assert isinstance(found, ServerUrl)
    assert (found.campaign, found.where) == (campaign, where)
    assert "campaign" not in found.url.plain


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "it is empty"),
        ("a\0b", "a zero byte"),
        ("http://host", "unknown scheme 'http:'"),
        ("reddis://host", "Did you mean 'redis://'"),
        ("redis:host", "unknown scheme"),
        ("file:/a", "unknown scheme"),
        ("file://host/a", "a folder of this machine"),
        ("file://", "a folder of this machine"),
        ("file:///a?b=c", "a folder of this machine"),
        ("localhost:6379", "write redis:// before it"),
        ("redis://", "the host is missing"),
        ("redis:///0", "the host is missing"),
        ("redis://host:x", "its port is no number"),
        ("redis://host/x", "the database is a number"),
        ("redis://host/1/2", "the database is a number"),
        ("unix://", "the absolute path of a socket"),
        ("unix:///s?db=x", "the database is a number"),
        ("redis://host?campaign=", "the name of a campaign"),
        ("redis://host?campaign=a:b", "the name of a campaign"),
        ("redis://host?campain=a", "Did you mean 'campaign'"),
        ("redis://host?campaign=a&campaign=b", "stands twice"),
        ("redis://host?ssl_cert_reqs=none", "unknown option"),
        ("redis://host?protocol=3", "unknown option"),
        ("redis://host/0#a", "a # follows"),
        ("redis://[host", "it is no URL"),
    ],
)
def test_other_urls_are_refused(url: str, problem: str) -> None:
    with pytest.raises(UrlError, match=r"names no store: .* A store is the path of a folder") as caught:
        open_store(url, secret=KEY)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:pass word@host:x",
        "redis://me:hunter2/@host/0",
        "redis://me:hunter2@host/0?campaign=a b",
        "http://me:hunter2@host",
        "redis:me:hunter2@host",
        "redis://:hunter2@[host",
        "redis://me:hunter2@host?password=hunter2",
        "redis://me:hunter2",
    ],
)
def test_messages_show_no_password(url: str) -> None:
    with pytest.raises(UrlError) as caught:
        open_store(url, secret=KEY)
    shown = str(caught.value)
    assert "hunter2" not in shown
    assert "pass word" not in shown
    assert caught.value.__cause__ is None


def test_a_folder_that_others_can_write_to_needs_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o2777)
    with pytest.raises(
        StoreError, match=f"{folder} can be written to by everybody, and without.*{SECRET}.*{UNAUTHENTICATED}"
    ):
        open_store(folder)
    with pytest.raises(StoreError, match="can be written to by everybody"):
        open_store(folder, secret=b"")
    monkeypatch.setenv(SECRET, "a secret")
    store = open_store(folder)
    assert store.write("findings", "a", 1, version=0)
    monkeypatch.delenv(SECRET)
    assert open_store(folder, secret=b"a secret").read("findings", "a") == Entry(1, 1)
    monkeypatch.setenv(UNAUTHENTICATED, "allow")
    with pytest.raises(StoreError, match="begun with another secret, or without one"):
        open_store(folder, tell=lambda _: None)


def test_a_private_folder_needs_none(tmp_path: Path) -> None:
    store = open_store(tmp_path / "mine")
    assert store.write("findings", "a", 1, version=0)
    assert open_store(tmp_path / "mine").read("findings", "a") == Entry(1, 1)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


def test_one_that_became_public_before_the_first_write_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(StoreError, match="can be written to by everybody"):
        store.write("findings", "a", 1, version=0)


@pytest.mark.parametrize("mode", [0o2775, 0o755, 0o700])
def test_what_is_made_has_the_permissions_of_the_folder(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    before = os.umask(0o077)
    try:
        store = open_store(tmp_path, secret=KEY)
        store.write("findings", "a", 1, version=0)
    finally:
        os.umask(before)
    for part in ("now", "documents", "first"):
        assert Path(tmp_path, "findings", part).stat().st_mode & 0o7777 == mode
    document = next(Path(tmp_path, "findings", "documents").iterdir())
    assert document.stat().st_mode & 0o044 == mode & 0o044


def test_a_server_needs_a_secret(redis_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"redis://me:hunter2@127.0.0.1:{redis_port}/0?campaign=open"
    with pytest.raises(
        StoreError, match=f"no secret to sign its entries with.*{SECRET}.*{UNAUTHENTICATED}=allow"
    ) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)
    monkeypatch.setenv(UNAUTHENTICATED, "allow")
    store = open_store(url.replace("me:hunter2@", ""), tell=lambda _: None)
    assert store.write("findings", "a", 1, version=0)
    store.close()


def test_a_wrong_password_is_said_at_once_and_not_shown(redis_port: int) -> None:
    with pytest.raises(StoreError, match=rf"127.0.0.1:{redis_port}/0 \(campaign default\) cannot be used") as caught:
        open_store(f"redis://me:hunter2@127.0.0.1:{redis_port}/0", secret=KEY, patience=20)
    assert "hunter2" not in str(caught.value)


def test_without_the_package_redis_the_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StoreError, match=r"pip install 'pytest-regional\[redis\]'"):
        open_store("redis://localhost:1", secret=KEY)


def test_by_default_there_are_warnings(tmp_path: Path) -> None:
    store = open_store(tmp_path, secret=KEY)
    store.write("findings", "a", 1, version=0)
    Path(tmp_path, "findings", "documents", "b.1.x").touch()
    Path(tmp_path, "findings", "now", "b.2.0123456789abcdef").touch()
    with pytest.warns(StoreWarning, match="findings/b in .* is skipped: it has no document. Others like it"):
        assert store.read("findings", "b") is None
    assert issubclass(StoreWarning, RegionalWarning)
