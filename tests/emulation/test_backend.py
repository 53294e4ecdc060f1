"""Every backend's graphs run as GPU code while emulation lasts, and nothing is left of it afterwards."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.traceback import annotate

from pytest_regional._torch import MissingTorchSymbolError, symbol, triton
from pytest_regional.emulation import (
    EmulationError,
    MemoryFaultError,
    active,
    emulated,
)
from pytest_regional.emulation.backend import REFUSED_SETTINGS
from pytest_regional.harness.isolation import isolated
from pytest_regional.testing import regional


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with annotate({"compile_with_inductor": {}}):
        z = torch.softmax(torch.relu(y @ w) * 2, -1)
    return z.cos()


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """Isolate caches and Dynamo's state for a test that uses no harness."""
    with isolated(tmp_path, seed=1):
        yield tmp_path


@pytest.mark.parametrize("backend", ["reference", "torch", "inductor"])
def test_a_backend_trains_on_the_described_gpu(backend: str) -> None:
    with regional(backend, "cuda-emulated:a100") as r:
        x, w = (r.randn(8, 12, requires_grad=True), r.randn(12, 12, requires_grad=True))
        report = r.assert_parity(program, x, w)
        assert report.anchored
        assert r.emulation is not None
        assert r.emulation.profile.name == "NVIDIA A100-SXM4-80GB"
        assert len(r.emulation.kernels) >= 2
        assert {launch.kernel for launch in r.emulation.launches} == {kernel.name for kernel in r.emulation.kernels}
        assert all("@triton.jit" in kernel.source for kernel in r.emulation.kernels)


def test_generated_code_is_for_the_gpu(folder: Path) -> None:
    with regional("inductor", "cuda-emulated", expects_regions=False) as r:
        record = r.run(lambda a: a.exp() + 1, r.randn(4, 5))
        assert "empty_strided_cuda" in str(record.code)
        assert r.emulation is not None
        assert "cc=90" in r.emulation.kernels[0].source


def test_afterwards_the_cpu_compiles_as_before(folder: Path) -> None:
    x, w = torch.randn(8, 12), torch.randn(12, 12)
    driver, available = symbol("triton.runtime.driver", "driver")._active, torch.cuda.is_available()
    run = triton.jit_function_class().run
    with emulated() as emulation:
        torch.compile(program, fullgraph=True)(x, w)
        assert emulation.kernels
        assert torch.cuda.is_available() is available
    assert active() is None
    assert torch.cuda.is_available() is available
    assert symbol("triton.runtime.driver", "driver")._active is driver
    assert triton.jit_function_class().run is run
    torch._dynamo.reset()
    with regional("inductor", "cpu", expects_regions=False) as r:
        code = str(r.run(lambda a, b: (a @ b) * 2, x, w).code)
    assert "empty_strided_cpu" in code
    assert "triton" not in code


def test_compiled_programs_keep_working_afterwards(folder: Path) -> None:
    x = torch.randn(6, 5)
    with emulated() as emulation:
        compiled = torch.compile(lambda a: a.sin() * 3, fullgraph=True)
        compiled(x)
    launched = len(emulation.launches)
    torch.testing.assert_close(compiled(x), x.sin() * 3)
    assert len(emulation.launches) == launched + 1


def test_caches_of_both_devices_never_meet(folder: Path) -> None:
    """In one cache folder, the same program: neither may get what the other compiled."""
    x = torch.randn(6, 5)

    def compiled_with(device: str) -> tuple[str, int, int]:
        with regional("inductor", device, cache_dir=folder, expects_regions=False) as r:
            code = str(r.run(same_program, x).code)
            return code, r.counters.cache_hits, r.counters.cache_misses

    (cpu, *on_cpu), (gpu, *on_gpu) = compiled_with("cpu"), compiled_with("cuda-emulated")
    (a100, *on_a100), (_, *hit) = compiled_with("cuda-emulated:a100"), compiled_with("cuda-emulated")
    assert (on_cpu, on_gpu, on_a100, hit) == ([0, 1], [0, 1], [0, 1], [1, 0])
    assert "triton" not in cpu
    assert "triton" in gpu
    assert "triton" in a100


def same_program(a: torch.Tensor) -> torch.Tensor:
    return (a @ a.t()).relu() + 1


def test_code_from_a_cache_is_run_with_interpreted_kernels(folder: Path) -> None:
    x = torch.randn(6, 5)
    with regional("reference", "cuda-emulated") as r:
        compiled = r.compile(program)
        w = torch.randn(5, 5)
        first = compiled(x, w)
        assert r.emulation is not None
        launched = len(r.emulation.launches)
        r.restart()
        with r.expect(region_compiles=0):
            again = r.compile(program)(x, w)
        assert len(r.emulation.launches) == 2 * launched
        assert torch.equal(first, again)


def test_a_torch_that_cannot_be_emulated_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.cuda.current_stream")
    with (
        pytest.raises(MissingTorchSymbolError, match=r"cannot be emulated with torch .*torch\.cuda\.current_stream"),
        emulated(),
    ):
        pass
    assert active() is None


def test_an_emulation_inside_another_is_the_same_one() -> None:
    with emulated("a100") as outer, emulated("a100") as inner:
        assert outer is inner is active()


