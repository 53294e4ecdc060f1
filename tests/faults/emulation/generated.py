"""Generated GPU code with planted faults: what each fault does to the source, and how it must be noticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from pytest_regional.emulation import Emulation, KernelAssertionError, MemoryFaultError
from pytest_regional.emulation.device_rewrite import OperatorsOnCpu

VALUES, MEMORY, ASSERTION, NOTHING = "values", "memory fault", "kernel assertion", "nothing"
Mutation = Callable[[str], str]


@dataclass(frozen=True)
class Program:
    """A function that is compiled once, and its inputs."""

    function: Callable[..., Any]
    inputs: Sequence[torch.Tensor]


@dataclass(frozen=True)
class Fault:
    """A change of the code generated for a program, and what notices it."""

    kind: str
    program: str
    mutate: Mutation
    noticed_by: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.program}".replace(" ", "-").replace(",", "")


def _drawn(*sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(size, generator=generator) for size in sizes)


PROGRAMS = {
    "pointwise": Program(lambda a, b: (a * 2 + b, a.sin()), _drawn((1000,), (1000,))),
    "softmax": Program(lambda a: a.softmax(1), _drawn((5, 100))),
    "rows": Program(lambda a: (a.sum(1), (a - 9).amax(1)), _drawn((3, 3000))),
    "transposed": Program(lambda a, b: a.t() + b, _drawn((40, 50), (50, 40))),
    "scatter": Program(
        lambda a, v, i: a.sin().index_put((i,), v, accumulate=True), (*_drawn((10,), (100,)), torch.arange(100) % 7)
    ),
    "column means": Program(lambda a: a.mean(0) * 2 + 1, _drawn((2000, 40))),
    "gather": Program(lambda a, i: a[i] * 2, (*_drawn((20, 30)), torch.tensor([1, 5, -3]))),
    "gather beyond": Program(lambda a, i: a[i] * 2, (*_drawn((20, 30)), torch.tensor([1, 25, 3]))),
    "products": Program(lambda a, b: (a @ b).relu() @ b + (b @ a).sum(0), _drawn((20, 20), (20, 20))),
    "scan": Program(lambda a: a.cumsum(1), _drawn((4, 100))),
}


def replaced(old: str, new: str, count: int = -1) -> Mutation:
    """Return a mutation that replaces text."""
    return lambda source: source.replace(old, new, count)


def substituted(pattern: str, new: str, count: int = 0) -> Mutation:
    """Return a mutation that replaces what a regular expression matches."""
    return lambda source: re.sub(pattern, new, source, count=count, flags=re.MULTILINE)


def launches_swapped(source: str) -> str:
    """Return ``source`` with the second launch, and what it allocates, before the first."""
    lines = source.split("\n")
    first, second = [index for index, line in enumerate(lines) if re.search(r"^ +triton_\w+\.run\(", line)][:2]
    between = lines[first + 1 : second]
    kept = [line for line in between if not line.strip().startswith("del ")]
    freed = [line for line in between if line.strip().startswith("del ")]
    return "\n".join([*lines[:first], *kept, lines[second], lines[first], *freed, *lines[second + 1 :]])


def launch_repeated(source: str) -> str:
    """Return ``source`` with its last launch twice."""
    lines = source.split("\n")
    last = [index for index, line in enumerate(lines) if re.search(r"^ +triton_\w+\.run\(", line)][-1]
    return "\n".join([*lines[: last + 1], *lines[last:]])


def store_dropped(name: str) -> Mutation:
    """Return a mutation that leaves out the store to the argument ``name``."""
    return substituted(rf"^ +tl\.store\({name} \+ .*\n", "")


NO_STORE_MASK = substituted(r"^( +tl\.store\(.*), \w*mask(?: & \w*mask)?\)$", r"\1, None)")
_LOAD = r"(tl\.load\(\w+ \+ \([^)]*\)), \w*mask(?: & \w*mask)?((?:, eviction\w+='\w+')?)(, other=0.0)?\)"
NO_LOAD_MASK = substituted(_LOAD, r"\1, None\2)")

FAULTS = (
    Fault("mask one short", "pointwise", replaced("xindex < xnumel", "xindex < xnumel - 1"), VALUES),
    Fault("mask one short", "transposed", replaced("yindex < ynumel", "yindex < ynumel - 1"), VALUES),
    Fault("mask one short", "softmax", replaced("r0_index < r0_numel", "r0_index < r0_numel - 1"), VALUES),
    Fault("mask one too long", "pointwise", replaced("xindex < xnumel", "xindex < xnumel + 1"), MEMORY),
    Fault("mask one too long", "scan", replaced("r0_index < r0_numel", "r0_index < r0_numel + 1"), MEMORY),
    Fault("store without mask", "pointwise", NO_STORE_MASK, MEMORY),
    Fault("store without mask", "transposed", NO_STORE_MASK, MEMORY),
    Fault("store without mask", "gather", NO_STORE_MASK, MEMORY),
    Fault("load without mask", "pointwise", NO_LOAD_MASK, MEMORY),
    Fault("load without mask", "softmax", NO_LOAD_MASK, MEMORY),
    Fault("wrong stride", "transposed", replaced("+ 40*x1", "+ 41*x1"), MEMORY),
    Fault("wrong stride", "softmax", replaced("100*x0", "99*x0"), VALUES),
    Fault("wrong stride", "rows", replaced("3000*x0", "2999*x0"), VALUES),
    Fault("wrong stride", "gather", replaced("30*tmp4", "31*tmp4"), VALUES),
    Fault("wrong offset", "pointwise", replaced("tl.load(in_ptr1 + (x0)", "tl.load(in_ptr1 + (x0 + 1)"), MEMORY),
    Fault("missing store", "pointwise", store_dropped("out_ptr1"), VALUES),
    Fault("missing store", "rows", store_dropped("out_ptr0"), VALUES),
    Fault("missing store", "column means", store_dropped("out_ptr0"), MEMORY),
    Fault(
        "wrong start of a reduction", "rows", replaced("R0_BLOCK], 0, tl.float32)", "R0_BLOCK], 1, tl.float32)"), VALUES
    ),
    Fault("wrong start of a reduction", "rows", replaced('float("-inf"), tl.float32)', "0.0, tl.float32)"), VALUES),
    Fault(
        "wrong start of a reduction",
        "softmax",
        substituted(r"(tl\.where\(r0_mask & xmask, \w+), 0\)", r"\1, 0.1)"),
        VALUES,
    ),
    Fault("wrong reduction", "column means", replaced("tl.sum(", "triton_helpers.max2(", 1), VALUES),
    Fault("missing division", "column means", replaced("2000.0", "1.0"), VALUES),
    Fault("wrong constant", "pointwise", replaced("2.0", "2.001"), VALUES),
    Fault("grid too small", "pointwise", replaced("1000, stream", "500, stream"), VALUES),
    Fault("grid too small", "rows", replaced(" 3, 3000, stream", " 2, 3000, stream"), VALUES),
    Fault("grid too small", "column means", replaced(" 640, 125, stream", " 600, 125, stream"), MEMORY),
    Fault(
        "wrong program", "pointwise", replaced("tl.program_id(0) * XBLOCK", "(tl.program_id(0) + 1) * XBLOCK"), VALUES
    ),
    Fault("wrong dtype in the signature", "pointwise", replaced("'in_ptr0': '*fp32'", "'in_ptr0': '*fp16'"), MEMORY),
    Fault("wrong dtype in the signature", "gather", replaced("'in_ptr0': '*i64'", "'in_ptr0': '*i32'"), MEMORY),
    Fault("launches swapped", "column means", launches_swapped, MEMORY),
    Fault("launches swapped", "scatter", launches_swapped, MEMORY),
    Fault("launch repeated", "scatter", launch_repeated, VALUES),
    Fault(
        "buffer used again too early", "products", substituted(r"buf1 = empty_strided_cuda.*", "buf1 = buf0"), VALUES
    ),
    Fault(
        "buffer used again too early", "products", substituted(r"buf4 = empty_strided_cuda.*", "buf4 = buf3"), VALUES
    ),
    Fault(
        "buffer too small",
        "pointwise",
        substituted(r"buf1 = empty_strided_cuda\(\(1000", "buf1 = empty_strided_cuda((999"),
        MEMORY,
    ),
    Fault(
        "store for atomic addition",
        "scatter",
        substituted(r"tl\.atomic_add\((.*), sem='relaxed'\)", r"tl.store(\1)"),
        VALUES,
    ),
    Fault("assertion left out", "gather beyond", substituted(r"^ +tl\.device_assert\(.*\n", ""), MEMORY),
)

UNNOTICED = (
    Fault("other memory order", "scatter", replaced(", sem='relaxed'", ""), NOTHING),
    Fault("other eviction policy", "softmax", replaced("evict_first", "evict_last"), NOTHING),
    Fault("constant off by less than rounding", "pointwise", replaced("2.0", "2.00000001"), NOTHING),
)


@contextmanager
def wrappers_recorded() -> Iterator[list[str]]:
    """Collect the modules that Inductor writes which hold a whole graph."""
    from torch._inductor.codecache import PyCodeCache

    write, sources = PyCodeCache.write.__func__, []

    def recording(cls: Any, source: str, *args: Any, **kwargs: Any) -> Any:
        if "async_compile.wait(globals())" in source:
            sources.append(source)
        return write(cls, source, *args, **kwargs)

    with mock.patch.object(PyCodeCache, "write", classmethod(recording)):
        yield sources


def generated(program: Program) -> str:
    """Return the module that Inductor writes for ``program``, called never."""
    torch._dynamo.reset()
    with wrappers_recorded() as sources, torch._inductor.config.patch(fx_graph_cache=False):
        # Where an assertion fails, the code has been written all the same.
        with suppress(KernelAssertionError):
            torch.compile(program.function, fullgraph=True, dynamic=False)(*program.inputs)
    (source,) = sources
    return source


def outcome(emulation: Emulation, source: str, program: Program) -> str:
    """Run the module ``source`` on the inputs of ``program`` and say what notices that it is wrong, if anything."""
    try:
        outputs = _called(emulation, source, program)
    except MemoryFaultError:
        return MEMORY
    except KernelAssertionError:
        return ASSERTION
    expected = program.function(*(value.double() if value.is_floating_point() else value for value in program.inputs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    pairs = zip(outputs, expected, strict=True)
    return NOTHING if all(torch.allclose(a.double(), b, rtol=1e-5, atol=1e-5) for a, b in pairs) else VALUES


def _called(emulation: Emulation, source: str, program: Program) -> Sequence[torch.Tensor]:
    from torch._inductor.codecache import PyCodeCache

    with emulation.device_mock.held():
        module = PyCodeCache.load(source)
    with OperatorsOnCpu(emulation.memory, emulation.device_mock):
        outputs: Sequence[torch.Tensor] = module.call([value.clone() for value in program.inputs])
    return outputs
