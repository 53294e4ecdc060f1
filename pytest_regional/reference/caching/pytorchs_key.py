"""Annotations in the key of PyTorch's own cache of whole results, for who switched that on in place of ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch.fx

from pytest_regional._torch.ordering import appended_passes, custom_graph_pass
from pytest_regional.reference.caching.key import annotations_of
from pytest_regional.reference.caching.stable import UnstableValueError, digest


@contextlib.contextmanager
def annotations_in_pytorchs_key(gm: torch.fx.GraphModule) -> Iterator[None]:
    """Let AOTAutograd's cache tell programs apart that differ in annotations alone, while the context lasts.

    Its key leaves annotations out (2.11 to 2.15), and would answer with what was compiled for others. The uuids of
    Inductor's custom passes are in it: a pass that does nothing carries a digest of the annotations there. One that
    means nothing in another process gives no digest, and a pass without a uuid keeps the result out of the cache.
    Remove when PyTorch's key holds ``node.meta["custom"]``.
    """
    with appended_passes(post_grad_custom_post_pass=_carrier(_identity(gm))):
        yield


def _identity(gm: torch.fx.GraphModule) -> str | None:
    try:
        return digest(tuple(annotations_of(gm)))
    except UnstableValueError:
        return None


def _carrier(identity: str | None) -> Any:
    base: Any = custom_graph_pass()

    class Annotations(base):  # type: ignore[misc]
        def __call__(self, graph: torch.fx.Graph) -> None:
            """Do nothing."""

        def uuid(self) -> str | None:
            return identity

    return Annotations()


__all__ = ["annotations_in_pytorchs_key"]
