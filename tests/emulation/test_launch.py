"""Launching Inductor's kernels and a user's."""

import time

import pytest
import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import DeviceProperties

from pytest_regional.emulation import EmulationError, MemoryFaultError, UnsupportedByEmulationError
from pytest_regional.emulation.launch import LaunchPlan, launch_inductor_kernel, launch_kernel
from pytest_regional.emulation.memory import Memory

H200 = DeviceProperties(
    type="cuda",
    index=0,
    multi_processor_count=132,
    cc=90,
    major=9,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    warp_size=32,
)


def inductor_pointwise(numel, **changes):
    """Return a pointwise kernel as Inductor writes them: ``out = in * scale``."""
    triton_meta = {
        "signature": {
            "in_ptr0": "*fp32",
            "out_ptr0": "*fp32",
            "scale": "fp64",
            "xnumel": "i32",
            "XBLOCK": "constexpr",
        },
        "device": H200,
        "constants": {},
        "configs": [{(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]]}],
    } | changes.pop("triton_meta", {})

    @triton_heuristics.pointwise(
        size_hints={"x": triton.next_power_of_2(numel)},
        filename=__file__,
        triton_meta=triton_meta,
        inductor_meta={"grid_type": "Grid1D", "kernel_name": "triton_poi", "mutated_arg_names": []} | changes,
        min_elem_per_thread=0,
    )
    @triton.jit
    def triton_poi(in_ptr0, out_ptr0, scale, xnumel, XBLOCK: tl.constexpr):
        xoffset = tl.program_id(0) * XBLOCK
        xindex = xoffset + tl.arange(0, XBLOCK)[:]
        xmask = xindex < xnumel
        tmp0 = tl.load(in_ptr0 + (xindex), xmask)
        tl.store(out_ptr0 + (xindex), tmp0 * scale.to(tl.float32), xmask)

    return triton_poi


@triton.jit
def scaled(source, target, n, factor, BLOCK: tl.constexpr, ADD: tl.constexpr = 0):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = index < n
    tl.store(target + index, tl.load(source + index, mask=mask) * factor + ADD, mask=mask)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(source, target, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + index, tl.load(source + index, mask=index < n), mask=index < n)


