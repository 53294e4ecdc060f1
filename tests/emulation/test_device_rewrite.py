"""Graphs moved from the CPU to the described GPU."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pytest_regional._torch.tracing import storage_key
from pytest_regional.emulation import emulated
from pytest_regional.emulation.device_rewrite import CUDA, retarget

NUMBERS = [float(number) for number in range(32)]


@pytest.fixture(autouse=True)
def _believing_in_a_gpu() -> Iterator[None]:
    with emulated("h200") as emulation, emulation.device_mock.held():
        yield


def traced(function: Callable[..., Any], *inputs: torch.Tensor, mode: str = "fake") -> torch.fx.GraphModule:
    return make_fx(function, tracing_mode=mode)(*inputs)


def values(gm: torch.fx.GraphModule) -> dict[str, Any]:
    return {node.name: node.meta.get("val") for node in gm.graph.nodes if node.op != "output"}


def moved(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
    return retarget(gm, inputs)[0]


def test_every_value_is_on_the_gpu_with_its_shape_strides_and_dtype() -> None:
    gm = traced(lambda a: (a.t() + 1, a.double()), torch.randn(3, 4))
    for before, after in zip(values(gm).values(), values(moved(gm)).values(), strict=True):
        assert after.device == CUDA
        assert (after.shape, after.stride(), after.dtype) == (before.shape, before.stride(), before.dtype)
        assert after.fake_mode is before.fake_mode


def test_example_inputs_keep_their_offset() -> None:
    gm = traced(lambda a: a + 1, torch.randn(8)[3:])
    _, (value,) = retarget(gm, [torch.randn(8)[3:]])
    assert (value.storage_offset(), value.device) == (3, CUDA)


def test_the_graph_that_was_given_stays_as_it_was() -> None:
    gm = traced(lambda a: a + torch.ones(3, device="cpu"), torch.randn(3))
    before, code = values(gm), gm.code
    moved(gm)
    assert gm.code == code
    assert all(values(gm)[name] is value for name, value in before.items())


def test_node_names_stay() -> None:
    gm = traced(lambda a, b: (a @ b).relu() + a, torch.randn(3, 3), torch.randn(3, 3))
    assert [node.name for node in moved(gm).graph.nodes] == [node.name for node in gm.graph.nodes]


def test_device_arguments_follow() -> None:
    gm = traced(lambda a: a + torch.zeros(3, device="cpu"), torch.randn(3))
    devices = [node.kwargs["device"] for node in moved(gm).graph.nodes if "device" in node.kwargs]
    assert devices == [CUDA]


def test_values_that_share_a_storage_share_one_afterwards() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        base = a + 1
        return base.view(-1)[2:5], base.t(), a * 2

    after = values(moved(traced(function, torch.randn(3, 4))))
    base, view, transposed, other = after["add"], after["slice_1"], after["t"], after["mul"]
    assert storage_key(base) == storage_key(view) == storage_key(transposed) != storage_key(other)
    assert view.storage_offset() == 2


def test_values_of_their_own_share_nothing() -> None:
    after = values(moved(traced(lambda a: (a + 1, a + 2), torch.randn(3))))
    assert len({storage_key(value) for value in after.values()}) == len(after)


def test_symbolic_sizes_stay() -> None:
    gm = traced(lambda a: (a.t(), a + 1), torch.randn(5, 6), mode="symbolic")
    for before, after in zip(values(gm).values(), values(moved(gm)).values(), strict=True):
        if isinstance(before, torch.Tensor):
            assert [str(size) for size in after.shape] == [str(size) for size in before.shape]
            assert [str(step) for step in after.stride()] == [str(step) for step in before.stride()]


def test_constants_are_copied_to_the_device_after_they_are_lifted() -> None:
    after = moved(traced(lambda a: a * torch.tensor(NUMBERS), torch.randn(32)))
    copies = [node for node in after.graph.nodes if node.target is torch.ops.prims.device_put.default]
    assert copies
    for copy in copies:
        lifted = copy.args[0]
        assert (lifted.meta["val"].device.type, copy.meta["val"].device) == ("cpu", CUDA)
        assert list(lifted.users) == [copy]
    (attribute,) = after.graph.find_nodes(op="get_attr")
    assert getattr(after, attribute.target).tolist() == NUMBERS


def test_graphs_of_higher_order_operators_move_too() -> None:
    def function(a: torch.Tensor) -> Any:
        return torch.cond(a.sum() > 0, lambda x: x + 1, lambda x: x - torch.ones(3, device="cpu"), (a,))

    after = moved(traced(function, torch.randn(3)))
    nested = [module for module in after.modules() if isinstance(module, torch.fx.GraphModule)]
    assert len(nested) == 3
    for module in nested:
        tensors = [value for value in values(module).values() if isinstance(value, torch.Tensor)]
        assert tensors
        assert {value.device for value in tensors} == {CUDA}


def test_moving_twice_moves_once() -> None:
    gm = traced(lambda a: a + torch.arange(32.0), torch.randn(32))
    once = moved(gm)
    twice = moved(once)
    assert [node.target for node in twice.graph.nodes] == [node.target for node in once.graph.nodes]
