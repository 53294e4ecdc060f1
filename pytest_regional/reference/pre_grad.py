"""Custom pre-grad passes: run once on the whole Dynamo graph, before or after the cache lookup.

``early`` runs them before the lookup, on hits as well, and the key is that of the transformed graph. ``late`` only runs
them on a miss, so the key contains their uuids. ``default`` is ``late`` if possible.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

from pytest_regional._errors import RegionalWarning
from pytest_regional._text import unknown_name
from pytest_regional._torch.compile_phases import logged
from pytest_regional._torch.config import (
    TIMINGS,
    configured_pre_grad_passes,
    configured_pre_grad_timing,
    inductor_config,
)
from pytest_regional._torch.dynamo import at_dynamo_reset
from pytest_regional._torch.fx_graphs import sort_topologically
from pytest_regional._torch.inductor import other_custom_pass_bases
from pytest_regional.reference.pass_uuids import PreGradPassError, pass_name, uuid_of

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
