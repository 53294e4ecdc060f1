"""Each oracle holds on the reference backend, and is violated by a fault planted for it."""

from __future__ import annotations

import contextlib
import operator
from dataclasses import replace

import pytest
import torch

from pytest_regional import BackendSpec, BadProgramError, GraphCapabilities, declared, unsupported
from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch.config import patched_config
from pytest_regional._torch.dynamo import aot_autograd, registered_backend
from pytest_regional._torch.inductor import artifact_behind
from pytest_regional.fuzz.findings.files import to_data
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Block, Program, Region, Step
from pytest_regional.fuzz.oracles import ORACLES, OracleViolationError, caching, check, example_run, further
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.reference import compile_regions
from pytest_regional.testing import regional
from tests.faults.of_backends import FAULTS
from tests.faults.planting import spec_of
from tests.splitting_backend import THROUGH_AOT

from .backends import annotate_as, around_calls, faulty, operator_nodes
from .programs import UNORDERED, A, B, chain

aten = torch.ops.aten

TWO_REGIONS = chain(("sin", A), ("exp", ()), ("cos", B), ("tanh", A), training=True)
CONFIGURED = chain(("sin", (Region("a", (("max_fusion_size", 8),)),)), ("cos", B), training=True)


@pytest.mark.parametrize("program", [TWO_REGIONS, CONFIGURED])
def test_the_reference_keeps_every_oracle(checked, program):
    here = [name for name in ORACLES if name != "threads"]  # that one starts a process
    result = checked(program, *here)
    assert set(result.oracles) | set(result.skipped) == set(here)
    assert {"parity", "region_boundary", "configs", "plan", "counters", "warm", "annotations_in_key"} <= set(
        result.oracles
    )


def test_eager_and_float64_run_once_for_each_inputs_whatever_the_oracles(checked, monkeypatch):
    run, original = [], example_run.execute

    def counting(fn, inputs, *, fp64=False, **options):
        if fn is TWO_REGIONS.function:
            run.append((inputs[0].sum().item(), fp64))
        return original(fn, inputs, fp64=fp64, **options)

    monkeypatch.setattr(example_run, "execute", counting)
    others = ("threads", "further_calls", "refused")  # a process; other inputs; what eager makes of them alone
    checked(TWO_REGIONS, *(name for name in ORACLES if name not in others))
    assert len(run) == len(set(run)) == 4


def replaced(gm, before=aten.sin.default, after=aten.cos.default):
    for node in gm.graph.nodes:
        if node.target is before and "compile_with_inductor" in node.meta.get("custom", {}):
            node.target = after


def test_parity(violation):
    error = violation(chain(("sin", A), ("exp", B)), edit=replaced)
    assert (error.oracle, error.stage) == ("parity", "run")
    assert error.origin == "value of output, value of output (second call)"
    assert error.region.startswith("region 'a'")


def test_parity_of_a_gradient_alone(violation):
    def wrong_backward(gm):
        replaced(gm, aten.cos.default, aten.sin.default)

    error = violation(chain(("sin", A), training=True), "parity", edit=wrong_backward)
    assert (error.oracle, error.stage) == ("parity", "backward")
    assert "grad" in error.origin


def unrounded(gm, inputs):
    """Compile as a backend that computes in float32 and rounds the results alone."""

    def compile_graph(gm, inputs):
        return lambda *arguments: [result.bfloat16() for result in gm(*(value.float() for value in arguments))]

    return aot_autograd(fw_compiler=compile_graph)(gm, inputs)


def test_rounding_is_measured_where_no_float64_run_judges():
    """The terms nearly cancel, and the float64 run fails: a strided float64 has no view as bits of a bfloat16."""
    steps = (Step("bits_of_bfloat16", (0,), (), (1,)), Step("sin", (0,), (), (2,)), Step("sub", (2, 0), (), (3,)))
    program = Program((TensorInput((4, 4), "bfloat16", "transposed", "distinct"),), steps, (3,), training=False)
    spec = BackendSpec("unrounded", lambda: unrounded, GraphCapabilities())
    with regional(spec, "cpu", expects_regions=False) as harness:
        assert check(harness, program, mode="native", oracles=["parity"]).oracles == ("parity",)


