"""Changes of graph passes, and of annotations that decide what is compiled and how."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch._inductor.config
import torch.fx
import torch.utils.checkpoint
from torch._inductor.custom_graph_pass import CustomGraphPass

from pytest_regional import region
from pytest_regional.testing import pre_grad_pass

from .changes import COMPILE, WHOLE, Case, Changes, numbers

changes = Changes(__name__, requires=("inductor_code",))


class Multiply(CustomGraphPass):
    """A pass that makes a sum with 1 a product with ``n``."""

    def __init__(self, n: int, uuid: Any = None) -> None:
        self.n, self.identity = n, uuid

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target is torch.ops.aten.add.Tensor:
                node.target, node.args = torch.ops.aten.mul.Tensor, (node.args[0], self.n)

    def uuid(self) -> Any:
        """Return what the cache knows the pass by."""
        return self.identity


@contextlib.contextmanager
def inductor(**settings: Any) -> Iterator[None]:
    """Set settings of Inductor."""
    with torch._inductor.config.patch(settings):
        yield


def multiplied(n: Any, rows: int = 2) -> Case:
    """Return a sum that passes make a product with ``n``."""
    return Case(lambda x: x + 1, (numbers(rows, 3),), expected=lambda x: x * n)


STAGES = ("post_grad_custom_pre_pass", "post_grad_custom_post_pass", "joint_custom_pre_pass", "joint_custom_post_pass")


def _pass_row(stage: str) -> None:
    def make(n: int) -> Iterator[Case]:
        with inductor(**{stage: Multiply(n, f"multiply {n}")}):
            yield multiplied(n)

    def without(n: int) -> Iterator[Case]:
        with inductor(**{stage: Multiply(n)}):
            yield multiplied(n)

    make.__doc__ = f"The pass {stage}, with another uuid."
    without.__doc__ = f"The pass {stage}, which has no uuid."
    changes(name=f"uuid_of_{stage}", quick=stage == "post_grad_custom_post_pass")(make)
    changes(name=f"no_uuid_of_{stage}")(without)


for _stage in STAGES:
    _pass_row(_stage)


@changes(False, True)
def pass_added(added):
    """A pass is added."""
    with inductor(post_grad_custom_post_pass=Multiply(3, "multiply") if added else None):
        yield Case(lambda x: x + 1, (numbers(2, 3),), expected=lambda x: x * 3 if added else x + 1)


@changes(True, False)
def pass_removed(present):
    """A pass is removed."""
    with inductor(post_grad_custom_post_pass=Multiply(3, "multiply") if present else None):
        yield Case(lambda x: x + 1, (numbers(2, 3),), expected=lambda x: x * 3 if present else x + 1)


@changes()
def pass_that_is_a_function(n):
    """The code of a pass that is a function."""
    with inductor(post_grad_custom_post_pass=lambda graph: Multiply(n)(graph)):
        yield multiplied(n)


def multiply(n: int) -> Any:
    """Return what makes a sum of a Dynamo graph a product with ``n``."""

    def transform(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target in (torch.add, operator.add):
                node.target, node.args = torch.mul, (node.args[0], n)

    return transform


@changes(requires=("pre_grad_passes",), quick=True)
def uuid_of_a_pre_grad_pass(n):
    """A pre-grad pass, with another uuid."""
    made = pre_grad_pass(uuid=f"multiply {n}", transform=multiply(n))
    return replace(multiplied(n), options={"pre_grad_pass": made})


@changes(requires=("pre_grad_passes",))
def no_uuid_of_a_pre_grad_pass(n):
    """The code of a pre-grad pass that has no uuid."""
    return replace(multiplied(n), options={"pre_grad_pass": pre_grad_pass(transform=multiply(n))})


@changes(requires=("pre_grad_passes", "pre_grad_timing"))
def early_pre_grad_pass(n):
    """The code of a pre-grad pass that runs before the lookup, with the same uuid."""
    options = {"pre_grad_pass": pre_grad_pass(uuid="v1", transform=multiply(n)), "pre_grad_pass_timing": "early"}
    return replace(multiplied(n), options=options)


@changes((2, 3), (3, 2), requires=("pre_grad_pass_lists",))
def order_of_pre_grad_passes(order):
    """The order of two pre-grad passes, the first of which leaves nothing to the other."""
    made = [pre_grad_pass(uuid=f"multiply {n}", transform=multiply(n)) for n in order]
    return replace(multiplied(order[0]), options={"pre_grad_pass": made})


@changes(torch._inductor.config.max_fusion_size, 8, shows=COMPILE)
def setting_of_the_compile(size):
    """A setting of Inductor that is given to the compile."""
    return Case(lambda x: x * 2, options={"inductor_configs": {"max_fusion_size": size}})


# Annotations


REGIONS = ("regions", "region_ids")
ANNOTATIONS = "stale_hit_annotations"


@changes(False, True, shows=WHOLE, in_region=False, requires=REGIONS, finding=ANNOTATIONS, stale_on=("torch",))
def region_added(added):
    """A part of the program becomes a region."""

    def program(x):
        with region("r") if added else contextlib.nullcontext():
            return x @ x

    return Case(program, (numbers(3, 3),))


@changes(True, False, shows=WHOLE, in_region=False, requires=REGIONS, finding=ANNOTATIONS, stale_on=("torch",))
def region_removed(present):
    """A part of the program is no longer a region."""

    def program(x):
        with region("r") if present else contextlib.nullcontext():
            return x @ x

    return Case(program, (numbers(3, 3),))


@changes("a", "b", shows=WHOLE, in_region=False, requires=REGIONS, finding=ANNOTATIONS, stale_on=("torch",))
def region_id(name):
    """The id of a region."""

    def program(x):
        with region(name):
            return x @ x

    return Case(program, (numbers(3, 3),))


@changes(
    64,
    8,
    shows=COMPILE,
    in_region=False,
    requires=(*REGIONS, "region_configs"),
    quick=True,
    finding=ANNOTATIONS,
    stale_on=("torch",),
)
def region_config(size):
    """A config of a region."""

    def program(x):
        with region("r", configs={"max_fusion_size": size}):
            return x @ x

    return Case(program, (numbers(3, 3),))


@changes(
    (True, False),
    (False, True),
    shows=WHOLE,
    in_region=False,
    requires=REGIONS,
    finding=ANNOTATIONS,
    stale_on=("torch",),
)
def border_of_a_region(inside):
    """The border of a region moves."""

    def program(x):
        for flag in inside:
            with region("r") if flag else contextlib.nullcontext():
                x = x @ x
        return x

    return Case(program, (numbers(3, 3),))


@changes(
    ("a", "a"), ("a", "b"), shows=WHOLE, in_region=False, requires=REGIONS, finding=ANNOTATIONS, stale_on=("torch",)
)
def region_divided(names):
    """A region becomes two."""

    def program(x):
        for name in names:
            with region(name):
                x = x @ x
        return x

    return Case(program, (numbers(3, 3),))


@changes(
    False,
    True,
    shows=WHOLE,
    in_region=False,
    requires=(*REGIONS, "nested_regions"),
    finding=ANNOTATIONS,
    stale_on=("torch",),
)
def region_in_a_body(added):
    """The body of a checkpoint becomes a region."""

    def body(x):
        with region("r") if added else contextlib.nullcontext():
            return x @ x

    def program(x):
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)

    return Case(program, (numbers(3, 3, requires_grad=True),))


@changes((), ("a",), shows=WHOLE, in_region=False, requires=("region_order",))
def order_of_regions(after):
    """A region comes to run after another one."""

    def program(x):
        with region("a"):
            y = x @ x
        with region("b", after=list(after)):
            return x @ x.t(), y

    return Case(program, (numbers(3, 3),))


# What is kept for the backward


def contexts(policy: str) -> Any:
    """Return the contexts of a checkpoint that saves products, or nothing."""
    saved = torch.utils.checkpoint.CheckpointPolicy[policy]
    return torch.utils.checkpoint.create_selective_checkpoint_contexts(lambda context, op, *a, **k: saved)


def _policy_row(name: str, *, hashed: bool) -> None:
    def make(chosen: str) -> Case:
        made = functools.partial(contexts, chosen)
        if hashed:
            made.cache_hash = chosen

        def program(x):
            return torch.utils.checkpoint.checkpoint(lambda y: y @ y, x, use_reentrant=False, context_fn=made)

        return Case(program, (numbers(3, 3, requires_grad=True),))

    make.__doc__ = f"The policy of a selective checkpoint, {'with another' if hashed else 'which has no'} hash."
    row = changes("MUST_SAVE", "MUST_RECOMPUTE", name=name, shows=COMPILE, requires=("backward",), in_region=False)
    row(make)


_policy_row("policy_of_a_checkpoint", hashed=True)
_policy_row("policy_without_a_hash", hashed=False)


@changes(False, True, shows=COMPILE, requires=("higher_order_operators", "backward"), in_region=False)
def checkpoint_added(added):
    """A function comes to be checkpointed."""

    def body(x):
        return (x @ x).sin()

    def program(x):
        return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False) if added else body(x)

    return Case(program, (numbers(3, 3, requires_grad=True),))


@changes(False, True, shows=COMPILE, requires=("dynamic_shapes",))
def symbolic_sizes(dynamic):
    """Sizes become symbols."""
    return Case(lambda x: x * 2, (numbers(3, 3),), options={"dynamic": dynamic})
