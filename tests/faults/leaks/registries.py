"""What a test registers, or takes from a registry."""

from __future__ import annotations

import copyreg
import warnings

import torch
import torch._inductor.compile_fx
import torch._inductor.decomposition
import torch._inductor.fx_passes.joint_graph
import torch._inductor.fx_passes.post_grad
import torch._inductor.lowering
import torch.distributed
import torch.fx.traceback
import torch.nn.utils.parametrize
import torch.utils._pytree

from tests.faults.leaks.kinds import KEPT, kind, other


def lowering_of(op):
    return id(torch._inductor.lowering.lowerings.get(op))


@kind("lowering replaced", look=lambda: lowering_of(torch.ops.aten.sin.default))
def replace_lowering():
    torch._inductor.lowering.register_lowering(torch.ops.aten.sin.default, type_promotion_kind=None)(other)


@kind("lowering removed", look=lambda: lowering_of(torch.ops.aten.cos.default))
def remove_lowering():
    del torch._inductor.lowering.lowerings[torch.ops.aten.cos.default]


@kind("lowering made a fallback", look=lambda: lowering_of(torch.ops.aten.exp.default))
def fall_back():
    torch._inductor.lowering.make_fallback(torch.ops.aten.exp.default, warn=False, override_decomp=True)


@kind(
    "decomposition registered", look=lambda: torch.ops.aten.sin.default in torch._inductor.decomposition.decompositions
)
def register_decomposition():
    torch._inductor.decomposition.register_decomposition([torch.ops.aten.sin.default])(other)


@kind(
    "decomposition removed", look=lambda: torch.ops.aten.addmm.default in torch._inductor.decomposition.decompositions
)
def remove_decomposition():
    del torch._inductor.decomposition.decompositions[torch.ops.aten.addmm.default]


@kind(
    "decomposition of AOTAutograd",
    look=lambda: id(torch._decomp.global_decomposition_table["post_autograd"].get(torch.ops.aten.erfinv.default)),
)
def register_aot_decomposition():
    torch._decomp.global_decomposition_table["post_autograd"][torch.ops.aten.erfinv.default] = other


def patterns():
    return sum(
        len(entries) for each in torch._inductor.fx_passes.post_grad.pass_patterns for entries in each.patterns.values()
    )


@kind("post-grad pattern", look=patterns)
def register_pattern():
    from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern

    register_graph_pattern(
        CallFunction(torch.ops.aten.sin.default, Arg()),
        pass_dict=torch._inductor.fx_passes.post_grad.pass_patterns[0],
    )(other)


@kind("allowed in graphs", look=lambda: id(other) in torch._dynamo.trace_rules._allowed_callable_ids)
def allow_in_graph():
    torch._dynamo.allow_in_graph(other)


@kind("disallowed in graphs", look=lambda: id(torch.sub) in torch._dynamo.trace_rules._disallowed_callable_ids)
def disallow_in_graph():
    torch._dynamo.disallow_in_graph(torch.sub)


@kind("backend registered", look=lambda: "left_by_a_test" in torch._dynamo.list_backends(exclude_tags=()))
def register_backend():
    torch._dynamo.register_backend(other, name="left_by_a_test")


@kind("backend replaced", look=lambda: id(torch._dynamo.backends.registry._COMPILER_FNS.get("eager")))
def replace_backend():
    torch._dynamo.backends.registry._COMPILER_FNS["eager"] = other


@kind("operator's kernel replaced", look=lambda: torch.ones(1).erfinv().item())
def replace_kernel():
    library = torch.library.Library("aten", "IMPL")
    KEPT.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl("erfinv", lambda x: x.clone(), "CPU")


@kind("operator defined", look=lambda: hasattr(torch.ops.left_by_a_test, "operator"))
def define_operator():
    library = torch.library.Library("left_by_a_test", "DEF")
    KEPT.append(library)
    library.define("operator(Tensor x) -> Tensor")


class Node:
    """A class of a test's module."""


@kind("pytree node", look=lambda: Node in torch.utils._pytree.SUPPORTED_NODES)
def register_pytree_node():
    torch.utils._pytree.register_pytree_node(Node, lambda node: ([], None), lambda children, context: Node())


@kind("safe globals of torch.load", look=lambda: len(torch.serialization.get_safe_globals()))
def leave_safe_globals():
    torch.serialization.add_safe_globals([Node])


@kind("copyreg", look=lambda: Node in copyreg.dispatch_table)
def register_pickling():
    copyreg.pickle(Node, lambda node: (Node, ()))
