"""What the reader makes of C++ wrappers that the installed torch generates."""

from __future__ import annotations

import pytest

from pytest_regional.harness.codegen import KernelLaunch, Op, UnreadableCodeError, events_of
from pytest_regional.harness.record import GeneratedCode, GeneratedSource
from pytest_regional.testing import regional

from . import programs
from .wrapper_files import WRAPPERS


def kinds(code):
    return [event.kind for event in code.events if event.kind not in ("assert", "alias")]


def test_events_of_a_chain_in_order(code):
    assert kinds(code("chain")) == [
        "allocate",
        "kernel",
        "free",
        "allocate",
        "extern",
        "free",
        "free",
        "reuse",
        "kernel",
        "return",
    ]


def test_buffers_and_operators_of_launches(code):
    first, product, last = (e for e in code("chain").events if e.kind in ("kernel", "extern"))
    assert (first.reads, first.writes) == (("arg0_1",), ("buf0",))
    assert first.ops == (Op("aten.add.Tensor"),)
    assert (product.reads, product.writes, product.ops) == (("buf0", "arg1_1"), ("buf1",), (Op("aten.mm.default"),))
    # In place: one buffer is read and written.
    assert last.reads == last.writes == ("buf2",)
    assert set(last.ops) == {Op("aten.sin.default"), Op("aten.mul.Tensor")}


def test_lines_are_those_of_the_text(code):
    source = code("chain").sources[0]
    lines = source.text.split("\n")
    assert source.events
    assert all(lines[event.line - 1].strip() == event.text for event in source.events)


def test_the_text_is_a_table(code):
    row = next(line for line in str(code("chain").events).split("\n") if " extern " in line)
    assert row.split(None, 2)[2] == "extern_kernels.mm(buf0, arg1_1, out=buf1)  [aten.mm.default]"
    kernels = code("chain").events.of_kind("kernel")
    assert len(kernels) == 2 == len(str(kernels).split("\n"))


def test_operators_that_were_decomposed_stand_below_what_the_program_said(code):
    *_, kernel = code("train").sources[0].events.of_kind("kernel")
    assert Op("aten.exp.default", inside="aten.silu") in kernel.ops
    assert Op("aten.silu.default") not in kernel.ops
    assert isinstance(kernel, KernelLaunch)
    made = {frozenset(op.inside or op.name for op in ops) for _, ops in kernel.ops_of}
    assert frozenset(["aten.silu", "aten.mul.Tensor", "aten.add.Tensor"]) in made


def test_forward_and_backward(code):
    forward, backward = code("train").sources
    assert (forward.graph, backward.graph) == ("forward", "backward")
    assert all(event.ops for event in [*forward.events, *backward.events] if event.kind == "kernel")
    # The copy of what a product needs is no product.
    assert not [e for e in backward.events if e.kind == "kernel" and Op("aten.mm.default") in e.ops]


def test_both_branches_are_nested_with_what_they_compute(code):
    events = [event for event in code("branch").events if event.kind in ("kernel", "extern")]
    arms = {tuple(step.arm for step in event.path if step.kind == "if") for event in events}
    assert arms == {(0,), (1,), ()}
    by_arm = [
        {op.name for event in events for op in event.ops if [s.arm for s in event.path if s.kind == "if"] == arm}
        for arm in ([0], [1], [])
    ]
    assert {"aten.mm.default", "aten.sin.default"} in by_arm
    assert {"aten.mm.default", "aten.cos.default"} in by_arm
    assert by_arm[2] == {"aten.add.Tensor"}


def test_collectives_start_and_are_waited_for(code):
    events = code("collectives").events
    start, wait = events.of_kind("collective")[0], events.of_kind("wait")[0]
    assert start.ops == (Op("_c10d_functional.all_gather_into_tensor.default"),)
    assert start.writes == wait.reads == wait.writes
    assert start.reads == ("arg0_1",)


def test_allocations_say_their_size(code):
    allocation = code("dynamic").events.of_kind("allocate")[0]
    assert allocation.dtype == "torch.float32"
    assert len(allocation.size) == 2
    assert all(size.startswith("s") for size in allocation.size)


