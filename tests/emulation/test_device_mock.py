"""What PyTorch believes of a device, while it is made to and afterwards."""

import threading

import pytest
import torch

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch import triton as places
from pytest_regional._torch.patching import PatchPoint
from pytest_regional.emulation import PROFILES
from pytest_regional.emulation.device_mock import DeviceMock

ALL_POINTS = {**places.DEVICE_POINTS, **places.PROGRAM_POINTS, **places.OUTPUT_POINTS}


def device_mock() -> DeviceMock:
    return DeviceMock(PROFILES["a100"], allocate=lambda *args: None, compile_kernel=lambda name, source: None)


def what_stands_there() -> dict[str, object]:
    return {name: getattr(place.container(), place.attribute) for name, place in ALL_POINTS.items()}


def test_this_torch_has_every_place() -> None:
    assert places.missing_points() == []


def test_a_place_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = PatchPoint("torch.cuda", "was_renamed", "for this test")
    monkeypatch.setitem(places.DEVICE_POINTS, "gone", gone)
    assert places.missing_points() == ["torch.cuda.was_renamed"]


def test_pretending_without_a_place_fails_loudly_and_undoes_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    before = what_stands_there()
    gone = PatchPoint("torch.cuda", "was_renamed", "for this test")
    monkeypatch.setitem(places.DEVICE_POINTS, "gone", gone)
    held = device_mock()
    monkeypatch.setattr(held, "_replacements", lambda: dict.fromkeys(places.DEVICE_POINTS, lambda original: None))
    with pytest.raises(MissingTorchSymbolError, match=r"torch\.cuda\.was_renamed"), held.held():
        pass
    assert what_stands_there() == before


def test_a_point_without_a_replacement_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    held = device_mock()
    monkeypatch.setattr(held, "_replacements", dict)
    with pytest.raises(KeyError, match="is_available"), held.held():
        pass


def test_while_it_is_held_there_is_a_gpu() -> None:
    with device_mock().held():
        assert torch.cuda.is_available()
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties(0).multi_processor_count == 108
        assert torch.accelerator.current_device_index() == 0, "a torch with CUDA would look for a driver"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_afterwards_there_is_none() -> None:
    before = what_stands_there()
    with device_mock().held():
        assert what_stands_there() != before
    assert what_stands_there() == before
    assert not torch.cuda.is_available()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_torchs_cached_device_answers_are_cleared_both_ways() -> None:
    from torch.utils._triton import has_triton

    assert not has_triton()
    with device_mock().held():
        assert has_triton()
    assert not has_triton()


def test_an_error_inside_ends_it() -> None:
    before = what_stands_there()
    with pytest.raises(ZeroDivisionError), device_mock().held():
        raise ZeroDivisionError
    assert what_stands_there() == before


def test_it_lasts_as_long_as_any_thread_holds_it() -> None:
    held, entered, leave = device_mock(), threading.Event(), threading.Event()

    def hold() -> None:
        with held.held():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(10)
    with held.held():
        pass
    assert torch.cuda.is_available()
    leave.set()
    thread.join()
    assert torch.cuda.is_available() is bool(torch.cuda.device_count())


def test_fake_tensors_of_the_device_work_without_a_device() -> None:
    from torch._subclasses import FakeTensorMode

    with device_mock().held(), FakeTensorMode():
        made = torch.empty_strided((4, 3), (1, 4), device="cuda").contiguous()
    assert made.stride() == (3, 1)
    assert made.device == torch.device("cuda", 0)
