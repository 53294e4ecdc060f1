"""What the first compile of a process imports and computes, from nothing but what is installed (2.11 to 2.15)."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import warnings

from pytest_regional._torch import private_module, symbol, triton

#: The patterns of Inductor's passes, of which a compile imports one after the other.
_PATTERNS = "torch._inductor.fx_passes.serialized_patterns"

#: What the smallest program imports that Inductor compiles on a CPU.
_MODULES = (
    "sympy.physics",
    "sympy.tensor.tensor",
    "torch",
    "torch._dynamo",
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.bounds",
    "torch._inductor.choices",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.segmented_tree",
    "torch._inductor.compile_fx",
    "torch._inductor.compiler_bisector",
    "torch._inductor.extern_node_serializer",
    "torch._inductor.fx_passes.apply_gumbel_max_trick",
    "torch._inductor.fx_passes.efficient_conv_bn_eval",
    "torch._inductor.fx_passes.fuse_attention",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._inductor.fx_passes.pad_mm",
    "torch._inductor.fx_passes.quantization",
    "torch._inductor.hooks",
    "torch._inductor.kernel_template_choice",
    "torch._inductor.runtime.caching",
    "torch._subclasses.schema_check_mode",
    "torch.distributed.tensor.experimental",
    "torch.export._trace",
    "torch.fx.experimental.validator",
    "torch.utils.cpp_extension",
)


def import_all() -> None:
    """Import the modules, register backends, and compute what every key of a cache holds (half a second each)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patterns = (one.name for one in pkgutil.iter_modules(private_module(_PATTERNS).__path__, f"{_PATTERNS}."))
        for name in (*_MODULES, *patterns):
            with contextlib.suppress(ModuleNotFoundError):  # another torch: its processes import what they need
                importlib.import_module(name)
    symbol("torch._dynamo", "list_backends")()
    symbol("torch._inductor.codegen.common", "init_backend_registration")()
    symbol("torch._inductor.codegen.common", "get_device_op_overrides")("cpu")
    if symbol("torch._inductor.runtime.triton_compat", "HAS_TRITON"):
        triton.code_keys()
    else:
        triton.torch_code_key()


def prepare_for_cpu() -> None:
    """Make the patterns of Inductor's passes, half a second; for processes that compile for nothing but the CPU."""
    import torch

    symbol("torch._inductor.fx_passes.joint_graph", "lazy_init")(torch.device("cpu"))
    symbol("torch._inductor.fx_passes.post_grad", "lazy_init")()
