"""Property tests with the ``regional`` fixture: a reset before every example, and the health check switched off.

Hypothesis refuses function-scoped fixtures because they are not reset between examples; ``regional`` is, here. It is
imported only by users who use it: nothing below touches it for a test without ``@given``.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._errors import RegionalError
from pytest_regional._secrets import SecretUrl, unescaped_in, without_secrets_of

if TYPE_CHECKING:
    from pytest_regional._limits import TimeLimit
    from pytest_regional.harness.regional import Regional


class _TimeIsUp(BaseException):
    """The time limit of a test: Hypothesis would take the limit's own error for that of one example, and go on."""


_SETTINGS = "_hypothesis_internal_use_settings"


@contextlib.contextmanager
def adapted(item: pytest.Item, regional: Regional, examples: str | None, limit: TimeLimit) -> Iterator[None]:
    """While the context lasts, reset ``regional`` before each example of ``item``'s property test.

    Args:
        item: any test.
        regional: its harness.
        examples: where failing examples are kept; what the test or Hypothesis says where None.
        limit: the time limit of the whole test.
    """
    function: Any = getattr(item, "obj", None)
    if not getattr(function, "is_hypothesis_test", False):
        yield
        return
    handle = function.hypothesis
    owner: Any = getattr(function, "__func__", function)
    inner, settings = handle.inner_test, getattr(owner, _SETTINGS, None)

    failures: list[str] = []

    @functools.wraps(inner)
    def one_example(*arguments: Any, **keywords: Any) -> Any:
        if limit.error:
            raise _TimeIsUp
        try:
            regional.reset()
            return inner(*arguments, **keywords)
        except BaseException as error:
            if limit.error:
                raise _TimeIsUp from None
            failures.append("".join(traceback.format_exception_only(error)).strip())
            raise

    handle.inner_test = one_example
    setattr(owner, _SETTINGS, _answered(settings, examples, item.config.rootpath))
    try:
        yield
    except BaseException:
        if limit.error is None:
            raise
        if failures:
            limit.error.add_note(f"Before that an example had failed, the last with: {failures[-1]}")
        raise limit.error from None
    finally:
        handle.inner_test = inner
        if settings is None:
            delattr(owner, _SETTINGS)
        else:
            setattr(owner, _SETTINGS, settings)


def _answered(settings: Any, examples: str | None, root: Path) -> Any:
    """Return ``settings`` without the health check, and without Hypothesis's default deadline of 200 ms.

    A compile takes seconds. A deadline that the test chose itself is kept.
    """
    import hypothesis

    chosen: Any = settings or hypothesis.settings.default
    default = hypothesis.settings.get_profile("default").deadline
    return hypothesis.settings(
        parent=chosen,
        **({} if examples is None else {"database": database_at(examples, root)}),
        deadline=None if chosen.deadline == default else chosen.deadline,
        suppress_health_check={
            hypothesis.HealthCheck.function_scoped_fixture,
            hypothesis.HealthCheck.too_slow,
            *chosen.suppress_health_check,
        },
    )


#: How a Redis server is named; ``redis.Redis.from_url`` takes these.
_SERVERS = ("redis://", "rediss://", "unix://")


class ExamplesError(RegionalError, ValueError):
    """A place for examples that cannot be used."""


def database_at(place: str, root: Path) -> Any:
    """Return Hypothesis's database at ``place``: a folder, below ``root`` unless absolute, or a Redis URL.

    A directory is safe for many writers: each example is one file, written aside and renamed. A server that
    does not answer within two seconds is left alone for a minute, with one warning, and tests run without it.

    Raises:
        ExamplesError: a package is missing, or it is no URL of a server; without its password.
    """
    try:
        from hypothesis.database import DirectoryBasedExampleDatabase
    except ImportError as error:
        raise ExamplesError(
            "examples are kept by Hypothesis, which is not installed: pip install hypothesis"
        ) from error
    if place.startswith(_SERVERS):
        url = SecretUrl(place)
        if unescaped_in(url):
            raise ExamplesError(
                "the URL of the Redis server cannot be understood: write characters such as / ? # [ ] @ of a user or a "
                "password as %2F %3F %23 %5B %5D %40, and the port as a number"
            )
        try:
            return _shared_examples(url).examples_at(url)
        except (TypeError, ValueError) as error:
            raise ExamplesError(f"{url} is no URL of a Redis server: {without_secrets_of(url, str(error))}") from None
    if "://" in place:
        raise ExamplesError(f"{SecretUrl(place)} is neither a folder nor a Redis server: {', '.join(_SERVERS)}")
    return DirectoryBasedExampleDatabase(root / place)


def check_place(place: str) -> None:
    """Ask a server that ``place`` names whether it is there; a folder is made when the first example is kept.

    Raises:
        ExamplesError: a package is missing, or the server does not answer within two seconds.
    """
    if not place.startswith(_SERVERS):
        return
    shared = _shared_examples(place)
    try:
        shared.require_answer(place)
    except (OSError, TypeError, ValueError) as error:  # TypeError: a parameter in the URL that redis-py does not know
        url, said = SecretUrl(place), without_secrets_of(place, str(error))
        raise ExamplesError(f"{url}: no Redis server answers there: {said}") from None


def _shared_examples(url: str) -> Any:
    try:
        from pytest_regional import _shared_examples
    except ImportError as error:
        raise ExamplesError(f"{url} needs the package redis: pip install 'pytest-regional[redis]'") from error
    return _shared_examples
