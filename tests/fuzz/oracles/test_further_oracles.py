"""Oracles that call again or rewrite: each holds on the reference backend, and is violated by a planted fault."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from pytest_regional import BackendSpec, BadProgramError, GraphCapabilities
from pytest_regional._torch.dynamo import aot_autograd
from pytest_regional._torch.tracing import base_of
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Block, Program, Step
from pytest_regional.fuzz.oracles import ORACLES, OracleViolationError, check
from pytest_regional.fuzz.oracles.further import moved_by_writes
from pytest_regional.fuzz.oracles.rewrites import KINDS, rewritten
from pytest_regional.testing import regional

from .backends import around_calls
from .programs import A, B, chain

aten = torch.ops.aten


def dynamo_backend(call):
    """A backend that runs the graph eagerly, by ``call(gm, inputs)``."""

    def backend(gm, example_inputs):
        return lambda *inputs: call(gm, inputs)

    return BackendSpec("faulty", lambda: backend, GraphCapabilities())


def first_tensor(inputs):
    """Sizes and strides that Dynamo took for symbols are inputs as well."""
    return next(one for one in inputs if isinstance(one, torch.Tensor))


def broken(spec, program, oracle, mode="native"):
    with regional(spec, "cpu", expects_regions=False) as harness, pytest.raises(OracleViolationError) as raised:
        check(harness, program, mode=mode, oracles=[oracle])
    assert raised.value.oracle == oracle
    return raised.value


def reason(result, oracle):
    assert oracle not in result.oracles
    return result.skipped[oracle]


VIEWS = Program(
    (TensorInput((4, 4)), TensorInput((4, 4), alias_of=0)),
    (Step("add_number_", (0,), (("value", 1.0),)), Step("sin", (1,), results=(2,), scope=A)),
    (2,),
    training=False,
)


# Writes afterwards


def test_what_moves_with_what():
    base = torch.zeros(4, 4)
    moved = moved_by_writes({"whole": base, "row": base[1], "column": base[:, 2], "other": torch.ones(2)})
    assert moved == {
        "whole": {"row", "column"},
        "row": {"whole", "column"},
        "column": {"whole", "row"},
        "other": set(),
    }


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(3),
        torch.full((2,), float("nan")),
        torch.tensor([1e30]),
        torch.tensor([True, False]),
        torch.ones(1, 3).expand(4, 3),
        torch.tensor([1, 2], dtype=torch.uint8),
    ],
)
def test_a_write_changes_every_value(tensor):
    assert set(moved_by_writes({"one": tensor, "same": tensor.view_as(tensor)})) == {"one", "same"}


def test_alias_probe_holds(checked):
    for program in (VIEWS, chain(("sin", A), ("exp", ()), training=True)):
        assert checked(program, "alias_probe").oracles == ("alias_probe",)


def test_zeros_without_memory_are_not_written_to(checked):
    """The second derivative of a step function: eager's gradient is zeros that nobody can write to."""
    block = Block((0,), (Step("abs", (0,), results=(1,)), Step("trunc", (1,), results=(2,))), 2)
    step = Step("gradient", (0,), results=(1,), scope=A, blocks=(0,))
    program = Program((TensorInput((4, 4), requires_grad=True),), (step,), (1,), (block,))
    (leaf,) = program.inputs(seed=1)
    program(leaf)[0].sum().backward()
    with pytest.raises(RuntimeError, match="immutable"):
        leaf.grad.add_(1)
    assert moved_by_writes({"zeros": leaf.grad, "other": torch.ones(2)}) == {"other": set()}
    assert checked(program, "alias_probe").oracles == ("alias_probe",)


def test_alias_probe_sees_a_constant_that_is_given_away():
    kept = {}

    def call(gm, inputs):
        key = tuple(one.sum().item() for one in inputs)
        if key not in kept:
            kept[key] = [one.detach().clone() for one in gm(*inputs)]
        return tuple(kept[key])

    error = broken(dynamo_backend(call), chain(("sin", ())), "alias_probe")
    assert "after writes to the results of other calls" in error.detail
    assert not error.without_backend


def test_alias_probe_sees_results_that_share_memory():
    def call(gm, inputs):
        first, second = gm(*inputs)
        both = torch.stack([first, second])
        return both[0], both[0] if torch.equal(first, second) else both[1]

    program = Program((TensorInput((4,)),), (Step("sin", (0,), results=(1,)), Step("sin", (0,), results=(2,))), (1, 2))
    error = broken(dynamo_backend(call), program, "alias_probe")
    assert error.origin == "alias of output"


# Inputs in another form


def test_input_forms_hold(checked):
    assert checked(VIEWS, "input_forms").oracles == ("input_forms",)
    assert reason(checked(chain(("sin", A)), "input_forms"), "input_forms") == "no inputs use one storage"