def test_a_loaded_source_has_the_operators_that_this_process_saw(tmp_path):
    with regional("inductor") as r:
        inputs = r.randn(8, 8), r.randn(8, 8)
        generated = r.run(programs.copies, *inputs).code.sources[0]
        r.restart()
        loaded = r.run(programs.copies, *inputs).code.sources[0]
    assert (generated.loaded, loaded.loaded) == (False, True)
    assert generated.events == loaded.events


def test_a_cpp_wrapper_is_refused_by_name():
    text = (WRAPPERS / "cpp_wrapper_torch2.13.txt").read_text()
    code = GeneratedCode((GeneratedSource("inference", (), text, False),))
    with pytest.raises(UnreadableCodeError, match=r"C\+\+ wrapper.*cpp_wrapper = False"):
        code.assert_count("aten.mm", 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#include <torch/all.h>\nint main() {}", "not Python"),
        ("x = 1\n", "no function 'call'"),
        ("def call(args):\n    return call2(args)\ndef call2(args):\n    return call2(args)\n", None),
        (
            "class Runner:\n    def call(self, args):\n        (buf0,) = self.partitions[3](x_args)\n",
            "calls partition_3",
        ),
        ("def call(args):\n    buf0 = f(args)\ndef f(args):\n    x = f(args)\n", "calls itself"),
    ],
)
def test_code_that_is_no_wrapper_is_refused(text, said):
    if said is None:
        assert [event.kind for event in events_of(text, None)] == ["return"]
        return
    with pytest.raises(UnreadableCodeError, match=said):
        events_of(text, None)


PARTITIONED = """
empty_strided_cuda = torch._C._dynamo.guards._empty_strided_cuda
def partition_0(args):
    arg0_1, = args
    args.clear()
    assert_size_stride(arg0_1, (8, 8), (8, 1))
    with torch.cuda._DeviceGuard(0):
        buf0 = empty_strided_cuda((8, 8), (8, 1), torch.float32)
        # Topologically Sorted Source Nodes: [a], Original ATen: [aten.mm]
        extern_kernels.mm(arg0_1, arg0_1, out=buf0)
        del arg0_1
    return (buf0, )
class Runner:
    def __init__(self, partitions):
        self.partitions = partitions
    def call(self, args):
        arg0_1, = args
        args.clear()
        partition0_args = [arg0_1]
        del arg0_1
        (buf0,) = self.partitions[0](partition0_args)
        del partition0_args
        buf1 = torch.ops.aten.cumsum.default(buf0, 0)
        del buf0
        buf2 = buf1
        return (buf2, )
"""


def test_partitions_are_read_where_they_are_called():
    events = events_of(PARTITIONED, None)
    launches = [(e.ops[0].name, [step.label for step in e.path]) for e in events if e.kind == "extern"]
    assert launches == [("aten.mm.default", ["partition_0"]), ("aten.cumsum.default", [])]


COMMENTED = """
def call(args):
    arg0_1, = args
    buf0 = extern_kernels.mm(arg0_1, '# reuse')  # alias
    buf1 = g(
        arg0_1,  # reuse
    )
    # Topologically Sorted Source Nodes: [a, b], Original ATen: [aten.sin, aten.cos]
    buf2 = extern_kernels.mm(arg0_1, '#')
    buf3 = buf2  # reuse
    return (buf3, )
"""


STRING = """    x = '''
    # Source Nodes: [c], Original ATen: [aten.tan]
'''
"""


@pytest.mark.parametrize("string", ["", STRING])
def test_comments_are_distinguished_from_strings(string):
    text = COMMENTED.replace("    buf0 =", f"{string}    buf0 =")
    events, lines = events_of(text, None), text.split("\n")
    assert [event.writes for event in events.of_kind("reuse")] == [("buf3",)]
    first, second = events.of_kind("extern")
    assert first.comment is None
    origin = second.comment
    assert (origin.sorted, origin.nodes, origin.operators) == (True, ("a", "b"), ("aten.sin", "aten.cos"))
    assert lines[origin.line - 1].strip().startswith("# Topologically")
