"""Steps of a compile that are left out: what is seen, that it is left out, and that nothing stays behind."""

import pytest
import torch

from pytest_regional._torch import patching, vetoes
from pytest_regional._torch.inductor import has_lowering
from pytest_regional._torch.vetoes import KINDS, Application, vetoing
from pytest_regional.testing import regional


def with_ones(x):
    return torch.ones_like(x) * x


def norm(x):
    return torch.nn.functional.gelu(x).sum(-1) * 2


@pytest.fixture
def compiled():
    """Return a function that compiles a program anew, calls it, and returns the result and the code."""
    with regional("inductor", "cpu", expects_regions=False) as harness:

        def call(program, *inputs):
            harness._reset()
            record = harness.run(program, *inputs)
            return record.output, str(record.code)

        yield call


def test_every_kind_is_seen_in_the_order_of_the_compile(compiled):
    x = torch.randn(8, 8)
    with vetoing() as applied:
        result, _ = compiled(norm, x)
    torch.testing.assert_close(result, norm(x))
    kinds = [one.kind for one in applied.applications]
    assert {"pre_grad_pass", "joint_graph_pass", "post_grad_pass", "decomposition", "lowering", "fusion"} <= set(kinds)
    assert kinds.index("pre_grad_pass") < kinds.index("post_grad_pass") < kinds.index("lowering")
    assert kinds.index("lowering") < kinds.index("fusion")
    assert not applied.missing


def test_the_same_steps_are_seen_again(compiled):
    x = torch.randn(8, 8)
    seen = []
    for _ in range(2):
        with vetoing() as applied:
            compiled(norm, x)
        seen.append(applied.applications)
    assert seen[0] == seen[1]


def test_a_pass_that_is_left_out_does_nothing(compiled):
    """``docs/findings/product_with_ones.py``: the result is the input itself."""
    x = torch.randn(4)
    assert compiled(with_ones, x)[0].data_ptr() == x.data_ptr()
    with vetoing([Application("joint_graph_pass", "constant_fold_uniform_value")]):
        assert compiled(with_ones, x)[0].data_ptr() != x.data_ptr()


def test_a_family_is_left_out_wherever_it_is(compiled):
    """The pass runs on the joint graph and after it; either run alone removes the no-op."""

    def alias_of(x):
        return torch.ops.aten.alias.default(x.sin()) * 2

    with vetoing() as applied:
        compiled(alias_of, torch.randn(8))
    runs = [one for one in applied.applications if one.what == "remove_noop_ops"]
    assert {one.kind for one in runs} == {"joint_graph_pass", "post_grad_pass"}
    assert {one.family for one in runs} == {("pass", "remove_noop_ops")}
    with vetoing(families=[("pass", "remove_noop_ops")]) as applied:
        compiled(alias_of, torch.randn(8))
    assert "aten.alias.default at alias" in [one.what for one in applied.of_kind("lowering")]


def test_what_a_compile_needs_stays(compiled):
    """``zeros_like`` has no lowering: Inductor refuses it where it is not decomposed."""
    with vetoing(kinds=["decomposition", "post_grad_pass"]) as applied:
        compiled(lambda x: torch.zeros_like(x) + x, torch.randn(8))
    required = {one.what for one in applied.applications if one.required}
    assert "aten.zeros_like.default" in required
    assert "decompose_auto_functionalized" in required


def test_a_lowering_that_is_left_out_calls_the_operator(compiled):
    x = torch.randn(8, 8)
    assert "aten.sum" not in compiled(norm, x)[1]
    with vetoing(kinds=["lowering"]):
        result, code = compiled(norm, x)
    assert "aten.sum" in code
    torch.testing.assert_close(result, norm(x))