def test_a_constant_of_the_first_call_shows_in_the_second(violation):
    kept = []

    def first(result):
        kept.append(result.clone())
        return kept[0].clone()

    error = violation(chain(("sin", A)), "parity", finish=around_calls(first))
    assert error.origin == "value of output (second call)"


def test_a_draw_too_many_shows_in_the_state_that_it_leaves(violation):
    def drawing(result):
        torch.rand(())
        return result

    error = violation(chain(("sin", A)), "parity", finish=around_calls(drawing))
    assert error.origin == "draws of random state"
    assert "which does not touch it" in error.detail


def test_compiles(violation):
    def refuse(gm):
        raise KeyError("a fault")

    error = violation(chain(("sin", A)), edit=refuse)
    assert (error.oracle, error.stage) == ("compiles", "compile")
    assert error.origin == "KeyError at tests.fuzz.oracles.backends:compile_graph"


def test_a_failure_at_run_time_differs_from_one_at_compile_time(violation):
    def fail(result):
        raise ValueError("a fault")

    error = violation(chain(("sin", A)), finish=around_calls(fail))
    assert (error.oracle, error.stage) == ("compiles", "run")


def test_region_boundary_sees_strides(violation):
    error = violation(
        chain(("sin", A), ("exp", ())), "region_boundary", finish=around_calls(lambda t: t.t().contiguous().t())
    )
    assert error.origin == "strides of a value a region"
    assert "leaves region 'a' of the inference graph with strides (1, 4), not (4, 1)" in error.detail


def restored_to_other_strides(gm):
    """Copy what leaves a region, as if to restore its strides, and get them wrong."""
    for element in gm.graph.find_nodes(op="call_function", target=operator.getitem):
        with gm.graph.inserting_after(element):
            turned = gm.graph.call_function(aten.permute.default, (element, [1, 0]))
        with gm.graph.inserting_after(turned):
            copied = gm.graph.call_function(aten.clone.default, (turned,), {"memory_format": torch.contiguous_format})
        with gm.graph.inserting_after(copied):
            restored = gm.graph.call_function(aten.permute.default, (copied, [1, 0]))
        restored.meta = {"val": element.meta["val"]}
        element.replace_all_uses_with(restored, delete_user_cb=lambda user, turned=turned: user is not turned)


def test_region_boundary_sees_strides_restored_wrongly(violation):
    error = violation(chain(("sin", A), ("exp", ())), "region_boundary", finish=restored_to_other_strides)
    assert "leaves region 'a' of the inference graph with strides (1, 4), not (4, 1)" in error.detail


def test_region_boundary_sees_dtypes(violation):
    error = violation(chain(("sin", A), ("exp", ())), "region_boundary", finish=around_calls(torch.Tensor.double))
    assert "dtype torch.float64, not torch.float32" in error.detail


def test_region_boundary_sees_memory_shared(violation):
    def shares(gm):
        node = next(node for node in gm.graph.nodes if hasattr(node.target, "__wrapped__"))
        target = node.target

        def call(x):
            target(x)
            return (x,)

        call.__wrapped__ = target
        node.target = call

    error = violation(chain(("sin", A), ("exp", ())), "region_boundary", finish=shares)
    assert error.origin == "memory of a value a region"


def test_region_boundary_sees_memory_shared_by_results(violation):
    def share(gm):
        node = next(node for node in gm.graph.nodes if hasattr(node.target, "__wrapped__"))
        target = node.target

        def call(*inputs):
            first, *_ = results = target(*inputs)
            return [first] * len(results)

        call.__wrapped__ = target
        node.target = call

    steps = (Step("sin", (0,), results=(1,), scope=A), Step("cos", (0,), results=(2,), scope=A))
    program = Program((TensorInput((4, 4)),), steps, (1, 2), training=False)
    error = violation(program, "region_boundary", finish=share)
    assert "an output of region 'a' of the inference graph shares memory with another output" in error.detail


