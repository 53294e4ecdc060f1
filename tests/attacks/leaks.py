"""What a test may leave changed in its process: ``python -m tests.attacks.leaks`` counts what the next test sees.

A new kind is a function that leaks, with what to look at before and after::

    @kind("umask", look=read_umask)
    def leave_umask():
        os.umask(0o777)
"""

from __future__ import annotations

import asyncio
import atexit
import builtins
import contextlib
import contextvars
import copyreg
import decimal
import faulthandler
import gc
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.optim import optimizer as optimizers
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from pytest_regional.testing import regional


@dataclass(frozen=True)
class Kind:
    """One thing that a test may leave changed.

    Attributes:
        name: what it is called here.
        leak: changes it.
        look: returns something that compares equal exactly while it is not changed.
    """

    name: str
    leak: Callable[[], object]
    look: Callable[[], Any]


KINDS: dict[str, Kind] = {}


def kind(name: str, look: Callable[[], Any]) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Add what the decorated function leaves changed to the table."""

    def add(leak: Callable[[], object]) -> Callable[[], object]:
        assert name not in KINDS
        KINDS[name] = Kind(name, leak, look)
        return leak

    return add


#: What is left behind and kept alive, as a global variable of a test's module would.
KEPT: list[Any] = []


def enter(context: Any) -> Any:
    """Enter a context, and never leave it."""
    KEPT.append(context)
    return context.__enter__()


def of(holder: Any, attribute: str) -> Callable[[], int]:
    """Return a look at which object ``attribute`` of ``holder`` is."""
    return lambda: id(getattr(holder, attribute))


# Modes of the thread


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


# Hooks for all modules, tensors, optimizers and compiles


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


# Functions and classes of PyTorch, Python and numpy replaced


def other(*args, **kwargs):
    raise AssertionError("another test's function")


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


# Registries


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


# Settings of PyTorch


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


# Settings of Python, numpy and the operating system


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@kind("umask", look=umask)
def leave_umask():
    os.umask(0o777)


@kind("working folder", look=os.getcwd)
def leave_folder():
    os.chdir("/")


@kind("environment", look=lambda: os.environ.get("LEFT_BY_A_TEST"))
def leave_environment():
    os.environ["LEFT_BY_A_TEST"] = "1"


@kind("signal handler", look=lambda: signal.getsignal(signal.SIGUSR2))
def leave_signal_handler():
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


@kind("alarm", look=lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0)
def leave_alarm():
    signal.setitimer(signal.ITIMER_REAL, 1000)


@kind("stacks later", look=lambda: None)
def leave_stacks_later():
    """Leave what ends the process later: nothing shows it before."""
    faulthandler.dump_traceback_later(0.5, exit=True)


@kind("garbage collector off", look=gc.isenabled)
def leave_gc_off():
    gc.disable()


@kind("thresholds of the collector", look=gc.get_threshold)
def leave_gc_thresholds():
    gc.set_threshold(5, 6, 7)


@kind("callback of the collector", look=lambda: len(gc.callbacks))
def leave_gc_callback():
    gc.callbacks.append(lambda phase, info: None)


@kind("fault handler", look=faulthandler.is_enabled)
def leave_fault_handler():
    if faulthandler.is_enabled():
        faulthandler.disable()
    else:
        faulthandler.enable(2)


@kind("sys.path", look=lambda: list(sys.path))
def leave_path():
    sys.path.insert(0, "/left")


@kind("sys.path emptied", look=lambda: list(sys.path))
def leave_empty_path():
    sys.path.clear()


class Importer:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None


@kind("sys.meta_path", look=lambda: list(sys.meta_path))
def leave_importer():
    sys.meta_path.insert(0, Importer)


@kind("trace function", look=sys.gettrace)
def leave_trace():
    sys.settrace(lambda frame, event, argument: None)


@kind("profile function", look=sys.getprofile)
def leave_profile():
    sys.setprofile(lambda frame, event, argument: None)


@kind("sys.excepthook", look=of(sys, "excepthook"))
def leave_excepthook():
    sys.excepthook = other


@kind("threading.excepthook", look=of(threading, "excepthook"))
def leave_thread_hook():
    threading.excepthook = other


@kind("recursion limit", look=sys.getrecursionlimit)
def leave_recursion_limit():
    sys.setrecursionlimit(300)


@kind("sys.stdout", look=of(sys, "stdout"))
def leave_stdout():
    KEPT.append(sys.stdout)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


@kind("sys.argv", look=lambda: list(sys.argv))
def leave_arguments():
    sys.argv[:] = ["left"]


@kind("warning filters", look=lambda: len(warnings.filters))
def leave_warnings():
    warnings.simplefilter("error")


@kind("warnings.showwarning", look=of(warnings, "showwarning"))
def leave_showwarning():
    warnings.showwarning = other


@kind("logging level", look=lambda: logging.getLogger().level)
def leave_logging_level():
    logging.getLogger().setLevel(logging.CRITICAL)


@kind("logging handler", look=lambda: len(logging.getLogger().handlers))
def leave_logging_handler():
    logging.getLogger().addHandler(logging.NullHandler())


@kind("logging disabled", look=lambda: logging.root.manager.disable)
def leave_logging_disabled():
    logging.disable(logging.CRITICAL)


@kind("locale", look=lambda: locale.setlocale(locale.LC_ALL))
def leave_locale():
    for name in ("C.UTF-8", "POSIX", "C", ""):
        with contextlib.suppress(locale.Error):
            if locale.setlocale(locale.LC_ALL) != locale.setlocale(locale.LC_ALL, name):
                return


@kind("decimal context", look=lambda: decimal.getcontext().prec)
def leave_decimal():
    decimal.getcontext().prec = 3


@kind("time zone", look=lambda: time.tzname)
def leave_time_zone():
    os.environ["TZ"] = "Pacific/Auckland"
    time.tzset()


@kind("limit on files", look=lambda: resource.getrlimit(resource.RLIMIT_NOFILE))
def leave_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 100), hard))


@kind("affinity", look=lambda: os.sched_getaffinity(0))
def leave_affinity():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@kind("temporary folder", look=lambda: tempfile.gettempdir())
def leave_temporary_folder():
    tempfile.tempdir = "/left"


@kind("start method of processes", look=lambda: multiprocessing.get_start_method())
def leave_start_method():
    multiprocessing.set_start_method("spawn", force=True)


@kind("event loop policy", look=lambda: type(asyncio.get_event_loop_policy()).__name__)
def leave_event_loop_policy():
    class Policy(asyncio.DefaultEventLoopPolicy):
        pass

    asyncio.set_event_loop_policy(Policy())


@kind("socket timeout", look=socket.getdefaulttimeout)
def leave_socket_timeout():
    socket.setdefaulttimeout(0.001)


@kind("tracemalloc", look=tracemalloc.is_tracing)
def leave_tracemalloc():
    tracemalloc.start()


@kind("switch interval", look=sys.getswitchinterval)
def leave_switch_interval():
    sys.setswitchinterval(1.0)


@kind("random numbers of Python", look=lambda: hash(random.getstate()))
def leave_random():
    random.seed(3)


@kind("random numbers of numpy", look=lambda: int(numpy.random.get_state()[1].sum()))
def leave_numpy_random():
    numpy.random.seed(3)


@kind("errors of numpy", look=numpy.geterr)
def leave_numpy_errors():
    numpy.seterr(all="raise")


@kind("print options of numpy", look=lambda: numpy.get_printoptions()["precision"])
def leave_numpy_print_options():
    numpy.set_printoptions(precision=2)


VARIABLE = contextvars.ContextVar("left", default=0)


@kind("context variable", look=VARIABLE.get)
def leave_context_variable():
    VARIABLE.set(1)


@kind("function at exit", look=atexit._ncallbacks)
def leave_function_at_exit():
    atexit.register(int)


@kind("thread", look=threading.active_count)
def leave_thread():
    threading.Thread(target=time.sleep, args=(60,), name="left", daemon=True).start()


@kind("process", look=lambda: [process.poll() for process in KEPT if isinstance(process, subprocess.Popen)])
def leave_process():
    KEPT.append(subprocess.Popen(["sleep", "60"]))


# Counting


@dataclass(frozen=True)
class Found:
    """What became of one kind: whether the next test sees it, by which names it was told, whether it ends a worker."""

    seen: bool
    named: tuple[str, ...]
    ends_the_worker: bool
    error: str = ""

    @property
    def verdict(self) -> str:
        """Say it in a few words."""
        if self.error:
            return "error"
        if self.ends_the_worker:
            return "ends the worker"
        told = "named" if self.named else "not named"
        return f"seen by the next test, {told}" if self.seen else f"put back, {told}"


def trial(leaking: Kind) -> Found:
    """Leak within one test's harness and look afterwards; for a process that ends then."""
    before = leaking.look()
    with regional("aot_eager", expects_regions=False) as harness:
        leaking.leak()
    named = tuple(leak.name for leak in harness.leaks)
    return Found(leaking.look() != before, named, any(getattr(leak, "poisons", False) for leak in harness.leaks))


