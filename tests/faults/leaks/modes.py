"""Modes of the thread that a test does not leave."""

from __future__ import annotations

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
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from tests.faults.leaks.kinds import enter, kind


class PassingDispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class PassingFunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def dispatch_modes():
    return [type(mode).__name__ for mode in _get_current_dispatch_mode_stack()]


def function_modes():
    return torch._C._len_torch_function_stack()


@kind("dispatch mode", look=dispatch_modes)
def leave_dispatch_mode():
    enter(PassingDispatchMode())


@kind("two dispatch modes", look=dispatch_modes)
def leave_two_dispatch_modes():
    enter(PassingDispatchMode()), enter(PassingDispatchMode())


@kind("fake tensor mode", look=dispatch_modes)
def leave_fake_mode():
    enter(FakeTensorMode())


@kind("functional tensor mode", look=dispatch_modes)
def leave_functional_mode():
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    enter(FunctionalTensorMode())


@kind("function mode", look=function_modes)
def leave_function_mode():
    enter(PassingFunctionMode())


@kind("device context", look=lambda: (function_modes(), str(torch.get_default_device())))
def leave_device_context():
    enter(torch.device("meta"))


@kind("torch function disabled", look=torch._C._is_torch_function_enabled)
def leave_torch_function_disabled():
    enter(torch._C.DisableTorchFunction())


@kind("dispatch keys excluded", look=lambda: str(torch._C._dispatch_tls_local_exclude_set()))
def leave_keys_excluded():
    torch._C._dispatch_tls_set_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView, True)


@kind("inference mode", look=torch.is_inference_mode_enabled)
def leave_inference_mode():
    enter(torch.inference_mode())


@kind("grad mode", look=torch.is_grad_enabled)
def leave_grad_mode():
    torch.set_grad_enabled(False)


@kind("autocast", look=lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
def leave_autocast():
    enter(torch.autocast("cpu", dtype=torch.float16))


@kind("autocast of cuda", look=lambda: torch.is_autocast_enabled("cuda"))
def leave_cuda_autocast():
    torch.set_autocast_enabled("cuda", True)


@kind("autocast dtype", look=lambda: torch.get_autocast_dtype("cpu"))
def leave_autocast_dtype():
    torch.set_autocast_dtype("cpu", torch.float16)


@kind("autocast cache", look=torch.is_autocast_cache_enabled)
def leave_autocast_cache():
    torch.set_autocast_cache_enabled(False)


@kind("anomaly mode", look=torch.is_anomaly_enabled)
def leave_anomaly_mode():
    torch.autograd.set_detect_anomaly(True)


def saved_gradient():
    x = torch.ones(2, requires_grad=True)
    (x * x).sum().backward()
    return x.grad.tolist()


@kind("saved tensor hooks", look=saved_gradient)
def leave_saved_tensor_hooks():
    enter(torch.autograd.graph.saved_tensors_hooks(torch.zeros_like, lambda saved: saved))


@kind("saved tensor hooks disabled", look=torch._C._autograd._saved_tensors_hooks_is_enabled)
def leave_saved_tensor_hooks_disabled():
    enter(torch.autograd.graph.disable_saved_tensors_hooks("not here"))


@kind("autograd in one thread", look=torch._C._is_multithreading_enabled)
def leave_single_threaded_autograd():
    torch.autograd.set_multithreading_enabled(False)


@kind("forward gradients off", look=torch._C._is_fwd_grad_enabled)
def leave_forward_gradients_off():
    torch._C._set_fwd_grad_enabled(False)


@kind("forward gradient level", look=lambda: forward_ad._current_level)
def leave_forward_level():
    forward_ad.enter_dual_level()


@kind("view replay", look=torch._C._is_view_replay_enabled)
def leave_view_replay():
    torch.autograd._force_original_view_tracking(True)
    torch._C._set_view_replay_enabled(True)


@kind("functorch level", look=torch._C._functorch.maybe_current_level)
def leave_functorch_level():
    torch._C._functorch._grad_increment_nesting()


@kind("vmap level", look=torch._C._functorch.maybe_current_level)
def leave_vmap_level():
    torch._C._functorch._vmap_increment_nesting(2, "error")


@kind("annotation left open", look=lambda: dict(torch.fx.traceback.current_meta))
def leave_annotation():
    enter(torch.fx.traceback.annotate({"compile_with_inductor": {"inductor_region": "left"}}))


@kind("node metadata preserved", look=lambda: torch.fx.traceback.should_preserve_node_meta)
def leave_node_metadata_preserved():
    enter(torch.fx.traceback.preserve_node_meta())


@kind("profiler running", look=torch.autograd._profiler_enabled)
def leave_profiler():
    enter(torch.autograd.profiler.profile())