def test_an_operator_that_has_a_decomposition_alone_keeps_its_kernel(compiled):
    """And afterwards it is decomposed again."""

    def deviation(x):
        return x.std(-1)

    x = torch.randn(4, 8)
    with vetoing() as applied:
        _, code = compiled(deviation, x)
    (step,) = (one for one in applied.of_kind("decomposition") if one.what.startswith("aten.std"))
    assert step.required
    assert "aten.std" not in code
    with vetoing(families=[step.family]):
        result, code = compiled(deviation, x)
    assert "torch.ops.aten.std" in code
    torch.testing.assert_close(result, deviation(x))
    assert "torch.ops.aten.std" not in compiled(deviation, x)[1]
    assert not has_lowering(torch.ops.aten.std.correction)


def test_a_fusion_that_is_left_out_makes_two_kernels(compiled):
    def two(x):
        return x.exp().sum(-1), x.exp().amax(-1)

    from torch._inductor import metrics

    x = torch.randn(64, 64)
    counts = []
    fused = []
    for _ in range(2):
        with vetoing(fused) as applied:
            metrics.reset()
            compiled(two, x)
            counts.append(metrics.generated_kernel_count)
        fused = applied.of_kind("fusion")
    assert counts[1] == counts[0] + 1


def test_nothing_stays_behind(compiled):
    points = vetoes._POINTS.values()
    before = [point.current() for point in points]
    with pytest.raises(RuntimeError, match="in the body"), vetoing(kinds=KINDS):
        raise RuntimeError("in the body")
    assert [point.current() for point in points] == before


def test_an_unknown_kind_is_an_error():
    with pytest.raises(ValueError, match=r"unknown kinds of steps.*loops"), vetoing(kinds=["loops"]):
        pass


def test_what_a_torch_lacks_is_named(compiled, monkeypatch):
    gone = patching.PatchPoint("torch._inductor.scheduler:Scheduler", "may_fuse")
    monkeypatch.setitem(vetoes._POINTS, "fusion", gone)
    with vetoing() as applied:
        compiled(norm, torch.randn(8, 8))
    assert applied.missing == ("torch._inductor.scheduler.Scheduler.may_fuse",)
    assert not applied.of_kind("fusion")


def test_which_passes_change_the_graph(compiled):
    with vetoing() as applied:
        compiled(with_ones, torch.randn(4))
    acted = [step.what for step in applied.applications if step.kind.endswith("_pass") and step.acted]
    assert "constant_fold_uniform_value" in acted
    assert len(acted) < len([step for step in applied.applications if step.kind.endswith("_pass")]) / 2


def test_a_pass_that_raises_did_something(compiled):
    def refuse(graph):
        raise ValueError("refused")

    with torch._inductor.config.patch(post_grad_custom_post_pass=refuse), vetoing() as applied:
        with pytest.raises(torch._inductor.exc.InductorError, match="refused"):
            compiled(with_ones, torch.randn(4))
    (step,) = (step for step in applied.applications if step.what == "refuse")
    assert step.acted


def test_names_are_those_of_pytorch(compiled):
    """An operator keeps its digits; a pass that runs where users' passes do, and a pattern, are named by function."""
    with vetoing() as applied:
        compiled(lambda x: torch.atan2(x, x) @ x, torch.randn(8, 8))
    assert ("lowering", "aten.atan2.default") in {one.family for one in applied.applications}
    passes = applied.of_kind("post_grad_pass")
    assert "group_batch_fusion_passes" in {one.what for one in passes}
    assert not any("_custom_" in one.what for one in passes)
    with vetoing([one for one in passes if one.what == "group_batch_fusion_passes"]) as again:
        compiled(lambda x: torch.atan2(x, x) @ x, torch.randn(8, 8))
    assert [one.what for one in again.of_kind("post_grad_pass")] == [one.what for one in passes]


def test_a_pass_of_patterns_says_which_ones_match(compiled):
    with vetoing() as applied:
        compiled(lambda x: x.double().to(torch.float16) + 1, torch.randn(8))
    matched = {one.where for one in applied.applications if one.what.startswith("pass_pattern_")}
    assert "pointless_convert" in matched