def test_input_forms_claims_nothing_that_cannot_be_trained(checked):
    inputs = (
        TensorInput((4, 4)),
        TensorInput((4, 4), alias_of=0, part="view"),
        TensorInput((4, 4), requires_grad=True),
    )
    steps = (Step("mul_number_", (0,), (("value", 0.5),)), Step("mul", (1, 2), results=(3,), scope=A))
    program = Program(inputs, steps, (3,))
    assert checked(program, "parity").oracles == ("parity",)
    assert "AOTAutograd" in reason(checked(program, "input_forms"), "input_forms")


def test_input_forms_sees_a_fault_with_views():
    def call(gm, inputs):
        outputs = gm(*inputs)
        return tuple(one + 1 for one in outputs) if any(base_of(one) is not None for one in inputs) else outputs

    error = broken(dynamo_backend(call), VIEWS, "input_forms")
    assert "with inputs as views of one tensor" in error.detail


# Other strides and sizes


def test_further_calls_hold(checked):
    assert checked(chain(("sin", A), training=True), "further_calls").oracles == ("further_calls",)


def test_further_calls_see_what_depends_on_strides():
    def call(gm, inputs):
        outputs, x = gm(*inputs), first_tensor(inputs)
        return outputs if x.is_contiguous() and not x.storage_offset() else tuple(one + 1 for one in outputs)

    error = broken(dynamo_backend(call), chain(("sin", ())), "further_calls")
    assert error.detail.startswith("called with other strides")


def test_further_calls_see_what_depends_on_sizes():
    def call(gm, inputs):
        outputs = gm(*inputs)
        return outputs if first_tensor(inputs).shape[0] == 4 else tuple(one * 2 for one in outputs)

    error = broken(dynamo_backend(call), chain(("sin", ())), "further_calls")
    assert error.detail.startswith("called with 5 for 4")


def test_further_calls_see_what_the_first_inputs_then_get():
    calls = []

    def call(gm, inputs):
        calls.append(inputs)
        outputs = gm(*inputs)
        return outputs if len(calls) < 7 else tuple(one * 2 for one in outputs)

    error = broken(dynamo_backend(call), chain(("sin", ())), "further_calls")
    assert error.detail.startswith("called as at first, behind these calls")


def test_a_program_of_fixed_sizes_is_called_with_other_strides_alone(checked):
    program = Program(
        (TensorInput((4, 4)),), (Step("reshape", (0,), (("shape", (16,)),), results=(1,)),), (1,), training=False
    )
    assert checked(program, "further_calls").oracles == ("further_calls",)


# Rewrites

