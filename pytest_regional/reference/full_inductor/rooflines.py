"""``compare_rooflines``: a model's cost eager, as a graph, with compiled regions, and compiled as a whole.

Whole-graph Inductor is the target for the other pipelines. All are measured in one process, alternating by step, so
that disturbances affect all of them.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pytest_regional._text import unknown_name
from pytest_regional._torch.codegen import recording_launches, recording_own_draws
from pytest_regional._torch.config import inductor_config
from pytest_regional._torch.patching import patched_stages
from pytest_regional._torch.pytree import flatten_with_path, key_string, map_leaves

if TYPE_CHECKING:
    from pytest_regional.reference.pipeline import JointGraph

EAGER = "eager"
_COLUMNS = ("", "median ms", "spread", "of eager", "compile s", "compiles", "launches", "peak MiB", "worst error")

_DRAWS = (
    "draws: Inductor uses its own random numbers, so results differ from eager's; with "
    "torch._inductor.config.patch(fallback_random=True) they can be compared"
)

Results = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Roofline:
    """One way to run the model.

    Attributes:
        name: the pipeline; ``eager`` is the model itself.
        seconds: of each measured step, forward and backward.
        compile_seconds: passes and code generation, without capture, which all share.
        compiles: how many graphs Inductor generated code for.
        launches: how many kernels and library calls that code contains.
        peak_bytes: the peak memory of a step, above the memory in use before; None without a GPU.
        worst_error: the largest difference from eager, relative to the largest element of all values of its kind
            (outputs, gradients, buffers). NaN if its random numbers differ from eager's.
        worst_result: the name of that result or gradient.
        has_own_draws: whether Inductor uses its own random numbers, so that results cannot be compared.
    """

    name: str
    seconds: tuple[float, ...]
    compile_seconds: float = 0.0
    compiles: int = 0
    launches: int = 0
    peak_bytes: int | None = None
    worst_error: float = 0.0
    worst_result: str = ""
    has_own_draws: bool = False

    @property
    def median(self) -> float:
        """The median of the measured steps, in seconds."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the interquartile range, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median