def test_region_boundary_allows_what_a_partitioner_merged(checked):
    """``min_cut`` merges equal operators; a view of the second has fake memory that nothing else has then."""
    block = Block((0,), (Step("sqrt", (0,), results=(1,), scope=A),), 1)
    steps = tuple(Step("gradient", (0,), results=(result,), blocks=(0,)) for result in (1, 2))
    argument = TensorInput((), content="positive", requires_grad=True)
    program = Program((argument,), steps, (1, 2), (block,), partitioner="min_cut")
    assert checked(program, "region_boundary").oracles == ("region_boundary",)


def test_configs(violation, monkeypatch):
    monkeypatch.setattr(compile_regions, "region_compile_settings", lambda configs, name: contextlib.nullcontext())
    error = violation(CONFIGURED, "configs")
    assert error.origin == "a setting that the annotation names"
    assert "max_fusion_size=64; its annotation says 8" in error.detail


def test_configs_of_what_is_shared(violation):
    """Two equal regions, one of which asks for more: both call what was compiled for the first."""
    two = chain(("sin", A), ("exp", ()), ("sin", (Region("b", (("max_fusion_size", 4),)),)))

    def share(gm):
        first, *others = [node for node in gm.graph.nodes if artifact_behind(node.target) is not None]
        for node in others:
            node.target = first.target

    error = violation(two, "configs", finish=share)
    assert error.origin == "a call of code that has other settings"
    assert "its annotation says 4" in error.detail


def test_configs_that_stay(violation):
    def leak(gm):
        torch._inductor.config.max_fusion_size = 3

    assert violation(CONFIGURED, "configs", edit=leak).origin == "settings leak"


def test_inference(violation):
    def wrong_without_gradients(gm):
        if not torch.is_grad_enabled():
            replaced(gm)

    assert violation(chain(("sin", A), training=True), "inference", edit=wrong_without_gradients).oracle == "inference"


def test_determinism(violation):
    count = iter(range(100))

    def another_region(gm):
        annotate_as(operator_nodes(gm)[0], inductor_region=f"region {next(count)}")

    assert violation(chain(("sin", A)), "determinism", edit=another_region).origin == "another plan"


def test_determinism_of_calls(violation):
    turns = iter(range(100))

    def exchange_calls(gm):
        first, second = [node for node in gm.graph.nodes if artifact_behind(node.target) is not None]
        if next(turns) % 2:
            for node in (second, *second.users):
                first.prepend(node)

    two = Program(UNORDERED.arguments, UNORDERED.steps[:2], (2, 3), training=False)
    assert violation(two, "determinism", finish=exchange_calls).origin == "another plan"


# Checking


def test_a_known_error_is_kept_and_checking_goes_on():
    with regional(faulty(edit=replaced), "cpu", expects_regions=False) as harness:
        result = check(harness, chain(("sin", A)), mode="interpret", blame=False, known=lambda error: True)
    assert "parity" in [error.oracle for error in result.known]
    assert {"compiles", "region_boundary", "configs"} <= set(result.oracles)


def test_a_program_that_eager_refuses_is_no_failure_of_the_backend(checked):
    transpose = Step("transpose", (0,), (("first", 0), ("second", 7)), (1,))
    asks_too_much = Program((TensorInput((2, 3)),), (transpose,), (1,))
    with pytest.raises(BadProgramError):
        checked(asks_too_much)


ALIASES = Program(
    (TensorInput((2, 2)), TensorInput((2, 2), alias_of=0)),
    (Step("unbind", (1,), (("dim", 0),), (2, 3)), Step("add_", (0, 0))),
    (2,),
    training=False,
)


def test_limits_of_aotautograd_are_distinguished_from_the_backends(checked, violation):
    with pytest.raises(OracleViolationError) as raised:
        checked(ALIASES, "compiles")
    assert raised.value.without_backend
    assert "the backend is not to blame" in str(raised.value)
    assert not violation(chain(("sin", A)), "parity", edit=replaced).without_backend


@pytest.mark.parametrize("inputs", [(0, 1), (0, 0)], ids=["two", "one"])
def test_region_boundary_allows_what_the_body_of_an_operator_hides(checked, inputs):
    """A nested region that is trained returns the input that its backward reads; its fake results are new tensors.

    That of equal inputs is another program to AOTAutograd (docs/findings/nested_region_of_equal_inputs.py).
    """
    block = Block((0, 1), (Step("sin", (1,), (), (2,)),), 2)
    steps = (
        Step("nested_of_two", inputs, (), (2,), A, (0,)),
        Step("nested_of_two", (2, 2), (), (3,), (), (0,)),
    )
    arguments = (TensorInput((), requires_grad=True),) * 2
    checked(Program(arguments, steps, (3,), (block,)), "region_boundary")


