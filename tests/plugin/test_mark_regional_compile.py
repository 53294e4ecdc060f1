"""The ``regional_compile`` mark: what it accepts, where it may stand, what it checks."""

from __future__ import annotations

import pytest

TORCH = "--regional-backend=torch"


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("fullgrap=True", "*unknown keyword 'fullgrap'. Did you mean 'fullgraph'*"),
        ("'torch'", "*regional_compile takes keywords only, got ('torch',)*"),
        ("fullgraph=1", "*fullgraph must be True or False, not 1*"),
        ("dynamic='yes'", "*dynamic must be True or False*"),
        ("requires=3", "*requires must be a name or a tuple of names*"),
        ("inductor_configs=[1]", "*inductor_configs must be a dict*"),
        ("pre_grad_pass_timing='erly'", "*unknown pre_grad_pass_timing 'erly'. Did you mean 'early'*"),
        ("backend='tourch'", "*unknown backend 'tourch'. Did you mean 'torch'*"),
    ],
)
def test_a_wrong_mark_is_a_usage_error_that_names_the_test(downstream, mark, message):
    result = downstream(
        f"""
        @pytest.mark.regional_compile({mark})
        def test_it(regional):
            pass
        """,
        TORCH,
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_wrong_marks_are_errors_with_the_plugin_off_too(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile(fullgrap=True)
        def test_it(regional):
            pass
        """
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_it: regional_compile: unknown keyword 'fullgrap'*"])


def test_on_class_and_module_the_nearest_wins(downstream):
    result = downstream(
        """
        pytestmark = pytest.mark.regional_compile(dynamic=True, fullgraph=False, expects_regions=False)

        def test_module(regional):
            assert (regional.options.dynamic, regional.options.fullgraph) == (True, False)

        @pytest.mark.regional_compile(dynamic=False)
        class TestClass:
            def test_class(self, regional):
                assert (regional.options.dynamic, regional.options.fullgraph) == (False, False)

            @pytest.mark.regional_compile(fullgraph=True)
            def test_function(self, regional):
                assert (regional.options.dynamic, regional.options.fullgraph) == (False, True)
        """,
        TORCH,
    )
    result.assert_outcomes(passed=3)


def test_backend_of_the_mark_replaces_the_command_lines(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile(backend=("aot_eager", "torch"))
        def test_two(regional, regional_backend):
            regional.assert_parity(block, *pair(regional))
            assert regional.backend == regional_backend
        """,
        "--regional-backend=inductor",
        "-v",
    )
    result.stdout.fnmatch_lines(["*test_two?aot_eager? PASSED*", "*test_two?torch? PASSED*"])


def test_options_of_the_mark_reach_the_compile(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile(inductor_configs={"epilogue_fusion": False})
        def test_it(regional, monkeypatch):
            import torch._inductor
            seen, original = [], torch._inductor.standalone_compile
            def spy(*a, **k):
                seen.append(torch._inductor.config.epilogue_fusion)
                return original(*a, **k)
            monkeypatch.setattr(torch._inductor, "standalone_compile", spy)
            regional.compile(block)(*pair(regional))
            assert seen == [False]
        """,
        TORCH,
    )
    result.assert_outcomes(passed=1)


VACUOUS = """
    @pytest.mark.regional_compile
    def test_annotation_lost(regional):
        regional.assert_parity(plain, *pair(regional))

    @pytest.mark.regional_compile
    def test_nothing_called(regional):
        regional.compile(block)

    @pytest.mark.regional_compile
    def test_never_asks_for_the_fixture():
        torch.compile(plain, backend="aot_eager")(torch.randn(4, 8), torch.randn(8, 8))

    @pytest.mark.regional_compile(expects_regions=False)
    def test_says_otherwise(regional):
        regional.assert_parity(plain, *pair(regional))

    @pytest.mark.regional_compile
    def test_compiles_by_itself():
        from pytest_regional._torch.backends import regional_inductor_backend
        torch.compile(block, backend=regional_inductor_backend())(torch.randn(4, 8), torch.randn(8, 8))
"""


def test_a_vacuous_test_fails(downstream):
    result = downstream(VACUOUS, TORCH)
    result.assert_outcomes(failed=3, passed=2)
    result.stdout.fnmatch_lines(["*no region was compiled and none was loaded with backend 'torch'*"])
    for name in ("annotation_lost", "nothing_called", "never_asks_for_the_fixture"):
        result.stdout.fnmatch_lines([f"FAILED test_it.py::test_{name}*"])


def test_a_backend_that_compiles_nothing_by_design_is_exempt(downstream):
    downstream(VACUOUS, "--regional-backend=aot_eager").assert_outcomes(passed=5)


def test_a_failing_test_fails_for_its_own_reason(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile
        def test_it(regional):
            assert 1 == 2
        """,
        TORCH,
    )
    result.stdout.fnmatch_lines(["E*assert 1 == 2"])
    result.stdout.no_fnmatch_line("*no region was compiled*")


def test_a_fallback_fails(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile(dynamic=False, fullgraph=False)
        def test_it(regional):
            compiled = regional.compile(block)
            with torch._dynamo.config.patch(recompile_limit=2):
                for n in range(2, 7):
                    compiled(*pair(regional, n))
        """,
        TORCH,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*what should have been compiled ran eager*", "*recompile_limit was hit*"])


def test_the_fixture_without_the_mark_says_what_is_missing(downstream):
    result = downstream(
        """
        def test_it(regional):
            pass
        """,
        TORCH,
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*the regional fixture needs @pytest.mark.regional_compile*"])


def test_every_test_is_isolated(downstream):
    result = downstream(
        """
        import os

        @pytest.mark.regional_compile
        @pytest.mark.parametrize("n", [1, 2])
        def test_cold(regional, regional_cache_dir, n):
            with regional.expect(region_compiles=1, region_cache_hits=0):
                regional.compile(block)(*pair(regional))
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(regional_cache_dir)
        """,
        TORCH,
    )
    result.assert_outcomes(passed=2)


def test_leaks_are_put_back_and_named(downstream):
    result = downstream(
        """
        import os

        @pytest.mark.regional_compile(expects_regions=False)
        def test_leaks(regional):
            torch._inductor.config.max_autotune = True
            torch.set_default_dtype(torch.float64)
            os.environ["LEFT_BEHIND"] = "1"

        def test_next():
            import torch._inductor.config
            assert torch._inductor.config.max_autotune is False
            assert torch.get_default_dtype() is torch.float32
            assert "LEFT_BEHIND" not in os.environ
        """,
        TORCH,
    )
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        ["*test_leaks left 3 settings changed (put back): *max_autotune: False -> True; *LEFT_BEHIND*default dtype*"]
    )


def test_isolate_false_shares_caches(downstream, monkeypatch, tmp_path):
    result = downstream(
        """
        pytestmark = pytest.mark.regional_compile(isolate=False)

        def test_first(regional):
            torch._dynamo.reset()
            regional.compile(block)(torch.ones(4, 8), torch.ones(8, 8))
            assert regional.counters.region_compiles == 1

        def test_second(regional):
            torch._dynamo.reset()
            regional.compile(block)(torch.ones(4, 8), torch.ones(8, 8))
            assert regional.counters.region_cache_hits == 1
        """,
        TORCH,
    )
    result.assert_outcomes(passed=2)
