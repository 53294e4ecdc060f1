"""The ``regional_compile`` mark: what it accepts, where it may stand, what it checks."""

from __future__ import annotations

import pytest
import torch

TORCH = "--regional-backend=torch"


WRONG = (
    ("fullgrap=True", "*unknown keyword 'fullgrap'. Did you mean 'fullgraph'*"),
    ("'torch'", "*regional_compile takes keywords only, got ('torch',)*"),
    ("fullgraph=1", "*fullgraph must be True or False, not 1*"),
    ("dynamic='yes'", "*dynamic must be True or False*"),
    ("requires=3", "*requires must be a name or a tuple of names*"),
    ("inductor_configs=[1]", "*inductor_configs must be a dict*"),
    ("pre_grad_pass_timing='erly'", "*unknown pre_grad_pass_timing 'erly'. Did you mean 'early'*"),
    (
        "inductor_configs={'max_autotun': True}",
        "*unknown Inductor setting 'max_autotun'. Did you mean 'max_autotune'*",
    ),
    ("inductor_configs={'max_autotune': 'yes'}", "*max_autotune is True or False, not 'yes'*"),
    ("backend='tourch'", "*unknown backend 'tourch'. Did you mean 'torch'*"),
    ("backend='torch,inductor'", "*backend must be a name or a tuple of names, not 'torch,inductor'*"),
    ("backend=()", "*backend is empty: name at least one*"),
    ("backend='no.such.module:backend'", "*backend 'no.such.module:backend' could not be loaded*"),
    ("device='cdua'", "*unknown device 'cdua'. Did you mean 'cuda'*Known: auto, cpu*"),
    ("device='gpu'", "*unknown device 'gpu'. Did you mean 'cuda'*"),
    ("device='h100'", "*unknown device 'h100'. Did you mean 'cuda-emulated:h100'*"),
    ("device='mps'", "*unknown device 'mps'. Known: auto, cpu*"),
    ("device=('cpu', 'cpu')", "*device lists cpu twice*"),
    ("device=3", "*device must be a name or a tuple of names*"),
    ("requires='region'", "*unknown capability 'region'. Did you mean 'regions'*"),
    ("device_requires='memory'", "*device requirement 'memory'*"),
    ("pre_grad_pass_timing=['late']", "*unknown pre_grad_pass_timing ?'late'?*Known: default, early, late*"),
)


def test_a_wrong_mark_is_a_usage_error_that_names_the_test(downstream):
    tests = [
        f"@pytest.mark.regional_compile({mark})\ndef test_{n}(regional): pass\n" for n, (mark, _) in enumerate(WRONG)
    ]
    result = downstream("".join(tests), TORCH)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for number, (_, message) in enumerate(WRONG):
        result.stderr.fnmatch_lines([f"*test_{number}: {message}"])
    result.stderr.no_fnmatch_line("*Traceback*")


WRONG_AND_RIGHT = """
    @pytest.mark.regional_compile(device="gpu")
    def test_wrong(regional):
        pass

    @pytest.mark.regional_compile(device="gpu")
    class TestWrong(__import__("unittest").TestCase):
        def test_method(self):
            pass

    @pytest.mark.regional_compile(expects_regions=False)
    def test_right(regional):
        pass
"""


#: Has the tests be collected as in a worker of pytest-xdist.
COLLECTED_BY_A_WORKER = """
    import pytest

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(config):
        config.workerinput = {}
        try:
            return (yield)
        finally:
            del config.workerinput
"""


def test_in_a_worker_a_wrong_mark_is_an_error_of_its_test_alone(downstream, pytester):
    """pytest-xdist hides what a usage error says."""
    pytester.makeconftest(COLLECTED_BY_A_WORKER)
    result = downstream(WRONG_AND_RIGHT, "--regional-backend=aot_eager")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*test_wrong: regional_compile: unknown device 'gpu'. Did you mean 'cuda'*"])


