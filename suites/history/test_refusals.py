"""Refusals: what eager does not run, and compiled runs. Their priority upstream is low."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from .checks import refused
from .known_bugs import BugClass, assert_as_listed

pytestmark = pytest.mark.regional_compile
bugs = BugClass("refusal", needs=("inductor_code",))


@bugs(195674, layer="inductor", notices="refusal", expects_regions=False)
def one_minus_bool(regional):
    """``1 - x`` of booleans."""
    refused(regional, lambda x: 1 - x, regional.tensor([True, False]))


@bugs(195673, layer="inductor", notices="refusal", expects_regions=False)
def random_integers_like(regional):
    """``rand_like`` of an integer tensor, all zero."""
    refused(regional, lambda x: torch.rand_like(x), torch.ones(3, dtype=torch.int64, device=regional.device))


@bugs(195665, layer="inductor", notices="refusal", expects_regions=False)
def strided_outside_of_storage(regional):
    """``as_strided`` beyond the end of the memory, which is read."""
    refused(regional, lambda x: torch.as_strided(x, (4, 4), (4, 1)) + 1, regional.randn(6))


# On a GPU eager refuses nothing: an assertion inside a kernel ends the GPU for the process.
@bugs(193757, layer="inductor", notices="refusal", expects_regions=False, device="cpu")
def cross_entropy_outside_of_one(regional):
    """``binary_cross_entropy`` of targets that are no probabilities."""
    refused(regional, lambda x, y: F.binary_cross_entropy(x, y), regional.rand(3), regional.tensor([0.5, 2.0, -1.0]))


@bugs(183769, layer="inductor", torch="<2.12", notices="refusal", expects_regions=False)
def select_outside(regional):
    """``select`` beyond the last row."""
    refused(regional, lambda x: torch.select(x, 0, 9) + 1, regional.randn(6, 2))


@bugs(183608, layer="inductor", torch="<2.12", notices="refusal", expects_regions=False, device="cpu")
def embedding_of_a_negative_index(regional):
    """``embedding`` with a negative index, taken from the end."""
    refused(regional, lambda index, weight: F.embedding(index, weight) + 1, regional.tensor([-1]), regional.randn(6, 2))


@pytest.mark.parametrize("bug", bugs.cases())
def test_known_bug(regional, bug, record_property):
    assert_as_listed(bug, regional, record_property)
