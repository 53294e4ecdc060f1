"""Pre-grad passes, run once on the whole Dynamo graph, and uuids of passes: which are valid, and their form in a key.

``early`` runs pre-grad passes before the cache lookup, on hits as well, and the key is that of the transformed graph.
``late`` only runs them on a miss, so the key contains their uuids. ``default`` is ``late`` if possible.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import pathlib
import uuid
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch.fx

import pytest_regional
from pytest_regional._base.errors import RegionalError, RegionalWarning
from pytest_regional._base.text import unknown_name
from pytest_regional._torch.compile_phases import logged
from pytest_regional._torch.config import (
    TIMINGS,
    configured_pre_grad_passes,
    configured_pre_grad_timing,
    inductor_config,
)
from pytest_regional._torch.dynamo import at_dynamo_reset
from pytest_regional._torch.fx_graphs import sort_topologically
from pytest_regional._torch.inductor import custom_graph_pass_base, other_custom_pass_bases

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_ADVICE = "return a non-empty str or bytes, an int, or a tuple of these"


class PreGradPassError(RegionalError, RuntimeError):
    """An unusable pre-grad pass: the message says which, what is wrong and what to do."""


def pass_name(custom: Any) -> str:
    """Return the name of a pass: its class's, or a function's own."""
    return str(getattr(custom, "__qualname__", None) or type(custom).__qualname__)


def uuid_of(custom: Any) -> Hashable | None:
    """Return the uuid of a pass in its form for keys, or ``None`` without one.

    Only a ``CustomGraphPass`` has one, as in PyTorch. Exceptions from ``uuid()`` propagate.

    Raises:
        PreGradPassError: a uuid that is empty, changes between calls, or means nothing in another process.
    """
    if not isinstance(custom, custom_graph_pass_base()):
        return None
    return checked_uuid(custom.uuid, f"the pre-grad pass {pass_name(custom)}", PreGradPassError)


def checked_uuid(uuid: Callable[[], Any], owner: str, error: type[Exception]) -> Hashable | None:
    """Call ``uuid`` and return its value in the form for keys, or ``None``.

    Args:
        uuid: called twice; its exceptions propagate.
        owner: its owner in messages, as in ``the pass x``.
        error: raised for a uuid that is empty, changes between calls, or means nothing in another process.
    """
    value = uuid()
    if value is None:
        return None
    stable = _checked(value, owner, error)
    again = uuid()
    if _differs(stable, again):
        raise error(
            f"uuid() of {owner} returned {value!r} and then {again!r}: no cache entry would ever be found again. "
            f"Return what identifies the pass's code and settings, the same on each call."
        )
    return stable


def _checked(value: Any, owner: str, error: type[Exception]) -> Hashable:
    what = f"uuid() of {owner} returned {value!r}"
    try:
        hash(value)
    except TypeError as reason:
        kind = type(value).__name__
        raise error(f"{what}, a value of type {kind} that cannot be hashed: {_ADVICE}.") from reason
    try:
        stable = stable_form(value)
    except TypeError as reason:
        raise error(f"{what}, which means nothing in another process ({reason}): {_ADVICE}.") from reason
    if isinstance(value, str | bytes | tuple | frozenset) and not value:
        raise error(f"{what}, which identifies nothing: {_ADVICE}, or return None for a pass without a uuid.")
    return stable


def _differs(stable: Hashable, again: Any) -> bool:
    try:
        return repr(stable_form(again)) != repr(stable)
    except TypeError:
        return True


def stable_form(value: Any) -> Hashable:
    """Return ``value`` as plain data whose ``repr`` is unique and the same in every process.

    Raises:
        TypeError: a type whose values cannot be compared by content.
    """
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, enum.Enum):
        return (kind, value.name)
    if isinstance(value, uuid.UUID | pathlib.PurePath | str):  # torch.__version__ is a str subclass
        return (kind, str(value))
    if isinstance(value, frozenset):
        return (kind, *sorted(map(repr, map(stable_form, value))))
    if type(value) is tuple:
        return tuple(map(stable_form, value))
    if isinstance(value, tuple):
        return (kind, *map(stable_form, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, stable_form(getattr(value, field.name))) for field in dataclasses.fields(value))
        return (kind, *fields)
    raise TypeError(f"a {kind} is not plain data")


@cache
def _own_code() -> str:
    package = Path(pytest_regional.__file__).parent
    digest = hashlib.sha256()
    for folder in ("_torch", "reference"):
        for file in sorted((package / folder).rglob("*.py")):
            digest.update(f"{file.relative_to(package).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


#: Part of our own passes' uuids; another version of their code has another uuid.
OWN_CODE = _own_code()


__all__ = [
    "TIMINGS",
    "PreGradPassError",
    "PreGradPlan",
    "RegionalWarning",
    "plan_pre_grad",
    "pre_grad_passes_done",
    "reset_warnings",
]


_warned: set[str] = set()


@dataclass(frozen=True)
class PreGradPlan:
    """Which passes run on a Dynamo graph, and when.

    Attributes:
        passes: in the order in which they run.
        early: whether they run before the cache lookup; false without passes.
        uuids: one per pass, in order, in their form for keys; empty if early.
    """

    passes: tuple[Callable[[torch.fx.Graph], Any], ...] = ()
    early: bool = False
    uuids: tuple[Hashable, ...] = ()

    def run(self, gm: torch.fx.GraphModule) -> None:
        """Run the passes in place: on the bodies of operators such as ``checkpoint``, then on Dynamo's graph itself.

        Exceptions from passes propagate.

        Raises:
            PreGradPassError: naming the pass that left an invalid graph, or that returned another one.
        """
        if not self.passes:
            return
        with logged("regional.passes"):
            for module in _bodies_first(gm):
                for custom in self.passes:
                    _run_one(custom, module)
                module.recompile()


def plan_pre_grad(timing: str | None = None) -> PreGradPlan:
    """Plan Inductor's ``pre_grad_custom_pass``: one pass, a list or tuple of them, or ``None``.

    Args:
        timing: ``early``, ``late`` or ``default``; ``None`` for Inductor's ``pre_grad_pass_timing``.

    Raises:
        PreGradPassError: an unknown timing, an invalid pre-grad pass, ``late`` without a uuid, a bad uuid.
    """
    chosen = _checked_timing(configured_pre_grad_timing() if timing is None else timing)
    passes = _checked_passes(configured_pre_grad_passes())
    if not passes:
        return PreGradPlan()
    if chosen == "early":
        return PreGradPlan(passes, early=True)
    uuids = [uuid_of(custom) for custom in passes]
    lacking = [custom for custom, uuid in zip(passes, uuids, strict=True) if uuid is None]
    if not lacking:
        return PreGradPlan(passes, early=False, uuids=tuple(uuids))
    if chosen == "late":
        raise PreGradPassError(_no_uuid(passes, lacking))
    _warn(lacking)
    return PreGradPlan(passes, early=True)


def reset_warnings() -> None:
    """Give warnings about passes again, as in a new process."""
    _warned.clear()


@contextlib.contextmanager
def pre_grad_passes_done() -> Iterator[None]:
    """Keep Inductor from running the passes again while regions of the same graph compile."""
    with inductor_config().patch(pre_grad_custom_pass=None):
        yield


def run_pre_grad_passes(gm: torch.fx.GraphModule) -> None:
    """Run the configured passes on Dynamo's graph when there is no cache lookup."""
    plan_pre_grad().run(gm)