@pytest.mark.slow(
    "starts runs with two workers, which import torch",
    fast="test_in_a_worker_a_wrong_mark_is_an_error_of_its_test_alone",
)
def test_with_workers_a_wrong_mark_is_an_error_of_its_test_alone(downstream):
    result = downstream(WRONG_AND_RIGHT, "--regional-backend=aot_eager", "-n2", subprocess=True)
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*test_wrong: regional_compile: unknown device 'gpu'. Did you mean 'cuda'*"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


MISSING = """
    @pytest.mark.regional_compile(device="cuda")
    def test_missing(regional):
        pass

    @pytest.mark.regional_compile(device=("cpu", "cuda"), expects_regions=False)
    def test_two(regional):
        pass

    @pytest.mark.regional_compile(device="cuda")
    class TestMissing(__import__("unittest").TestCase):
        def test_method(self):
            pass

    @pytest.mark.regional_compile(expects_regions=False)
    def test_right(regional):
        pass
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: the skip is for those that have none")
@pytest.mark.parametrize(
    "workers",
    [
        (),
        pytest.param(
            ("-n2",), marks=pytest.mark.slow("starts two workers", fast="test_a_device_that_is_not_there_is_a_skip")
        ),
    ],
    ids=["serial", "n2"],
)
def test_a_device_that_is_not_there_is_a_skip(downstream, workers):
    options = ("--regional-backend=aot_eager", "--regional-device=cpu", "--regional-report=r.json", *workers)
    result = downstream(MISSING, *options, subprocess=bool(workers))
    result.assert_outcomes(passed=2, skipped=3)
    result.stdout.fnmatch_lines(["suite *aot_eager (cpu) *aot_eager (cuda)*", "it *2 passed *3 skipped*"])
    result.stdout.fnmatch_lines(
        ["SKIPPED *device 'cuda' was asked for, but torch * finds no usable GPU here; 'cuda-emulated'*"]
    )
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
    result.stdout.no_fnmatch_line("*reporting errors*")


def test_an_unexpected_error_in_a_mark_names_the_test(downstream):
    result = downstream(
        """
        class Odd(str):
            def __hash__(self):
                raise RuntimeError("no hash")

        @pytest.mark.regional_compile(backend=Odd("torch"))
        def test_it(regional):
            pass
        """,
        TORCH,
    )
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it: pytest-regional could not read the test's marks", "*RuntimeError: no hash"])


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
            assert (regional._options.dynamic, regional._options.fullgraph) == (True, False)

        @pytest.mark.regional_compile(dynamic=False)
        class TestClass:
            def test_class(self, regional):
                assert (regional._options.dynamic, regional._options.fullgraph) == (False, False)

            @pytest.mark.regional_compile(fullgraph=True)
            def test_function(self, regional):
                assert (regional._options.dynamic, regional._options.fullgraph) == (False, True)
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
        from pytest_regional._torch.dynamo import regional_inductor_backend
        torch.compile(block, backend=regional_inductor_backend())(torch.randn(4, 8), torch.randn(8, 8))
"""


def test_a_vacuous_test_fails(downstream):
    result = downstream(VACUOUS, TORCH)
    result.assert_outcomes(failed=3, passed=2)
    result.stdout.fnmatch_lines(["*no region was compiled or loaded with backend 'torch'*"])
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


@pytest.mark.parametrize("mark", ["regional_complie", "regional", "regional_compiled", "regional_compilation"])
def test_a_misspelt_mark_is_named(downstream, mark):
    result = downstream(
        f"""
        @pytest.mark.{mark}
        def test_it(regional):
            pass
        """,
        TORCH,
    )
    result.assert_outcomes(errors=1, warnings=1)  # pytest's own, of an unknown mark
    named = f"The test has the mark '{mark}': did you mean 'regional_compile'?"
    result.stdout.fnmatch_lines([f"*{named if mark != 'regional' else 'the regional fixture needs'}*"])


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


def test_leaks_are_restored_and_reported(downstream):
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
