"""What a graph takes and returns, and what a pass changed of it: its callers rely on both."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.fx

_UNKNOWN = object()
_TENSOR, _NOTHING, _OTHER = "a tensor", "None", "no tensor"


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs of a graph.

    Attributes:
        inputs: names of the placeholders.
        paths: where each value that is returned stands; the empty string for one that stands alone.
        outputs: the (fake) values of these; what tracing left no value of is not compared.
    """

    inputs: tuple[str, ...]
    paths: tuple[str, ...]
    outputs: tuple[Any, ...]

    @classmethod
    def of(cls, gm: torch.fx.GraphModule) -> Interface:
        """Return the interface of ``gm``."""
        inputs = tuple(node.name for node in gm.graph.find_nodes(op="placeholder"))
        returned = [pair for node in gm.graph.find_nodes(op="output") for pair in _leaves(node.args[0], "")]
        return cls(inputs, tuple(path for path, _ in returned), tuple(map(_value, (one for _, one in returned))))

    def changes_to(self, after: Interface) -> list[str]:
        """Return what is different in ``after``, in words: what it is, and what it was."""
        return [*_of_inputs(self.inputs, after.inputs), *_of_outputs(self, after)]


def _leaves(returned: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each value and where it stands; lists and tuples mean the same to whoever calls a graph."""
    if isinstance(returned, (list, tuple)):
        for index, one in enumerate(returned):
            yield from _leaves(one, f"{path}[{index}]")
    elif isinstance(returned, dict):
        for key, one in returned.items():
            yield from _leaves(one, f"{path}[{key!r}]")
    else:
        yield path, returned


def _value(returned: Any) -> Any:
    return returned.meta.get("val", _UNKNOWN) if isinstance(returned, torch.fx.Node) else returned


def _of_inputs(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Names may change, as where a pass traces anew; those that stay keep their order."""
    if len(before) != len(after):
        yield f"takes {len(after)} inputs and took {len(before)}"
    else:
        was, now = ([name for name in names if name in after and name in before] for names in (before, after))
        if was != now:
            yield f"takes its inputs in another order: {_listed(now)}; it was {_listed(was)}"


def _of_outputs(before: Interface, after: Interface) -> Iterator[str]:
    if len(before.paths) != len(after.paths):
        yield f"returns {len(after.paths)} values and returned {len(before.paths)}"
    elif before.paths != after.paths:
        yield f"returns values as {_places(after.paths)} and returned them as {_places(before.paths)}"
    else:
        for index, values in enumerate(zip(before.outputs, after.outputs, strict=True)):
            if not any(value is _UNKNOWN for value in values):
                yield from (f"output {index} {change}" for change in _of_value(*values))


def _of_value(before: Any, after: Any) -> Iterator[str]:
    was, now = _kind(before), _kind(after)
    if was != now:
        yield f"is {now} and was {was}"
    elif now == _TENSOR:
        for what, old, new in (
            ("shape", _shape(before), _shape(after)),
            ("dtype", str(before.dtype), str(after.dtype)),
            ("device", str(before.device), str(after.device)),
        ):
            if _comparable(old) != _comparable(new):
                yield f"has {what} {new} and had {old}"


def _kind(value: Any) -> str:
    return _NOTHING if value is None else _TENSOR if isinstance(value, torch.Tensor) else _OTHER


def _shape(value: torch.Tensor) -> str:
    return f"({', '.join(map(str, value.shape))}{',' * (value.dim() == 1)})"


def _comparable(text: str) -> str:
    """Sizes that only data tell are symbols anew each time an op is run."""
    return re.sub(r"\bu\d+\b", "u", text)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _places(paths: Sequence[str]) -> str:
    return ", ".join(path or "the only value" for path in paths)
