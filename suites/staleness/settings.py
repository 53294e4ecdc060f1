"""Changes of PyTorch's state and of settings that a program runs or compiles under."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
import torch.overrides
import torch.utils.deterministic

from .changes import COMPILE, WHOLE, Case, Changes, calling, numbers, put

changes = Changes(__name__)


def device_type() -> str:
    """Return the type of the device under test."""
    return str(numbers(1).device.type)


# Modes


@changes(False, True)
def autocast(enabled):
    """Autocast is switched on."""
    with torch.autocast(device_type(), dtype=torch.bfloat16, enabled=enabled):
        yield Case(lambda x: x @ x.t(), (numbers(3, 3),))


@changes(torch.bfloat16, torch.float16, quick=True)
def autocast_dtype(dtype):
    """The dtype of autocast."""
    with torch.autocast(device_type(), dtype=dtype):
        yield Case(lambda x: x @ x.t(), (numbers(3, 3),))


@changes(False, True)
def autocast_in_the_program(enabled):
    """The program switches autocast on."""

    def program(x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=enabled):
            return x @ x.t()

    return Case(program, (numbers(3, 3),), {})


@changes(torch.bfloat16, torch.float16)
def autocast_dtype_in_the_program(dtype):
    """The dtype of an autocast in the program."""

    def program(x):
        with torch.autocast(x.device.type, dtype=dtype):
            return x @ x.t()

    return Case(program, (numbers(3, 3),))


@changes(torch.bfloat16, torch.float16)
def autocast_dtype_read(dtype):
    """The program reads the dtype of autocast."""
    with torch.autocast(device_type(), dtype=dtype):
        yield Case(lambda x: x.to(torch.get_autocast_dtype(x.device.type)), (numbers(3, 3),))


@changes(True, False, requires=("backward",))
def grad_mode(enabled):
    """Gradients are switched off."""
    with torch.set_grad_enabled(enabled):
        yield lambda x: x * 2


@changes(True, False, requires=("backward",))
def grad_mode_in_the_program(enabled):
    """The program switches gradients off for a part."""

    def program(x):
        with torch.set_grad_enabled(enabled):
            y = x * 2
        return y + x

    return program


@changes(True, False, requires=("backward",))
def grad_mode_read(enabled):
    """The program asks whether gradients are on."""
    with torch.set_grad_enabled(enabled):
        yield Case(lambda x: x * 2 if torch.is_grad_enabled() else x * 3, (numbers(2, 3),))


@changes(False, True)
def inference_mode(enabled):
    """Inference mode is switched on."""
    with torch.inference_mode(enabled):
        yield Case(lambda x: x * 2, (numbers(2, 3),))


@changes(torch.float32, torch.float64, quick=True)
def default_dtype(dtype):
    """The default dtype."""
    with calling(torch.set_default_dtype, dtype, torch.float32):
        yield Case(lambda x: torch.zeros(3, device=x.device) + x, (numbers(3, dtype=torch.int64),))


@changes(torch.float32, torch.float64)
def default_dtype_of_a_number(dtype):
    """The default dtype that an integer tensor is divided in."""
    with calling(torch.set_default_dtype, dtype, torch.float32):
        yield Case(lambda x: x / 2, (numbers(3, dtype=torch.int64),))


@changes("cpu", "meta")
def default_device(device):
    """The default device, on which the program makes a tensor."""
    x = numbers(3)
    with torch.device(device):
        yield Case(lambda x: (x * 2, torch.ones(3)), (x,))


@changes(False, True, shows=COMPILE)
def deterministic_algorithms(enabled):
    """Deterministic algorithms: memory that is not initialized is filled."""
    with calling(torch.use_deterministic_algorithms, enabled, False):
        yield Case(lambda x: torch.empty(3, device=x.device).isnan() | (x > 5), (numbers(3),), compared=enabled)


@changes(False, True)
def deterministic_algorithms_read(enabled):
    """The program asks whether algorithms are deterministic."""
    with calling(torch.use_deterministic_algorithms, enabled, False):
        yield Case(lambda x: x * (3 if torch.are_deterministic_algorithms_enabled() else 2), (numbers(3),))


@changes(False, True)
def deterministic_fill(enabled):
    """Whether memory that is not initialized is filled while algorithms are deterministic."""
    owner = torch.utils.deterministic
    with calling(torch.use_deterministic_algorithms, True, False):
        before = owner.fill_uninitialized_memory
        with calling(lambda value: setattr(owner, "fill_uninitialized_memory", value), enabled, before):
            yield Case(lambda x: x * (3 if owner.fill_uninitialized_memory else 2), (numbers(3),))


@changes()
def torch_function_mode(n):
    """The code of a torch function mode that is active."""

    class Scaling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.add:
                return torch.mul(args[0], n)
            return function(*args, **(kwargs or {}))

    x = numbers(2, 3)
    with Scaling():
        yield Case(lambda x: torch.add(x, 1), (x,))


@changes(requires=("backward",))
def saved_tensors_hooks(n):
    """The code of hooks that pack saved tensors."""

    def pack(x):
        return x * n

    def unpack(x):
        return x * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield lambda x: x.sin()


@changes(False, True, requires=("backward",))
def saved_tensors_hooks_appear(active):
    """Hooks for saved tensors become active."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x)
    with hooks if active else contextlib.nullcontext():
        yield lambda x: x.sin()


@changes(0, 1)
def vmap_around_the_program(dimension):
    """The program is called in a ``torch.func.vmap`` over another dimension."""
    return Case(torch.func.vmap(lambda x: x.cumsum(0), in_dims=dimension), (numbers(3, 3),))


# What a program reads of its process


@changes("2", "3", quick=True)
def environment_variable(value):
    """The program reads an environment variable."""
    with put(os.environ, "STALENESS_SCALE", value):
        yield lambda x: x * int(os.environ["STALENESS_SCALE"])


