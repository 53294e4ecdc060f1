"""Generated GPU code with planted faults that break it for some of the sizes that its guards allow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch

from pytest_regional.emulation import Emulation, GeneratedGraph, KernelAssertionError, MemoryFaultError
from pytest_regional.emulation.device_rewrite import OperatorsOnCpu
from pytest_regional.verify import Verified, verify_graph
from pytest_regional.verify.outcomes import BUFFERS, COVERAGE, MEMORY, RACES
from pytest_regional.verify.wrappers import graph_of
from tests.faults.emulation.generated import (
    NO_LOAD_MASK,
    NO_STORE_MASK,
    Mutation,
    Program,
    replaced,
    store_dropped,
    substituted,
    wrappers_recorded,
)
from tests.faults.emulation.generated import PROGRAMS as SMALL_PROGRAMS

PROVABLE = (MEMORY, RACES, COVERAGE)

_GENERATED_BY = "2.13."

STATIC, DYNAMIC, HUGE = "static", "dynamic", "huge"
"""How a program is compiled: for its sizes, for all that 32 bits can index, for all that 64 bits can."""


@dataclass(frozen=True)
class PlantedFault:
    """A change of the code generated for a program.

    Attributes:
        kind: what sort of fault it is.
        name: what is wrong, of all with this kind and program.
        program: its name in PROGRAMS.
        sizes: STATIC, DYNAMIC or HUGE.
        mutate: plants it.
        property: what it breaks: one of PROVABLE, or BUFFERS.
        hidden: whether a run with the program's inputs computes what eager does and touches nothing that it may not.
        slow: whether the tests leave it to ``tests.faults.verify``.
    """

    kind: str
    name: str
    program: str
    sizes: str
    mutate: Mutation
    property: str
    hidden: bool = False
    slow: bool = False

    def __str__(self) -> str:
        return f"{self.kind}, {self.name}, {self.program}, {self.sizes}".replace(" ", "-").replace(",", "")


def _drawn(*sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(size, generator=generator) for size in sizes)


def _channels_last() -> Sequence[torch.Tensor]:
    image, other = _drawn((2, 8, 4, 4), (2, 8, 4, 4))
    return image.to(memory_format=torch.channels_last), other


_GATHERED = torch.arange(16) % 7


def _first(values: torch.Tensor, number: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    count = number.item()
    torch._check(count >= 0)
    torch._check(count <= values.shape[0])
    return values[:count] * other


def _updated(values: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values.add_(others)
    return (others * 2,)


def _only_updated(values: torch.Tensor, others: torch.Tensor) -> tuple[torch.Tensor, ...]:
    values.mul_(others)
    return ()


_APART = {"square"}
"""Programs whose axes have sizes of their own, though the lengths are equal: what takes one for the other is hidden."""

# Sizes are multiples of every block, where not said otherwise: what is wrong with a tail does not show.
PROGRAMS: dict[str, Program] = {
    **{name: SMALL_PROGRAMS[name] for name in ("pointwise", "transposed", "scatter", "column means", "products")},
    "even": Program(lambda a, b: (a * 2 + b, a.sin()), _drawn((1024,), (1024,))),
    "updated": Program(_updated, _drawn((1024,), (1024,))),
    "only updated": Program(_only_updated, _drawn((1024,), (1024,))),
    "bytes": Program(lambda a: a + 1, (torch.arange(1000).to(torch.uint8),)),
    "square": Program(lambda a, b: a.t() + b, _drawn((64, 64), (64, 64))),
    "softmax": Program(lambda a: a.softmax(1), _drawn((16, 256))),
    "sums": Program(lambda a: a.sum(1), _drawn((16, 4096))),
    "scan": Program(lambda a: a.cumsum(1), _drawn((16, 256))),
    "gather": Program(lambda a, i: a[i] * 2, (*_drawn((20, 32)), _GATHERED)),
    "unique scatter": Program(
        lambda a, v, i: a.sin().index_put((i,), v, accumulate=True),
        (*_drawn((128,), (64,)), torch.arange(127, 0, -2)),
    ),
    "two axes": Program(lambda a: a.sum((0, 2)), _drawn((8, 32, 64))),
    "cat": Program(lambda a, b: torch.cat([a * 2, b + 1]), _drawn((24, 32), (8, 32))),
    "cat columns": Program(lambda a, b: torch.cat([a, b], 1), _drawn((8, 24), (8, 8))),
    "pieces": Program(lambda a, b: torch.cat([a @ b, (b @ a).sin()], 1), _drawn((16, 16), (16, 16))),
    "half of a product": Program(lambda a, b: torch.mm(a, b)[8:].sin() + 1, _drawn((16, 16), (16, 16))),
    "channels last": Program(lambda a, b: (a * 2 + b).contiguous(), _channels_last()),
    "every second": Program(lambda a: a * 2, (_drawn((16, 64))[0][:, ::2],)),
    "outer": Program(lambda a, b: a[:, None] * b, _drawn((16,), (64,))),
    "pad": Program(lambda a: torch.nn.functional.pad(a, (1, 3)), _drawn((16, 28))),
    "roll": Program(lambda a: a.roll(1, 0), _drawn((64, 16))),
    "layer norm": Program(lambda a: torch.nn.functional.layer_norm(a, (64,)), _drawn((16, 64))),
    "total": Program(lambda a: a.sum(), _drawn((400, 512))),
    "largest": Program(lambda a: (a.argmax(1), *a.min(0)), _drawn((16, 24))),
    "nonzero": Program(lambda a: a.nonzero() * 2 + 1, _drawn((16, 4))),
    "first": Program(_first, (*_drawn((64,)), torch.tensor(7), torch.tensor(3))),
    "two stages": Program(lambda a: (a.softmax(1) @ a.t()).sum(0), _drawn((16, 16))),
}

_NO_ASSERTION = substituted(r"^ +tl\.device_assert\(.*\n", "")


def _assertion_after(access: str) -> Mutation:
    """Return a mutation that moves the assertion to the line after the first that holds ``access``."""
    return substituted(rf"^( +tl\.device_assert\(.*\n)((?:.*\n)*?.*{re.escape(access)}.*\n)", r"\2\1", 1)


def _launch_dropped(number: int) -> Mutation:
    """Return a mutation that leaves out a launch."""

    def mutate(source: str) -> str:
        lines = source.split("\n")
        del lines[[at for at, line in enumerate(lines) if re.search(r"^ +triton_\w+\.run\(", line)][number]]
        return "\n".join(lines)

    return mutate


def _both(*mutations: Mutation) -> Mutation:
    def mutate(source: str) -> str:
        for mutation in mutations:
            changed = mutation(source)
            if changed == source:
                return changed
            source = changed
        return source

    return mutate


def _argument_of_launch(number: int, new: str) -> Mutation:
    """Return a mutation that changes an argument of the first launch; ``new`` may hold ``{}``, what it was."""

    def mutate(source: str) -> str:
        found = re.search(r"^ +triton_\w+\.run\((.*), stream=", source, re.MULTILINE)
        assert found is not None
        arguments = found[1].split(", ")
        arguments[number] = new.format(arguments[number])
        return source[: found.start(1)] + ", ".join(arguments) + source[found.end(1) :]

    return mutate


_BUFFER = r"(empty_strided_cuda\(\()([^,]+)(, .*)$"
_PROGRAM = "tl.program_id(0)"
_XOFFSET_HUGE = "tl.program_id(0).to(tl.int64) * XBLOCK"

FAULTS: tuple[PlantedFault, ...] = (
    # Masks
    PlantedFault(
        "off-by-one mask", "one long", "pointwise", DYNAMIC, replaced("xindex < xnumel", "xindex < xnumel + 1"), MEMORY
    ),
    PlantedFault(
        "off-by-one mask", "one long", "pointwise", STATIC, replaced("xindex < xnumel", "xindex <= xnumel"), MEMORY
    ),
    PlantedFault(
        "off-by-one mask", "one long", "even", DYNAMIC, replaced("xindex < xnumel", "xindex <= xnumel"), MEMORY, True
    ),
    PlantedFault(
        "off-by-one mask",
        "one short",
        "pointwise",
        DYNAMIC,
        replaced("xindex < xnumel", "xindex < xnumel - 1"),
        COVERAGE,
    ),
    PlantedFault(
        "off-by-one mask",
        "the first left out",
        "pointwise",
        STATIC,
        replaced("xindex < xnumel", "(xindex < xnumel) & (xindex > 0)"),
        COVERAGE,
    ),
    PlantedFault(
        "off-by-one mask",
        "one long along y",
        "transposed",
        DYNAMIC,
        replaced("yindex < ynumel", "yindex <= ynumel"),
        MEMORY,
    ),
    PlantedFault(
        "off-by-one mask",
        "one long in a loop",
        "softmax",
        DYNAMIC,
        replaced("r0_index < r0_numel", "r0_index <= r0_numel"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "off-by-one mask",
        "one short in a loop that stores",
        "scan",
        DYNAMIC,
        replaced("r0_index < r0_numel", "r0_index < r0_numel - 1"),
        COVERAGE,
    ),
    PlantedFault(
        "off-by-one mask",
        "one too far to the left",
        "pad",
        DYNAMIC,
        replaced("tmp0 >= tmp1", "tmp0 >= tmp1 - 1"),
        MEMORY,
    ),
    PlantedFault("missing mask", "of a store", "pointwise", DYNAMIC, NO_STORE_MASK, MEMORY),
    PlantedFault("missing mask", "of a store", "even", DYNAMIC, NO_STORE_MASK, MEMORY, True),
    PlantedFault("missing mask", "of a load", "even", DYNAMIC, NO_LOAD_MASK, MEMORY, True),
    PlantedFault("missing mask", "of a store", "square", DYNAMIC, NO_STORE_MASK, MEMORY, True),
    PlantedFault("missing mask", "of a load", "square", DYNAMIC, NO_LOAD_MASK, MEMORY, True),
    PlantedFault("missing mask", "of a load in a loop", "sums", DYNAMIC, NO_LOAD_MASK, MEMORY, True),
    PlantedFault("missing mask", "of rows", "layer norm", DYNAMIC, NO_LOAD_MASK, MEMORY, True),
    PlantedFault("missing mask", "of a store in a loop", "softmax", DYNAMIC, NO_STORE_MASK, MEMORY, True),
    PlantedFault(
        "mask rounded up",
        "to blocks",
        "even",
        DYNAMIC,
        replaced("xindex < xnumel", "xindex < (xnumel + 31) // 32 * 32"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "mask rounded down",
        "to pairs",
        "even",
        DYNAMIC,
        replaced("xindex < xnumel", "xindex < xnumel // 2 * 2"),
        COVERAGE,
        True,
    ),
    PlantedFault(
        "mask of the other axis",
        "y for x",
        "square",
        DYNAMIC,
        replaced("xindex < xnumel", "xindex < ynumel"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "mask of the other part",
        "first part",
        "cat",
        DYNAMIC,
        substituted(r"(tl\.load\(in_ptr0 .*), tmp\d+ & xmask", r"\1, xmask"),
        MEMORY,
    ),
    PlantedFault(
        "mask of the other part",
        "second part",
        "cat columns",
        STATIC,
        substituted(r"(tl\.load\(in_ptr1 .*), tmp\d+ & xmask", r"\1, xmask"),
        MEMORY,
    ),
    # Strides and axes
    PlantedFault("wrong stride", "of the other axis", "square", DYNAMIC, replaced("ks0*y0", "ks1*y0"), MEMORY, True),
    PlantedFault("wrong stride", "one more", "softmax", DYNAMIC, replaced("ks0*x0", "(ks0 + 1)*x0"), MEMORY),
    PlantedFault("wrong stride", "one more", "transposed", STATIC, replaced("+ 40*x1", "+ 41*x1"), MEMORY),
    PlantedFault(
        "wrong stride",
        "one less where it stores",
        "transposed",
        STATIC,
        substituted(r"(tl\.store\(out_ptr0 \+ \(x1 \+ )50\*y0", r"\g<1>49*y0"),
        RACES,
    ),
    PlantedFault(
        "wrong stride",
        "one less where it stores",
        "softmax",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr2 \+ \(r0_1 \+ )ks0\*x0", r"\1(ks0 - 1)*x0"),
        RACES,
    ),
    PlantedFault(
        "wrong stride", "of a tensor with gaps", "every second", DYNAMIC, replaced("ks0*x0", "(ks0 + 1)*x0"), MEMORY
    ),
    PlantedFault("wrong stride", "of channels", "channels last", STATIC, replaced("8*x2", "9*x2"), MEMORY),
    PlantedFault(
        "wrong stride", "of a middle axis", "two axes", DYNAMIC, replaced("ks0*ks1*r0_2", "ks0*ks0*r0_2"), MEMORY
    ),
    PlantedFault("size baked in", "of a row", "softmax", DYNAMIC, replaced("ks0*x0", "256*x0"), MEMORY, True),
    PlantedFault("size baked in", "of a column", "square", DYNAMIC, replaced("ks0*y0", "64*y0"), MEMORY, True),
    PlantedFault("size baked in", "of a quotient", "outer", DYNAMIC, replaced("// ks0", "// 64"), MEMORY, True),
    PlantedFault("size baked in", "of a remainder", "outer", DYNAMIC, replaced("% ks0", "% 64"), MEMORY, True),
    PlantedFault(
        "size baked in", "of a mask", "even", DYNAMIC, replaced("xindex < xnumel", "xindex < 1024"), MEMORY, True
    ),
    PlantedFault("size baked in", "of a launch", "even", DYNAMIC, _argument_of_launch(4, "1024"), MEMORY, True),
    PlantedFault(
        "swapped axes",
        "of a load",
        "transposed",
        DYNAMIC,
        replaced("x1 + ks0*y0), xmask", "y0 + ks0*x1), xmask", 1),
        MEMORY,
    ),
    PlantedFault(
        "swapped axes",
        "of a store",
        "transposed",
        STATIC,
        replaced("out_ptr0 + (x1 + 50*y0)", "out_ptr0 + (y0 + 50*x1)"),
        MEMORY,
    ),
    PlantedFault(
        "swapped axes",
        "of a launch",
        "square",
        DYNAMIC,
        _both(
            _argument_of_launch(5, "{}+0"),
            substituted(r"buf0, (s\d+), (s\d+), (s\d+)\+0, (s\d+), stream", r"buf0, \2, \1, \3, \4, stream"),
        ),
        MEMORY,
        True,
    ),
    PlantedFault(
        "swapped axes",
        "of a reduction",
        "two axes",
        DYNAMIC,
        _both(
            replaced("r0_1 = (r0_index % ks0)", "r0_1 = (r0_index // ks0)"),
            replaced("r0_2 = r0_index // ks0", "r0_2 = (r0_index % ks0)"),
        ),
        MEMORY,
    ),
    # 32 and 64 bits
    PlantedFault(
        "index overflow",
        "not widened",
        "even",
        HUGE,
        replaced(_XOFFSET_HUGE, "tl.program_id(0) * XBLOCK"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "index overflow",
        "widened after the product",
        "even",
        HUGE,
        replaced(_XOFFSET_HUGE, "(tl.program_id(0) * XBLOCK).to(tl.int64)"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "index overflow", "narrowed", "even", HUGE, replaced("x0 = xindex", "x0 = xindex.to(tl.int32)"), MEMORY, True
    ),
    PlantedFault(
        "index overflow", "narrowed", "softmax", HUGE, replaced("x0 = xindex", "x0 = xindex.to(tl.int32)"), MEMORY, True
    ),
    PlantedFault(
        "index overflow",
        "not widened in blocks of 8",
        "layer norm",
        HUGE,
        replaced(_XOFFSET_HUGE, "tl.program_id(0) * XBLOCK"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "index overflow",
        "size of 32 bits in the signature",
        "even",
        HUGE,
        replaced("'xnumel': 'i64'", "'xnumel': 'i32'"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "index overflow",
        "stride of 32 bits in the signature",
        "softmax",
        HUGE,
        replaced("'ks0': 'i64'", "'ks0': 'i32'"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "index overflow",
        "product of 32 bits",
        "gather",
        HUGE,
        replaced("ks0*tmp4", "(ks0*tmp4).to(tl.int32)"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "index overflow",
        "product of 32 bits",
        "softmax",
        HUGE,
        replaced("ks0*x0", "(ks0*x0).to(tl.int32)"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "index overflow",
        "on the way to a small index",
        "even",
        DYNAMIC,
        replaced("in_ptr1 + (x0)", "in_ptr1 + (x0 * 4 // 4)"),
        MEMORY,
        True,
    ),
    # Writes
    PlantedFault("lost write", "of two stores", "pointwise", DYNAMIC, store_dropped("out_ptr1"), BUFFERS),
    PlantedFault("lost write", "to an input", "updated", DYNAMIC, store_dropped("out_ptr2"), BUFFERS),
    PlantedFault("lost write", "to the only input", "only updated", STATIC, store_dropped("out_ptr1"), BUFFERS),
    PlantedFault(
        "lost write",
        "every second, to an input",
        "updated",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr2 .*), xmask\)", r"\1, xmask & (x0 % 2 == 0))"),
        COVERAGE,
    ),
    PlantedFault("lost launch", "the only one", "even", DYNAMIC, _launch_dropped(0), BUFFERS),
    PlantedFault("lost launch", "the only one, of an update", "only updated", DYNAMIC, _launch_dropped(0), BUFFERS),
    PlantedFault(
        "lost write",
        "every second",
        "even",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr0 .*), xmask\)", r"\1, xmask & (x0 % 2 == 0))"),
        COVERAGE,
    ),
    PlantedFault(
        "lost write",
        "beyond a limit",
        "even",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr0 .*), xmask\)", r"\1, xmask & (x0 < 5000))"),
        COVERAGE,
        True,
    ),
    PlantedFault(
        "lost write",
        "beyond a limit",
        "layer norm",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr2 .*), xmask\)", r"\1, xmask & (x0 < 999))"),
        COVERAGE,
        True,
    ),
    PlantedFault(
        "lost write",
        "last round of a loop",
        "scan",
        DYNAMIC,
        replaced("tl.range(0, r0_numel, R0_BLOCK)", "tl.range(0, r0_numel // 16 * 16, R0_BLOCK)"),
        COVERAGE,
        True,
    ),
    PlantedFault(
        "lost write",
        "every second round of a loop",
        "scan",
        DYNAMIC,
        replaced("tl.range(0, r0_numel, R0_BLOCK)", "tl.range(0, r0_numel, 2 * R0_BLOCK)"),
        COVERAGE,
        True,
        slow=True,
    ),
    PlantedFault(
        "doubled write",
        "each element twice",
        "even",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr0 \+ )\(x0\)", r"\1(x0 // 2)"),
        RACES,
    ),
    PlantedFault(
        "doubled write",
        "two tensors in one",
        "even",
        DYNAMIC,
        replaced("tl.store(out_ptr1", "tl.store(out_ptr0 + 1"),
        MEMORY,
    ),
    PlantedFault(
        "doubled write",
        "wrapped around",
        "even",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr0 \+ )\(x0\)", r"\1(x0 % 4096)"),
        RACES,
        True,
    ),
    PlantedFault(
        "wrong place",
        "turned round",
        "even",
        DYNAMIC,
        substituted(r"(tl\.store\(out_ptr0 \+ )\(x0\)", r"\1(xnumel - x0)"),
        MEMORY,
    ),
    # Programs
    PlantedFault(
        "race of programs", "two do one's work", "even", DYNAMIC, replaced(_PROGRAM, "(tl.program_id(0) // 2)"), RACES
    ),
    PlantedFault(
        "race of programs",
        "two do one's work",
        "two axes",
        STATIC,
        replaced(_PROGRAM, "(tl.program_id(0) // 2)"),
        RACES,
    ),
    PlantedFault(
        "race of programs",
        "beyond the 64th",
        "even",
        DYNAMIC,
        replaced(_PROGRAM, "(tl.program_id(0) % 64)"),
        RACES,
        True,
    ),
    PlantedFault(
        "race of programs",
        "beyond the 64th",
        "sums",
        DYNAMIC,
        replaced(_PROGRAM, "(tl.program_id(0) % 64)"),
        RACES,
        True,
    ),
    PlantedFault(
        "race of programs",
        "beyond the 65535th row of blocks",
        "square",
        DYNAMIC,
        replaced("(tl.program_id(1) + tl.program_id(2) * tl.num_programs(1))", "tl.program_id(1)"),
        RACES,
        True,
        slow=True,
    ),
    PlantedFault(
        "race of programs",
        "store for an atomic addition",
        "scatter",
        STATIC,
        substituted(r"tl\.atomic_add\((.*), sem='relaxed'\)", r"tl.store(\1)"),
        RACES,
    ),
    PlantedFault(
        "race of programs",
        "load and store for an atomic addition",
        "unique scatter",
        DYNAMIC,
        substituted(
            r"tl\.atomic_add\((.*), tmp6, xmask, sem='relaxed'\)", r"tl.store(\1, tl.load(\1, xmask) + tmp6, xmask)"
        ),
        RACES,
        True,
    ),
    PlantedFault(
        "race of programs",
        "reads what the next one writes",
        "every second",
        STATIC,
        _both(substituted(r"in_ptr0 \+ \(2\*x0\)", "out_ptr0 + ((x0 + 1) % xnumel)")),
        RACES,
    ),
    PlantedFault(
        "wrong grid", "half of the elements", "pointwise", DYNAMIC, _argument_of_launch(4, "{} // 2"), COVERAGE
    ),
    PlantedFault(
        "wrong grid", "multiples of 16", "even", DYNAMIC, _argument_of_launch(4, "{} // 16 * 16"), COVERAGE, True
    ),
    PlantedFault(
        "wrong grid", "multiples of 16", "sums", DYNAMIC, _argument_of_launch(3, "{} // 16 * 16"), COVERAGE, True
    ),
    PlantedFault("wrong grid", "one more", "layer norm", DYNAMIC, _argument_of_launch(2, "{} + 1"), MEMORY),
    PlantedFault(
        "wrong grid",
        "first program left out",
        "pointwise",
        STATIC,
        replaced(_PROGRAM, "(tl.program_id(0) + 1)"),
        COVERAGE,
    ),
    # Reductions
    PlantedFault("wrong reduction range", "one more", "sums", DYNAMIC, _argument_of_launch(4, "{} + 1"), MEMORY),
    PlantedFault(
        "wrong reduction range",
        "rounded up",
        "sums",
        DYNAMIC,
        _argument_of_launch(4, "({} + 7) // 8 * 8"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "wrong reduction range",
        "of the other axis",
        "products",
        STATIC,
        replaced("r0_numel = 20", "r0_numel = 21"),
        MEMORY,
    ),
    PlantedFault(
        "wrong reduction range",
        "split not ended",
        "column means",
        DYNAMIC,
        replaced("r0_mask & tmp2 & xmask", "r0_mask & xmask"),
        MEMORY,
        True,
    ),
    PlantedFault(
        "wrong reduction range",
        "split not ended",
        "total",
        DYNAMIC,
        substituted(
            r"in_ptr0 \+ \(\(\((.*)\) % \(ks0\*ks1\)\)\), r0_mask & tmp2 & xmask", r"in_ptr0 + (\1), r0_mask & xmask"
        ),
        MEMORY,
        True,
    ),
    # Offsets and buffers
    PlantedFault(
        "wrong offset",
        "one too far",
        "even",
        DYNAMIC,
        replaced("tl.load(in_ptr1 + (x0)", "tl.load(in_ptr1 + (x0 + 1)"),
        MEMORY,
    ),
    PlantedFault("wrong offset", "of the second part", "cat", DYNAMIC, replaced("(-1)*ks1", "(-1)*ks2"), MEMORY),
    PlantedFault(
        "wrong offset",
        "of a roll",
        "roll",
        STATIC,
        _both(
            substituted(r"in_ptr0 \+ \(x0 \+ 16\*\(\(\(.*?\) % 64\)\)\)", "in_ptr0 + (x0 + 16*x1 + 16)"), _NO_ASSERTION
        ),
        MEMORY,
    ),
    PlantedFault("wrong offset", "of a view", "pieces", STATIC, replaced("(32, 1), 16)", "(32, 1), 17)"), MEMORY),
    PlantedFault(
        "wrong offset", "of a view, by a row", "pieces", STATIC, replaced("(32, 1), 16)", "(32, 1), 48)"), MEMORY
    ),
    PlantedFault("buffer too small", "one short", "pointwise", DYNAMIC, substituted(_BUFFER, r"\1\2 - 1\3", 1), MEMORY),
    PlantedFault(
        "buffer too small",
        "multiples of 16",
        "even",
        DYNAMIC,
        substituted(_BUFFER, r"\1\2 // 16 * 16\3", 1),
        MEMORY,
        True,
    ),
    PlantedFault(
        "buffer too small", "one row short", "softmax", DYNAMIC, substituted(_BUFFER, r"\1\2 - 1\3", 1), MEMORY
    ),
    PlantedFault(
        "buffer too small",
        "a row short for its views",
        "pieces",
        STATIC,
        replaced("buf3 = empty_strided_cuda((16, 32)", "buf3 = empty_strided_cuda((15, 32)"),
        MEMORY,
    ),
    PlantedFault(
        "buffer too small",
        "partial sums",
        "column means",
        STATIC,
        substituted(r"buf0 = empty_strided_cuda\(\((\d+), (\d+)\)", r"buf0 = empty_strided_cuda((\1, \2 - 1)"),
        MEMORY,
    ),
    # Assertions
    PlantedFault("assertion removed", "of a gather", "gather", STATIC, _NO_ASSERTION, MEMORY, True),
    PlantedFault("assertion removed", "of a gather", "gather", DYNAMIC, _NO_ASSERTION, MEMORY, True),
    PlantedFault("assertion removed", "of a scatter", "unique scatter", DYNAMIC, _NO_ASSERTION, MEMORY, True),
    PlantedFault(
        "assertion too weak", "one more", "gather", DYNAMIC, replaced("(tmp4 < ks1)", "(tmp4 <= ks1)"), MEMORY, True
    ),
    PlantedFault(
        "assertion too weak", "negative ones", "gather", DYNAMIC, replaced("(0 <= tmp4)", "(-1 <= tmp4)"), MEMORY, True
    ),
    PlantedFault(
        "assertion too late", "after the load", "gather", DYNAMIC, _assertion_after("tl.load(in_ptr1"), MEMORY, True
    ),
    PlantedFault(
        "assertion too late",
        "after the atomic addition",
        "unique scatter",
        STATIC,
        _assertion_after("tl.atomic_add("),
        MEMORY,
        True,
    ),
    # Not proved by looking at one kernel
    PlantedFault(
        "stale buffer",
        "two in one",
        "products",
        STATIC,
        substituted(r"buf1 = empty_strided_cuda.*", "buf1 = buf0"),
        BUFFERS,
    ),
    PlantedFault(
        "stale buffer",
        "result in an operand",
        "products",
        STATIC,
        substituted(r"buf4 = empty_strided_cuda.*", "buf4 = buf3"),
        BUFFERS,
    ),
    PlantedFault(
        "stale buffer",
        "two in one",
        "products",
        DYNAMIC,
        substituted(r"buf1 = empty_strided_cuda.*", "buf1 = buf0"),
        BUFFERS,
    ),
    PlantedFault("stale buffer", "read before it is written", "column means", STATIC, _launch_dropped(0), BUFFERS),
    PlantedFault("stale buffer", "read before it is written", "total", DYNAMIC, _launch_dropped(0), BUFFERS),
    PlantedFault("stale buffer", "added to before it is written", "scatter", DYNAMIC, _launch_dropped(0), BUFFERS),
)

FALSE_PROMISE = PlantedFault(
    "false promise",
    "few elements",
    "even",
    DYNAMIC,
    replaced("xmask = xindex < xnumel", "tl.assume(xnumel <= 1024)\n    xmask = (xindex < xnumel) | (xnumel > 1024)"),
    MEMORY,
    True,
)
"""Known to be wrong; which element it lets a kernel touch is not searched for."""


@dataclass(frozen=True)
class Compiled:
    """A program's generated code.

    Attributes:
        program: what it was compiled from.
        source: the module.
        graph: its inputs, symbolic or not.
    """

    program: Program
    source: str
    graph: GeneratedGraph


def compiled(emulation: Emulation, name: str, sizes: str) -> Compiled:
    """Compile a program and return what Inductor writes for it."""
    from torch._inductor.codegen.simd import SIMDScheduling

    torch._dynamo.reset()
    program, graphs = PROGRAMS[name], list[GeneratedGraph]()
    emulation.observers.append(graphs.append)
    with ExitStack() as stack:
        stack.callback(emulation.observers.remove, graphs.append)
        sources = stack.enter_context(wrappers_recorded())
        stack.enter_context(torch._inductor.config.patch(fx_graph_cache=False))
        stack.enter_context(
            torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True)
        )
        if name in _APART:
            stack.enter_context(torch.fx.experimental._config.patch(use_duck_shape=False))
        if sizes == HUGE:
            stack.enter_context(mock.patch.object(SIMDScheduling, "can_use_32bit_indexing", return_value=False))
        torch.compile(program.function, fullgraph=True, dynamic=sizes != STATIC)(*program.inputs)
    (source,), (graph,) = sources, graphs
    return Compiled(program, source, graph)


def planted(code: Compiled, fault: PlantedFault) -> str:
    """Return the code with a fault; a fault is made for what one version of torch generates."""
    broken = fault.mutate(code.source)
    if broken == code.source and not torch.__version__.startswith(_GENERATED_BY):
        pytest.skip(f"torch {torch.__version__} generates other code than {_GENERATED_BY}, which the fault is made for")
    assert broken != code.source, f"the fault cannot be planted into this code:\n{code.source}"
    return broken


def verified(emulation: Emulation, made: Compiled, source: str, seconds: float, configs: int = 0) -> list[Verified]:
    """Verify the kernels of a module that stands in for ``made.source``, with their last configurations (0: all)."""
    from torch._inductor.codecache import PyCodeCache

    with emulation.device_mock.held():
        module = PyCodeCache.load(source)
    for kernel in vars(module).values():
        if hasattr(kernel, "triton_meta"):
            kernel.configs = kernel.configs[-configs:]
    return verify_graph(graph_of(replace(made.graph, call=module.call)), emulation, seconds)


def seen(emulation: Emulation, made: Compiled, source: str) -> bool:
    """Say whether a run of ``source`` with the program's inputs shows that something is wrong."""
    from torch._inductor.codecache import PyCodeCache

    with emulation.device_mock.held():
        module = PyCodeCache.load(source)
    try:
        with OperatorsOnCpu(emulation.memory, emulation.device_mock):
            outputs = module.call(_arguments(made))
    except (MemoryFaultError, KernelAssertionError):
        return True
    inputs = (value.double() if value.is_floating_point() else value for value in made.program.inputs)
    expected = made.program.function(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    pairs = zip(outputs, expected, strict=True)
    return not all(torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-4) for a, b in pairs)


def _arguments(made: Compiled) -> list[Any]:
    """Return what the generated function takes: the program's tensors, and sizes where they are symbolic."""
    text = made.source[made.source.index("def get_args():") :]
    left = list(made.program.inputs)
    found: list[Any] = []
    for line in re.findall(r"^    arg\d+_\d+ = (.*)$", text, re.MULTILINE):
        if re.fullmatch(r"\d+", line):
            found.append(int(line))
            continue
        shape = tuple(map(int, re.findall(r"\d+", line[: line.index(")")])))
        at = next(i for i, value in enumerate(left) if tuple(value.shape) == shape and str(value.dtype) in line)
        found.append(_copied(left.pop(at)))
    return found


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
