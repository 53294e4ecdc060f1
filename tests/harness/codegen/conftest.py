"""Generated code of small programs, compiled once for all tests."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from pytest_regional.testing import fake_process_group, regional

from . import programs


def _train(backend):
    with regional(backend) as r:
        return r.run(programs.train, r.randn(8, 8, requires_grad=True), r.randn(8, 8, requires_grad=True)).code


def _compiled(program, *shapes, backend="inductor", dynamic=None):
    with regional(backend) as r:
        compiled = r.compile(program, dynamic=dynamic)
        return r.run(compiled, *(r.randn(*shape) for shape in shapes), as_is=True).code


def _independent(**configs):
    with regional("inductor") as r:
        compiled = r.compile(programs.independent, inductor_configs={"reorder_for_locality": False, **configs})
        return r.run(compiled, r.randn(8, 8), r.randn(8, 8), as_is=True).code


def _branch():
    with regional("inductor") as r:
        return r.run(programs.branch, torch.tensor(True), r.randn(8, 8)).code


def _collectives():
    with fake_process_group(), regional("inductor") as r:
        return r.run(programs.collectives, r.randn(8, 8)).code


SQUARE = (8, 8)
CODES = {
    "train": lambda: _train("inductor"),
    "chain": lambda: _compiled(programs.chain, SQUARE, SQUARE),
    "products": lambda: _compiled(programs.products, SQUARE, SQUARE),
    "held": lambda: _compiled(programs.held, SQUARE, SQUARE),
    "dynamic": lambda: _compiled(programs.products, (4, 8), SQUARE, dynamic=True),
    "copies": lambda: _compiled(programs.copies, SQUARE, SQUARE),
    "two_regions": lambda: _compiled(programs.two_regions, SQUARE, SQUARE, backend="reference"),
    "branch": _branch,
    "independent": _independent,
    "in_order": lambda: _independent(post_grad_custom_post_pass=programs.InOrder()),
    "collectives": _collectives,
}


@pytest.fixture(scope="session")
def code():
    """Return what generates the code of a program of ``CODES``, once."""
    return cache(lambda name: CODES[name]())