def in_a_fork(leaking: Kind, seconds: float = 60) -> Found:
    """Run :func:`trial` in a fork of this process, which has imported everything."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = trial(leaking)
        except BaseException as error:  # noqa: BLE001 - told to the parent
            found = Found(True, (), False, f"{type(error).__name__}: {error}")
        finally:
            os.write(writer, json.dumps(vars(found)).encode()[:60_000])
            for process in KEPT:
                if isinstance(process, subprocess.Popen):
                    process.kill()
            os._exit(0)
    os.close(writer)
    if not select.select([reader], [], [], seconds)[0]:
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return Found(**json.loads(text)) if text else Found(True, (), False, "its process died or did not end")


def warm_up() -> None:
    """Do once what the first harness of a process does: imports, and settings that it reads."""
    with regional("aot_eager", expects_regions=False):
        pass


def main() -> None:
    """Print what becomes of each kind, and the counts."""
    warm_up()
    counts: dict[str, int] = {}
    for leaking in KINDS.values():
        found = in_a_fork(leaking)
        counts[found.verdict] = counts.get(found.verdict, 0) + 1
        print(f"{leaking.name:40} {found.verdict:32} {found.error or ', '.join(found.named)}"[:160], flush=True)
    print(f"\n{len(KINDS)} kinds: {', '.join(f'{number} {verdict}' for verdict, number in sorted(counts.items()))}")


if __name__ == "__main__":
    main()
