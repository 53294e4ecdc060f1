"""Launches on different GPU streams: in order only where something waits."""

from __future__ import annotations

import contextlib

import pytest

from pytest_regional import CodeAssertionError
from pytest_regional.harness.record import GeneratedCode, GeneratedSource

from .wrapper_files import captured

every_version = pytest.mark.parametrize("version", ["2.13", "2.15"])


@every_version
def test_launches_on_two_streams_have_no_order_by_their_place(version):
    code = captured("streams", "inference", version)
    assert [(event.ops[0].name, event.stream) for event in code.events if event.kind in ("extern", "kernel")] == [
        ("aten.mm.default", "1"),
        ("aten.relu", "1"),
        ("aten.sin", ""),
    ]
    code.assert_order("aten.mm", "aten.relu#1")
    with pytest.raises(CodeAssertionError, match=r"run on different streams, and the later does not wait") as failure:
        code.assert_order("aten.mm", "aten.cos")
    assert "(stream 1)  [aten.mm.default]" in str(failure.value)


@every_version
def test_an_event_waited_for_orders_them(version):
    code = captured("waiting", "inference", version)
    code.assert_order("aten.mm", "aten.relu", "aten.cos")
    assert [(event.action, event.arguments, event.stream) for event in code.events.of_kind("sync")] == [
        ("record_event", ("2", "1"), "1"),
        ("wait_event", ("2", "0"), ""),
    ]
    with pytest.raises(CodeAssertionError, match="does not come before"):
        code.assert_order("aten.cos", "aten.mm")


WRAPPER = """
def call(args):
    arg0_1, = args
    default_stream = torch.cuda.current_stream()
    stream1 = _get_stream_by_index(5)
    stream2 = _get_stream_by_index(6)
    with stream1:
        buf0 = torch.ops.aten.sin.default(arg0_1)
        {first}
    with stream2:
        {second}
        buf1 = torch.ops.aten.cos.default(arg0_1)
        {third}
    with default_stream:
        {fourth}
        buf2 = torch.ops.aten.exp.default(arg0_1)
    return (buf1, )
"""
NOTHING, RECORD, RECORD_AGAIN = (
    "pass",
    "torch.ops.streams.record_event.default(9, 5)",
    "torch.ops.streams.record_event.default(9, 6)",
)
WAIT, WAIT_HERE = "torch.ops.streams.wait_event.default(9, 6)", "torch.ops.streams.wait_event.default(9, 0)"


@pytest.mark.parametrize(
    ("syncs", "second_waits", "default_waits"),
    [
        ((NOTHING,) * 4, False, False),
        ((RECORD, WAIT), True, False),
        ((NOTHING, WAIT), False, False),
        ((WAIT, RECORD), False, False),
        ((RECORD, NOTHING, NOTHING, WAIT_HERE), False, True),
        ((RECORD, RECORD_AGAIN, NOTHING, WAIT_HERE), False, False),
        ((RECORD, WAIT, RECORD_AGAIN, WAIT_HERE), True, True),
        (("torch.ops.streams.wait_stream.default(6, 5)",), True, False),
        (("torch.ops.streams.wait_stream.default(5, 6)",), False, False),
        (("torch.ops.streams.synchronize_stream.default(5)",), True, True),
        (("torch.ops.streams.synchronize_stream.default(6)",), False, False),
        ((RECORD, "torch.ops.streams.synchronize_event.default(9)"), True, True),
        (("torch.ops.streams.synchronize_device.default('cuda', 0)",), True, True),
    ],
)
def test_operations_that_make_a_stream_wait(syncs, second_waits, default_waits):
    filled = dict(zip(("first", "second", "third", "fourth"), (*syncs, *(NOTHING,) * 4), strict=False))
    code = GeneratedCode((GeneratedSource("inference", (), WRAPPER.format(**filled), False),))
    names = [f"aten.{name}.default" for name in ("sin", "cos", "exp")]
    assert [event.stream for event in code.events if event.ops and event.ops[0].name in names] == ["5", "6", ""]
    for later, waits in (("aten.cos", second_waits), ("aten.exp", default_waits)):
        refused = pytest.raises(CodeAssertionError, match="run on different streams")
        with contextlib.nullcontext() if waits else refused:
            code.assert_order("aten.sin", later)