def test_a_loop_is_run_in_the_backends_precision_without_a_trace():
    """Eager code of a loop asks Dynamo for a trace; one made while operands are rounded would refuse the next call."""
    block = Block((0,), (Step("sin", (0,), (), (1,)),), 1)
    loop = Step("while_loop", (0,), (("count", 2),), (1,), (), (0,))
    program = Program((TensorInput((4, 3)),), (loop,), (1,), (block,), training=False)
    spec = BackendSpec("coarse", lambda: "eager", GraphCapabilities(), precision="bfloat16")
    with regional(spec, "cpu", expects_regions=False) as harness:
        cases = ExampleRun(harness, program, "native").expected
    assert [case.eager.coarse.exception for case in cases] == [None, None]


def forgets_draws(gm, inputs):
    """Compile as a backend that drops a draw whose result nobody reads, for which PyTorch has a setting."""
    with patched_config("torch._inductor.config", {"fallback_random": False}):
        return registered_backend("aot_eager")(gm, inputs)


def test_capture_is_not_to_blame_for_draws_that_it_keeps():
    """AOTAutograd alone is asked with the settings under which the backend was."""
    steps = (Step("sin", (0,), (), (1,)), Step("uniform_", (1,)), Step("dropout", (0,), (), (2,)))
    program = Program((TensorInput((8,)),), steps, (2,), training=False)
    spec = BackendSpec("forgets", lambda: forgets_draws, GraphCapabilities())
    with regional(spec, "cpu", expects_regions=False) as harness, pytest.raises(OracleViolationError) as raised:
        check(harness, program, mode="native", oracles=["parity"])
    assert not raised.value.without_backend


def test_an_unknown_oracle(checked):
    with pytest.raises(RegionalValueError, match="parity"):
        checked(TWO_REGIONS, "party")


def test_the_annotation_of_a_call_may_say_nothing(checked):
    """The block that is called annotates its operators itself, so another region id around it is the same graph."""
    block = Block((0,), (Step("sin", (0,), (), (1,), A),), 1)
    call = Step("call", (0,), (), (1,), A, (0,))
    program = Program((TensorInput((4,)),), (call,), (1,), (block,), training=False)

    assert "no operator" in checked(program, "annotations_in_key").skipped["annotations_in_key"]


def test_no_oracle_is_an_error():
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        with pytest.raises(RegionalValueError, match="no oracle to check"):
            check(harness, chain(("sin", A)), oracles=())
        assert check(harness, chain(("sin", A)), oracles="compiles").oracles == ("compiles",)


def test_disclaimed_capabilities_are_not_required():
    with regional("aot_eager", "cpu", expects_regions=False) as harness:
        result = check(harness, TWO_REGIONS)
    assert "parity" in result.oracles
    assert "disclaims regions" in result.skipped["plan"]


# Threads


def test_neither_has_one_of_what_becomes_a_view(checked):
    after = (Region("c", after=("b",)),)
    steps = (Step("contiguous", (0,), results=(4,), scope=after), Step("unsqueeze", (4,), (("dim", 0),), (5,), after))
    program = Program(UNORDERED.arguments, (*UNORDERED.steps[:2], *steps), (2, 3, 5), training=False)
    assert "that run anything" in checked(program, "region_order").skipped["region_order"]


def test_threads_hold_and_break(monkeypatch):
    program = chain(("sin", A), ("cos", B), training=True)
    with regional("reference", "cpu", expects_regions=False) as harness:
        assert further.compile_at_once(harness, to_data(program), "interpret") == []

    with regional(faulty(edit=replaced), "cpu", expects_regions=False) as harness:
        failures = further.compile_at_once(harness, to_data(program), "interpret")
    assert len(failures) == further.THREADS
    assert "value of output" in failures[0][0]