def _checked_timing(timing: object) -> str:
    if isinstance(timing, str) and timing in TIMINGS:
        return timing
    raise PreGradPassError(f"{unknown_name('pre_grad_pass_timing', timing, TIMINGS)} No pre-grad pass would ever run.")


def _checked_passes(configured: Any) -> tuple[Any, ...]:
    if configured is None:
        return ()
    passes = tuple(configured) if isinstance(configured, list | tuple) else (configured,)
    for custom in passes:
        if not callable(custom) or isinstance(custom, type):
            raise PreGradPassError(
                f"pre_grad_custom_pass holds {custom!r}, which is not a pass: give a CustomGraphPass instance, a "
                f"function that takes a torch.fx.Graph and changes it in place, or a list of these."
            )
        for base in other_custom_pass_bases():
            if isinstance(custom, base):
                raise PreGradPassError(
                    f"the pre-grad pass {pass_name(custom)} is a {base.__name__}, but a pre-grad pass is called with a "
                    f"torch.fx.Graph alone: derive it from CustomGraphPass."
                )
    return passes


def _bodies_first(gm: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """Return the graphs that the passes run on, in Inductor's order."""
    used = {node.target for node in gm.graph.find_nodes(op="get_attr")}
    bodies = [b for name, b in gm.named_children() if name in used and isinstance(b, torch.fx.GraphModule)]
    found = [inner for body in bodies for inner in _bodies_first(body)]
    return [*dict.fromkeys(found), gm]


def _run_one(custom: Callable[[torch.fx.Graph], Any], gm: torch.fx.GraphModule) -> None:
    result = custom(gm.graph)
    if isinstance(result, torch.fx.Graph | torch.fx.GraphModule) and result is not gm.graph:
        raise PreGradPassError(
            f"the pre-grad pass {pass_name(custom)} returned another {type(result).__name__}, which is not "
            f"used: change the given graph in place."
        )
    try:
        sort_topologically(gm.graph)
        gm.graph.lint()
    except Exception as error:
        reason = str(error).strip() or "its nodes depend on each other in a cycle"
        raise PreGradPassError(f"the pre-grad pass {pass_name(custom)} left an invalid graph: {reason}") from error


def _no_uuid(passes: Sequence[Any], lacking: Sequence[Any]) -> str:
    names = ", ".join(map(pass_name, lacking))
    which = f" ({len(lacking)} of the {len(passes)} in the list)" if len(passes) > 1 else ""
    return (
        f"the pre-grad pass {names}{which} has no uuid, so with pre_grad_pass_timing='late' the cache could not tell "
        f"what it does: derive it from CustomGraphPass and return from uuid() what identifies it, or choose "
        f"pre_grad_pass_timing='early', which runs it before the cache lookup."
    )


def _warn(lacking: Sequence[Any]) -> None:
    at_dynamo_reset(reset_warnings)
    for name in dict.fromkeys(map(pass_name, lacking)):
        if name not in _warned:
            _warned.add(name)
            warnings.warn(
                f"the pre-grad pass {name} has no uuid and runs early: before the cache lookup, so on every compile. "
                f"Return from uuid() what identifies it to run it only on a miss, or choose "
                f"pre_grad_pass_timing='early' if this is intended.",
                RegionalWarning,
                stacklevel=3,
            )
