"""What the server of ``warm_process`` imports before it forks, and computes from nothing but what is installed.

Modules of this project are not among it: they are what is tested. Nor is Hypothesis, whose assertions pytest rewrites
while it imports it.
"""

import atexit
import contextlib
import gc
import importlib
import sys

#: A process has these and its own: the first is the folder that the server was started in.
SEARCH_PATH = sys.path[1:]
#: What the smallest program imports that Inductor compiles on a CPU, and what runs tests.
MODULES = (
    "numpy",
    "pytest",
    "sympy.physics",
    "sympy.tensor.tensor",
    "torch",
    "torch._dynamo",
    "torch._dynamo.dce_extra_outputs",
    "torch._dynamo.repro.after_dynamo",
    "torch._functorch._aot_autograd.subclass_codegen",
    "torch._higher_order_ops.passes.inline_invoke_subgraph",
    "torch._inductor.bounds",
    "torch._inductor.choices",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.segmented_tree",
    "torch._inductor.compile_fx",
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


def prepare() -> None:
    """Do it, for all processes that will be forked."""
    for name in MODULES:
        with contextlib.suppress(ModuleNotFoundError):  # another torch: its processes import what they need
            importlib.import_module(name)

    import torch._dynamo
    import torch._inductor.codecache
    from torch._inductor.codegen.common import get_device_op_overrides, init_backend_registration
    from torch._inductor.fx_passes import joint_graph, post_grad
    from torch._inductor.runtime import triton_compat

    # The first compile of a process imports all backends and makes the patterns of Inductor's passes: half a second.
    torch._dynamo.list_backends()
    init_backend_registration()
    get_device_op_overrides("cpu")
    joint_graph.lazy_init(torch.device("cpu"))
    post_grad.lazy_init()

    # Every key of a cache holds these, and each takes half a second.
    torch._inductor.codecache.torch_key()
    if triton_compat.HAS_TRITON:
        triton_compat.triton_key()

    gc.collect()
    gc.freeze()  # processes collect only what is theirs, and do not copy what they share
    atexit.register(gc.unfreeze)  # libraries complain of what is not collected at the end


prepare()
