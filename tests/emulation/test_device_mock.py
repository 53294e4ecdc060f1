"""What PyTorch believes of a device, while it is made to and afterwards."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
import torch
from torch.utils._triton import has_triton

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch import triton as places
from pytest_regional.emulation import emulated

Held = Callable[[], AbstractContextManager[None]]

ALL_POINTS = {**places.DEVICE_POINTS, **places.PROGRAM_POINTS, **places.OUTPUT_POINTS}


@pytest.fixture
def held() -> Iterator[Held]:
    """Give what makes PyTorch believe in a GPU, inside of an emulation that does not compile yet."""
    with emulated("a100") as emulation:
        yield emulation.device_mock.held


def what_stands_there() -> dict[str, object]:
    return {name: getattr(place.container(), place.attribute, None) for name, place in ALL_POINTS.items()}


def test_this_torch_has_every_place() -> None:
    assert places.missing_points() == []


def test_a_place_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.cuda.current_stream")
    assert places.missing_points() == ["torch.cuda.current_stream"]


def test_pretending_without_a_place_fails_loudly_and_undoes_what_was_done(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("torch.cuda.current_stream")
    before = what_stands_there()
    with pytest.raises(MissingTorchSymbolError, match=r"torch\.cuda\.current_stream"), held():
        pass
    assert what_stands_there() == before


def test_while_it_is_held_there_is_a_gpu(held: Held) -> None:
    with held():
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 108
        assert torch.accelerator.current_device_index() == 0, "a torch with CUDA would look for a driver"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_afterwards_there_is_none(held: Held) -> None:
    before = what_stands_there()
    with held():
        assert what_stands_there() != before
    assert what_stands_there() == before
    assert not torch.cuda.is_available()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_torchs_cached_device_answers_are_cleared_both_ways(held: Held) -> None:
    assert not has_triton()
    with held():
        assert has_triton()
    assert not has_triton()


def test_an_error_inside_ends_it(held: Held) -> None:
    before = what_stands_there()
    with pytest.raises(ZeroDivisionError), held():
        raise ZeroDivisionError
    assert what_stands_there() == before


def test_it_lasts_as_long_as_any_thread_holds_it(held: Held) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with held():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(10)
    with held():
        pass
    assert torch.cuda.is_available()
    leave.set()
    thread.join()
    assert torch.cuda.is_available() is bool(torch.cuda.device_count())


def test_fake_tensors_of_the_device_work_without_a_device(held: Held) -> None:
    from torch._subclasses import FakeTensorMode

    with held(), FakeTensorMode():
        made = torch.empty_strided((4, 3), (1, 4), device="cuda").contiguous()
    assert made.stride() == (3, 1)
    assert made.device == torch.device("cuda", 0)
