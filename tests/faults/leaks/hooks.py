"""Hooks for all modules, tensors, optimizers and compiles."""

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
from torch.optim import optimizer as optimizers

from tests.faults.leaks.kinds import enter, kind


def add_one(module, inputs, output):
    return output + 1


def module_output():
    return torch.nn.ReLU()(torch.zeros(1)).item()


@kind("global forward hook", look=module_output)
def leave_forward_hook():
    torch.nn.modules.module.register_module_forward_hook(add_one)


@kind("global forward pre-hook", look=module_output)
def leave_forward_pre_hook():
    torch.nn.modules.module.register_module_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))


@kind("global backward hook", look=lambda: len(torch.nn.modules.module._global_backward_hooks))
def leave_backward_hook():
    torch.nn.modules.module.register_module_full_backward_hook(lambda module, grads, outputs: None)


@kind("parameter registration hook", look=lambda: len(torch.nn.modules.module._global_parameter_registration_hooks))
def leave_registration_hook():
    torch.nn.modules.module.register_module_parameter_registration_hook(lambda *args: None)


@kind("optimizer hook", look=lambda: len(optimizers._global_optimizer_pre_hooks))
def leave_optimizer_hook():
    optimizers.register_optimizer_step_pre_hook(lambda *args: None)


@kind("parametrization cache", look=lambda: torch.nn.utils.parametrize._cache_enabled)
def leave_parametrization_cache():
    enter(torch.nn.utils.parametrize.cached())


@kind("bytecode hook", look=lambda: len(torch._dynamo.convert_frame._bytecode_hooks))
def leave_bytecode_hook():
    torch._dynamo.convert_frame.register_bytecode_hook(lambda code, new: None)


@kind("compile callback", look=lambda: len(torch._dynamo.callback.callback_handler.start_callbacks))
def leave_compile_callback():
    torch._dynamo.callback.on_compile_start(lambda args: None)
