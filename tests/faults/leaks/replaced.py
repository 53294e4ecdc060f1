"""Functions and classes of PyTorch, Python and numpy that a test replaced."""

from __future__ import annotations

import builtins
import subprocess
import sys
import time

import numpy
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

from tests.faults.leaks.kinds import kind, of, other


@kind("torch.add replaced", look=of(torch, "add"))
def replace_torch_function():
    torch.add = other


@kind("torch.Tensor.add replaced", look=of(torch.Tensor, "add"))
def replace_tensor_method():
    torch.Tensor.add = other


@kind("__torch_function__ of Tensor replaced", look=lambda: torch.Tensor.__dict__["__torch_function__"] is other)
def replace_torch_function_of_tensor():
    torch.Tensor.__torch_function__ = other


@kind("method added to Tensor", look=lambda: hasattr(torch.Tensor, "my_method"))
def add_tensor_method():
    torch.Tensor.my_method = other


@kind("relu replaced", look=of(torch.nn.functional, "relu"))
def replace_functional():
    torch.nn.functional.relu = other


@kind("Linear.forward replaced", look=of(torch.nn.Linear, "forward"))
def replace_forward():
    torch.nn.Linear.forward = other


@kind("Module.__call__ replaced", look=of(torch.nn.Module, "__call__"))
def replace_module_call():
    torch.nn.Module.__call__ = other


@kind("torch.compile replaced", look=of(torch, "compile"))
def replace_compile():
    torch.compile = other


@kind("torch._dynamo.optimize replaced", look=of(torch._dynamo, "optimize"))
def replace_optimize():
    torch._dynamo.optimize = other


@kind("compile_fx replaced", look=of(torch._inductor.compile_fx, "compile_fx"))
def replace_compile_fx():
    torch._inductor.compile_fx.compile_fx = other


@kind("default generator replaced", look=of(torch, "default_generator"))
def replace_generator():
    torch.default_generator = torch.Generator()


@kind("a module of torch replaced", look=lambda: id(sys.modules["torch.nn.functional"]))
def replace_module():
    sys.modules["torch.nn.functional"] = type(sys)("torch.nn.functional")


@kind("a module of torch blocked", look=lambda: sys.modules.get("torch.fx") is None)
def block_module():
    sys.modules["torch.fx"] = None


@kind("builtins patched", look=of(builtins, "sorted"))
def patch_builtins():
    builtins.sorted = other


@kind("open replaced", look=of(builtins, "open"))
def patch_open():
    builtins.open = other


@kind("time.time replaced", look=of(time, "time"))
def patch_time():
    time.time = lambda: 0.0


@kind("subprocess.run replaced", look=of(subprocess, "run"))
def patch_subprocess():
    subprocess.run = other


@kind("numpy.add replaced", look=of(numpy, "add"))
def patch_numpy():
    numpy.add = other
