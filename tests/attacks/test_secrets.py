"""Passwords in URLs and values of environment variables: in no message, no header, no warning, no report."""

from __future__ import annotations

import os
import random
import textwrap
import warnings
from urllib.parse import quote

import pytest

from pytest_regional._base.text import SecretVariables, masked, masked_urls, without_secrets_of
from pytest_regional.harness.isolation import MISSING, Leak, Snapshot
from pytest_regional.reference.caching.container import reset_warnings
from pytest_regional.reference.caching.store import SECRET, open_remote_store, reset_failures
from tests.warm_process import run_module

#: Words that no message of anybody's holds: both halves of each password, whatever stands between.
WORDS = ("hunter2", "Swordfish")

PASSWORDS = [
    f"hunter2{between}Swordfish" for between in ("", *"/?#@:[]%&=+ \\'\"<>;,~^`{|}é", "//", "@@", "%2F", "://")
]

URLS = [
    f"{scheme}://{user}:{password}@{host}"
    for scheme, host in (("redis", "localhost:1/0"), ("rediss", "localhost:1"), ("unix", "/nowhere/redis.sock"))
    for user in ("", "me")
    for password in PASSWORDS
]
URLS += [f"redis://hunter2{sign}Swordfish@localhost:1/0" for sign in "/?#:@"]
URLS += [f"redis://localhost:1/0?{name}=hunter2Swordfish" for name in ("password", "ssl_password", "username")]
URLS += ["http://me:hunter2Swordfish@localhost/0", "redis+sentinel://:hunter2Swordfish@localhost:1/0"]
URLS += ["redis://:hunter2Swordfish", "redis://:hunter2Swordfish@", "redis://:hunter2Swordfish@localhost:port/0"]


def told(text: str) -> list[str]:
    """Return the secret words in ``text``."""
    return [word for word in WORDS if word.lower() in text.lower()]


@pytest.fixture(autouse=True)
def _as_in_a_new_process():
    reset_warnings()
    reset_failures()
    yield
    reset_warnings()
    reset_failures()


# The words


def test_a_printed_secret_is_noticed():
    assert told("at redis://:HUNTER2@host") == ["hunter2"]


