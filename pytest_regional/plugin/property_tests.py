"""Property tests with the ``regional`` fixture: a reset before every example, and the health check switched off.

Hypothesis refuses function-scoped fixtures because they are not reset between examples; ``regional`` is, here. It is
imported only by users who use it: nothing below touches it for a test without ``@given``.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._torch.patching import Patch, applied

if TYPE_CHECKING:
    from pytest_regional._base.limits import TimeLimit
    from pytest_regional.harness.regional import Regional


class _TimeIsUp(BaseException):
    """The time limit of a test: Hypothesis would take the limit's own error for that of one example, and go on."""


_SETTINGS = "_hypothesis_internal_use_settings"


@contextlib.contextmanager
def adapted(item: pytest.Item, regional: Regional, limit: TimeLimit) -> Iterator[None]:
    """While the context lasts, reset ``regional`` before each example of ``item``'s property test."""
    function: Any = getattr(item, "obj", None)
    if not getattr(function, "is_hypothesis_test", False):
        yield
        return
    handle = function.hypothesis
    owner: Any = getattr(function, "__func__", function)
    inner = handle.inner_test
    failures: list[str] = []

    @functools.wraps(inner)
    def one_example(*arguments: Any, **keywords: Any) -> Any:
        if limit.error:
            raise _TimeIsUp
        try:
            regional._reset()
            return inner(*arguments, **keywords)
        except BaseException as error:
            if limit.error:
                raise _TimeIsUp from None
            failures.append("".join(traceback.format_exception_only(error)).strip())
            raise

    handle.inner_test = one_example
    import hypothesis

    chosen: Any = getattr(owner, _SETTINGS, None) or hypothesis.settings.default
    # A compile takes seconds: Hypothesis's default deadline of 200 ms goes. One that the test chose itself is kept.
    default = hypothesis.settings.get_profile("default").deadline
    health = hypothesis.HealthCheck
    answered = hypothesis.settings(
        parent=chosen,
        deadline=None if chosen.deadline == default else chosen.deadline,
        suppress_health_check={health.function_scoped_fixture, health.too_slow, *chosen.suppress_health_check},
    )
    with applied([Patch(owner, _SETTINGS, answered)]):
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
