"""What is read between kernels: written before, and not overwritten since."""

from __future__ import annotations

import importlib.util
import linecache
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import z3

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional.emulation import Emulation
from pytest_regional.verify import PROVED, REFUTED, UNKNOWN, verify_graph, verifying
from pytest_regional.verify.outcomes import NotVerifiableError
from pytest_regional.verify.properties import filled
from pytest_regional.verify.question import Tensor
from pytest_regional.verify.verifier import BufferFlow, Effects, fault_of_graph
from pytest_regional.verify.wrappers import Graph, TensorInput, WrapperRun, run_wrapper

# Generated code finds these in its module; a run on symbols puts others in their places.
empty_strided_cuda: Any = None
reinterpret_tensor: Any = None
extern_kernels: Any = None


def kernel(name: str, *arguments: str) -> Any:
    """Return a kernel whose arguments are named for what it does to them: ``in_``, ``out_``, ``in_out_``, ``add_``."""
    return SimpleNamespace(fn=SimpleNamespace(__name__=name), triton_meta={}, names=arguments, configs=[])


first = kernel("first", "in_ptr", "out_ptr")
second = kernel("second", "in_ptr", "out_ptr")
changing = kernel("changing", "in_out_ptr")
adding = kernel("adding", "in_ptr", "add_ptr")


def effects_of(run: WrapperRun) -> dict[int, Effects]:
    def named(launch: Any, *prefixes: str) -> frozenset[str]:
        return frozenset(name for name in launch.arguments if name.startswith(prefixes))

    return {
        launch.order: Effects(named(launch, "in_"), named(launch, "out_", "in_out_"), named(launch, "add_"))
        for launch in run.launches
    }


def flow_of(call: Any, donated: tuple[int, ...] = (), updated: Mapping[int, bool] | None = None) -> BufferFlow:
    given = TensorInput((8,), (1,), torch.float32)
    run = run_wrapper(
        Graph(call, [given], []),
        lambda tuner, values: dict(zip(tuner.names, values, strict=True)),
        lambda condition, known: bool(condition),
    )
    return BufferFlow(run, effects_of(run), donated, updated)


def in_order(args):
    (arg0,) = args
    args.clear()
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    first.run(arg0, buf0, stream=0)
    buf1 = empty_strided_cuda((8,), (1,), torch.float32)
    second.run(buf0, buf1, stream=0)
    buf2 = buf0  # reuse
    del buf0
    first.run(buf1, buf2, stream=0)
    return (buf1, buf2)


def in_place(args):
    (arg0,) = args
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    first.run(arg0, buf0, stream=0)
    buf1 = buf0  # reuse
    del buf0
    changing.run(buf1, stream=0)
    return (buf1,)


def by_an_operator(args):
    (arg0,) = args
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    extern_kernels.mm(arg0, arg0, out=buf0)
    buf1 = extern_kernels.convolution(buf0)
    return (buf1,)


def in_slices(args):
    (arg0,) = args
    buf2 = empty_strided_cuda((16,), (1,), torch.float32)
    buf0 = reinterpret_tensor(buf2, (8,), (1,), 0)  # alias
    buf1 = reinterpret_tensor(buf2, (8,), (1,), 8)  # alias
    first.run(arg0, buf0, stream=0)
    second.run(arg0, buf1, stream=0)
    return (buf2,)


def without_elements(args):
    args.clear()
    buf0 = empty_strided_cuda((0, 8), (8, 1), torch.float32)
    buf1 = empty_strided_cuda((8,), (1,), torch.float32)
    second.run(buf0, buf1, stream=0)
    return (buf1, buf0)


@pytest.mark.parametrize(
    "call", [in_order, in_place, by_an_operator, in_slices, without_elements], ids=lambda call: call.__name__
)
def test_what_is_right_is_proved(call):
    assert flow_of(call).outcome().verdict == PROVED


def overwritten(args):
    (arg0,) = args
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    first.run(arg0, buf0, stream=0)
    buf1 = buf0  # without a word that it is read for the last time
    second.run(arg0, buf1, stream=0)
    return (buf0, buf1)


def through_an_alias(args):
    (arg0,) = args
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    first.run(arg0, buf0, stream=0)
    half = reinterpret_tensor(buf0, (4,), (1,), 0)
    buf1 = buf0  # reuse
    del buf0
    second.run(arg0, buf1, stream=0)
    return (half, buf1)


def left_from_before(args):
    (arg0,) = args
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    first.run(arg0, buf0, stream=0)
    buf1 = buf0  # reuse
    del buf0
    buf2 = empty_strided_cuda((8,), (1,), torch.float32)
    second.run(buf1, buf2, stream=0)
    return (buf2,)


def never_written(args):
    (arg0,) = args
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    buf1 = extern_kernels.mm(arg0, buf0)
    return (buf1,)


def added_to_nothing(args):
    (arg0,) = args
    buf0 = empty_strided_cuda((8,), (1,), torch.float32)
    adding.run(arg0, buf0, stream=0)
    return (buf0,)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (overwritten, "the caller reads buffer 1, which second overwrote"),
        (through_an_alias, "the caller reads buffer 1, which second overwrote"),
        (left_from_before, "second reads buffer 3 before anything was written to it"),
        (never_written, "extern_kernels.mm reads buffer 1 before anything was written to it"),
        (added_to_nothing, "adding updates buffer 1 before anything was written to it"),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_what_is_wrong_is_refuted(call, reason):
    outcome = flow_of(call).outcome()
    assert (outcome.verdict, outcome.reason) == (REFUTED, reason)


