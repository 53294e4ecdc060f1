"""What ``torch.compile`` made already: the program inside is compared, compiled by the backend under test."""

from __future__ import annotations

import functools
import threading

import pytest
import torch

from pytest_regional import BackendSpec, ParityError, TrainingParityError, VacuousTestError
from pytest_regional._torch import symbol
from pytest_regional.testing import regional, replacing

from .programs import in_region, pair, product


def wrong(gm, example_inputs):
    """A backend that takes tanh for sin."""
    for node in gm.graph.nodes:
        if node.target is torch.sin:
            node.target = torch.tanh
    gm.recompile()
    return gm.forward


SPEC = BackendSpec("wrong", lambda: wrong)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        with in_region("block"):
            h = self.linear(x)
        return torch.sin(h)


def by_decorator():
    @torch.compile(backend=wrong)
    def program(x):
        return torch.sin(x)

    return program


def around_a_compiled_function():
    return around(torch.compile(torch.sin, backend=wrong))


def around(inner):
    return lambda x: inner(x) + 1


def in_place():
    module = Block()
    module.compile(backend=wrong)
    return module


def inside_a_module():
    return torch.nn.Sequential(torch.compile(Block(), backend=wrong), torch.nn.Linear(8, 8))


def inside_a_module_in_place():
    return torch.nn.Sequential(in_place(), torch.nn.Linear(8, 8))


def twice():
    return torch.compile(torch.compile(torch.sin, backend="eager"), backend=wrong)


PROGRAMS = {
    "a function": lambda: torch.compile(product_of_itself, backend=wrong),
    "by decorator": by_decorator,
    "a module": lambda: torch.compile(Block(), backend=wrong),
    "a module in place": in_place,
    "a method": lambda: torch.compile(Block().forward, backend=wrong),
    "a function inside": around_a_compiled_function,
    "a module inside": inside_a_module,
    "a module inside, in place": inside_a_module_in_place,
    "a partial function": lambda: functools.partial(torch.compile(torch.sin, backend=wrong)),
    "compiled twice": twice,
    "a full graph": lambda: torch.compile(product_of_itself, backend=wrong, fullgraph=True),
    "a full graph inside": lambda: around(torch.compile(torch.sin, backend=wrong, fullgraph=True)),
}


def product_of_itself(x):
    return torch.sin(x @ x.T)


@pytest.mark.parametrize("warm", [False, True], ids=["", "warm"])
@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_eager_is_eager(make, warm):
    """The program was compiled by the very backend that is wrong: eager must not be what it made of it."""
    with regional(SPEC, expects_regions=False) as r:
        program = make()
        if warm:
            program(r.randn(4, 8))
        with pytest.raises(ParityError, match="output"):
            r.assert_parity(program, r.randn(4, 8))


