"""Compile programs before and after their changes, here and in a new process, and say which results are stale."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config

from pytest_regional import NewProcessError
from pytest_regional.testing import current

from .changes import RESULT, WHOLE, Case, Change, put
from .table import by_id

#: When a result is looked at, as messages say it.
BEFORE, NEW_PROCESS, RESTARTED = "before the change", "in a new process", "after restart()"
EMPTY = "after restart(), with an empty cache"


class StaleResultError(AssertionError):
    """A row failed; the message says when, and how the result differs from the right one."""


def verdicts(regional: Any, changes: Sequence[Change]) -> dict[str, dict[str, str]]:
    """Check rows; return by id what is wrong with each, by when it is so: nothing where all results are fresh.

    All programs are compiled before their changes in this process. Then they are compiled after their changes, once in
    a new process, and once in this one, each with the cache as the first compiles left it.
    """
    found: dict[str, dict[str, str]] = {change.id: {} for change in changes}

    def note(when: str, problems: Mapping[str, str]) -> None:
        for name, problem in problems.items():
            found[name][when] = problem

    with caches_used(regional):
        note(BEFORE, _compiled(regional, changes, changed=False))
        with _kept(regional.folder):
            note(NEW_PROCESS, _compiled_in_new_process(regional, [change.id for change in changes]))
        note(RESTARTED, _compiled(regional, changes, changed=True))
        stale = [change for change in changes if found[change.id]]
        for change in stale:
            shutil.rmtree(regional.folder / change.id, ignore_errors=True)
        note(EMPTY, _compiled(regional, stale, changed=True))
    return found


def message(change: Change, problems: Mapping[str, str]) -> str:
    """Return the failure of a row in words."""
    if BEFORE in problems:
        what = "is wrong before anything changed"
    else:
        what = "is wrong with an empty cache too, so this is no stale result" if EMPTY in problems else "is stale"
    lines = [f"{change.id} {what}", f"change: {change.text} {change.before!r} -> {change.after!r}"]
    return "\n".join(lines + [f"{when}: {problem}" for when, problem in problems.items()])


@contextlib.contextmanager
def caches_used(regional: Any) -> Iterator[None]:
    """Switch on the cache of whole results of a backend that has it only on request."""
    if not regional.supports("pytorch_outer_cache"):
        yield
        return
    with torch._functorch.config.patch(force_autograd_cache=True, bundled_autograd_cache=True):
        yield


@contextlib.contextmanager
def _kept(folder: Path) -> Iterator[None]:
    """Put the files of ``folder`` back at the end as they were."""
    with tempfile.TemporaryDirectory(prefix="staleness-") as scratch:
        shutil.copytree(folder, Path(scratch, "kept"), symlinks=True)
        yield
        shutil.rmtree(folder)
        shutil.copytree(Path(scratch, "kept"), folder, symlinks=True)


def _compiled_in_new_process(regional: Any, names: Sequence[str]) -> dict[str, str]:
    """Return what is wrong there; where the process dies, find the row that it dies of."""
    try:
        return dict(regional.in_new_process(compiled_by_name, list(names)).value)
    except NewProcessError as error:
        if len(names) == 1:
            return {names[0]: f"the process ended: {error}"}
        middle = len(names) // 2
        first, second = names[:middle], names[middle:]
        return {**_compiled_in_new_process(regional, first), **_compiled_in_new_process(regional, second)}


def compiled_by_name(regional: Any, names: Sequence[str]) -> dict[str, str]:
    """Compile rows after their changes, in a new process."""
    with caches_used(regional):
        return _compiled(regional, [by_id(name) for name in names], changed=True)


def _compiled(regional: Any, changes: Sequence[Change], *, changed: bool) -> dict[str, str]:
    """Compile each row as a new process would, with a cache of its own; return what is wrong, by id."""
    found = {}
    for row in changes:
        with put(os.environ, "TORCHINDUCTOR_CACHE_DIR", str(regional.folder / row.id)):
            regional.restart()
            try:
                problem = _problem(regional, row, changed=changed)
            except Exception as error:  # noqa: BLE001 - the other rows are checked all the same
                problem = f"the row itself failed: {type(error).__name__}: {error}"
        if problem:
            found[row.id] = problem
    return found


def _problem(regional: Any, row: Change, *, changed: bool) -> str:
    before = eager(row, row.before)
    expected = eager(row, row.after) if changed else before
    if changed and row.shows == RESULT and not difference(before, expected):
        return "the row is no test: eager's result is the same before and after the change"
    counted = regional.counters
    with row.case(row.after if changed else row.before) as case:
        results = observed(regional.compile(row.program(case), **case.options), case)
    moved = regional.counters - counted
    loaded = moved.cache_hits + (moved.region_cache_hits if row.shows != WHOLE else 0)
    wrong = difference(results, expected) if case.compared else ""
    if wrong and changed and not difference(results, before):
        wrong += "; it is the result from before the change"
    if changed and row.shows != RESULT and loaded:
        wrong = "a compiled result from before the change was loaded"
    return f"{wrong} ({moved})" if wrong else ""


def eager(row: Change, value: Any) -> dict[str, Any]:
    """Return the result that is right."""
    with row.case(value) as case:
        return observed(case.expected or case.program, case)


def observed(call: Callable[..., Any], case: Case) -> dict[str, Any]:
    """Call a program and its backward; return all that can be seen of it, by name."""
    inputs = case.inputs
    assert inputs is not None
    torch.manual_seed(0)
    trains = bool(current().supports("backward"))
    try:
        with contextlib.nullcontext() if trains else torch.no_grad():
            output = call(*inputs, **case.kwargs)
        outputs = dict(_leaves("output", output))
        tensors = [leaf for leaf in outputs.values() if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if tensors and trains:
            torch.autograd.backward(tensors, [torch.ones_like(leaf) for leaf in tensors])
    except Exception as error:  # noqa: BLE001 - a result like any other
        return {"exception": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    given = dict(_leaves("input", [*inputs, *case.kwargs.values()]))
    given.update(case.watched)
    if isinstance(case.program, torch.nn.Module):
        given.update(case.program.named_parameters())
        given.update(case.program.named_buffers())
    grads = {
        f"gradient of {name}": leaf.grad
        for name, leaf in given.items()
        if isinstance(leaf, torch.Tensor) and leaf.is_leaf and leaf.grad is not None
    }
    seen = {name: _kept_value(value) for name, value in {**outputs, **given, **grads}.items()}
    return seen | {"memory": _shared_memory({**outputs, **given})}


def _shared_memory(values: Mapping[str, Any]) -> str:
    """Say which values share memory."""
    owners: dict[int, list[str]] = {}
    for name, value in values.items():
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided and value.numel():
            owners.setdefault(value.untyped_storage().data_ptr(), []).append(name)
    return "; ".join(", ".join(names) for names in owners.values() if len(names) > 1) or "none is shared"


#: Properties of tensors that a message names where they are so.
FLAGS = ("requires_grad", "conjugated", "negated", "of inference mode")


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(f"{name} {index}", item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name} {key!r}", item)
    else:
        yield name, value


def _kept_value(value: Any) -> Any:
    """Return what is compared of a value, as it is now."""
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (bool, int, float, complex, str)) else type(value).__name__
    plain = value.detach().clone().resolve_conj().resolve_neg()
    plain = plain.to_dense() if plain.layout != torch.strided else plain
    plain = torch.zeros(value.shape, device="cpu") if value.device.type == "meta" else plain.as_subclass(torch.Tensor)
    facts = (type(value).__name__, value.dtype, tuple(value.shape), value.layout, value.requires_grad)
    strides = value.stride() if value.layout == torch.strided else ()
    flags = (value.is_conj(), value.is_neg(), value.is_inference())
    return (*facts, strides, value.device, *flags), plain


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return how ``one`` result is not as the ``other`` in words; nothing if they are the same."""
    if "exception" in one and "exception" in other:
        return ""
    for name in dict.fromkeys([*one, *other]):
        if name not in one or name not in other:
            lacks = "missing" if name not in one else f"not expected: {_shown(one[name])}"
            return f"{name} is {lacks}"
        if not _same(one[name], other[name]):
            return f"{name} is {_shown(one[name])} and should be {_shown(other[name])}"
    return ""


def _same(one: Any, other: Any) -> bool:
    if not (isinstance(one, tuple) and isinstance(other, tuple)):
        return bool(one == other) or (one != one and other != other)
    return one[0] == other[0] and torch.allclose(one[1], other[1], rtol=1e-4, atol=1e-5, equal_nan=True)


def _shown(value: Any) -> str:
    if not isinstance(value, tuple):
        return repr(value)
    (kind, dtype, shape, _, requires_grad, strides, device, *flags), plain = value
    text = f"{kind} {str(dtype).removeprefix('torch.')} {plain.flatten()[:6].tolist()} of shape {list(shape)}"
    named = [name for name, flag in zip(FLAGS, (requires_grad, *flags), strict=True) if flag]
    return ", ".join([text, f"strides {list(strides)}", f"on {device}", *named])