TWO = chain(("sin", A), ("exp", A), ("cos", ()), ("tanh", B), ("neg", B), training=True)
APART = Program(
    (TensorInput((4, 4)),),
    (Step("sin", (0,), results=(1,), scope=A), Step("cos", (0,), results=(2,)), Step("add", (1, 2), results=(3,))),
    (3,),
    training=False,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_rewrite_fits_and_keeps_eagers_bits(kind, checked):
    rewrites = [one for program in (TWO, APART) for one in kind(program, random.Random(0))]
    assert rewrites
    for rewrite in rewrites[:3]:
        original = TWO if rewrite.program.arguments == TWO.arguments else APART
        assert rewrite.program.source != original.source
        inputs = [rewrite.program.inputs(seed=1), original.inputs(seed=1)]
        ours, theirs = rewrite.program(*inputs[0]), original(*inputs[1])
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_statements_that_write_what_others_read_are_not_exchanged():
    program = Program(
        (TensorInput((4, 4)),),
        (
            Step("clone", (0,), results=(1,)),
            Step("reshape", (1,), (("shape", (16,)),), results=(2,)),
            Step("add_number_", (2,), (("value", 1.0),)),
            Step("sin", (1,), results=(3,)),
        ),
        (3,),
        training=False,
    )
    exchange = next(kind for kind in KINDS if kind.__name__ == "exchange_statements")
    assert list(exchange(program, random.Random(0))) == []


def test_a_rewrite_needs_nothing_that_the_backend_disclaims():
    plain = chain(("sin", ()))
    for seed in range(20):
        rewrite = rewritten(plain, random.Random(seed), frozenset({"regions"}))
        assert rewrite is None or not rewrite.program.regions


def test_rewrites_hold(checked):
    for program in (TWO, APART, chain(("sin", A))):
        assert checked(program, "rewrites").oracles == ("rewrites",)


def test_rewrites_see_a_fault_at_a_border(violation):
    """The fault is in what one partition of a certain number of operators computes."""

    def halve(gm):
        partition = [node for node in gm.graph.nodes if "compile_with_inductor" in node.meta.get("custom", {})]
        if len(partition) not in (0, 4):
            last = partition[-1]
            with gm.graph.inserting_after(last):
                half = gm.graph.call_function(aten.mul.Tensor, (last, 0.5))
            last.replace_all_uses_with(half, lambda user: user is not half)
            half.meta = {**last.meta}

    error = violation(replace(TWO, training=False), "rewrites", edit=halve)
    assert error.oracle == "rewrites"


def test_rewrites_see_other_bits(violation):
    """One unit in the last place, which the rule of parity allows."""
    calls = []

    def nudged(result):
        calls.append(result)
        return torch.nextafter(result, torch.full_like(result, torch.inf)) if len(calls) > 4 else result

    error = violation(replace(TWO, training=False), "rewrites", finish=around_calls(nudged))
    assert error.origin.startswith("other bits: value of output")


def test_determinism_sees_other_bits(violation):
    calls = []

    def nudged(result):
        calls.append(result)
        return torch.nextafter(result, torch.full_like(result, torch.inf)) if len(calls) > 2 else result

    assert violation(chain(("sin", A)), "determinism", finish=around_calls(nudged)).origin == "other bits"


# Random numbers of the backend's own


def test_own_random_sees_another_distribution():
    def call(gm, inputs):
        outputs = gm(*inputs)
        return outputs if torch._inductor.config.fallback_random else tuple(one * 0.5 for one in outputs)

    program = Program((TensorInput((32, 32)),), (Step("rand_like", (0,), results=(1,)),), (1,), training=False)
    error = broken(dynamo_backend(call), program, "own_random")
    assert error.origin == "distribution of output"
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        assert check(harness, program, mode="native", oracles="own_random").oracles == ("own_random",)
        assert check(harness, chain(("sin", ())), mode="native", oracles="own_random").skipped


# Programs that eager refuses


OTHER_SIZES = Program(
    (TensorInput((3,)), TensorInput((4,))), (Step("add", (0, 1), results=(2,)),), (2,), training=False
)


def test_refused_is_checked_by_name_alone(checked):
    with pytest.raises(BadProgramError):
        checked(OTHER_SIZES)
    assert ORACLES["refused"].every == 0
    assert reason(checked(chain(("sin", A))), "refused") == "checked where it is named"
    assert reason(checked(chain(("sin", A)), "refused"), "refused") == "eager runs the program"


def test_refused_sees_a_backend_that_runs_it():
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        assert check(harness, OTHER_SIZES, mode="native", oracles="refused").oracles == ("refused",)

    def lenient(gm, example_inputs):
        return lambda *inputs: (inputs[0],)

    # Dynamo refuses what its fake tensors refuse; only what eager refuses while it runs gets through to a backend.
    indices = TensorInput((2,), dtype="int64", content="index", below=60)
    late = Program((TensorInput((4, 3)), indices), (Step("index_select", (0, 1), (("dim", 0),), results=(2,)),), (2,))
    late = replace(late, training=False)
    error = broken(BackendSpec("faulty", lambda: lenient, GraphCapabilities()), late, "refused")
    assert error.origin == "nothing raised for IndexError"


@pytest.mark.parametrize(
    ("oracle", "program"),
    [
        ("further_calls", chain(("sin", ()))),
        ("rewrites", chain(("sin", ()), ("cos", ()))),
        ("integer_twin", chain(("neg", ()))),
        ("inference", chain(("sin", ()), training=True)),
        ("input_forms", VIEWS),
    ],
)
def test_oracles_of_capture_are_told_apart(oracle, program):
    """What goes wrong on AOTAutograd alone is no defect of the backend."""

    def wrong(gm, example_inputs):
        return aot_autograd(fw_compiler=lambda g, _: lambda *inputs: [one + 1 for one in g(*inputs)])(
            gm, example_inputs
        )

    error = broken(BackendSpec("faulty", lambda: wrong, GraphCapabilities()), program, oracle)
    assert not error.without_backend


RUNNING_SUM = Program(
    (TensorInput((3, 66)), TensorInput((66, 3), layout="strided", content="positive"), TensorInput((66,))),
    (Step("cumsum", (2,), (("dim", 0),), (3,)), Step("atan", (3,), (), (4,))),
    (4,),
)


def test_a_gpu_may_sum_up_in_another_order_than_the_cpu():
    """The CPU sums up in float64: its result is no measure for what a GPU computes in float32."""
    with regional("inductor", "cuda-emulated", expects_regions=False) as harness:
        result = check(harness, RUNNING_SUM, mode="emulated", oracles=["parity"])
    assert result.oracles == ("parity",)


def test_what_is_more_than_rounding_is_noticed_on_a_gpu():
    def call(gm, inputs):
        return [value * (1 + 1e-5) for value in gm(*inputs)]

    backend = dynamo_backend(call)
    with (
        regional(backend, "cuda-emulated", expects_regions=False) as harness,
        pytest.raises(OracleViolationError, match=r"value of output|elements differ"),
    ):
        check(harness, RUNNING_SUM, mode="emulated", oracles=["parity"])