@changes(None, "3")
def environment_variable_set(value):
    """The program asks whether an environment variable is set."""
    with put(os.environ, "STALENESS_FLAG", value) if value else contextlib.nullcontext():
        yield lambda x: x * (3 if "STALENESS_FLAG" in os.environ else 2)


@changes()
def python_random_seed(seed):
    """The seed of Python's random numbers, one of which the program reads."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield lambda x: x * random.randint(1, 100)
    finally:
        random.setstate(state)


@changes()
def constant_of_numpy(n):
    """A NumPy number that the program computes with."""
    scale = numpy.float32(n)
    return Case(lambda x: x * float(scale), (numbers(3),))


@changes(torch.float32, torch.float64)
def precision_of_finfo(dtype):
    """The dtype whose limits the program reads."""
    return Case(lambda x: x * torch.finfo(dtype).eps * 1e16, (numbers(3),))


@changes(False, True)
def flag_of_mkldnn_read(enabled):
    """The program reads a flag of ``torch.backends``."""
    with torch.backends.mkldnn.flags(enabled=enabled):
        yield Case(lambda x: x * (3 if torch.backends.mkldnn.enabled else 2), (numbers(3),))


# Random numbers


@changes(False, True, shows=COMPILE, requires=("rng", "inductor_code"))
def fallback_random(enabled):
    """Inductor is told to draw eager's random numbers."""
    with torch._inductor.config.patch(fallback_random=enabled):
        yield Case(lambda x: torch.rand_like(x) + x, (numbers(2, 3),), compared=enabled)


@changes(0.2, 0.8, requires=("rng",))
def probability(p):
    """The probability of a dropout."""
    with torch._inductor.config.patch(fallback_random=True):
        yield Case(lambda x: torch.nn.functional.dropout(x, p), (numbers(8, 8),))


@changes(True, False, requires=("rng",))
def training_of_a_dropout(training):
    """A dropout goes into evaluation."""
    with torch._inductor.config.patch(fallback_random=True):
        yield Case(lambda x: torch.nn.functional.dropout(x, 0.5, training) * 2, (numbers(8, 8),))


# Settings of compilers that no result depends on: they are looked for in the counters


def _config_row(module: Any, where: str, name: str, before: Any, after: Any) -> None:
    def make(value: Any) -> Iterator[Case]:
        with module.patch({name: value}):
            yield Case(lambda x: x @ x.t() + 1, (numbers(3, 3, requires_grad=True),))

    make.__doc__ = f"The setting {name} of {where}."
    row = changes(
        before,
        after,
        name=f"{where}_{name.replace('.', '_')}",
        shows=WHOLE if where == "functorch" else COMPILE,
        requires=("inductor_code",),
        quick=name == "max_fusion_size",
    )
    row(make)


INDUCTOR = {
    "max_fusion_size": (64, 8),
    "epilogue_fusion": (True, False),
    "pattern_matcher": (True, False),
    "allow_buffer_reuse": (True, False),
    "inplace_buffers": (True, False),
    "size_asserts": (True, False),
    "nan_asserts": (False, True),
    "emulate_precision_casts": (False, True),
    "cpp.simdlen": (None, 0),
    "cpp.enable_floating_point_contract_flag": ("off", "fast"),
    "cpp.max_horizontal_fusion_size": (16, 1),
    "cpp.dynamic_threads": (False, True),
    "realize_reads_threshold": (4, 1),
    "joint_graph_constant_folding": (True, False),
    "split_cat_fx_passes": (True, False),
    "keep_output_stride": (True, False),
    "implicit_fallbacks": (True, False),
    "reorder_for_locality": (True, False),
    "profiler_mark_wrapper_call": (False, True),
    "comment_origin": (False, True),
}
FUNCTORCH = {
    "cse": (True, False),
    "recompute_views": (False, True),
    "aggressive_recomputation": (False, True),
    "activation_memory_budget": (1.0, 0.5),
    "treat_parameters_as_free_to_save": (True, False),
    "guess_tangent_strides_as_outputs": (False, True),
    "backward_pass_autocast": ("same_as_forward", "off"),
}
for _name, (_before, _after) in INDUCTOR.items():
    if hasattr(torch._inductor.config, _name.partition(".")[0]):
        _config_row(torch._inductor.config, "inductor", _name, _before, _after)
for _name, (_before, _after) in FUNCTORCH.items():
    if hasattr(torch._functorch.config, _name):
        _config_row(torch._functorch.config, "functorch", _name, _before, _after)


def _state_row(name: str, enter: Callable[[Any], Any], before: Any, after: Any) -> None:
    def make(value: Any) -> Iterator[Case]:
        with enter(value):
            yield Case(lambda x: x @ x.t() + 1, (numbers(3, 3, requires_grad=True),))

    make.__doc__ = f"{name.replace('_', ' ').capitalize()}, which code is generated for."
    changes(before, after, name=name, shows=COMPILE, requires=("inductor_code",), quick=name == "number_of_threads")(
        make
    )


@contextlib.contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    """Set the precision of matrix products; PyTorch's setter leaves that of each backend behind."""
    backends = (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul)
    before = [backend.fp32_precision for backend in backends]
    with calling(torch.set_float32_matmul_precision, value, torch.get_float32_matmul_precision()):
        yield
    for backend, precision in zip(backends, before, strict=True):
        backend.fp32_precision = precision


_state_row("number_of_threads", lambda n: calling(torch.set_num_threads, n, torch.get_num_threads()), 1, 2)
_state_row("matmul_precision", matmul_precision, "highest", "medium")
_state_row("determinism", lambda flag: calling(torch.use_deterministic_algorithms, flag, False), False, True)
