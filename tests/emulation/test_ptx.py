"""Kernels of generated code compiled for GPUs that are not here."""

from __future__ import annotations

import pytest

from pytest_regional import CompileRecord, Counters
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.emulation.compile_check import CompiledKernel, FailedKernel
from pytest_regional.harness.codegen import CodeLookupError, UnreadableCodeError
from pytest_regional.harness.devices.on_device import (
    KernelCompileError,
    KernelReport,
    KernelResourceError,
    OnDevice,
    kernels_of,
)
from pytest_regional.harness.record import GeneratedCode, GeneratedSource
from tests.harness.codegen.wrapper_files import captured

assert_kernels_compile = OnDevice.assert_kernels_compile

EXPRESSION, SIZE = "x * 2 + tl.exp(y)", "'BLOCK': 256"


def user(expression: str = EXPRESSION, size: int = 256) -> GeneratedCode:
    """Return a captured wrapper whose user-defined kernel computes something else, over blocks of ``size``."""
    text = captured("user", "inference", "2.13").sources[0].text
    assert EXPRESSION in text
    assert SIZE in text
    return code(text.replace(EXPRESSION, expression).replace(SIZE, f"'BLOCK': {size}"))


def code(*texts: str) -> GeneratedCode:
    return GeneratedCode(tuple(GeneratedSource("inference", (), text, loaded=False) for text in texts))


def test_kernels_of_inductor_and_of_the_user_compile():
    report = assert_kernels_compile(user())
    assert [(kernel.kernel, kernel.arch) for kernel in report] == [
        ("double_and_exp_0", "sm_80"),
        ("double_and_exp_0", "sm_90"),
        ("triton_poi_fused_add_0", "sm_80"),
        ("triton_poi_fused_add_0", "sm_90"),
    ]
    assert all(8 <= kernel.registers <= 32 for kernel in report)
    assert {kernel.num_warps for kernel in report} == {1, 4}
    assert all(f".target {kernel.arch}" in kernel.assembly for kernel in report)
    assert all(kernel.binary.startswith(b"\x7fELF") for kernel in report)
    assert report.assert_no_spills().assert_shared_memory(at_most=0) is report
    assert "double_and_exp_0" in str(report)


@pytest.mark.parametrize("version", ["2.11", "2.13", "2.15"])
def test_training_code_of_every_version_compiles(version):
    graphs = [captured("train", graph, version) for graph in ("forward", "backward")]
    report = assert_kernels_compile(GeneratedCode(tuple(source for graph in graphs for source in graph)), "sm_90")
    assert len(report) == len(kernels_of(graphs[0])) + len(kernels_of(graphs[1]))
    report.assert_no_spills()


def test_a_template_shares_memory():
    report = assert_kernels_compile(captured("template", "inference", "2.13"), ("sm_80",))
    (kernel,) = report
    assert kernel.shared_memory >= 1024
    report.assert_shared_memory(at_most=kernel.shared_memory)
    with pytest.raises(
        KernelResourceError, match=rf"use more than {kernel.shared_memory - 1} bytes of shared memory:\n"
    ):
        report.assert_shared_memory(at_most=kernel.shared_memory - 1)


def test_spills_are_found():
    report = assert_kernels_compile(user("x * tl.sum(y, 0) + tl.exp(y)", size=32768), "sm_80")
    assert {kernel.kernel for kernel in report if kernel.spills} == {"double_and_exp_0"}
    with pytest.raises(KernelResourceError, match=r"1 of 2 compiled kernels spill registers:\nkernel .*\ndouble_and"):
        report.assert_no_spills()


def test_an_error_says_kernel_gpu_message_and_line():
    broken = "x * tl.exq(y)"
    with pytest.raises(KernelCompileError) as failure:
        assert_kernels_compile(user(broken), "sm_90")
    told = str(failure.value)
    assert "1 of 2 kernel compilations failed\ndouble_and_exp_0 for sm_90 (num_warps=4, num_stages=3):\n" in told
    assert "has no attribute 'exq'" in told
    assert f"\n  at: tl.store(out_ptr + offsets, {broken}, mask=mask)\n" in told


def test_a_limit_of_one_gpu_is_named():
    expression = "x.to(tl.float8e4nv).to(tl.float32)"
    assert len(assert_kernels_compile(user(expression), ("sm_89", "sm_90"))) == 4
    with pytest.raises(KernelCompileError, match=r"double_and_exp_0 for sm_80 .*:\n.*fp8e4nv") as failure:
        assert_kernels_compile(user(expression))
    assert "sm_90" not in str(failure.value)


