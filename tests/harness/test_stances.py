"""Compiled programs that a stance or a switch runs eagerly are fallbacks, and comparisons of them are vacuous."""

from __future__ import annotations

import pytest
import torch

from pytest_regional import CompileForbiddenError, FallbackError, VacuousTestError
from pytest_regional.testing import regional

from .programs import pair, product


def doubled(x):
    return x * 2


@pytest.mark.parametrize("stance", ["eager_on_recompile", "force_eager"])
def test_a_call_that_a_stance_runs_eagerly_is_a_fallback(stance):
    with regional("aot_eager", expects_regions=False, dynamic=False) as r:
        compiled = r.compile(product)
        compiled(*pair(r, 4))
        with torch.compiler.set_stance(stance), r.expect(fallbacks=1, graphs=0, recompiles=0):
            x = pair(r, 6)
            assert torch.equal(compiled(*x), product(*x))
        with torch.compiler.set_stance("eager_on_recompile"), r.expect(fallbacks=0):
            compiled(*pair(r, 4))
        with r.expect(graphs=1, fallbacks=0):
            compiled(*pair(r, 6))


def test_it_fails_the_test_at_its_end():
    with (
        pytest.raises(FallbackError, match=r"this call of product .*set_stance\('eager_on_recompile'\)"),
        regional("aot_eager", dynamic=False) as r,
    ):
        compiled = r.compile(product)
        compiled(*pair(r, 4))
        with torch.compiler.set_stance("eager_on_recompile"):
            compiled(*pair(r, 6))


def test_a_comparison_under_a_stance_fails_the_test():
    with (
        pytest.raises(FallbackError, match=r"ran eager when it was called: .*set_stance\('force_eager'\)"),
        regional("aot_eager") as r,
    ):
        r.compile(product)(*pair(r, 4))
        with torch.compiler.set_stance("force_eager"):
            r.assert_parity(product, *pair(r, 6))


def test_the_switch_is_named():
    with regional("aot_eager", fullgraph=False, expects_regions=False) as r:
        with torch._dynamo.config.patch(disable=True), r.expect(fallbacks=1):
            r.compile(product)(*pair(r, 4))
        assert "TORCH_COMPILE_DISABLE" in r.observer.log.since()[-1].cause


def test_each_comparison_is_judged():
    @torch.compiler.disable
    def skipped(x):
        return x * 2

    with (
        pytest.raises(VacuousTestError, match=r"eager with eager: .*<lambda>"),
        regional("aot_eager", fullgraph=False) as r,
    ):
        r.assert_parity(product, *pair(r))
        r.assert_parity(lambda x: skipped(x), r.randn(3))


def test_what_was_compiled_earlier_is_compared():
    with regional("aot_eager") as r:
        r.assert_parity(doubled, r.randn(3))
        with r.expect(graphs=0):
            r.assert_parity(doubled, r.randn(3))


def test_the_second_call_may_translate_code_without_a_graph():
    def compiled(program):
        first = torch.compile(program, backend="aot_eager")
        return lambda x: torch.compile(lambda y: y, backend="aot_eager")(first(x))

    with regional("aot_eager", fullgraph=False, expects_regions=False) as r:
        assert r.assert_parity(doubled, r.randn(3), compiled=compiled).ok
        with r.no_compile(traces=True), pytest.raises(CompileForbiddenError, match="handed a graph"):
            torch.compile(lambda y: y + 1, backend="aot_eager")(r.randn(3))
        with (
            r.no_compile(),
            pytest.raises(CompileForbiddenError, match=r"use no_compile\(traces=True\); assert_parity"),
        ):
            torch.compile(lambda y: y, backend="aot_eager")(r.randn(3))
