"""Triton wrappers of several torch versions, whose operators come from comments."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CodeAssertionError
from pytest_regional.harness.codegen import CodeLookupError, LaunchOrigin, Op, OpError, events_of

from . import capture_wrappers
from .wrapper_files import captured

VERSIONS = ("2.11", "2.13", "2.15")
SQUARE = 8 * 8 * 4
every_version = pytest.mark.parametrize("version", VERSIONS)


@every_version
def test_forward(version):
    code = captured("train", "forward", version)
    code.assert_order("aten.mm#1", "aten.mm#2", "aten.silu")
    code.assert_fused("aten.add", "aten.silu", "aten.mul", "aten.sum")
    code.assert_count("aten.mm", 2)
    code.assert_no_copy()
    code.assert_peak_live_bytes(at_most=3 * SQUARE)
    kernel = code.events.of_kind("kernel")[0]
    assert (kernel.reads, kernel.writes) == (("buf1", "buf0", "primals_1"), ("buf3",))
    with pytest.raises(CodeAssertionError, match=r"aten.silu \(line \d+\) does not come before aten.mm \(lines"):
        code.assert_order("aten.silu", "aten.mm")
    with pytest.raises(CodeAssertionError, match=r"768 bytes"):
        code.assert_peak_live_bytes(at_most=3 * SQUARE - 1)


@every_version
def test_backward(version):
    code = captured("train", "backward", version)
    code.assert_order("aten.sum", "aten.mm", "aten.addmm")
    # The kernel copies an input of the product for it, and its comment names the product.
    code.assert_count("aten.mm", 1)
    code.assert_not_fused("aten.mm", "aten.sum")
    code.assert_freed_before("buf3", "aten.addmm#2")
    with pytest.raises(CodeAssertionError, match=r"aten.sum and aten.silu_backward are fused into one kernel"):
        code.assert_order("aten.sum", "aten.silu_backward")
    with pytest.raises(CodeAssertionError, match=r"buf3 .* is not freed before aten.addmm#1"):
        code.assert_freed_before("buf3", "aten.addmm#1")


@every_version
def test_branches_whose_comments_name_what_is_around_them_are_of_unknown_origin(version):
    code = captured("branch", "inference", version)
    events = code.events.of_kind("kernel")
    assert [event.ops for event in events] == [(Op("aten.sum"), Op("aten.gt")), None, None, (Op("aten.mul"),)]
    assert [len(event.path) for event in events] == [0, 2, 2, 0]
    with pytest.raises(CodeLookupError):
        code.assert_order("aten.sum", "aten.mul")


def test_a_template_computes_its_operator_and_what_follows():
    code = captured("template", "inference", "2.13")
    code.assert_fused("aten.mm", "aten.relu", "aten.add")
    kernel = code.events.of_kind("kernel")[0]
    assert (kernel.reads, kernel.writes) == (("arg0_1", "arg1_1"), ("buf1",))
    with pytest.raises(CodeAssertionError, match=r"aten.mm and aten.relu are fused"):
        code.assert_not_fused("aten.mm", "aten.relu")


def test_a_kernel_over_several_tensors():
    kernel = captured("foreach", "inference", "2.13").events.of_kind("kernel")[0]
    assert kernel.ops == (Op("aten._foreach_add"),)
    assert (kernel.reads, kernel.writes) == (("arg0_1", "arg1_1"), ("buf0", "buf1"))


def test_a_kernel_that_the_user_wrote():
    code = captured("user", "inference", "2.13")
    code.assert_order("triton.double_and_exp", "aten.add")
    kernel = code.events.of_kind("kernel")[0]
    assert "buf0" in kernel.writes
    assert set(kernel.reads) >= {"arg0_1", "arg1_1"}
    with pytest.raises(CodeAssertionError):
        code.assert_order("aten.add", "double_and_exp")


def test_overloads_are_not_known_from_comments():
    with pytest.raises(OpError, match=r"Only the name 'aten.silu' is known, not its overload: leave the overload"):
        captured("train", "forward", "2.13").assert_order("aten.mm", torch.ops.aten.silu.default)


@every_version
def test_combined_kernels(version):
    code = captured("combined", "inference", version)
    pointwise, reductions = code.events.of_kind("kernel")
    assert (pointwise.reads, pointwise.writes) == (("arg1_1",), ("buf1",))
    assert (reductions.reads, reductions.writes) == (("arg0_1",), ("buf0", "buf2"))


def parts(kernel: str) -> LaunchOrigin:
    """Return what Inductor tells of each of two kernels that it combined three parts into."""
    ops_of = tuple((f"buf{n}", (Op(f"aten.{name}"),)) for n, name in enumerate(("sum", "relu", "amax")))
    return LaunchOrigin(
        kernel, tuple(op for _, ops in ops_of for op in ops), ops_of, (), (("buf0",), ("buf1",), ("buf2",))
    )


@every_version
def test_each_of_the_combined_kernels_computes_its_parts_alone(version):
    text = captured("combined", "inference", version).sources[0].text
    names = [event.kernel for event in events_of(text, None).of_kind("kernel")]
    told = events_of(text, tuple(map(parts, names))).of_kind("kernel")
    assert [event.ops for event in told] == [(Op("aten.relu"),), (Op("aten.sum"), Op("aten.amax"))]
    # One kernel that was told all of them computes all of them.
    alone = events_of(text, (parts(names[0]),)).of_kind("kernel")
    assert len(alone[0].ops) == 3


@every_version
def test_a_workspace_is_read_and_written(version):
    code = captured("scan", "inference", version)
    code.assert_fused("aten.cumsum", "aten.add")
    (kernel,) = code.events.of_kind("kernel")
    assert "workspace_0" in kernel.reads
    assert "workspace_0" in kernel.writes
    assert [event.text for event in code.events if event.writes == ("workspace_0",)][1:] == ["workspace_0.zero_()"]


@every_version
def test_a_kernel_adds_into_what_another_wrote(version):
    code = captured("scatter", "inference", version)
    copy, scatter, last = code.events.of_kind("kernel")
    assert (copy.reads, copy.writes) == (("arg0_1",), ("buf0",))
    assert "buf0" in scatter.reads
    assert scatter.writes == ("buf0",)
    assert last.reads == ("buf0",)
    code.assert_order("aten.index_put", "aten.mul")


SEMAPHORES = """
kernel = async_compile.triton('triton_red_fused_sum_0', '''
@triton_heuristics.cooperative_reduction(inductor_meta={'mutated_arg_names': []})
@triton.jit
def triton_red_fused_sum_0(in_ptr0, out_ptr0, sem_ptr, ws_ptr, xnumel, RSPLIT : tl.constexpr):
    pass
''')
def call(args):
    arg0_1, = args
    kernel.run(arg0_1, buf0, semaphores_0, workspace_0, 1, stream=raw_stream0)
