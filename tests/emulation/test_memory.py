"""Buffers of emulated GPU code."""

import gc

import pytest
import torch

from pytest_regional.emulation import MemoryFaultError
from pytest_regional.emulation.memory import Memory

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_poisoned_with_nan(dtype):
    assert Memory().allocate((5,), (1,), dtype).float().isnan().all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_floats_without_negative_zero_are_poisoned_with_nan(dtype):
    assert Memory().allocate((5,), (1,), dtype).float().isnan().all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_are_poisoned_with_an_unlikely_number(dtype):
    poison = Memory().allocate((5,), (1,), dtype)
    assert (poison.view(torch.uint8) == 0xA5).all()


@pytest.mark.parametrize(
    ("size", "stride"), [((3, 4), (4, 1)), ((3, 4), (1, 3)), ((3, 4), (8, 2)), ((0, 4), (4, 1)), ((), ()), ((2,), (0,))]
)
def test_a_buffer_has_the_layout_asked_for(size, stride):
    buffer = Memory().allocate(size, stride, torch.float32)
    like = torch.empty_strided(size, stride)
    assert (buffer.size(), buffer.stride(), buffer.storage_offset()) == (like.size(), like.stride(), 0)
    assert buffer.untyped_storage().nbytes() == like.untyped_storage().nbytes()
    assert not buffer._is_view()
    assert buffer.data_ptr() % 16 == 0


def test_an_unwritten_element_is_reported_with_its_index():
    memory = Memory()
    buffer = memory.allocate((3, 4), (4, 1), torch.float32)
    memory.mark_written(buffer[:2])
    with pytest.raises(MemoryFaultError, match=r"mm reads .* 4 of 12 elements .* first at index \(2, 0\)"):
        memory.check_initialised(buffer, "mm")
    memory.check_initialised(buffer[:2], "mm")
    memory.mark_written(buffer[2])
    memory.check_initialised(buffer, "mm")


def test_gaps_between_elements_need_not_be_written():
    memory = Memory()
    buffer = memory.allocate((3, 4), (8, 1), torch.float32)
    memory.mark_written(buffer)
    memory.check_initialised(buffer, "mm")
    with pytest.raises(MemoryFaultError):
        memory.check_initialised(buffer.as_strided((2, 8), (8, 1)), "mm")


@pytest.mark.parametrize("other", [torch.int64, torch.int16])
def test_another_view_of_the_bytes_is_known(other):
    memory = Memory()
    buffer = memory.allocate((8,), (1,), torch.float32)
    with pytest.raises(MemoryFaultError):
        memory.check_initialised(buffer.view(other), "mm")
    memory.mark_written(buffer.view(other))
    memory.check_initialised(buffer, "mm")


def test_tensors_from_elsewhere_count_as_written():
    memory = Memory()
    memory.check_initialised(torch.empty(3), "mm")
    memory.mark_written(torch.empty(3))


def test_buffers_are_not_kept_alive():
    memory = Memory()
    buffer = memory.allocate((3,), (1,), torch.float32)
    view = buffer[1:]
    del buffer
    gc.collect()
    assert memory.allocation_of(view) is not None
    del view
    gc.collect()
    assert not memory._allocations


def test_a_write_next_to_a_buffer_is_detected():
    memory = Memory()
    buffer = memory.allocate((4,), (1,), torch.float32)
    found = memory.allocation_of(buffer)
    whole = found.whole()
    interior = found.start - whole.ctypes.data
    for beside in (interior - 1, interior + 16):
        assert found.guards_intact()
        before, whole[beside] = whole[beside], 0
        assert not found.guards_intact()
        whole[beside] = before


@pytest.mark.parametrize("check", [Memory.mark_written, lambda memory, view: memory.check_initialised(view, "it")])
def test_a_view_that_reaches_beyond_its_buffer_is_a_fault(check):
    memory = Memory()
    buffer = memory.allocate((15, 32), (32, 1), torch.float32)
    beyond = torch._C._dynamo.guards._reinterpret_tensor(buffer, (16, 16), (32, 1), 0)
    with pytest.raises(MemoryFaultError, match="ends 64 bytes beyond its buffer of 1920 bytes"):
        check(memory, beyond)