def test_two_gpus_at_once_are_refused() -> None:
    with (
        emulated("a100"),
        pytest.raises(EmulationError, match=r"A100.*is being emulated.*RTX 4090"),
        emulated("rtx4090"),
    ):
        pass


@pytest.mark.parametrize("setting", REFUSED_SETTINGS)
def test_settings_that_need_a_gpu_are_refused_by_name(folder: Path, setting: str) -> None:
    wanted = rf"\({re.escape(setting)}\)"
    with emulated() as emulation, pytest.raises(Exception, match=wanted):
        torch.compile(lambda a: a.sin() + 1, options={setting: 1 if setting == "triton.multi_kernel" else True})(
            torch.randn(4)
        )
    (reason,) = emulation.unsupported
    assert re.search(wanted, reason)


def test_a_graph_of_which_a_part_was_compiled_for_the_cpu_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when something in a graph is not moved: the test must not pass with C++ kernels."""

    def on_the_cpu(make: Callable[..., torch.Tensor], *given: Any, device: Any = None, **named: Any) -> torch.Tensor:
        return make(*given, device="cpu" if "cuda" in str(device) else device, **named)

    for name in ("empty", "empty_strided"):
        monkeypatch.setattr(torch, name, functools.partial(on_the_cpu, getattr(torch, name)))
    with emulated() as emulation, pytest.raises(Exception, match="a part for the CPU"):
        torch.compile(lambda a: a.sin() + 1)(torch.randn(4))
    assert len(emulation.unsupported) == 1


def test_bodies_of_operators_are_gpu_code_too(folder: Path) -> None:
    block = torch.compiler.nested_compile_region(lambda a: a.sin() * 2)
    with emulated() as emulation:
        compiled = torch.compile(lambda a: block(block(a)), fullgraph=True)(torch.ones(4))
    assert len(emulation.launches) == 2
    torch.testing.assert_close(compiled, torch.ones(4).sin().mul(2).sin() * 2)


def test_where_kernels_would_be_timed_a_generated_one_is_taken(folder: Path) -> None:
    a, b = torch.randn(20, 24), torch.randn(24, 16)
    with emulated() as emulation:
        compiled = torch.compile(lambda a, b: (a @ b).relu(), options={"max_autotune": True})(a, b)
    assert [kernel.name[:10] for kernel in emulation.kernels] == ["triton_tem"]
    torch.testing.assert_close(compiled, (a @ b).relu(), rtol=1e-4, atol=1e-4)


def test_threads_compile_at_once(folder: Path) -> None:
    x, results = torch.randn(6, 5), {}

    def work(number: int) -> None:
        results[number] = torch.compile(lambda a: (a * number).softmax(-1), fullgraph=True)(x)

    with emulated():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 3
    for number, result in results.items():
        torch.testing.assert_close(result, (x * number).softmax(-1))


def test_an_operator_that_reads_unwritten_memory_is_caught(folder: Path) -> None:
    """The buffer between two products is never filled: what the second one reads is an error, not a number."""
    from pytest_regional.emulation.device_rewrite import OperatorsOnCpu

    x = torch.randn(4, 4)
    with emulated() as emulation, OperatorsOnCpu(emulation.memory, emulation.device_mock):
        buffer = emulation.memory.allocate((4, 4), (4, 1), torch.float32)
        with pytest.raises(MemoryFaultError, match=r"aten\.mm\.default reads memory that nobody has written"):
            torch.mm(buffer, x)
        torch.mm(x, x, out=buffer)
        torch.mm(buffer, x)


def test_operators_meant_for_the_gpu_run_on_the_cpu() -> None:
    from pytest_regional.emulation.device_rewrite import OperatorsOnCpu

    with emulated() as emulation, OperatorsOnCpu(emulation.memory, emulation.device_mock):
        made = torch.ops.aten.full.default([3], 2.0, device=torch.device("cuda", 0))
    assert made.device.type == "cpu"


def test_convolutions_have_the_layout_that_the_gpu_gives_them(folder: Path) -> None:
    def convolve(image: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(image, weight).relu()

    with regional("inductor", "cuda-emulated", expects_regions=False) as r:
        image = r.randn(2, 3, 8, 8, requires_grad=True)
        r.assert_parity(convolve, image, r.randn(4, 3, 3, 3, requires_grad=True))


def test_a_graph_without_inputs_needs_no_driver() -> None:
    """Its cache key holds the index of the current device, for which a torch with CUDA starts the driver."""
    with regional("inductor", "cuda-emulated", expects_regions=False) as r:
        r.assert_parity(lambda x: x.new_tensor([1.0, 2.0]), r.randn(2))


def test_draws_that_a_checkpoint_repeats(folder: Path) -> None:
    """The state of the generator is an output of the graph, whose size generated code asserts."""
    from torch.utils.checkpoint import checkpoint

    def thinned(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: torch.nn.functional.dropout(y.sin(), 0.5), x, use_reentrant=False)

    with regional("inductor", "cuda-emulated", expects_regions=False) as r:
        r.assert_parity(thinned, r.randn(8, requires_grad=True))
