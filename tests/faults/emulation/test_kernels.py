"""Kernels that are wrong, each next to one that is right."""

import pytest
import torch
import triton
import triton.language as tl

from pytest_regional.emulation import (
    EmulationError,
    KernelAssertionError,
    MemoryFaultError,
    UnsupportedByEmulationError,
)
from pytest_regional.emulation.launch import launch_kernel
from pytest_regional.emulation.memory import Memory
from tests.emulation.interpreter.launching import run


@triton.jit
def copy(source, target, n, shift, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(target + index, tl.load(source + index + shift, mask=mask), mask=mask)


@triton.jit
def copy_unmasked(source, target, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index))


@triton.jit
def add_atomically(target, index, value):
    tl.atomic_add(target + tl.load(index), value)


@triton.jit
def load_wider(source, target):
    wide = source.to(tl.pointer_type(tl.float64))
    tl.store(target, tl.load((source + 1).to(tl.pointer_type(tl.float64))))
    tl.store(target + 1, tl.load(wide))


@triton.jit
def asserting(source, size):
    index = tl.load(source + tl.arange(0, 4))
    tl.device_assert((index >= 0) & (index < size), "index out of bounds")


@triton.jit
def halved_places(source, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(target + lanes // 2, tl.load(source + lanes))


@triton.jit
def shifted_in_place(data, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(data + index, tl.load(data + index + 1, mask=mask), mask=mask)


@triton.jit
def branching_on_a_block(data):
    value = tl.load(data + tl.arange(0, 4))
    if value > 0:
        tl.store(data, 1.0)


@triton.jit
def adding_a_float_to_a_pointer(data):
    tl.store(data + 1.0, 1.0)


@triton.jit
def long_assembly(data):
    value = tl.load(data)
    tl.store(data, tl.inline_asm_elementwise("{ mov.b32 $0, $1; }", "=r,r", [value], tl.int32, True, 1))


@triton.jit
def forgets_a_mask(source, target, n, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    tl.store(target, tl.sum(tl.load(source + index, mask=index < n)))
    tl.store(target + 1, tl.sum(tl.load(source + index, mask=index < n, other=0.0)))


@triton.jit
def inner(pointer):
    return tl.load(pointer + 7)


@triton.jit
def outer(source, target):
    tl.store(target, inner(source))


def test_masked_elements_without_a_value_are_zero_as_on_a_gpu():
    source, target = torch.ones(5), torch.full((2,), -1.0)
    run(forgets_a_mask, source=source, target=target, n=5, BLOCK=8)
    assert target.tolist() == [5, 5]


def test_a_fault_names_the_line_of_the_function_it_happened_in():
    with pytest.raises(MemoryFaultError) as caught:
        run(outer, source=torch.zeros(4), target=torch.zeros(4))
    line = inner.starting_line_number + 2
    assert str(caught.value).endswith(f"{__file__}:{line}, in inner: return tl.load(pointer + 7)")


def test_a_right_copy():
    source, target = torch.arange(100.0), torch.zeros(100)
    run(copy, (4,), source=source, target=target, n=100, shift=0, BLOCK=32)
    assert torch.equal(source, target)


def test_a_load_past_the_end_names_argument_element_and_program():
    with pytest.raises(MemoryFaultError) as caught:
        run(copy, (4,), source=torch.arange(100.0), target=torch.zeros(100), n=100, shift=1, BLOCK=32)
    assert str(caught.value).startswith(
        "out-of-bounds load: copy, program (3, 0, 0), makes 1 of 4 accesses outside argument source, the first at "
        "element 100 of its 100 elements of 4 bytes."
    )


def test_a_load_before_the_start():
    with pytest.raises(MemoryFaultError, match="element -1 of its 100"):
        run(copy, (4,), source=torch.arange(100.0), target=torch.zeros(100), n=100, shift=-1, BLOCK=32)


def test_a_load_that_lands_in_another_argument_is_still_outside_its_own():
    both = torch.arange(256.0)
    source, target = both[:128].clone(), both[128:].clone()
    distance = (target.data_ptr() - source.data_ptr()) // 4
    with pytest.raises(MemoryFaultError, match="outside argument source"):
        run(copy, (1,), source=source, target=target, n=32, shift=distance, BLOCK=32)


def test_a_store_past_the_end():
    with pytest.raises(MemoryFaultError, match=r"out-of-bounds store: .* 28 of 32 accesses outside argument target"):
        run(copy_unmasked, (4,), source=torch.arange(128.0), target=torch.zeros(100), BLOCK=32)


def test_an_atomic_operation_past_the_end():
    target = torch.zeros(3)
    run(add_atomically, target=target, index=torch.tensor([2]), value=1.0)
    assert target.tolist() == [0, 0, 1]
    with pytest.raises(MemoryFaultError, match=r"out-of-bounds atomic operation: .* outside argument target"):
        run(add_atomically, target=target, index=torch.tensor([3]), value=1.0)


def test_a_misaligned_load():
    with pytest.raises(MemoryFaultError, match=r"misaligned load: .* argument source .* multiple of 8"):
        run(load_wider, source=torch.zeros(8), target=torch.zeros(2, dtype=torch.float64))


def test_a_view_may_reach_its_whole_storage():
    storage, target = torch.arange(100.0), torch.zeros(50)
    run(copy, (2,), source=storage[10:60], target=target, n=50, shift=-10, BLOCK=32)
    assert torch.equal(target, storage[:50])


def test_unwritten_memory():
    memory = Memory()
    source, target = memory.allocate((8,), (1,), torch.float32), torch.zeros(8)
    arguments = {"source": source, "target": target, "n": 8, "shift": 0, "BLOCK": 8}
    memory.mark_written(source[:5])
    with pytest.raises(MemoryFaultError, match=r"3 elements of argument source, the first is element 5 of its 8"):
        launch_kernel(copy, (1,), arguments, memory=memory)
    memory.mark_written(source)
    source.fill_(3)
    launch_kernel(copy, (1,), arguments, memory=memory)
    assert target.tolist() == [3.0] * 8


def test_a_kernel_may_read_the_results_of_the_previous_one():
    memory = Memory()
    middle, target = memory.allocate((8,), (1,), torch.float32), torch.zeros(8)
    source = torch.arange(8.0)
    sizes = {"n": 8, "shift": 0, "BLOCK": 8}
    launch_kernel(copy, (1,), {"source": source, "target": middle, **sizes}, memory=memory)
    launch_kernel(copy, (1,), {"source": middle, "target": target, **sizes}, memory=memory)
    assert torch.equal(source, target)
    assert memory.allocation_of(middle).written is None


def test_half_of_a_buffer_written_by_a_kernel():
    memory = Memory()
    middle = memory.allocate((8,), (1,), torch.float32)
    sizes = {"shift": 0, "BLOCK": 8}
    launch_kernel(copy, (1,), {"source": torch.arange(8.0), "target": middle, "n": 4, **sizes}, memory=memory)
    with pytest.raises(MemoryFaultError, match="first is element 4"):
        launch_kernel(copy, (1,), {"source": middle, "target": torch.zeros(8), "n": 8, **sizes}, memory=memory)


def test_device_assert():
    run(asserting, source=torch.tensor([0, 1, 2, 3]), size=4)
    with pytest.raises(KernelAssertionError, match=r"program \(0, 0, 0\) for 2 of 4 elements: index out of bounds"):
        run(asserting, source=torch.tensor([0, -1, 2, 4]), size=4)


def test_a_race_between_programs():
    arguments = {"data": torch.arange(64.0), "n": 63, "BLOCK": 16}
    launch_kernel(shifted_in_place, (4,), arguments, memory=Memory())
    with pytest.raises(MemoryFaultError, match=r"race in shifted_in_place: program \(1, 0, 0\) writes what another"):
        launch_kernel(shifted_in_place, (4,), arguments, memory=Memory(), races=True)


def test_programs_that_share_nothing_do_not_race():
    source, target = torch.arange(64.0), torch.zeros(64)
    arguments = {"source": source, "target": target, "n": 64, "shift": 0, "BLOCK": 16}
    launch_kernel(copy, (4,), arguments, memory=Memory(), races=True)


def test_several_values_for_one_element():
    def launched(source: torch.Tensor, races: bool = True) -> None:
        arguments = {"source": source, "target": torch.zeros(8), "BLOCK": 16}
        launch_kernel(halved_places, (1,), arguments, memory=Memory(), races=races)

    launched(torch.arange(16) // 2)
    launched(torch.arange(16), races=False)
    with pytest.raises(MemoryFaultError, match=r"writes several values to element 0 of argument target at once"):
        launched(torch.arange(16))


def test_a_branch_on_a_block_is_refused():
    with pytest.raises(EmulationError, match=r"block of shape \(4,\) stands where a kernel needs one truth value"):
        run(branching_on_a_block, data=torch.zeros(4))


def test_errors_of_triton_name_the_kernel():
    with pytest.raises(EmulationError, match=r"adding_a_float_to_a_pointer, program \(0, 0, 0\), failed with .*Error"):
        run(adding_a_float_to_a_pointer, data=torch.zeros(4))


def test_unknown_assembly_is_unsupported_by_name():
    with pytest.raises(UnsupportedByEmulationError, match=r"inline assembly '\{ mov.b32"):
        run(long_assembly, data=torch.zeros(1, dtype=torch.int32))


def test_a_missing_argument():
    with pytest.raises(EmulationError, match="no value for argument shift of copy"):
        run(copy, source=torch.zeros(1), target=torch.zeros(1), n=1, BLOCK=1)


def test_a_grid_that_no_gpu_starts():
    with pytest.raises(EmulationError, match="exceeds what CUDA launches"):
        run(copy_unmasked, (1, 70000), source=torch.zeros(1), target=torch.zeros(1), BLOCK=1)