"""


def test_semaphores_are_read_and_written():
    (kernel,) = events_of(SEMAPHORES, None).of_kind("kernel")
    assert kernel.reads == ("arg0_1", "semaphores_0", "workspace_0")
    assert kernel.writes == ("buf0", "semaphores_0", "workspace_0")


@pytest.mark.parametrize("after", ["", ".view([64])"])
def test_a_reduction_is_finished_outside_its_kernel(after):
    line = f"buf1 = workspace_0[0 * 64 : (0 + 1) * 64].view(4, 16).sum(dim=0){after}"
    event = events_of(f"{SEMAPHORES}    {line}\n", None)[-1]
    assert (event.kind, event.ops) == ("extern", (Op("aten.sum"),))
    assert (event.reads, event.writes) == (("workspace_0",), ("buf1",))


TEMPLATE = (
    SEMAPHORES.replace("sem_ptr, ws_ptr", "arg_Q, arg_L")
    .replace("triton_red", "triton_tem")
    .replace("    pass", "    Q = arg_Q\n    L = arg_L + 4\n    tl.store(L, tl.load(Q))")
)


def test_a_template_that_stores_to_an_argument_writes_it():
    (kernel,) = events_of(TEMPLATE, None).of_kind("kernel")
    assert kernel.reads == ("arg0_1", "semaphores_0")
    assert kernel.writes == ("buf0", "workspace_0")


def test_a_captured_wrapper_is_what_this_torch_generates():
    version = ".".join(torch.__version__.split(".")[:2])
    ((_, text),) = capture_wrappers.generated("scan")
    kept = captured("scan", "inference", version).events
    assert [event.kind for event in events_of(text, None)] == [event.kind for event in kept]
