"""Operators of a user's own."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def void_op():
    """An operator without result that is not pure."""
    with torch.library._scoped_library("ordering_tests", "FRAGMENT") as library:
        library.define("tell(Tensor x) -> ()")
        library.impl("tell", lambda x: None, "CompositeExplicitAutograd")
        torch.fx.node.has_side_effect(torch.ops.ordering_tests.tell.default)
        yield torch.ops.ordering_tests.tell
