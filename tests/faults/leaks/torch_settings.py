"""Settings of PyTorch."""

from __future__ import annotations

import logging
import sys
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
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.faults.leaks.kinds import enter, kind


@kind("Inductor's configuration", look=lambda: torch._inductor.config.max_autotune)
def leave_inductor_config():
    torch._inductor.config.max_autotune = True


@kind("Dynamo's configuration", look=lambda: torch._dynamo.config.cache_size_limit)
def leave_dynamo_config():
    torch._dynamo.config.cache_size_limit = 1


@kind("functorch's configuration", look=lambda: torch._functorch.config.debug_assert)
def leave_functorch_config():
    torch._functorch.config.debug_assert = not torch._functorch.config.debug_assert


@kind("configuration of symbolic shapes", look=lambda: torch.fx.experimental._config.translation_validation)
def leave_shape_config():
    torch.fx.experimental._config.translation_validation = True


@kind("compiler stance", look=lambda: torch._dynamo.eval_frame._stance.stance)
def leave_stance():
    torch.compiler.set_stance("force_eager")


@kind("Dynamo left on", look=lambda: torch._C._dynamo.eval_frame.get_eval_frame_callback())
def leave_dynamo_on():
    with torch._dynamo.config.patch(raise_on_ctx_manager_usage=False):
        enter(torch._dynamo.optimize("eager"))


@kind("default dtype", look=torch.get_default_dtype)
def leave_default_dtype():
    torch.set_default_dtype(torch.float64)


@kind("default tensor type", look=torch.get_default_dtype)
def leave_default_tensor_type():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_default_tensor_type(torch.DoubleTensor)


@kind("default device", look=lambda: str(torch.get_default_device()))
def leave_default_device():
    torch.set_default_device("meta")


@kind("precision of products", look=torch.get_float32_matmul_precision)
def leave_precision():
    torch.set_float32_matmul_precision("medium")


@kind("deterministic algorithms", look=torch.are_deterministic_algorithms_enabled)
def leave_deterministic():
    torch.use_deterministic_algorithms(True)


@kind("filling of uninitialized memory", look=lambda: torch.utils.deterministic.fill_uninitialized_memory)
def leave_filling():
    torch.utils.deterministic.fill_uninitialized_memory = False


@kind("subnormal numbers", look=lambda: sys.float_info.min / 2)
def leave_flushing():
    torch.set_flush_denormal(True)


@kind("threads of torch", look=torch.get_num_threads)
def leave_threads():
    torch.set_num_threads(torch.get_num_threads() + 1)


@kind("threads between operators", look=torch.get_num_interop_threads)
def leave_interop_threads():
    torch.set_num_interop_threads(torch.get_num_interop_threads() + 1)


@kind("mkldnn off", look=lambda: torch.backends.mkldnn.enabled)
def leave_mkldnn_off():
    torch.backends.mkldnn.set_flags(False)


@kind("cudnn benchmark", look=lambda: torch.backends.cudnn.benchmark)
def leave_cudnn_benchmark():
    torch.backends.cudnn.benchmark = True


@kind("attention kernels", look=torch.backends.cuda.flash_sdp_enabled)
def leave_attention():
    torch.backends.cuda.enable_flash_sdp(False)


@kind("fast path of attention", look=torch.backends.mha.get_fastpath_enabled)
def leave_fastpath():
    torch.backends.mha.set_fastpath_enabled(False)


@kind("einsum's order", look=lambda: torch.backends.opt_einsum.strategy)
def leave_einsum():
    torch.backends.opt_einsum.strategy = "greedy"


@kind("swapped parameters", look=torch.__future__.get_swap_module_params_on_conversion)
def leave_swapping():
    torch.__future__.set_swap_module_params_on_conversion(True)


@kind("torch warns always", look=torch.is_warn_always_enabled)
def leave_warn_always():
    torch.set_warn_always(True)


@kind("print options of torch", look=lambda: torch._tensor_str.PRINT_OPTS.precision)
def leave_print_options():
    torch.set_printoptions(precision=2)


@kind("default generator's state", look=lambda: torch.get_rng_state().sum().item())
def leave_generator():
    torch.manual_seed(12345)


@kind("torch's logging", look=lambda: logging.getLogger("torch._dynamo").level)
def leave_torch_logging():
    torch._logging.set_logs(dynamo=logging.ERROR)


@kind("process group", look=torch.distributed.is_initialized)
def leave_process_group():
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())


@kind("torch.hub's folder", look=torch.hub.get_dir)
def leave_hub():
    torch.hub.set_dir("/left")
