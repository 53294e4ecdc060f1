"""Run one case eagerly, in float64, and compiled; compare values, gradients, mutated inputs and aliases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_regional.harness.parity.precision import float64_everywhere
from pytest_regional.harness.parity.tolerance import Tolerance, judge

from .case import DTYPES, Case

SEED = 7
CLOSE = Tolerance.resolve("close")
# Eager in float64 is itself the reference of a float64 run, so its own error is not known: this many epsilons of it.
FLOAT64_EPSILONS = 64
WIDEST = {torch.complex64: torch.complex128, torch.complex128: torch.complex128}
Compile = Callable[..., Callable[..., Any]]


class MismatchError(AssertionError):
    """A compiled function gave another result than eager."""


@dataclass(frozen=True)
class Result:
    """What one run left: its tensors by name, and which of them share memory with which input."""

    tensors: dict[str, torch.Tensor]
    aliases: frozenset[tuple[str, int]]
    plain: tuple[Any, ...] = ()


def compile_with_inductor(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile ``function`` whole."""
    return torch.compile(function, backend="inductor", fullgraph=True, **options)


def verify(
    case: Case, dtype: str, backward: bool, compile: Compile = compile_with_inductor, device: str = "cpu"
) -> float:
    """Run ``case`` on ``device`` and return its largest error, as a part of the largest reference value.

    Inputs have the same numbers on every device.

    Raises:
        MismatchError: for the first tensor that is further away than its rule allows.
    """
    with settings(case):
        torch._dynamo.reset()
        compiled = compile(case.function, dynamic=case.dynamic)
        draws = [case.inputs, *([case.again] if case.again else [])]
        return max(_verify_call(case, compiled, draw, dtype, backward, device) for draw in draws)


@contextmanager
def settings(case: Case) -> Iterator[None]:
    """Set the configuration that ``case`` asks for."""
    from torch._dynamo import config as dynamo_config
    from torch._inductor import config as inductor_config

    with ExitStack() as stack:
        stack.enter_context(inductor_config.patch(dict(case.configs)))
        stack.enter_context(dynamo_config.patch(**case.dynamo))
        yield


