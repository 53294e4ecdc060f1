"""The flow of ``assert_parity``: both calls, what it refuses, and whom it blames."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import BackendSpec, BadProgramError, ParityError, VacuousTestError
from pytest_regional.harness.observe.listeners import CompileListener
from pytest_regional.testing import regional

from .programs import in_region, pair, product, two_products


class Corrupted:
    """PyTorch's regional backend with the regions of some names computing something else.

    The fault sits in the compiled artifact, so that a region left eager is right.
    """

    def __init__(self, *names: str, error: float = 0.5) -> None:
        self.names, self.error = names, error

    def __call__(self, gm, example_inputs):
        from pytest_regional._torch.dynamo import regional_inductor_backend

        original = torch._inductor.standalone_compile
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch._inductor, "standalone_compile", lambda g, *a, **k: self._compile(original, g, *a, **k))
            return regional_inductor_backend()(gm, example_inputs)

    def _compile(self, original, gm, *arguments, **options):
        from pytest_regional.harness.observe.annotated import regions_in

        artifact = original(gm, *arguments, **options)
        if any(name in self.names for name, _ in regions_in(gm)):
            inner = artifact.inner_fn
            artifact.inner_fn = lambda *inputs: self._corrupt(inner(*inputs))
        return artifact

    def _corrupt(self, outputs):
        first, *rest = outputs
        first = first.clone()
        first.view(-1)[3] += self.error
        return [first, *rest]

    def spec(self) -> BackendSpec:
        return BackendSpec("corrupted", lambda: self)


def failure(backend, program=two_products, **options) -> ParityError:
    with regional(backend, expects_regions=False) as r, pytest.raises(ParityError) as caught:
        r.assert_parity(program, *pair(r), **options)
    return caught.value


def test_a_right_backend_agrees():
    with regional("torch") as r:
        report = r.assert_parity(two_products, *pair(r, requires_grad=True))
    assert report.ok
    assert report.anchored
    # Output and two gradients, of two calls.
    assert report.compared == 6


@pytest.mark.parametrize("name", ["first", "second"])
def test_the_corrupted_region_is_to_blame(name):
    error = failure(Corrupted(name).spec())
    assert f"region {name!r}: with it left eager the program agrees with eager" in error.blame
    assert "worst at [0, " in str(error)
    assert "error against float64: compiled" in str(error)


def test_two_corrupted_regions_are_both_to_blame():
    error = failure(Corrupted("first", "second").spec())
    assert "regions 'first', 'second': each differs even when it is the only one compiled" in error.blame


def test_a_fault_outside_all_regions_is_not_blamed_on_one():
    def negated(gm, example_inputs):
        from pytest_regional._torch.dynamo import regional_inductor_backend

        compiled = regional_inductor_backend()(gm, example_inputs)
        return lambda *inputs: [-output for output in compiled(*inputs)]

    error = failure(BackendSpec("negated", lambda: negated))
    assert "outside the regions" in error.blame


def test_whole_graph_backends_blame_no_region():
    def wrong(gm, example_inputs):
        return lambda *inputs: [output + 1 for output in gm.forward(*inputs)]

    from pytest_regional import declared, unsupported

    absent = unsupported("whole graph")
    capabilities = declared(regions=absent, compiles_regions=absent)()
    error = failure(BackendSpec("wrong", lambda: wrong, capabilities))
    assert "no region can be singled out" in error.blame


def test_blame_leaves_counters_and_records_alone():
    with regional(Corrupted("second").spec()) as r:
        with r.expect(region_compiles=2, graphs=1, regions=2), pytest.raises(ParityError):
            r.assert_parity(two_products, *pair(r))
        # The two regions of the program, and none of those that were compiled again to find the blame.
        assert len(r.observer.compile_times) == 2


def test_blame_is_not_seen_by_listeners():
    class Listener(CompileListener):
        graphs = 0

        def compiling_graph(self, kind, gm):
            self.graphs += 1
            return super().compiling_graph(kind, gm)

    listener = Listener()
    with regional(Corrupted("second").spec()) as r:
        r.observer.listeners.append(listener)
        with pytest.raises(ParityError):
            r.assert_parity(two_products, *pair(r))
        assert r.observer.listeners == [listener]
    assert listener.graphs == 1


def test_a_constant_baked_in_at_the_first_call_shows_at_the_second():
    def baked(gm, example_inputs):
        memory = []

        def replay(*inputs):
            if not memory:
                memory.append(gm.forward(*inputs))
            return [output.clone() for output in memory[0]]

        return replay

    with (
        regional(BackendSpec("baked", lambda: baked), expects_regions=False) as r,
        pytest.raises(ParityError) as caught,
    ):
        r.assert_parity(product, *pair(r))
    assert [m.where for m in caught.value.report.mismatches] == ["second call, on fresh inputs: output"]


def test_a_recompile_at_the_second_call_shows():
    def compiles_late(gm, example_inputs):
        import torch._dynamo

        def call(*inputs):
            torch._dynamo.reset()
            return gm.forward(*inputs)

        return call

    with regional(BackendSpec("late", lambda: compiles_late), expects_regions=False) as r:
        with pytest.raises(ParityError, match="inside no_compile"):
            r.assert_parity(product, *pair(r))


def test_a_compile_error_is_a_parity_error_with_its_cause():
    def refuses(gm, example_inputs):
        raise NotImplementedError("no such op here")

    error = failure(BackendSpec("refuses", lambda: refuses))
    assert "no such op here" in str(error)
    assert "no such op here" in str(error.__cause__)


def test_a_program_that_fails_in_eager_is_a_bad_test():
    def broken(x, w):
        return x @ w.T[:3]

    with (
        regional("aot_eager", expects_regions=False) as r,
        pytest.raises(BadProgramError, match="not a backend failure"),
    ):
        r.assert_parity(broken, *pair(r))


def test_a_program_with_nothing_to_compare_is_vacuous():
    def silent(x, w):
        x @ w

    with regional("aot_eager", expects_regions=False) as r, pytest.raises(VacuousTestError, match="compared nothing"):
        r.assert_parity(silent, *pair(r))


def test_inputs_are_left_as_they_were():
    def mutates(x, w):
        with in_region("product"):
            x.add_(x @ w)
        return x * 2

    with regional("aot_eager", expects_regions=False) as r:
        x, w = pair(r)
        before = x.clone()
        report = r.assert_parity(mutates, x, w)
    assert torch.equal(x, before)
    # Output and mutated input, of two calls.
    assert report.compared == 4


def test_an_unknown_level_names_the_nearest():
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(ValueError, match="bitwise"):
        r.assert_parity(product, *pair(r), level="bitwis")


def test_dropout_draws_what_eager_draws():
    def dropped(x, w):
        with in_region("drop"):
            h = torch.nn.functional.dropout(x @ w, 0.5)
        return h.sin()

    with regional("torch") as r:
        report = r.assert_parity(dropped, *pair(r))
    # The float64 run is given the numbers that the eager run drew.
    assert report.anchored


def test_compiles_of_eager_itself_are_not_counted():
    inner = torch.compile(torch.sin, backend="eager")

    def compiles_in_eager(x, w):
        if not torch.compiler.is_compiling():
            inner(x)
        with in_region("product"):
            return x @ w

    with regional("torch") as r, r.expect(graphs=1, recompiles=0, region_compiles=1):
        r.assert_parity(compiles_in_eager, *pair(r))


@pytest.mark.parametrize(
    ("level", "dtypes"), [("close", (torch.float32, torch.float64)), ("bitwise", (torch.float32,))]
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_eager_and_float64_run_once_for_each_inputs(level, dtypes, requires_grad):
    run = []

    def program(x):
        if not torch.compiler.is_compiling():
            run.append((x.dtype, x[0].item()))
        return x * 2

    with regional("aot_eager", expects_regions=False) as r:
        r.assert_parity(program, r.randn(3, requires_grad=requires_grad), level=level)
    assert len(run) == len(set(run))
    assert [dtype for dtype, _ in run] == [*dtypes] * 2


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.nn.functional.dropout(self.linear(x), 0.5)


def test_what_something_else_compiled():
    pytest.importorskip("pytest_regional.reference")
    with regional("aot_eager") as harness:
        model, x = Scaled(), harness.randn(3, 4, requires_grad=True)
        through = harness.pipeline.compile
        assert harness.assert_parity(model, x, compiled=lambda m: through(m, (x,)), level="bitwise").compared == 2 * 4

        with pytest.raises(ParityError, match="not searched for"):
            harness.assert_parity(model, x, compiled=lambda m: lambda value: m(value) * 2)


def test_a_report_that_is_raised_is_kept_as_well():
    """The margin of the summary and the chart of errors are about failures first."""

    def wrong(x):
        return x + (1 if torch.compiler.is_compiling() else 0)

    with pytest.raises(ParityError), regional("aot_eager", expects_regions=False) as r:
        r.assert_parity(wrong, r.randn(4))
    (report,) = r._parity_reports
    assert report.worst_ratio > 1
    assert report.errors["output"].candidate == pytest.approx(1)


def test_both_programs_get_the_same_bits():
    """One unit in an input turns the quotient 9 into 10: that excuses no difference."""
    a, b = torch.tensor([1.0, 0.5, 6.0, 1.0]), torch.tensor([0.1, 0.1, 0.2, 1 / 3])
    with regional("aot_eager", expects_regions=False) as harness:
        with pytest.raises(ParityError, match="output: value: 4 of 4 elements differ"):
            harness.assert_parity(lambda a, b: a // b, a, b, compiled=lambda fn: lambda a, b: (a / b).floor())
        assert harness.assert_parity(lambda a, b: (a * b) // b, a, b, compiled=lambda fn: fn).ok


def test_paths_between_outputs_are_compared_on_request():
    def program(x):
        h = x.sin()
        return h, h * h, x.cos()

    with regional("eager", expects_regions=False) as r:
        x = r.randn(4, requires_grad=True)
        report = r.assert_parity(program, x, output_edges=True)
        assert "grad of output[0] from output[1]" in report.errors
        assert "grad of output[0] from output[2]" not in report.errors
    with regional("aot_eager", expects_regions=False) as r:
        r.assert_parity(program, x)
        with pytest.raises(ParityError) as caught:
            r.assert_parity(program, x, output_edges=True)
    assert {(one.where, one.kind) for one in caught.value.report.mismatches} == {
        (f"{label}grad of output[0] from output[1]", "missing-grad") for label in ("", "second call, on fresh inputs: ")
    }