def test_threads_that_mix_up_the_arguments_of_calls():
    program = chain(("sin", A), ("cos", B), training=True)
    with regional(spec_of(FAULTS["threads_mixed"]), "cpu", expects_regions=False) as harness:
        assert further.compile_at_once(harness, to_data(program), "interpret")


def test_strides_of_pytorchs_own_fake_operators_are_no_fault_of_the_backend(checked):
    arguments = (TensorInput((1, 2, 4, 4), layout="channels_last"), TensorInput((1, 2, 4, 4)))
    steps = (Step("copysign", (1, 0), results=(2,)), Step("exp", (2,), results=(3,), scope=A))
    result = checked(Program(arguments, steps, (3,), training=False), "region_boundary", "parity")
    assert "aten.copysign" in result.skipped["region_boundary"]


def test_strides_of_a_fake_index_are_no_fault_of_the_backend(checked):
    """PyTorch's own comparison of fake and real operators leaves ``index`` out."""
    arguments = (TensorInput((3, 3), layout="transposed", content="positive"),)
    steps = (Step("to_int64", (0,), results=(1,)), Step("index", (0, 1), results=(2,), scope=A))
    result = checked(Program(arguments, steps, (2,), training=False), "region_boundary", "parity")
    assert "aten.index" in result.skipped["region_boundary"]
    assert result.oracles == ("parity",)


def test_region_boundary_allows_what_a_checkpoint_computes_again(checked):
    """Its fake value is that of the first time, which a saved value is a view of."""
    block = Block((0,), (Step("copysign", (0, 0), (), (1,)),), 1)
    steps = (
        Step("checkpoint", (0,), (), (1,), A, (0,)),
        Step("jvp", (1,), (), (2,), A, (0,)),
        Step("sin", (1,), (), (3,)),
    )
    checked(Program((TensorInput((), requires_grad=True),), steps, (2, 3), (block,)), "region_boundary")


def test_results_of_an_interpreted_region_share_memory_as_in_eager(checked):
    """A slice with gaps is not copied, for its strides are those of the trace."""
    steps = (
        Step("sin", (0,), results=(1,), scope=A),
        Step("diagonal", (1,), (("offset", 0), ("dim1", 0), ("dim2", -1)), (2,), A),
    )
    checked(Program((TensorInput((2, 2)),), steps, (1, 2), training=False), "parity", "warm")


def test_attention_without_dropout_may_wait_for_a_later_one(checked):
    """PyTorch marks it as an operator that draws random numbers, whose order is the program's."""
    later = (Region("b", after=("one",)),)
    steps = (
        Step("attention", (0, 0, 0), results=(1,), scope=later),
        Step("attention", (0, 0, 0), results=(2,), scope=(Region("one"),)),
    )
    checked(Program((TensorInput((1, 1, 2, 2)),), steps, (1, 2), training=False), "compiles", "parity")


def test_strides_of_pytorchs_own_are_no_fault_where_a_program_runs_once_more(checked):
    arguments = tuple(
        TensorInput((1, 2, 4, 4), layout=layout, requires_grad=True) for layout in ("channels_last", "dense")
    )
    steps = (
        Step("copysign", (1, 0), results=(2,)),
        Step("exp", (2,), results=(3,), scope=A),
        Step("sin", (0,), results=(4,), scope=B),
        Step("cos", (1,), results=(5,), scope=(Region("c"),)),
    )
    program = Program(arguments, steps, (3, 4, 5), training=True)
    assert checked(program, "inference", "order").oracles == ("inference", "order")


def test_strides_of_fake_operators_are_compared_where_the_backward_is_refused(checked, monkeypatch):
    steps = (Step("uniform_", (0,)), Step("sin", (0,), results=(1,), scope=A))
    program = Program((TensorInput((2,), layout="strided"),), steps, (1,), training=False)
    with regional("reference", "cpu", expects_regions=False) as harness:
        example = ExampleRun(harness, program, "interpret")
        _ = example.expected
        refused = replace(example.expected[0].eager, exception=RuntimeError("a backward that is refused"))
        monkeypatch.setattr(example, "execute", lambda fn, inputs: refused)
        assert "aten.uniform" in example.fake_disagreement


