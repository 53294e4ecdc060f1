"""How ``assert_parity`` is called: keyword arguments, and the mistakes that people make there."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict

import pytest
import torch
from torch.fx.traceback import annotate

from pytest_regional import AnnotationError, BackendSpec, BadProgramError, ParityError
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.testing import assert_parity, regional, run, run_pass

from .programs import in_region, pair


def masked(x, *, weight, mask=None, scale=1.0):
    with in_region("product"):
        h = x @ weight["w"]
    return (h if mask is None else h.masked_fill(mask, 0.0)) * scale


def keywords(r, **options):
    return {"weight": {"w": r.randn(8, 8, **options)}, "mask": torch.tensor([True, False] * 4), "scale": 2.0}


def test_keyword_arguments_are_copied_compared_and_renewed():
    seen = []

    def program(x, *, w):
        if not torch.compiler.is_compiling():
            seen.append(float(w.detach().sum()))
        w.data.mul_(2)
        return x * w

    with regional("aot_eager", expects_regions=False) as r:
        x, w = r.randn(4, requires_grad=True), r.randn(4, requires_grad=True)
        before = w.detach().clone()
        report = r.assert_parity(program, x, kwargs={"w": w}, level="bitwise")
    assert torch.equal(w, before)
    # The output, two gradients and the mutated keyword, of two calls; the second has other values.
    assert report.compared == 2 * 4
    assert len(set(seen)) == 2


def test_a_wrong_keyword_gradient_is_named():
    def wrong(gm, example_inputs):
        return lambda *inputs: [out * 1.5 for out in gm.forward(*inputs)]

    with (
        regional(BackendSpec("wrong", lambda: wrong), expects_regions=False) as r,
        pytest.raises(ParityError, match="grad of input weight\\['w'\\]"),
    ):
        r.assert_parity(masked, r.randn(4, 8), kwargs=keywords(r, requires_grad=True))


def test_keywords_reach_every_way_to_run_a_program():
    with regional("torch") as r:
        x = r.randn(4, 8)
        assert assert_parity(masked, x, kwargs=keywords(r)).ok
        record = run(masked, x, kwargs=keywords(r))
        assert record.output.shape == (4, 8)
        assert r.run(r.compile(masked), x, kwargs=keywords(r), as_is=True).output.shape == (4, 8)
        for stage in ("post_grad", "graph"):
            result = run_pass(lambda graph: None, masked, x, stage=stage, kwargs=keywords(r))
            assert result.assert_same_numerics().compared


def test_a_misplaced_keyword_of_the_program_is_pythons_error():
    with regional("aot_eager", expects_regions=False) as r:
        for call in (r.assert_parity, r.run, lambda *a, **k: r.run_pass(lambda graph: None, *a, **k)):
            with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
                call(masked, r.randn(4, 8), mask=None)


@dataclasses.dataclass
class Result(OrderedDict):
    """As a ``ModelOutput``: a mapping that is a dataclass as well."""

    logits: torch.Tensor = None
    hidden: tuple = ()


def test_outputs_with_named_fields_are_compared_leaf_by_leaf():
    def program(x):
        return Result(logits=x * 2, hidden=(x + 1, x.sin()))

    def wrong(gm, example_inputs):
        for node in gm.graph.nodes:
            if "sin" in (node.target, getattr(node.target, "__name__", "")):
                node.target = "cos" if node.op == "call_method" else torch.cos
        gm.recompile()
        return gm.forward

    with regional("aot_eager", expects_regions=False) as r:
        assert r.assert_parity(program, r.randn(4)).compared == 2 * 3
    with (
        regional(BackendSpec("wrong", lambda: wrong), expects_regions=False) as r,
        pytest.raises(ParityError, match=r"output.hidden\[1\]: value") as caught,
    ):
        r.assert_parity(program, r.randn(4))
    assert {m.where for m in caught.value.report.mismatches if "second" not in m.where} == {"output.hidden[1]"}


@pytest.mark.parametrize(
    ("level", "meant"), [("exact", "bitwise"), ("assert_close", "dtype"), ("bitwis", "bitwise"), ("Close", "close")]
)
def test_an_unknown_level_names_what_is_meant(level, meant):
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(ValueError, match=f"Did you mean '{meant}'"):
            r.assert_parity(torch.sin, r.randn(2), level=level)
        with pytest.raises(ValueError, match="the levels are close, dtype, bitwise") as caught:
            r.assert_parity(torch.sin, r.randn(2), level="banana")
    assert "Did you mean" not in str(caught.value)


def test_an_unknown_level_is_refused_before_anything_runs():
    ran = []
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(ValueError, match="level"):
        r.assert_parity(ran.append, r.randn(2), level="exact")
    assert not ran


def misspelt(x):
    with annotate({"compile_with_inductor": {"inductor_regin": "a"}}):
        return x * 2


@pytest.mark.parametrize("call", ["assert_parity", "run"])
def test_a_misspelt_annotation_is_raised_as_itself_and_briefly(call):
    with regional("reference", expects_regions=False) as r, pytest.raises(AnnotationError) as caught:
        getattr(r, call)(misspelt, r.randn(4))
    assert "inductor_regin" in str(caught.value)
    assert len(str(caught.value).splitlines()) < 10
    assert caught.value.__suppress_context__
    assert not any("_dynamo" in str(entry.path) for entry in caught.traceback)


def test_an_error_of_the_backend_is_still_a_parity_error():
    def refuses(gm, example_inputs):
        raise ValueError("an annotation? no, a bug")

    with (
        regional(BackendSpec("refuses", lambda: refuses), expects_regions=False) as r,
        pytest.raises(ParityError, match="a bug"),
    ):
        r.assert_parity(torch.sin, r.randn(2))


def test_tensors_on_meta_are_refused_by_name():
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(RegionalValueError, match="input 1: on the meta device"):
            r.assert_parity(torch.add, r.randn(2), torch.randn(2, device="meta"))
        with pytest.raises(RegionalValueError, match="input w: on the meta device"):
            r.assert_parity(lambda x, w: x + w, r.randn(2), kwargs={"w": torch.randn(2, device="meta")})
        with pytest.raises(RegionalValueError, match="parameter weight, parameter bias: on the meta device"):
            r.assert_parity(torch.nn.Linear(2, 2, device="meta"), r.randn(2))


def test_a_program_that_lacks_an_argument_is_a_bad_test():
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(BadProgramError, match="weight"):
        r.assert_parity(masked, *pair(r)[:1])
