"""``torch.utils._pytree``: flattening nested containers the way ``torch.compile`` does.

The module is private by name, though ``torch.export`` documents it; checked on torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_regional._torch import symbol


def flatten_with_path(tree: Any) -> tuple[list[tuple[tuple[Any, ...], Any]], Any]:
    """Return ``([(key path, leaf), ...], spec)``: ``torch.utils._pytree.tree_flatten_with_path`` (2.11 to 2.15)."""
    paths_and_leaves, spec = symbol("torch.utils._pytree", "tree_flatten_with_path")(tree)
    return paths_and_leaves, spec


def key_string(path: Sequence[Any]) -> str:
    """Return a key path in Python's syntax, ``[0]['h']``: ``torch.utils._pytree.keystr`` (2.11 to 2.15)."""
    return str(symbol("torch.utils._pytree", "keystr")(tuple(path)))


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return ``tree`` with every leaf replaced: ``torch.utils._pytree.tree_map`` (2.11 to 2.15)."""
    return symbol("torch.utils._pytree", "tree_map")(function, tree)


def flatten(tree: Any) -> tuple[list[Any], Any]:
    """Return the leaves and the structure: ``torch.utils._pytree.tree_flatten`` (2.11 to 2.15)."""
    leaves, spec = symbol("torch.utils._pytree", "tree_flatten")(tree)
    return leaves, spec


def unflatten(leaves: Sequence[Any], spec: Any) -> Any:
    """Put leaves back into a structure: ``torch.utils._pytree.tree_unflatten`` (2.11 to 2.15)."""
    return symbol("torch.utils._pytree", "tree_unflatten")(leaves, spec)


def leaves_of(tree: Any) -> list[Any]:
    """Return only the leaves: ``torch.utils._pytree.tree_leaves`` (2.11 to 2.15)."""
    leaves: list[Any] = symbol("torch.utils._pytree", "tree_leaves")(tree)
    return leaves


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Copy or unpickle structures without the deprecation warning of ``LeafSpec`` that ``copyreg`` causes (2.13)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
        yield