@dataclass(frozen=True)
class Rooflines(Mapping[str, Roofline]):
    """The measurements by name, eager first; ``str()`` is a table."""

    rows: tuple[Roofline, ...]
    device: str

    def __getitem__(self, name: str) -> Roofline:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(unknown_name("pipeline", name, self))

    def __iter__(self) -> Iterator[str]:
        return (row.name for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def speed(self, name: str) -> float:
        """Return how many steps a pipeline runs in the time of one eager step."""
        return self[EAGER].median / self[name].median

    def __str__(self) -> str:
        table = [_COLUMNS, *(self._cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(_aligned(cells, widths)).rstrip() for cells in table]
        notes = [_DRAWS] if any(row.has_own_draws for row in self.rows) else []
        return "\n".join((f"forward and backward on {self.device}, {len(self.rows[0].seconds)} steps", *lines, *notes))

    def _cells(self, row: Roofline) -> tuple[str, ...]:
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.1f}"
        timed = f"{row.median * 1e3:.3f}", f"{row.spread:.0%}", f"{self.speed(row.name):.2f}x"
        if row.name == EAGER:
            return row.name, *timed, "-", "-", "-", peak, "-"
        error = "draws" if row.has_own_draws else f"{row.worst_error:.1e} {row.worst_result}".rstrip()
        return row.name, *timed, f"{row.compile_seconds:.1f}", str(row.compiles), str(row.launches), peak, error


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    last = len(cells) - 1
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        yield cell.ljust(width) if number in (0, last) else cell.rjust(width)


def compare_rooflines(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    pipelines: Mapping[str, Sequence[Any]] | None = None,
    repeats: int = 20,
    warmup: int = 3,
    seed: int = 0,
) -> Rooflines:
    """Measure ``model`` eagerly and with pipelines: forward, and backward if it has one.

    Parameters, buffers, gradients and random state are restored afterwards. If Inductor draws random numbers, they are
    its own and no error is reported, unless ``fallback_random`` is set around the call.

    Args:
        model: A module or function of tensors.
        args: Its arguments.
        kwargs: Its keyword arguments.
        pipelines: Names to lists of passes, measured in addition to (or, by name, instead of) ``graph``, which has no
            passes, ``regional_inductor`` and ``full_inductor``.
        repeats: Number of measured steps for each.
        warmup: Number of steps for each before that.
        seed: For the random numbers in each step.

    Raises:
        ValueError: nothing to measure.
        CaptureError: the model cannot be captured as one graph.
        PipelineError: a pipeline cannot compile it.
    """
    from pytest_regional.reference.pipeline import capture

    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats={repeats} and warmup={warmup}: measure at least one step, after none or more.")
    joint = capture(model, args, kwargs)
    with _as_before(joint.model), torch.random.fork_rng():
        contenders = [_Contender(EAGER, joint.model)]
        for name, passes in {**_default_pipelines(), **(pipelines or {})}.items():
            contenders.append(_compiled(name, joint, passes))
        step = _Step(joint.model, args, dict(kwargs or {}), seed)
        expected = step.results(contenders[0].call)
        for contender in contenders:
            contender.judge(step, expected)
        _measure(contenders, step, warmup, repeats)
    return Rooflines(tuple(contender.row() for contender in contenders), _device_of(joint.model, args))


def _default_pipelines() -> dict[str, Sequence[Any]]:
    from pytest_regional.reference.full_inductor.compiling import FullInductor
    from pytest_regional.reference.regional_inductor import RegionalInductor

    return {"graph": (), "regional_inductor": (RegionalInductor(),), "full_inductor": (FullInductor(),)}


@dataclass
class _Contender:
    name: str
    call: Callable[..., Any]
    compile_seconds: float = 0.0
    compiles: int = 0
    launches: int = 0
    peak_bytes: int | None = None
    has_own_draws: bool = False
    worst: tuple[float, str] = (0.0, "")
    seconds: list[float] = field(default_factory=list)

    def judge(self, step: _Step, expected: Results) -> None:
        found = step.results(self.call)
        self.worst = (math.nan, "") if self.has_own_draws else max(_errors(found, expected), default=(0.0, ""))
        self.peak_bytes = step.peak_bytes(self.call)

    def row(self) -> Roofline:
        error, name = self.worst
        return Roofline(
            self.name,
            tuple(self.seconds),
            self.compile_seconds,
            self.compiles,
            self.launches,
            self.peak_bytes,
            error,
            name if error else "",
            self.has_own_draws,
        )


def _compiled(name: str, joint: JointGraph, passes: Sequence[Any]) -> _Contender:
    """Compile without PyTorch's caches of generated code, so that there is something to time and count."""
    from pytest_regional.reference.pipeline import compile

    generated: list[str] = []

    def count(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        generated.append(name)
        return original(*args, **kwargs)

    with inductor_config().patch(force_disable_caches=True), patched_stages({"codegen": count}):
        with recording_launches() as launches, recording_own_draws() as draws:
            start = time.perf_counter()
            call = compile(joint, passes=passes)
        seconds = time.perf_counter() - start
    return _Contender(name, call, seconds, len(generated), len(launches), has_own_draws=bool(draws))


@dataclass
class _Step:
    """One forward and backward, always from the same state."""

    model: torch.nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    seed: int
    _buffers: dict[str, torch.Tensor] = field(init=False)
    _tangents: list[torch.Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._buffers = {name: buffer.detach().clone() for name, buffer in self.model.named_buffers()}

    def run(self, call: Callable[..., Any]) -> tuple[float, Any, Any]:
        """Return seconds, inputs and outputs."""
        inputs = map_leaves(_fresh, (tuple(self.args), dict(self.kwargs)))
        self._start_again()
        _synchronize()
        start = time.perf_counter()
        outputs = call(*inputs[0], **inputs[1])
        self._backward(outputs)
        _synchronize()
        return time.perf_counter() - start, inputs, outputs

    def results(self, call: Callable[..., Any]) -> Results:
        """Return outputs, gradients and buffers by name."""
        _, inputs, outputs = self.run(call)
        found = {f"output {name}": leaf for name, leaf in _tensors(outputs)}
        found |= {f"gradient of input {name}": leaf.grad for name, leaf in _tensors(inputs)}
        found |= {f"gradient of {name}": parameter.grad for name, parameter in self.model.named_parameters()}
        found |= {f"buffer {name}": buffer for name, buffer in self.model.named_buffers()}
        return {name: value.detach().clone() for name, value in found.items() if value is not None}

    def peak_bytes(self, call: Callable[..., Any]) -> int | None:
        if not torch.cuda.is_available():
            return None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.run(call)
        return int(torch.cuda.max_memory_allocated() - before)

    def _backward(self, outputs: Any) -> None:
        differentiable = [leaf for _, leaf in _tensors(outputs) if leaf.requires_grad]
        self._tangents = self._tangents or [_tangent(leaf.detach()) for leaf in differentiable]
        if differentiable:
            torch.autograd.backward(differentiable, self._tangents)

    def _start_again(self) -> None:
        torch.manual_seed(self.seed)
        for parameter in self.model.parameters():
            parameter.grad = None
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self._buffers[name])


def _measure(contenders: Sequence[_Contender], step: _Step, warmup: int, repeats: int) -> None:
    for number in range(warmup + repeats):
        for contender in contenders:
            seconds, _, _ = step.run(contender.call)
            if number >= warmup:
                contender.seconds.append(seconds)


def _fresh(leaf: Any) -> Any:
    return leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf


def _tensors(tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    leaves, _ = flatten_with_path(tree)
    return ((key_string(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor))


def _tangent(output: torch.Tensor) -> torch.Tensor:
    """Return numbers of different sizes: sums of equal ones would cancel after a normalisation."""
    return torch.arange(1, output.numel() + 1).cos().view(output.shape).to(output.device, output.dtype)


def _errors(found: Results, expected: Results) -> Iterator[tuple[float, str]]:
    """Yield the error of each result: infinite if it is missing, or has NaNs elsewhere."""
    scales: dict[str, float] = {}
    for name, value in expected.items():
        kind = name.split()[0]
        scales[kind] = max(scales.get(kind, 0.0), _largest(value))
    for name, value in expected.items():
        difference = _difference(found[name], value) if name in found else math.inf
        yield difference / (scales[name.split()[0]] or 1.0), name


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    wide = torch.complex128 if expected.is_complex() else torch.float64
    found, expected = found.to(wide), expected.to(wide)
    if found.shape != expected.shape or not torch.equal(found.isnan(), expected.isnan()):
        return math.inf
    return _largest(found - expected)


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().nan_to_num(0.0).max()) if values.numel() else 0.0


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _device_of(model: torch.nn.Module, args: Sequence[Any]) -> str:
    tensors = [*model.parameters(), *(leaf for _, leaf in _tensors(tuple(args)))]
    device = tensors[0].device.type if tensors else "cpu"
    return torch.cuda.get_device_name() if device == "cuda" else device


@contextlib.contextmanager
def _as_before(model: torch.nn.Module) -> Iterator[None]:
    """Restore gradients and buffers."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