# URLs


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:word@host:6379/0", "redis://***@host:6379/0"),
        ("rediss://me:word@host", "rediss://***@host"),
        ("redis://:wo/r@d@host/0", "redis://***@host/0"),
        ("redis://host/0?password=word&db=1", "redis://host/0?password=***&db=1"),
        ("redis://:word", "redis://***"),
        ("redis://me:word/0", "redis://***"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("kept", "kept"),
        ("/a folder/me@home", "/a folder/me@home"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert masked(url) == shown


def test_no_password_is_shown_whatever_it_holds():
    draw = random.Random(28)
    signs = "/?#@:[]%&=+ \\'\"<>;,~^`{|}$!*()._-ab09é\u2028\x00"
    for _ in range(5000):
        password = "".join(draw.choice(signs) for _ in range(draw.randrange(12))) + "hunter2"
        password += "".join(draw.choice(signs.replace("&", "")) for _ in range(draw.randrange(12))) + "Swordfish"
        url = f"redis://{draw.choice(('', 'me'))}:{draw.choice((password, quote(password, safe='')))}@host:6379/0"
        assert not told(masked(url)), url


@pytest.mark.parametrize("password", [f"hunter2{between}Swordfish" for between in "/?#@:[]&= "])
def test_pieces_of_a_password_are_taken_out_of_errors(password):
    url = f"redis://me:{password}@host/0"
    said = "Port could not be cast to integer value as 'hunter2'; Swordfish:6379; hunter2Swordfish"

    assert not told(without_secrets_of(url, said) + without_secrets_of(url, f"unknown command AUTH {password}"))


def test_urls_in_a_text_are_masked():
    text = "{'a': 'redis://:hunter2@host/0', \"b\": 's3://key:Swordfish@bucket'} me@home"

    assert masked_urls(text) == "{'a': 'redis://***@host/0', \"b\": 's3://***@bucket'} me@home"


# The shared cache


def test_no_warning_about_a_shared_cache_tells_the_password(monkeypatch):
    pytest.importorskip("redis")
    monkeypatch.setenv(SECRET, "hunter2Swordfish")
    wrong = []
    for url in URLS:
        monkeypatch.setenv("TORCHINDUCTOR_REDIS_URL", url)
        reset_failures()
        reset_warnings()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            store = open_remote_store()
            assert store is not None
            assert list(store.candidates("ab")) == []
        assert len(caught) == 1
        wrong += [(url, str(caught[0].message))] if told(str(caught[0].message)) else []

    assert not wrong, f"{len(wrong)} of {len(URLS)}"


# What tests leave behind


@pytest.mark.parametrize(
    ("before", "after", "became"),
    [(MISSING, "hunter2", "set"), ("hunter2", MISSING, "removed"), ("hunter2", "Swordfish", "changed")],
)
def test_a_leaked_variable_is_named_without_its_value(before, after, became):
    leak = Leak("environment variable TOKEN", before, after)

    assert str(leak) == f"environment variable TOKEN: {became}"
    assert not told(repr(leak))


def test_a_leaked_setting_is_shown_without_the_passwords_of_its_urls():
    leak = Leak("torch._inductor.config.some_cache", "redis://:hunter2@host", {"at": "s3://me:Swordfish@there"})

    assert str(leak) == "torch._inductor.config.some_cache: 'redis://***@host' -> {'at': 's3://***@there'}"


def test_the_environment_is_in_no_representation(monkeypatch):
    monkeypatch.setenv("TOKEN", "hunter2")

    assert not told(repr(Snapshot.take()) + repr(SecretVariables(os.environ)))
    assert SecretVariables(os.environ)["TOKEN"] == "hunter2"


# A whole run

SOURCE = """
import os

import pytest
from hypothesis import given, settings, strategies as st


@settings(max_examples=3)
@given(n=st.integers(0, 10_000))
@pytest.mark.regional_compile(expects_regions=False)
def test_property(regional, n):
    assert n < 0


@pytest.mark.regional_compile(expects_regions=False)
def test_leaves_variables(regional):
    os.environ["TOKEN"] = "hunter2"
    os.environ["PLACE"] = "redis://:Swordfish@host/0"


def sleeps(regional):
    import time

    time.sleep(60)


@pytest.mark.regional_compile(expects_regions=False)
def test_hangs_elsewhere(regional):
    regional.in_new_process(sleeps, timeout=1)
"""


def test_a_run_tells_no_secret(tmp_path, redis_port):
    """Everything that one can ask for: workers, verbose, local variables, all reports."""
    from redis import Redis

    Redis(port=redis_port).execute_command("ACL", "SETUSER", "attacked", "on", ">hunter2Swordfish", "~*", "&*", "+@all")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SOURCE))
    url = f"redis://attacked:hunter2Swordfish@localhost:{redis_port}/3"
    options = ["-n1", "-vv", "--showlocals", "-rA", "--tb=long", "-p", "no:randomly", "--junitxml=report.xml"]
    options += ["--regional-backend=aot_eager", "--regional-report=page.html,page.json"]
    variables = {**os.environ, "TORCHINDUCTOR_REDIS_URL": url, SECRET: "hunter2Swordfish"}
    run = run_module("pytest", options, tmp_path, variables, timeout=300)

    assert "2 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    assert "environment variable TOKEN: set" in run.stdout
    # The source of the test, which tracebacks show, holds the words; its lines are the test's own doing.
    lines = [line for line in (run.stdout + run.stderr).splitlines() if "os.environ[" not in line]
    assert not told("\n".join(lines))
    for name in ("report.xml", "page.html", "page.json"):
        assert not told((tmp_path / name).read_text()), name