def test_a_program_that_differs_from_eager_already_is_not_compared_again():
    names = ["parity", "alias_probe", "inference", "retained_backward"]
    with regional(faulty(edit=replaced), "cpu", expects_regions=False) as harness:
        program = chain(("sin", A), training=True)
        result = check(harness, program, mode="interpret", oracles=names, known=lambda error: True)
    assert [error.oracle for error in result.known] == names[:1]
    assert {result.skipped[name] for name in names[1:]} == {"the program differs from eager already"}


def test_strides_of_gradients_that_aotautograd_puts_for_a_dropout(checked):
    steps = (
        Step("matrix_transpose", (0,), results=(1,), scope=A),
        Step("dropout", (1,), results=(2,), scope=A),
        Step("exp", (2,), results=(3,), scope=B),
        Step("mul", (3, 1), results=(4,), scope=B),
    )
    program = Program((TensorInput((4, 4), requires_grad=True),), steps, (1, 4), training=True, partitioner="min_cut")
    assert "aten.native_dropout_backward" in checked(program, "region_boundary").skipped["region_boundary"]


def test_strides_of_operators_that_aotautograd_puts_for_writes(checked):
    steps = (Step("uniform_", (0,)), Step("sin", (0,), results=(1,), scope=A))
    program = Program((TensorInput((2,), layout="strided"),), steps, (1,), training=False)
    assert "aten.uniform" in checked(program, "region_boundary").skipped["region_boundary"]


def test_oracles_that_empty_caches_come_behind_those_that_need_them():
    names = list(ORACLES)
    needing, emptying = ("warm", "uuid_in_key"), ("annotations_in_key", "order", "determinism")
    assert max(map(names.index, needing)) < min(map(names.index, emptying))


#: Each piece of three nodes is like the next but one.
ALIKE = chain(*(("sin", ()),) * 12, training=True)


def test_a_backend_that_splits_graphs_may_hand_several_to_aot_autograd(monkeypatch):
    with regional(THROUGH_AOT, "cpu", expects_regions=False) as harness:
        result = check(harness, ALIKE)
        assert {"compiles", "parity", "counters", "inference"} <= {*result.oracles, *result.skipped}
        assert "counters" in result.oracles
        monkeypatch.setattr(caching, "_is_one_result", lambda example: True)
        with pytest.raises(OracleViolationError) as raised:
            check(harness, ALIKE, oracles=["counters"])
    assert raised.value.origin == "a graph is compiled twice"


def test_no_annotation_is_changed_that_the_backend_does_not_look_at(monkeypatch):
    told = {}
    with regional(faulty(), "cpu", expects_regions=False) as harness:
        example = ExampleRun(harness, chain(("sin", A)), "interpret")
        spec = harness._spec
        for disclaimed in ({"region_ids"}, {"region_configs"}, {"region_ids", "region_configs"}, set()):
            capabilities = declared(**dict.fromkeys(disclaimed, False))()
            monkeypatch.setattr(harness, "_spec", replace(spec, capabilities=capabilities))
            changes = told[frozenset(disclaimed)] = set()
            for length in range(1, 8):  # the program's source decides on the change; its graph is not looked at again
                example.program = chain(*(("sin", A),) * length)
                changes.add(caching.changed_program(example)[0])
        monkeypatch.undo()

    assert told[frozenset()] == {"another region id", "another config", "no annotation"}
    assert told[frozenset({"region_ids"})] == {"another config", "no annotation"}
    assert told[frozenset({"region_configs"})] == {"another region id", "no annotation"}
    assert told[frozenset({"region_ids", "region_configs"})] == {"no annotation"}


@pytest.mark.parametrize("disclaimed", [(), ("strides",)])
def test_strides_are_compared_unless_the_backend_disclaims_them(disclaimed):
    def turned(gm, _):
        return lambda *arguments: tuple(value.t().contiguous().t() for value in gm(*arguments))

    class Turned(GraphCapabilities, **dict.fromkeys(disclaimed, unsupported("results are turned"))):
        pass

    spec = BackendSpec("turned", lambda: turned, Turned())
    with regional(spec, "cpu", expects_regions=False) as harness:
        expected = contextlib.nullcontext() if disclaimed else pytest.raises(OracleViolationError, match="stride")
        with expected:
            check(harness, chain(("sin", ())), mode="native", oracles=["parity"])
