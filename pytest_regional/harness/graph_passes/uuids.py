"""Checks of uuids of passes: different for different configurations, the same for equal ones."""

from __future__ import annotations

import inspect
from typing import Any

from pytest_regional._torch.pass_forms import pass_name
from pytest_regional.harness.graph_passes.forms import GraphAssertionError, GraphPassError


def assert_uuid_changes(passes: Any, others: tuple[Any, ...], equal: Any) -> None:
    """Compare the uuid of ``passes`` with those of other configurations and of an equal one.

    Raises:
        GraphPassError: a pass without a uuid.
        GraphAssertionError: two uuids that should differ and do not, or the reverse.
    """
    if not others:
        raise TypeError("assert_uuid_changes needs another configuration of the pass to compare with, or a factory")
    seen = [("the pass that ran", _stable_uuid(passes))]
    for number, other in enumerate(others, 1):
        name, found = _named(f"configuration {number}", other)
        for earlier, theirs in seen:
            if found == theirs:
                raise GraphAssertionError(
                    f"{name} has the same uuid as {earlier}: {found!r}. A cache would take the result of one for the "
                    f"other: uuid() must hold everything that changes what the pass does."
                )
        seen.append((name, found))
    if equal is not None:
        _, found = _named("the equal configuration", equal)
        _require_equal(seen[0][1], found, "the pass that ran and an equal configuration")


def _named(name: str, given: Any) -> tuple[str, Any]:
    made = _made(given)
    if made is not given:
        _require_equal(_stable_uuid(made), _stable_uuid(_made(given)), f"{name}, made twice by its factory,")
    return f"{name} ({_names(made)})", _stable_uuid(made)


def _made(given: Any) -> Any:
    """Return what a factory makes: a class, or a function that takes nothing."""
    if isinstance(given, list | tuple) or (hasattr(given, "uuid") and not isinstance(given, type)):
        return given
    if not callable(given) or _takes_arguments(given):
        raise GraphPassError(no_uuid(given))
    return given()


def _takes_arguments(factory: Any) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


def _stable_uuid(passes: Any) -> Any:
    """Return the uuid, a tuple of them for a list."""
    if isinstance(passes, list | tuple):
        return tuple(_stable_uuid(one) for one in passes)
    method = getattr(passes, "uuid", None)
    first = method() if callable(method) else None
    if first is None:
        raise GraphPassError(no_uuid(passes))
    assert callable(method)
    _require_equal(first, method(), f"two calls of {pass_name(passes)}.uuid()")
    return first


def _require_equal(first: Any, second: Any, what: str) -> None:
    if first != second:
        raise GraphAssertionError(
            f"{what} give two uuids, {first!r} and {second!r}: no cached result would ever be found. uuid() must be "
            f"made of values, not of identities, times or counters."
        )


def _names(passes: Any) -> str:
    return ", ".join(map(pass_name, passes)) if isinstance(passes, list | tuple) else pass_name(passes)


def no_uuid(given: Any) -> str:
    """Return the message for a pass without a uuid."""
    return (
        f"the pass {pass_name(given)} has no uuid, so no cache can tell its configurations apart: derive it from "
        f"torch._inductor.custom_graph_pass.CustomGraphPass and return from uuid() what identifies it, such as a name, "
        f"a version and every option"
    )