@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def guessing(source, target, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(target + index, tl.load(source + index))
    else:
        tl.store(target + index, tl.load(source + index, mask=index < n), mask=index < n)


@triton.jit
def optional(source, target, bias, N: tl.constexpr):
    value = tl.load(source + tl.arange(0, N))
    if bias is not None:
        value += tl.load(bias + tl.arange(0, N))
    tl.store(target + tl.arange(0, N), value)


@triton.jit
def types_of(flag, small, wide, real, out):
    tl.static_assert(flag.dtype == tl.int1)
    tl.static_assert(small.dtype == tl.int32)
    tl.static_assert(wide.dtype == tl.int64)
    tl.static_assert(real.dtype == tl.float32)
    tl.store(out, 1.0)


@triton.jit
def wrong_assertion(out, N: tl.constexpr):
    tl.static_assert(N > 1, "N is too small")
    tl.store(out, 1.0)


def test_a_kernel_of_inductor():
    memory, kernel = Memory(), inductor_pointwise(1000)
    source, target = torch.randn(1000), memory.allocate((1000,), (1,), torch.float32)
    launch = launch_inductor_kernel(kernel, (source, target, 2.5, 1000), {}, memory=memory, plan=LaunchPlan())
    torch.testing.assert_close(target, source * 2.5)
    assert launch.kernel == "triton_poi"
    assert launch.config["XBLOCK"] * launch.grid[0] >= 1000
    assert launch.programs == launch.grid[0]


def test_blocks_grow_until_few_programs_are_left():
    kernel, source = inductor_pointwise(100_000), torch.randn(100_000)

    def programs(plan):
        target = torch.zeros_like(source)
        launch = launch_inductor_kernel(kernel, (source, target, 1.0, 100_000), {}, memory=Memory(), plan=plan)
        assert torch.equal(source, target)
        return launch.programs, launch.config["XBLOCK"]

    as_generated = programs(LaunchPlan(programs=0))
    assert as_generated[1] == kernel.configs[0].kwargs["XBLOCK"]
    assert programs(LaunchPlan(programs=32))[0] <= 32 < as_generated[0]
    assert programs(LaunchPlan(programs=0)) == as_generated


def test_every_configuration_can_be_taken():
    kernel, source = inductor_pointwise(5000), torch.randn(5000)
    assert len(kernel.configs) > 1
    for number, config in enumerate(kernel.configs):
        target, plan = torch.zeros(5000), LaunchPlan(config=number, programs=0, reverse=True)
        launch = launch_inductor_kernel(kernel, (source, target, 1.0, 5000), {}, memory=Memory(), plan=plan)
        assert launch.config == config.kwargs
        assert torch.equal(source, target)


def test_an_argument_of_another_type_than_the_signature():
    arguments = (torch.zeros(8, dtype=torch.float16), torch.zeros(8), 1.0, 8)
    with pytest.raises(
        MemoryFaultError, match=r"argument in_ptr0 of triton_poi is torch.float16, its signature \*fp32"
    ):
        launch_inductor_kernel(inductor_pointwise(8), arguments, {}, memory=Memory(), plan=LaunchPlan())


def test_an_argument_that_is_less_aligned_than_promised():
    arguments = (torch.zeros(9)[1:], torch.zeros(8), 1.0, 8)
    with pytest.raises(MemoryFaultError, match=r"in_ptr0 of triton_poi is \d+, which the kernel takes for a multiple"):
        launch_inductor_kernel(inductor_pointwise(8), arguments, {}, memory=Memory(), plan=LaunchPlan())


def test_a_number_that_its_type_in_the_signature_cannot_hold():
    arguments = (torch.zeros(8), torch.zeros(8), 1.0, 2**31)
    with pytest.raises(
        MemoryFaultError, match="argument xnumel of triton_poi is 2147483648, too large for its type int32"
    ):
        launch_inductor_kernel(inductor_pointwise(8), arguments, {}, memory=Memory(), plan=LaunchPlan(config=0))


def test_too_few_arguments():
    with pytest.raises(EmulationError, match="launched with 3 arguments and takes"):
        launch_inductor_kernel(
            inductor_pointwise(8), (torch.zeros(8), torch.zeros(8), 1.0), {}, memory=Memory(), plan=LaunchPlan()
        )


def test_an_off_by_one_in_the_number_of_elements_is_seen():
    arguments = (torch.zeros(1000), torch.zeros(1000), 1.0, 1001)
    with pytest.raises(MemoryFaultError, match="element 1000 of its 1000"):
        launch_inductor_kernel(inductor_pointwise(1000), arguments, {}, memory=Memory(), plan=LaunchPlan())


def test_a_kernel_that_writes_too_little_leaves_poison():
    memory, kernel = Memory(), inductor_pointwise(1000)
    target = memory.allocate((1000,), (1,), torch.float32)
    launch_inductor_kernel(kernel, (torch.zeros(1000), target, 1.0, 900), {}, memory=memory, plan=LaunchPlan())
    assert target[900:].isnan().all()
    with pytest.raises(MemoryFaultError, match="100 of 1000"):
        memory.check_initialised(target, "the caller")


def test_an_empty_grid():
    launch = launch_inductor_kernel(
        inductor_pointwise(8), (torch.zeros(0), torch.zeros(0), 1.0, 0), {}, memory=Memory(), plan=LaunchPlan()
    )
    assert launch.programs == 0


def test_a_users_kernel_with_a_grid_of_its_constants():
    source, target = torch.randn(100), torch.zeros(100)
    arguments = {"source": source, "target": target, "n": 100, "factor": 2.0, "BLOCK": 32}
    launch = launch_kernel(scaled, lambda meta: (triton.cdiv(100, meta["BLOCK"]),), arguments, memory=Memory())
    assert launch.grid == (4, 1, 1)
    torch.testing.assert_close(target, source * 2)


def test_autotuned_kernels_run_with_their_first_configuration():
    source, target = torch.randn(100), torch.zeros(100)
    arguments = {"source": source, "target": target, "n": 100}
    launch = launch_kernel(tuned, lambda meta: (triton.cdiv(100, meta["BLOCK"]),), arguments, memory=Memory())
    assert launch.programs == 4
    assert torch.equal(source, target)


@pytest.mark.parametrize("size", [96, 100])
def test_heuristics(size):
    source, target = torch.randn(size), torch.zeros(size)
    arguments = {"source": source, "target": target, "n": size, "BLOCK": 32}
    launch_kernel(guessing, (triton.cdiv(size, 32),), arguments, memory=Memory())
    assert torch.equal(source, target)


def test_another_wrapper_is_refused_by_name():
    class Wrapper:
        fn = scaled

    with pytest.raises(UnsupportedByEmulationError, match="a kernel wrapped in Wrapper"):
        launch_kernel(Wrapper(), (1,), {}, memory=Memory())


@pytest.mark.parametrize("bias", [None, torch.ones(8)])
def test_arguments_that_are_none(bias):
    source, target = torch.randn(8), torch.zeros(8)
    launch_kernel(optional, (1,), {"source": source, "target": target, "bias": bias, "N": 8}, memory=Memory())
    assert torch.equal(target, source if bias is None else source + 1)


def test_scalars_have_the_types_triton_gives_them():
    out = torch.zeros(1)
    arguments = {"flag": True, "small": 7, "wide": 2**40, "real": 0.5, "out": out}
    launch_kernel(types_of, (1,), arguments, memory=Memory())
    assert out.item() == 1


def test_a_static_assertion():
    with pytest.raises(EmulationError, match="N is too small"):
        launch_kernel(wrong_assertion, (1,), {"out": torch.zeros(1), "N": 1}, memory=Memory())


def test_parameters_that_require_grad_can_be_read():
    source, target = torch.randn(8, requires_grad=True), torch.zeros(8)
    launch_kernel(optional, (1,), {"source": source, "target": target, "bias": None, "N": 8}, memory=Memory())
    assert torch.equal(target, source.detach())


def test_a_launch_is_cheap():
    """Loose: it fails if types or patches are made anew for every operation, which took ten times as long."""
    kernel, source, target = inductor_pointwise(6144), torch.randn(6144), torch.zeros(6144)
    arguments, plan = (source, target, 1.0, 6144), LaunchPlan()

    def seconds() -> float:
        started = time.process_time()
        launch_inductor_kernel(kernel, arguments, {}, memory=Memory(), plan=plan)
        return time.process_time() - started

    assert min(seconds() for _ in range(10)) < 0.02


@triton.jit
def nothing(data):
    tl.store(data, tl.load(data))


@pytest.mark.parametrize(("module", "unsupported"), [("triton.language.core", True), ("pytest_regional.ours", False)])
def test_only_what_triton_itself_refuses_is_unsupported(monkeypatch, module, unsupported):
    """A gap of ours must fail the test: it is a defect, and nobody looks at a skip."""
    namespace = {"__name__": module}
    exec("def load(*_, **__): raise NotImplementedError('no longer there')", namespace)
    monkeypatch.setattr("triton.language.semantic.TritonSemantic.load", namespace["load"])
    with pytest.raises(EmulationError, match="no longer there") as caught:
        launch_kernel(nothing, (1,), {"data": torch.zeros(1)}, memory=Memory())
    assert isinstance(caught.value, UnsupportedByEmulationError) is unsupported