@pytest.mark.parametrize("make", PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_compiled_is_the_program_itself(make):
    """The backend that the program was compiled with is wrong, the one under test is right."""
    with regional("aot_eager") as r:
        program = make()
        program(r.randn(4, 8))
        begin = r.observer.log.mark()
        assert r.assert_parity(program, r.randn(4, 8)).anchored
        x = r.randn(4, 8)
        record = r.run(program, x)
        torch.testing.assert_close(record.output, eagerly(program, x))
        torch.testing.assert_close(r.compile(program)(x), eagerly(program, x))
        assert not any(event.other for event in r.observer.log.since(begin))


def eagerly(program, x):
    with torch.compiler.set_stance("force_eager"):
        return program(x)


def test_output_of_regional_compile():
    with regional("torch") as r, r.expect(region_compiles=1):
        assert r.assert_parity(r.compile(product), *pair(r)).ok
    with regional(SPEC, expects_regions=False) as r, pytest.raises(ParityError):
        r.assert_parity(r.compile(product_of_itself), r.randn(4, 8))


def test_names_of_parameters_are_the_programs():
    with (
        regional(SPEC, expects_regions=False) as r,
        pytest.raises(ParityError, match=r"grad of parameter linear\.weight"),
    ):
        r.assert_parity(torch.compile(Block(), backend="eager"), r.randn(4, 8))


@pytest.mark.parametrize("make", [PROGRAMS[name] for name in PROGRAMS if "module" in name])
def test_training(make):
    def loss(output, target):
        return (output - target).square().mean()

    for spec, raises in ((SPEC, True), ("aot_eager", False)):
        with regional(spec, expects_regions=False) as r:
            batches = [(r.randn(4, 8), r.randn(4, 8)) for _ in range(2)]
            if raises:
                with pytest.raises(TrainingParityError):
                    r.assert_training_parity(make(), batches, loss=loss)
            else:
                assert r.assert_training_parity(make(), batches, loss=loss).ok


def test_passes_run_on_the_program():
    with regional("torch") as r:
        found = r.run_pass(replacing("aten.mm", "aten.mm"), torch.compile(product, backend="eager"), *pair(r))
        assert found.graphs
        found.assert_same_numerics()


@pytest.mark.parametrize("make", [PROGRAMS[name] for name in PROGRAMS if "partial" not in name])
@pytest.mark.parametrize("warm", [False, True], ids=["", "warm"])
def test_pipeline(make, warm):
    with regional("reference", expects_regions=False) as r:
        program, x = make(), r.randn(4, 8)
        if warm:
            program(x)
        torch.testing.assert_close(r.pipeline.compile(program, (x,))(x), eagerly(program, x))


def test_eager_may_still_ask_for_the_eager_backend():
    """As flex_attention does: it needs Dynamo's tracing, and its backend compiles nothing."""
    seen = []

    def program(x):
        if not torch.compiler.is_compiling():
            seen.append(torch.compile(lambda y: torch.tensor(torch.compiler.is_compiling()), backend="eager")(x))
        return x.sin()

    with regional("aot_eager") as r:
        r.assert_parity(program, r.randn(3))
    assert all(map(bool, seen))


def test_another_thread_compiles_meanwhile():
    compiled = []

    def elsewhere():
        x = torch.linspace(-1, 1, 3)
        compiled.append(torch.equal(torch.compile(lambda x: torch.sin(x) + 0, backend=wrong)(x), x.tanh()))

    def program(x):
        if not torch.compiler.is_compiling():
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        return x.sin()

    with regional("aot_eager") as r:
        r.assert_parity(program, r.randn(3))
    assert compiled
    assert all(compiled)


def test_eager_runs_flex_attention():
    flex = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
    compiled = torch.compile(flex, backend=wrong, fullgraph=True)
    with regional("aot_eager") as r:
        q = r.randn(1, 2, 16, 8)
        r.assert_parity(lambda q: compiled(q, q, q) + flex(q, q, q), q)


def test_eager_ends_with_the_run():
    """What torch.compile made compiles again once eager was run."""
    with regional("aot_eager") as r:
        inner = torch.compile(torch.sin, backend=wrong)
        r.assert_parity(lambda x: inner(x) + 1, r.randn(3))
        x = r.randn(3)
        torch.testing.assert_close(inner(x), x.tanh())


# Which backend compiled


def test_another_backend_is_vacuous():
    with (
        pytest.raises(VacuousTestError, match=r"'inductor' compiled.*regional\.dynamo_backend"),
        regional("torch") as r,
    ):
        torch.compile(product, backend="inductor")(*pair(r))


@pytest.mark.parametrize("backend", ["reference", "torch", "aot_eager", "inductor"])
def test_a_default_torch_compile_is_inductor(backend):
    with regional(backend, expects_regions=False) as r:
        torch.compile(product)(*pair(r))
    assert r.observer.others_that_compiled() == (() if backend == "inductor" else ("inductor",))


def test_another_backend_that_loads_from_its_cache_is_vacuous(tmp_path):
    for _ in range(2):
        with pytest.raises(VacuousTestError, match="'inductor' compiled"):
            with regional("torch", cache_dir=tmp_path / "kept") as r:
                torch.compile(product, backend="inductor")(*pair(r))
    assert r.counters.cache_hits == 1


def test_a_backward_of_another_backend_is_its_own():
    def shout(gm, example_inputs):
        return symbol("torch._inductor.compile_fx", "compile_fx")(gm, example_inputs)

    with pytest.raises(VacuousTestError, match="'shout' compiled"):
        with regional("torch") as r:
            loss = torch.compile(product, backend=shout)(*pair(r, requires_grad=True)).sum()
            loss.backward()
            assert r.counters.region_compiles == 2
            assert r.observer.others_that_compiled() == ("shout",)


def test_both_backends_are_no_vacuous_test():
    with regional("torch") as r:
        torch.compile(product, backend="inductor")(*pair(r))
        r.compile(product)(*pair(r))


def own_function():
    from pytest_regional.reference import regional as reference

    return reference


def own_partial():
    return functools.partial(own_function(), partitioner="min_cut")


def own_wrapped():
    reference = own_function()

    def spy(gm, example_inputs):
        return reference(gm, example_inputs)

    return spy


@pytest.mark.parametrize("make", [lambda: "regional", own_function, own_partial, own_wrapped])
def test_the_reference_by_any_name(make):
    with regional("reference") as r:
        torch.compile(product, backend=make())(*pair(r))


def test_pytorchs_backend_put_together_by_hand():
    compiler = symbol("torch.fx.passes.regional_inductor", "regional_inductor")
    with regional("torch") as r, torch.fx.traceback.preserve_node_meta():
        aot = symbol("torch._dynamo.backends.common", "aot_autograd")
        torch.compile(product, backend=aot(fw_compiler=compiler, bw_compiler=compiler))(*pair(r))


def test_the_reference_is_another_backend_than_pytorchs():
    with pytest.raises(VacuousTestError, match="'regional' compiled"), regional("torch") as r:
        torch.compile(product, backend="regional")(*pair(r))


def test_a_harness_within_a_harness():
    """The inner one tests another backend, which proves nothing of the outer one's."""
    with pytest.raises(VacuousTestError, match=r"with backend 'torch'.*'reference' compiled"), regional("torch"):
        with regional("reference") as inner:
            inner.compile(product)(*pair(inner))


@pytest.mark.parametrize("backend", ["reference", "torch", "inductor"])
def test_dynamo_backend_is_the_backend_under_test(backend):
    with regional(backend) as r:
        torch.compile(product, backend=r.dynamo_backend)(*pair(r))
        assert r.dynamo_backend is r.dynamo_backend
        assert not r.observer.others_that_compiled()


@pytest.mark.parametrize("backend", ["reference", "torch", "inductor", "tests.harness.test_already_compiled:SPEC"])
def test_its_name_is_taken_by_torch_compile(backend):
    with regional(backend, expects_regions=False) as r:
        torch.compile(product, backend=r.backend)(*pair(r))
        assert not r.observer.others_that_compiled()
        assert r.observer.graphs
    with pytest.raises(Exception, match=r"(?i)invalid backend"):
        torch.compile(product, backend="no_such_backend")


def test_its_name_is_taken_by_torch_compile_in_the_harness_alone():
    with pytest.raises(Exception, match=r"(?i)invalid backend"):
        torch.compile(product, backend="reference")
