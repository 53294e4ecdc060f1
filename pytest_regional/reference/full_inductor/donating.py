"""Which inputs of a backward graph Inductor may write its results into."""

from __future__ import annotations

import contextlib
from collections import Counter

import torch.fx

from pytest_regional._torch.full_inductor import donating
from pytest_regional._torch.region_compile import storage_key


def donating_what_nobody_shares(gm: torch.fx.GraphModule) -> contextlib.AbstractContextManager[None]:
    """Donate no input that another one is a view of.

    AOTAutograd looks for views among the forward's inputs and outputs, and not among saved values. Without Inductor's
    passes on the joint graph, a value and its ``detach`` are both saved: overwriting one of them overwrites both.
    """
    keys = [storage_key(node.meta.get("val")) for node in gm.graph.find_nodes(op="placeholder")]
    counts = Counter(keys)
    return donating(lambda index: counts[keys[index]] == 1)
