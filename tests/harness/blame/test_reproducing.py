"""``regional.blame``: a fault planted in each layer is found there, with any check, and nothing stays behind."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config as inductor_config
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.lowering import lowerings
from torch.fx.passes.regional_inductor import regional_inductor

from pytest_regional import AnnotationError, BackendSpec, BadProgramError, ParityError, region
from pytest_regional._torch.inductor import interpreting_regions
from pytest_regional.harness.blame.culprit import Culprit, FollowUp
from pytest_regional.harness.devices.device import device_under_test
from pytest_regional.harness.devices.emulated import check_emulation
from pytest_regional.harness.parity.check import ParityCheck
from pytest_regional.testing import regional
from tests.harness.blame.conftest import multiply_in_the_wrong_order, repeat_less

pytestmark = pytest.mark.filterwarnings("ignore:the pre-grad pass")


def waves(x, y):
    with region("first"):
        a = x.exp() + 1
    with region("second"):
        return a.cos() + y.sin()


def products(x, y):
    """Of which Inductor calls kernels of a library: no C++ is compiled. A square is the same in either order."""
    with region("first"):
        a = x @ x
    with region("second"):
        return a.mm(y)


def searched(program=waves, backend="reference", **options):
    with regional(backend, "cpu", expects_regions=False) as r:
        return r.blame(program, r.randn(8, 8), r.randn(8, 8), **options)


SEARCHES = pytest.mark.slow("searches with some ten compiles", fast="test_a_wrong_lowering_in_a_region")


@dataclass(frozen=True)
class Searched:
    """A search, with the state of the process and of the harness before it and after it."""

    found: Culprit
    before: tuple[object, ...]
    after: tuple[object, ...]
    counted_later: dict[str, int]


@pytest.fixture(scope="module")
def searched_once():
    """Search for a wrong lowering; then compare the same program again."""

    def state():
        drawn = random.getstate(), torch.get_rng_state().tolist()
        return (*drawn, inductor_config.save_config(), dict(r.counters), r.observer.graph_records())

    with pytest.MonkeyPatch.context() as monkeypatch, regional("torch", "cpu") as r:
        multiply_in_the_wrong_order(monkeypatch)
        repeat_less(monkeypatch)
        inputs = r.randn(8, 8), r.randn(8, 8)
        before = state()
        found = r.blame(products, *inputs, level="bitwise")
        after = state()
        with pytest.raises(ParityError):
            r.assert_parity(products, *inputs, level="bitwise")
        return Searched(found, before, after, dict(r.counters))


def test_a_wrong_lowering_in_a_region(searched_once):
    found = searched_once.found
    assert (found.layer, found.regions, found.confidence) == ("lowering", ("second",), "confirmed")
    (step,) = found.steps
    assert step.what.startswith("aten.mm.default at mm")
    assert step.where.startswith("test_reproducing.py:")
    assert found.sentence.startswith("region 'second': lowering of aten.mm.default at mm")


@SEARCHES
@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_wrong_lowering_of_generated_code(wrong_sine, backend):
    found = searched(backend=backend)
    assert (found.layer, found.regions, found.confidence) == ("lowering", ("second",), "confirmed")
    (step,) = found.steps
    assert step.what.startswith("aten.sin.default at sin")
    assert step.where.startswith("test_reproducing.py:")
    assert found.sentence.startswith("region 'second': lowering of aten.sin.default at sin")


def test_a_wrong_lowering_of_a_whole_graph(wrong_product, few_repeats):
    found = searched(products, "inductor", level="bitwise")
    assert (found.layer, found.regions, found.confidence) == ("lowering", (), "confirmed")
    assert found.steps[0].what.startswith("aten.mm.default")


@pytest.mark.slow("searches with some ten compiles", fast="test_a_wrong_lowering_in_a_region")
def test_a_second_search_finds_the_same(wrong_sine):
    """Caches would answer its experiments with what other experiments of the first one compiled."""
    with regional("inductor", "cpu", expects_regions=False) as r:
        first, second = (r.blame(waves, r.randn(8, 8), r.randn(8, 8)) for _ in range(2))
    assert (second.layer, second.steps, second.confidence) == (first.layer, first.steps, "confirmed")


@pytest.fixture
def emulation_checked():
    """Let the emulation test itself before a fault is planted, which it would notice."""
    check_emulation(device_under_test("cuda-emulated"))


@pytest.mark.slow("searches with some ten compiles", fast="test_a_wrong_lowering_in_a_region")
@pytest.mark.parametrize("backend", ["reference", "inductor"])
def test_a_wrong_lowering_of_gpu_code(emulation_checked, wrong_sine, backend):
    with regional(backend, "cuda-emulated", expects_regions=False) as r:
        found = r.blame(waves, r.randn(8, 8), r.randn(8, 8))
    assert (found.layer, found.confidence) == ("lowering", "confirmed")
    assert found.steps[0].what.startswith("aten.sin.default at sin")


def test_settings_of_gpu_code_are_tried_for_a_gpu_alone(monkeypatch):
    def fails(program, *inputs):
        raise AssertionError("wrong")

    def tried_on(device):
        seen = []
        monkeypatch.setattr(
            "pytest_regional.harness.blame.reproducing.search",
            lambda experiments, suspects: seen.extend(suspects.settings) or Culprit("unknown"),
        )
        with regional("aot_eager", device, expects_regions=False) as r:
            r.blame(torch.sin, r.randn(2), check=fails)
        return {one.sentence for one in seen}

    cpu, gpu = tried_on("cpu"), tried_on("cuda-emulated")
    assert "no persistent reductions" in gpu - cpu
    assert cpu < gpu


@pytest.mark.slow("searches with some ten compiles", fast="test_settings_of_gpu_code_are_tried_for_a_gpu_alone")
def test_wrong_code_of_one_kind_of_gpu_kernel(emulation_checked, monkeypatch):
    """Sums of a kernel that keeps a whole row are maxima; those of a loop over the row are right."""
    reduction = TritonKernel.reduction

    def wrong(kernel, dtype, src_dtype, reduction_type, value):
        kind = "max" if kernel.persistent_reduction and reduction_type == "sum" else reduction_type
        return reduction(kernel, dtype, src_dtype, kind, value)

    monkeypatch.setattr(TritonKernel, "reduction", wrong)
    with regional("inductor", "cuda-emulated", expects_regions=False) as r:
        found = r.blame(lambda x: x.exp().sum(-1), r.randn(8, 64))
    assert (found.layer, found.setting, found.confidence) == ("codegen", "no persistent reductions", "confirmed")
    assert found.sentence.startswith("code generation: right with no persistent reductions (confirmed)")


@pytest.mark.slow("searches with some ten compiles", fast="test_a_wrong_gradient_alone")
def test_a_wrong_gradient(wrong_sine):
    """The backward of a cosine has a sine."""

    def cosine(x):
        with region("only"):
            return x.cos()

    with regional("reference", "cpu", expects_regions=False) as r:
        found = r.blame(cosine, r.randn(8, requires_grad=True))
    assert (found.layer, found.confidence) == ("lowering", "confirmed")
    assert found.steps[0].what.startswith("aten.sin.default")


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def test_a_wrong_gradient_alone(few_repeats):
    def backend(gm, inputs):
        return lambda *arguments: [Doubled.apply(one) for one in gm(*arguments)]

    with regional(BackendSpec("doubled", lambda: backend), "cpu", expects_regions=False) as r:
        found = r.blame(products, *(r.randn(8, 8, requires_grad=True) for _ in range(2)))
    assert (found.layer, found.confidence) == ("backend", "confirmed")


def test_nothing_is_to_blame():
    found = searched(products)
    assert (found.layer, found.confidence, found.experiments) == ("nothing", "unknown", ())


@pytest.mark.slow("searches with some ten compiles", fast="test_a_failure_of_the_second_call")
def test_a_crash(monkeypatch):
    def crashes(*arguments):
        raise AssertionError("no lowering today")

    for overload in (torch.ops.aten.sin.default, torch.ops.aten.sin):
        monkeypatch.setitem(lowerings, overload, crashes)
    found = searched()
    assert (found.layer, found.regions) == ("lowering", ("second",))
    assert found.steps[0].what.startswith("aten.sin.default")


@pytest.mark.slow("searches with some ten compiles", fast="test_a_check_of_the_compile_itself")
def test_a_check_of_the_users_own(wrong_sine):
    """Whatever raises; here no comparison with eager but a fact of the result."""

    def is_odd(program, x, y):
        compiled = r.compile(program)
        torch.testing.assert_close(compiled(x, -y), 2 * x.exp().add(1).cos() - compiled(x, y))

    with regional("reference", "cpu", expects_regions=False) as r:
        found = r.blame(waves, torch.randn(8), torch.randn(8), check=is_odd)
    assert (found.layer, found.regions) == ("lowering", ("second",))


def negates(graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="call_method", target="cos"):
        node.target = "sin"


def forgets(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        node.meta.pop("custom", None)


def leaves_all(graph: torch.fx.Graph) -> None:
    pass


@pytest.mark.slow("searches with some ten compiles", fast="test_a_check_of_the_compile_itself")
def test_a_pass_of_the_users():

    def check(program, *inputs):
        compiled = r.compile(program, pre_grad_pass=[leaves_all, negates])
        torch.testing.assert_close(compiled(*inputs), program(*inputs))

    def cosine(x):
        with region("only"):
            return x.cos() * 2

    with regional("reference", "cpu", expects_regions=False) as r:
        found = r.blame(cosine, torch.randn(8), check=check)
    assert (found.layer, [step.what for step in found.steps], found.confidence) == ("pass", ["negates"], "confirmed")


def test_what_the_backend_can_do_otherwise(few_repeats):
    """A backend that is wrong outside of regions, and says what it can leave out."""

    def backend(gm, inputs, *, negate=True):
        return lambda *arguments: [-one if negate else one for one in gm(*arguments)]

    spec = BackendSpec(
        "negated", lambda: backend, alternatives={"nothing negated": lambda: lambda *a: backend(*a, negate=False)}
    )
    found = searched(products, spec, level="bitwise")
    assert found.sentence == "the backend: right with nothing negated (confirmed)"
    bare = searched(products, BackendSpec("negated", lambda: backend), level="bitwise")
    assert (bare.layer, bare.regions, bare.confidence) == ("backend", (), "confirmed")


def regions_within(**around):
    """Return a backend that compiles regions as PyTorch's does, with a function around the compiled graph's call."""

    def backend(gm, inputs):
        with torch.fx.traceback.preserve_node_meta():
            compiled = aot_autograd(fw_compiler=regional_inductor, bw_compiler=regional_inductor)(gm, inputs)
        return lambda *arguments: around["left"](compiled(*arguments))

    return BackendSpec("within", lambda: backend)


def forget(results):
    torch._dynamo.reset()
    return results


def detached(results):
    return (results[0].detach(), *results[1:])


def two_outputs(x, w):
    with region("m"):
        a = x @ w
        b = a.sin()
    return a, b


def test_a_failure_of_the_second_call(few_repeats):
    """No region causes it: with the regions left eager, too, the second call has to compile nothing."""

    def square(x):
        with region("only"):
            return x @ x

    for depth, said in (("region", "no region: the difference remains"), ("deep", "the backend: wrong with every")):
        with regional(regions_within(left=forget), "cpu", blame_depth=depth) as r:
            with pytest.raises(ParityError, match="CompileForbiddenError") as caught:
                r.assert_parity(square, r.randn(8, 8))
        assert caught.value.blame.startswith(said)


@pytest.mark.slow(
    "searches with some ten compiles",
    fast="tests/harness/blame/test_layers.py::test_backends_are_compared_with_every_region_left_eager",
)
def test_a_failure_with_every_region_left_eager():
    """That another backend makes two partitions of the region is no explanation then."""
    with regional(regions_within(left=detached), "cpu", expects_regions=False) as r:
        inputs = [r.randn(4, 4, requires_grad=True) for _ in range(2)]
        found = r.blame(two_outputs, *inputs)
    assert (found.layer, found.regions, found.difference) == ("backend", (), "")
    assert "region 'm' left eager" in found.evidence


def test_a_backend_that_raises_before_it_has_graphs(few_repeats):
    """The regions are those of the program, as Dynamo captured it."""

    def refuses(gm, inputs):
        if any(node.target == "mm" and node.meta.get("custom") for node in gm.graph.nodes):
            raise NotImplementedError("no mm in a region")
        return gm.forward

    spec = BackendSpec("refuses", lambda: refuses)
    said = {"region": "region 'second': with it left eager", "deep": "region 'second': right where left"}
    for depth, blame in said.items():
        with regional(spec, "cpu", blame_depth=depth, expects_regions=False) as r:
            with pytest.raises(ParityError, match="no mm") as caught:
                r.assert_parity(products, r.randn(8, 8), r.randn(8, 8))
        assert caught.value.blame.startswith(blame), caught.value.blame


@pytest.mark.parametrize("depth", ["region", "deep"])
def test_a_search_that_fails_hides_nothing(wrong_product, depth, monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no search today")

    monkeypatch.setattr(ParityCheck, "culprit" if depth == "deep" else "_agrees", fails)
    monkeypatch.setattr("pytest_regional.harness.regional.first_divergence", fails)
    with regional("reference", "cpu", blame_depth=depth) as r, pytest.raises(ParityError) as caught:
        r.assert_parity(products, r.randn(8, 8), r.randn(8, 8), level="bitwise")
    assert "elements differ" in str(caught.value)
    assert caught.value.blame == "the search for it failed: RuntimeError: no search today"
    assert ("first wrong value: the search for it failed" in str(caught.value)) == (depth == "deep")


def test_the_budget_of_a_search():
    known = {"deep": FollowUp("deep", 60), "deep:300": FollowUp("deep", 300), "off": FollowUp("off")}
    for text, follow_up in known.items():
        assert FollowUp.of(text) == follow_up
        with regional("eager", "cpu", blame_depth=text, expects_regions=False) as r:
            assert (r.blame_depth, r.blame_seconds) == (follow_up.depth, follow_up.seconds)
    for text in ("deeper", "deep:", "deep:0", "deep:-1", "deep:x", "region:300", ""):
        with pytest.raises(ValueError, match="expected one of off, region, deep, or deep:S"):
            FollowUp.of(text)


@pytest.mark.slow(
    "searches with some ten compiles",
    fast="tests/harness/blame/test_layers.py::test_what_a_step_of_another_kind_fixes_as_well_is_not_confirmed",
)
def test_a_wrong_value_of_a_fused_kernel_that_several_steps_fix():
    """The absolute value of a byte is not rounded to one in the kernel; whatever makes a tensor of it rounds it."""

    def program(x):
        return torch.cat([-x.abs()] * 2).sum()

    with regional("inductor", "cpu", expects_regions=False) as r:
        found = r.blame(program, torch.tensor([200, 200], dtype=torch.uint8))
    if found.layer == "nothing":
        pytest.skip("this torch rounds it")
    assert found.confidence == "necessary"
    assert found.sentence.startswith("one of decomposition of aten.cat.default, lowering of aten.")


def test_a_check_that_is_wrong_itself():
    """It may as well be right and about the compile, so that is not confirmed."""
    found = searched(check=lambda program, *inputs: 1 / 0)
    assert (found.layer, found.confidence) == ("eager", "unknown")
    assert found.sentence.startswith("no compiler: the same fails where nothing is compiled")


CALLS = itertools.count()


@torch.library.custom_op("blame::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    return x + next(CALLS)


@counted.register_fake
def _(x):
    return torch.empty_like(x)


def test_a_program_that_eager_computes_otherwise_each_time():
    found = searched(lambda x, y: counted(x) + y, level="bitwise")
    assert (found.layer, found.confidence) == ("eager", "confirmed")


def test_a_check_of_the_compile_itself(few_repeats):
    """The pass that it misses is what it blames, though without a compile it fails as well."""

    def check(program, x):
        with r.expect(region_compiles=1):
            r.compile(program, pre_grad_pass=[leaves_all, forgets])(x)

    def square(x):
        with region("only"):
            return x @ x

    with regional("reference", "cpu", expects_regions=False) as r:
        found = r.blame(square, torch.randn(8, 8), check=check)
    assert (found.layer, [step.what for step in found.steps]) == ("pass", ["forgets"])


def test_a_program_that_fails_in_eager_is_no_failure_of_a_compiler():
    with pytest.raises(BadProgramError):
        searched(lambda x, y: x @ y.flatten(0, 1)[:-1])


def test_a_wrong_annotation_is_no_failure_of_a_compiler():
    def misspelt(x):
        with torch.fx.traceback.annotate({"compile_with_inductor": {"inductor_regions": "mlp"}}):
            return x.sin() + 1

    with regional("reference", "cpu", expects_regions=False) as r, pytest.raises(AnnotationError):
        r.blame(misspelt, torch.ones(3), check=lambda program, x: r.run(program, x))


@pytest.mark.slow("searches with some ten compiles", fast="test_a_search_that_fails_hides_nothing")
def test_the_depth_is_asked_for(wrong_sine):
    for depth, blame in (("off", None), ("region", "region 'second': with it left eager"), ("deep", "lowering of")):
        with regional("reference", "cpu", blame_depth=depth) as r, pytest.raises(ParityError) as caught:
            r.assert_parity(waves, r.randn(8, 8), r.randn(8, 8))
        assert blame is None if caught.value.blame is None else blame in caught.value.blame
        assert (caught.value.culprit is not None) == (depth == "deep")
        assert ("first wrong value: region 'second', sin (test_rep" in str(caught.value)) == (depth == "deep")


def test_what_the_harness_does_not_compile_is_not_searched():
    """No change would reach it, so a search would say that eager is wrong."""
    wrong = torch.compile(lambda x: x + 1, backend="eager")
    with regional("reference", "cpu", blame_depth="deep", expects_regions=False) as r:
        with pytest.raises(ParityError) as caught:
            r.assert_parity(torch.sin, torch.ones(3), compiled=lambda fn: wrong)
        assert r.culprits == []
    assert caught.value.blame.startswith("not searched for")


def test_each_experiment_draws_the_same():
    """The check draws its inputs, with some of which nothing may be wrong."""
    drawn = []

    def check(program, *inputs):
        drawn.append((random.random(), torch.rand(1).item()))
        raise AssertionError("wrong")

    searched(check=check)
    assert len(drawn) > 1
    assert len(set(drawn)) == 1


def test_nothing_stays_behind(searched_once):
    assert searched_once.after == searched_once.before
    assert searched_once.counted_later["graphs"] == 1
    assert searched_once.counted_later["region_compiles"] == 2


def test_the_experiments_are_told(searched_once):
    found = searched_once.found
    assert "the same" in found.evidence
    assert "region 'second' left eager" in found.evidence
    data = found.as_data()
    assert data["confidence"] == "confirmed"
    assert ["Dynamo's graph run eagerly", "fixed"] in [[one["changed"], one["outcome"]] for one in data["experiments"]]


def test_keywords_that_blame_does_not_have():
    with (
        regional("reference", "cpu", expects_regions=False) as r,
        pytest.raises(TypeError, match="unexpected keyword argument 'scale'"),
    ):
        r.blame(waves, torch.ones(2), torch.ones(2), scale=2)


def test_a_setting_that_a_check_leaves_is_put_back_for_the_next_experiment():
    usual = inductor_config.max_fusion_size
    seen = []

    def check(program, *inputs):
        seen.append(inductor_config.max_fusion_size)
        inductor_config.max_fusion_size = usual + 3
        raise AssertionError("wrong")

    searched(check=check)
    assert len(seen) > 1
    assert set(seen) == {usual}
    assert inductor_config.max_fusion_size == usual


def test_what_an_outer_context_stored_is_there_after_an_inner_one():
    """A fuzz test in the mode ``interpret`` goes on after its search for a culprit."""

    def shifted(x):
        with region("only"):
            return x.sin() + 1

    with regional("reference", "cpu", expects_regions=False) as r, interpreting_regions():
        x = r.randn(4)
        r.run(shifted, x)
        with interpreting_regions():
            r.restart()
        r.restart()
        with r.expect(cache_hits=1):
            torch.testing.assert_close(r.run(shifted, x).output, shifted(x))
