"""Does emulation work with the installed torch and triton? A dozen functions, and two broken kernels to be caught.

Run once in a process before the first emulated test: a defect of the emulation must not show as a failure, or worse as
a pass, of what is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
import triton

from pytest_regional._torch.caches import load_source
from pytest_regional._torch.dynamo import reset_dynamo
from pytest_regional.emulation.backend import EmulatedKernel, Emulation, emulated
from pytest_regional.emulation.device import (
    DEFAULT_PROFILE,
    DeviceProfile,
    EmulationError,
    KernelAssertionError,
    MemoryFaultError,
)
from pytest_regional.emulation.launch import launch_inductor_kernel

# Twice what the worst function needs (a variance over LENGTH numbers): enough for any order of summing so few numbers,
# and a hundredth of what computing in half precision would cost.
TOLERANCE = 1e-5
LENGTH = 3000


@dataclass(frozen=True)
class Inputs:
    """What every function gets: a matrix, long rows, a vector, indices into the rows of the matrix."""

    matrix: torch.Tensor
    long: torch.Tensor
    vector: torch.Tensor
    index: torch.Tensor

    def double(self) -> Inputs:
        """Return the same numbers in float64."""
        return Inputs(self.matrix.double(), self.long.double(), self.vector.double(), self.index)


Function: TypeAlias = Callable[[Inputs], torch.Tensor]


def run_self_test(profile: str | DeviceProfile = DEFAULT_PROFILE) -> None:
    """Emulate a dozen functions forward and backward, and kernels that are wrong.

    Raises:
        EmulationError: something came out wrong; names the function, what was expected, and the versions.
        MissingTorchSymbolError: the installed torch or triton lacks something that emulation stands on.
    """
    with emulated(profile) as emulation:
        kernels, launches = len(emulation.kernels), len(emulation.launches)
        inputs = _inputs()
        _check_functions(inputs)
        _check_gradients(inputs)
        _check_assertion(inputs)
        _check_faults(emulation, _one_kernel(emulation, inputs))
        generated, launched = len(emulation.kernels) - kernels, len(emulation.launches) - launches
    if not generated or not launched:
        raise _failure("code generation", f"{generated} Triton kernels and {launched} launches, where some must be")


def _inputs() -> Inputs:
    generator = torch.Generator().manual_seed(1)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator)

    index = torch.tensor([3, -1, 0, 3, 7, 2, 3, 15])
    return Inputs(normal(16, 24), normal(2, LENGTH), normal(24), index)


def _functions() -> Mapping[str, Function]:
    return {
        "pointwise": lambda i: torch.erf(i.matrix).exp() * i.vector.sigmoid() + i.matrix.clamp_min(0),
        "transposition": lambda i: i.matrix.t().contiguous() * 2 + i.vector[:, None],
        "concatenation": lambda i: torch.cat([i.matrix, i.matrix.sin()], 1),
        "reduced precision": lambda i: (i.matrix.bfloat16() * 2).to(i.matrix.dtype),
        "integer division": lambda i: torch.div(i.index * 7 - 20, 3, rounding_mode="floor"),
        "persistent reduction": lambda i: i.matrix.softmax(1),
        "looped reduction": lambda i: i.long.abs().sum(1),
        "Welford": lambda i: torch.stack(torch.var_mean(i.long, 1)),
        "index reduction": lambda i: i.matrix.argmax(1),
        "scan": lambda i: i.vector.cumsum(0),
        "sort": lambda i: i.matrix.sort(dim=1, stable=True)[0],
        "gather": lambda i: i.matrix[i.index] + 1,
        "atomic addition": lambda i: torch.zeros_like(i.matrix).index_put((i.index,), i.matrix[:8], accumulate=True),
        "matrix product": lambda i: (i.matrix @ i.matrix.t()).relu() + 1,
    }


def _check_functions(inputs: Inputs) -> None:
    functions = _functions()
    actual = _called(functions, inputs)
    for name, function in functions.items():
        _compare(name, actual[name], function(inputs), function(inputs.double()))


def _called(functions: Mapping[str, Function], inputs: Inputs) -> dict[str, torch.Tensor]:
    """Compile and call all functions as one graph; where that fails, one by one, to name those that fail."""
    try:
        return _called_at_once(functions, inputs)
    except Exception as error:
        told = []
        for name, function in functions.items():
            try:
                _called_at_once({name: function}, inputs)
            except Exception as failure:  # noqa: BLE001 - told in the message of the failure
                told.append(f"{name} ({type(failure).__name__}: {failure})")
        raise _failure(", ".join(told) or "all functions in one graph", f"{type(error).__name__}: {error}") from error


def _called_at_once(functions: Mapping[str, Function], inputs: Inputs) -> dict[str, torch.Tensor]:
    def everything(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [function(Inputs(*tensors)) for function in functions.values()]

    compiled = _compiled(everything)
    outputs = compiled(inputs.matrix, inputs.long, inputs.vector, inputs.index)
    return dict(zip(functions, outputs, strict=True))


def _compiled(function: Callable[..., Any]) -> Any:
    # What was compiled for another described device must not be found again.
    reset_dynamo()
    return torch.compile(function, backend="inductor", fullgraph=True, dynamic=False)


def _compare(name: str, actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    if not eager.is_floating_point():
        if not actual.equal(eager):
            raise _failure(name, f"{actual.tolist()}, expected {eager.tolist()}")
        return
    error = float((actual.double() - exact.double()).abs().max() / exact.abs().max())
    # A NaN is no number below the tolerance either.
    if actual.dtype != eager.dtype or not error <= (0.01 if name == "reduced precision" else TOLERANCE):
        raise _failure(name, f"{actual.dtype} off by {error:.1e} of the largest value: {actual}, expected {exact}")


def _training_loss(matrix: torch.Tensor, vector: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    hidden = F.gelu(F.layer_norm(matrix, (24,), vector))
    return F.cross_entropy(hidden[index], index.abs()) + hidden.cumsum(0).square().mean()


def _check_gradients(inputs: Inputs) -> None:
    actual = _gradients(_compiled(_training_loss), inputs)
    eager, exact = _gradients(_training_loss, inputs), _gradients(_training_loss, inputs.double())
    for name, values in zip(("matrix", "weight"), zip(actual, eager, exact, strict=True), strict=True):
        _compare(f"gradient of the {name} of a layer norm", *values)


def _gradients(loss: Callable[..., torch.Tensor], inputs: Inputs) -> tuple[torch.Tensor, ...]:
    leaves = [value.clone().requires_grad_() for value in (inputs.matrix, inputs.vector)]
    found: tuple[torch.Tensor, ...] = torch.autograd.grad(loss(*leaves, inputs.index), leaves)
    return found


def _check_assertion(inputs: Inputs) -> None:
    beyond = inputs.index + 16
    try:
        _compiled(lambda matrix, index: matrix[index] * 3)(inputs.matrix, beyond)
    except KernelAssertionError:
        return
    raise _failure("index assertion", "no KernelAssertionError for an index beyond the last row")


# Broken kernels


def _one_kernel(emulation: Emulation, inputs: Inputs) -> EmulatedKernel:
    """Return the kernel of ``sin(x) + 5``, which takes one input, one output and the number of elements."""
    before = len(emulation.kernels)
    _compiled(lambda x: x.sin() + 5)(inputs.long[0])
    if len(emulation.kernels) != before + 1:
        raise _failure("code generation", f"{len(emulation.kernels) - before} kernels for one pointwise function")
    return emulation.kernels[-1]


_FAULTS: Mapping[str, Callable[[str], str]] = {
    "one element too many": lambda source: source.replace("xindex < xnumel", "xindex < xnumel + 1"),
    "missing store": lambda source: "\n".join(line for line in source.splitlines() if "tl.store(" not in line),
    "another constant": lambda source: source.replace("5.0", "5.5"),
}


def _check_faults(emulation: Emulation, kernel: EmulatedKernel) -> None:
    if not _gives_right_values(emulation, kernel.name, kernel.source):
        raise _failure("a kernel launched by itself", "wrong values")
    for name, mutate in _FAULTS.items():
        broken = mutate(kernel.source)
        if broken == kernel.source:
            raise _failure(name, f"the fault cannot be planted into this source:\n{kernel.source}")
        if _gives_right_values(emulation, kernel.name, broken):
            raise _failure(name, "a broken kernel was not noticed")


def _gives_right_values(emulation: Emulation, name: str, source: str) -> bool:
    x = torch.linspace(-1, 1, LENGTH)
    out = emulation.memory.allocate((LENGTH,), (1,), torch.float32)
    try:
        with emulation.device_mock.held():
            tuner = load_source(source, name)
        emulation.note(
            launch_inductor_kernel(tuner, (x, out, LENGTH), {}, memory=emulation.memory, plan=emulation.plan)
        )
    except MemoryFaultError:
        return False
    return bool(torch.allclose(out, x.sin() + 5, rtol=0, atol=1e-5))


def _failure(name: str, got: str) -> EmulationError:
    return EmulationError(
        f"self-test of the emulated GPU: {name}: {got}\nThis combination, torch {torch.__version__} and "
        f"triton {triton.__version__}, cannot be emulated: leave out --regional-device=cuda-emulated, or install "
        f"versions that the documentation names, and report this with the message above"
    )