def on_an_input(args):
    (arg0,) = args
    buf0 = arg0  # reuse
    del arg0
    changing.run(buf0, stream=0)
    return (buf0,)


def test_the_memory_of_an_input_is_used_again_only_if_it_is_donated():
    assert flow_of(on_an_input, donated=(0,)).outcome().verdict == PROVED
    outcome = flow_of(on_an_input).outcome()
    assert (outcome.verdict, outcome.reason) == (
        UNKNOWN, "the memory of inputs that are not donated is used again: [0]"
    )  # fmt: skip


def test_the_first_kernel_that_writes_has_to_write_all():
    required = flow_of(in_order).required
    assert list(required.values()) == [["out_ptr"]] * 3


@pytest.mark.parametrize(("start", "length", "verdict"), [(8, 8, PROVED), (7, 8, UNKNOWN), (8, 7, UNKNOWN)])
def test_slices_have_to_fill_their_buffer(start, length, verdict):
    whole, one, other = (_view(0, 16), _view(0, 8), _view(start, length))
    assert filled([], whole, [one, other], 5.0).verdict == verdict


def _view(start: int, length: int) -> Tensor:
    return Tensor("memory", z3.IntVal(start), (z3.IntVal(length),), (z3.IntVal(1),), torch.float32)


STALE = """
def call(args):
    arg0_1, = args
    args.clear()
    buf0 = arg0_1 * 2
    buf1 = buf0
    buf1.add_(1)
    return (buf0, buf1)
"""


def test_a_refutation_is_confirmed_by_a_run_with_separate_memory(emulation: Emulation, tmp_path):
    """The replay compares generated code as it is with the same code in which no buffer is given another's memory."""
    path = tmp_path / "stale_code.py"
    path.write_text(STALE)
    spec = importlib.util.spec_from_file_location("stale_code", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    given = [TensorInput((8,), (1,), torch.float32)]
    assert "outputs [0] differ" in str(fault_of_graph(Graph(module.call, given, []), emulation, 5.0))
    path.write_text(STALE.replace("buf1 = buf0", "buf1 = buf0.clone()"))
    spec.loader.exec_module(module)
    linecache.clearcache()
    assert fault_of_graph(Graph(module.call, given, []), emulation, 5.0) is None


def test_a_run_that_takes_too_long_confirms_nothing(emulation: Emulation, tmp_path):
    def wait(buffer):
        assert emulation.memory.deadline <= time.process_time() + 5.0
        raise OutOfTimeError("out of time")

    path = tmp_path / "waiting_code.py"
    path.write_text(STALE.replace("buf1 = buf0", "buf1 = wait(buf0)"))
    spec = importlib.util.spec_from_file_location("waiting_code", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.wait = wait
    with pytest.raises(NotVerifiableError, match="out of time"):
        fault_of_graph(Graph(module.call, [TensorInput((8,), (1,), torch.float32)], []), emulation, 5.0)


def test_a_graph_that_returns_its_input_needs_no_launch(emulation: Emulation):
    def nothing(args):
        (arg0,) = args
        return (arg0,)

    (found,) = verify_graph(Graph(nothing, [TensorInput((8,), (1,), torch.float32)], []), emulation)
    assert [(outcome.property, outcome.verdict) for outcome in found.outcomes] == [("buffers", PROVED)]


UPDATES = {
    "nothing": lambda x: (x.mul_(1), x + 1)[1:],
    "every second": lambda x: (x[::2].add_(1), x + 1)[1:],
    "some": lambda x: (x.index_put_((torch.arange(2),), torch.ones(2)), x + 1)[1:],
    "all": lambda x: (x.add_(1), x + 1)[1:],
}
"""Functions that write to an input: no element, or others than all, in ways that generated code may do in place."""


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_of_an_input_that_is_right_is_not_refuted(emulation: Emulation, name: str):
    torch._dynamo.reset()
    with torch._inductor.config.patch(force_disable_caches=True), verifying(emulation) as verification:
        torch.compile(UPDATES[name], fullgraph=True)(torch.ones(8))
    outcomes = [(one.property, one.verdict) for kernel in verification.verified() for one in kernel.outcomes]
    assert outcomes
    assert REFUTED not in dict(outcomes).values()
    assert (("coverage", PROVED) in outcomes) or name != "all"


def test_an_input_that_the_graph_changes_has_to_be_written():
    def call(args):
        (arg0,) = args
        buf0 = empty_strided_cuda((8,), (1,), torch.float32)
        first.run(arg0, buf0, stream=0)
        return (buf0,)

    assert flow_of(call).outcome().verdict == PROVED
    outcome = flow_of(call, updated={0: False}).outcome()
    assert (outcome.verdict, outcome.reason) == (REFUTED, "nothing is written to input 0, which the graph changes")


def test_a_kernel_has_to_write_each_element_of_an_input_that_the_graph_replaces():
    def call(args):
        (arg0,) = args
        changing.run(arg0, stream=0)
        return ()

    required = [flow_of(call, updated={0: whole}).required for whole in (True, False)]
    assert [list(found.values()) for found in required] == [[["in_out_ptr"]], []]