def _verify_call(
    case: Case, compiled: Callable[..., Any], draw: Callable[[], Any], dtype: str, backward: bool, device: str
) -> float:
    torch.manual_seed(SEED)
    inputs = [_moved(_rounded(value, DTYPES[dtype]), device) for value in draw()]
    if case.raises is not None:
        return _must_raise(case.raises, compiled, inputs)
    seeds: dict[str, torch.Tensor] = {}
    actual = run(compiled, inputs, backward, seeds)
    if case.check is not None:
        case.check([value for name, value in actual.tensors.items() if not name.startswith("input")], inputs)
        return 0.0
    eager_function = case.reference or case.function
    eager = run(eager_function, inputs, backward, seeds)
    exact = run_in_float64(eager_function, inputs, backward, seeds) if case.anchored else eager
    if case.reference is None and actual.aliases != eager.aliases:
        raise MismatchError(f"outputs that share memory with inputs: {set(actual.aliases)}, eager {set(eager.aliases)}")
    return _compare(case, dtype, actual, eager, exact)


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _moved(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _must_raise(message: str, compiled: Callable[..., Any], inputs: Sequence[Any]) -> float:
    try:
        compiled(*inputs)
    except Exception as error:
        if message in str(error):
            return 0.0
        raise
    raise MismatchError(f"no error; one that says {message!r} was expected")


def run_in_float64(
    function: Callable[..., Any], inputs: Sequence[Any], backward: bool, seeds: dict[str, torch.Tensor]
) -> Result:
    """Call ``function`` on the same numbers in float64, casts inside it included."""
    with float64_everywhere():
        return run(function, [_widened(value) for value in inputs], backward, seeds)


def run(function: Callable[..., Any], inputs: Sequence[Any], backward: bool, seeds: dict[str, torch.Tensor]) -> Result:
    """Call ``function`` on copies of ``inputs``; return outputs, gradients and the inputs as they are afterwards.

    ``seeds`` are the gradients that go into the backward, by output: the first run draws them, the others use them.
    """
    copies = [_copy(value, backward) for value in inputs]
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(backward):
        outputs = function(*copies)
    leaves = torch.utils._pytree.tree_leaves(outputs)
    named = {f"output {i}": leaf for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
    aliases = frozenset(_aliases(named, copies))
    tensors = {name: leaf.detach().clone() for name, leaf in named.items()}
    if backward:
        tensors.update(_gradients(named, copies, seeds))
    else:
        tensors.update({f"input {i}": value for i, value in enumerate(copies) if isinstance(value, torch.Tensor)})
    return Result(tensors, aliases)


def _copy(value: Any, backward: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(backward and value.is_floating_point())


def _aliases(named: dict[str, torch.Tensor], copies: Sequence[Any]) -> Iterator[tuple[str, int]]:
    for name, tensor in named.items():
        for index, value in enumerate(copies):
            if isinstance(value, torch.Tensor) and _share_memory(tensor, value):
                yield name, index


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    address = one.untyped_storage().data_ptr()
    return address != 0 and address == other.untyped_storage().data_ptr()


def _gradients(
    outputs: dict[str, torch.Tensor], copies: Sequence[Any], seeds: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    differentiable = {name: tensor for name, tensor in outputs.items() if tensor.requires_grad}
    generator = torch.Generator("cpu").manual_seed(SEED + 1)
    for name, t in differentiable.items():
        if name not in seeds:
            drawn = torch.randn(t.shape, generator=generator, dtype=torch.float32, device="cpu")
            seeds[name] = drawn.to(t.device, t.dtype)
    torch.autograd.backward(list(differentiable.values()), [seeds[n].to(t.dtype) for n, t in differentiable.items()])
    return {f"gradient {i}": v.grad for i, v in enumerate(copies) if isinstance(v, torch.Tensor) and v.grad is not None}


def _compare(case: Case, dtype: str, actual: Result, eager: Result, exact: Result) -> float:
    if actual.tensors.keys() != eager.tensors.keys():
        raise MismatchError(f"there are {sorted(actual.tensors)}; eager gives {sorted(eager.tensors)}")
    errors = [0.0]
    for name, expected in eager.tensors.items():
        _compare_kind(name, actual.tensors[name], expected)
        if expected.is_complex() or (expected.is_floating_point() and expected.dtype.itemsize > 1):
            errors.append(_compare_floats(case, dtype, name, actual.tensors[name], expected, exact.tensors[name]))
        else:
            _compare_exactly(name, actual.tensors[name], expected)
    return max(errors)


def _compare_kind(name: str, got: torch.Tensor, eager: torch.Tensor) -> None:
    for attribute in ("shape", "dtype", "device"):
        if getattr(got, attribute) != getattr(eager, attribute):
            raise MismatchError(f"{name}: {attribute} {getattr(got, attribute)}, eager {getattr(eager, attribute)}")


def _compare_floats(
    case: Case, dtype: str, name: str, got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor
) -> float:
    judgement = judge(CLOSE, got, eager, exact if case.anchored else None)
    error = min(_relative_error(got, exact), _relative_error(got, eager))
    if any(found.kind == "nan" for found in judgement.evidence):
        raise MismatchError(f"{name}: {judgement.evidence[0]}")
    allowed = _allowance(case, eager.dtype)
    by_size = error <= allowed
    acceptable = by_size if dtype == "f64" else judgement.ratio <= 1 or (by_size and case.terms > 1)
    if not acceptable:
        worst = judgement.evidence[0] if judgement.evidence else None
        raise MismatchError(f"{name}: relative error {error:.2e}, allowed by size {allowed:.2e}; {worst}")
    return error


def _compare_exactly(name: str, got: torch.Tensor, eager: torch.Tensor) -> None:
    if eager.is_floating_point():
        got, eager = got.view(torch.uint8), eager.view(torch.uint8)
    differs = got != eager
    if bool(differs.any()):
        place = differs.nonzero()[0].tolist()
        values = got[tuple(place)].item(), eager[tuple(place)].item()
        raise MismatchError(f"{name}: {int(differs.sum())} of {differs.numel()} differ, first at {place}: {values}")


def _relative_error(got: torch.Tensor, exact: torch.Tensor) -> float:
    finite = got.isfinite() & exact.isfinite()
    if not bool(finite.any()):
        return 0.0
    reference = exact[finite].to(WIDEST.get(exact.dtype, torch.float64))
    largest = reference.abs().max().item()
    return float((got[finite].to(reference.dtype) - reference).abs().max().item() / (largest or 1.0))


def _allowance(case: Case, dtype: torch.dtype) -> float:
    """Return what an order of summing of its own may cost: epsilons that grow with the square root of the terms."""
    factor = FLOAT64_EPSILONS if dtype == torch.float64 else 1.0
    return float(factor * torch.finfo(dtype).eps * case.terms**0.5)


def in_eager(case: Case) -> Case:
    """Return ``case`` as eager can run it: with its reference as the function."""
    return replace(case, function=case.reference, reference=None) if case.reference else case