def test_a_kernel_whose_module_does_not_load():
    text = captured("user", "inference", "2.13").sources[0].text.replace("import triton\n", "import tritno\n")
    with pytest.raises(KernelCompileError, match="No module named 'tritno'"):
        assert_kernels_compile(code(text), "sm_90")


def test_amd_is_compiled_on_request():
    (kernel, _) = assert_kernels_compile(user(), "gfx942")
    assert kernel.registers > 0
    assert "amdgcn" in kernel.assembly


def test_inline_ptx_is_refused_for_amd():
    inline = "tl.inline_asm_elementwise('ex2.approx.f32 $0, $1;', '=f,f', [y], tl.float32, True, 1)"
    assert len(assert_kernels_compile(user(inline), "sm_90")) == 2
    with pytest.raises(KernelCompileError, match=r"for gfx942:\n    inline PTX: .*\n  at: tl.store.*inline_asm"):
        assert_kernels_compile(user(inline), "gfx942")


def test_compiled_regions_are_not_compiled_again():
    first = list(assert_kernels_compile(user(), "sm_90"))
    assert all(again is one for again, one in zip(assert_kernels_compile(user(), "sm_90"), first, strict=True))
    for changed in ((user("x + y"), "sm_90"), (user(), "sm_120")):
        double, _ = assert_kernels_compile(*changed)
        assert double.kernel == first[0].kernel
        assert double != first[0]


def test_each_configuration_is_a_row_on_request():
    text = user().sources[0].text
    assert "configs=[]" in text
    more = text.replace("configs=[]", "configs=[{'num_warps': 4, 'num_stages': 3}, {'num_warps': 8, 'num_stages': 3}]")

    def warps(**options):
        report = assert_kernels_compile(code(more), "sm_90", **options)
        return [kernel.num_warps for kernel in report if kernel.kernel == "double_and_exp_0"]

    assert warps() == [4]
    assert warps(configs="all") == [4, 8]
    assert warps(configs="first") == [4]
    with pytest.raises(ValueError, match="unknown configs 'every'"):
        assert_kernels_compile(user(), configs="every")


def test_unknown_architectures():
    with pytest.raises(RegionalValueError, match="Did you mean 'sm_90'"):
        assert_kernels_compile(user(), "sm_09")
    with pytest.raises(ValueError, match="name at least one architecture"):
        assert_kernels_compile(user(), ())


def test_without_a_triton_kernel_there_is_nothing_to_say():
    with pytest.raises(CodeLookupError, match="the record holds no generated code"):
        assert_kernels_compile(GeneratedCode())
    with pytest.raises(CodeLookupError, match="1 piece of generated code with extern calls alone"):
        assert_kernels_compile(code("def call(args):\n    return args"))
    with pytest.raises(CodeLookupError, match="with kernels in cpp_pybinding"):
        assert_kernels_compile(code("k = async_compile.cpp_pybinding([], '')\ndef call(args):\n    return args"))
    with pytest.raises(UnreadableCodeError):
        assert_kernels_compile(code("#include <torch>"))


def test_the_same_kernel_in_two_sources_is_one():
    text = user().sources[0].text
    assert kernels_of(code(text, text)) == kernels_of(code(text))


def test_the_harness_offers_it():
    harness, record = OnDevice(), CompileRecord(None, (), user(), Counters({}))
    assert isinstance(harness.assert_kernels_compile(record, "sm_90", configs="first"), KernelReport)
    assert isinstance(harness.assert_kernels_compile(record, "sm_90").assert_no_spills(), KernelReport)
    assert isinstance(harness.assert_kernels_compile(record, "sm_90").assert_shared_memory(at_most=0), KernelReport)
    with pytest.raises(KernelResourceError):
        harness.assert_kernels_compile(record, "sm_90").assert_shared_memory(at_most=-1)
    with pytest.raises(CodeLookupError):
        harness.assert_kernels_compile(CompileRecord(None, (), GeneratedCode(), Counters({})))


def test_results_are_distinguished():
    compiled = CompiledKernel("k", "sm_90", "", 1, 2, 3, 4, 5, 6, 0.1)
    assert (compiled.spills, FailedKernel("k", "sm_90", "", "no").crashed) == (9, False)
