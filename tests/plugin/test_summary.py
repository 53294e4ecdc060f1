"""The section at the end of a run: what was compiled, what took long, and why anything was compiled again."""

from __future__ import annotations

import re

SOURCE = """
    @pytest.mark.regional_compile
    def test_sizes(regional):
        compiled = regional.compile(block, dynamic=False)
        for size in (2, 3, 4):
            compiled(*pair(regional, size))

    @pytest.mark.regional_compile
    def test_bypass(regional):
        regional.run(block, *pair(regional, 2))
"""


def test_slow_compiles_and_causes_of_recompiles(downstream):
    result = downstream(SOURCE, "--regional-backend=torch", "--regional-device=cpu")

    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*regional conformance*",
            "slowest compiles:",
            "* s  region * of the inference graph, test_it.py::test_*",
            "recompiles, mostly because of:",
            "     1  *size mismatch*",
        ]
    )
    seconds = [float(found) for found in re.findall(r"^ +([\d.]+) s  region", result.stdout.str(), re.MULTILINE)]
    assert len(seconds) == 3
    assert seconds == sorted(seconds, reverse=True)


def test_nothing_is_said_of_what_did_not_happen(downstream):
    source = """
        @pytest.mark.regional_compile(expects_regions=False)
        def test_nothing(regional):
            pass
    """
    result = downstream(source, "--regional-backend=aot_eager")

    result.stdout.fnmatch_lines(["*regional conformance*"])
    result.stdout.no_fnmatch_line("slowest compiles:")
    result.stdout.no_fnmatch_line("*mostly because of:")


def test_the_title_says_which_tests_were_chosen(downstream):
    options = ("--regional-backend=aot_eager", "--regional-device=cpu", "-m", "regional_compile", "-k", "not bypass")

    result = downstream(SOURCE, *options)

    result.stdout.fnmatch_lines(["* regional conformance: -m regional_compile -k 'not bypass' *"])


FAILING = """
    @pytest.mark.regional_compile
    def test_fails(regional):
        regional.run(block, *pair(regional, 2))
        assert False

    @pytest.mark.regional_compile
    def test_compiles_nothing(regional):
        pass

    @pytest.mark.regional_compile
    def test_passes(regional):
        regional.run(block, *pair(regional, 3))
"""


def test_the_plan_of_a_failing_test_is_shown_on_request(downstream):
    result = downstream(FAILING, "--regional-backend=torch", "-v")

    result.stdout.fnmatch_lines(
        [
            "*regional: what was compiled*",
            "inference graph of 2 ops",
            "  region mlp: 1 partition of 1 op (aten.mm.default)",
            "*regional: what was compiled*",
            "no graph was compiled",
        ]
    )
    assert result.stdout.str().count("regional: what was compiled") == 2


def test_it_is_not_shown_otherwise(downstream):
    result = downstream(FAILING, "--regional-backend=torch")

    result.stdout.no_fnmatch_line("*regional: what was compiled*")


def test_a_capability_whose_tests_all_fail_is_most_likely_absent(downstream, pytester):
    pytester.makepyfile(mine_backend="from torch._dynamo.backends.debugging import aot_eager as mine")
    pytester.syspathinsert()
    source = """
        @pytest.mark.parametrize("passes", [0, 0])
        @pytest.mark.regional_compile(requires=("rng",), expects_regions=False)
        def test_draws(regional, passes):
            assert passes

        # That backward works, others show: what these lack is mutation.
        @pytest.mark.regional_compile(requires=("mutation", "backward"), expects_regions=False)
        def test_mutates(regional):
            assert False

        # Both work elsewhere, so neither is charged.
        @pytest.mark.regional_compile(requires=("dynamic_shapes", "backward"), expects_regions=False)
        def test_trains_with_sizes(regional):
            assert False

        @pytest.mark.parametrize("passes", [0, 0])
        @pytest.mark.regional_compile(requires=("aliasing", "channels_last", "backward"), expects_regions=False)
        def test_trains_views(regional, passes):
            assert passes

        @pytest.mark.parametrize("passes", [0, 1, 1])
        @pytest.mark.regional_compile(requires=("backward",), expects_regions=False)
        def test_trains(regional, passes):
            assert passes

        @pytest.mark.regional_compile(requires=("dynamic_shapes",), expects_regions=False)
        def test_sizes(regional):
            pass
    """
    result = downstream(source, "--regional-backend=aot_eager,mine_backend:mine")

    declared = "declare it absent if it is: [[]tool.pytest-regional.backends.mine] disclaims = { rng = *}*"
    defect = "the backend is built in and claims it, so this is a defect to report"
    result.stdout.fnmatch_lines(
        [
            "*regional conformance*",
            f"aliasing and channels_last of aot_eager: all 2 tests that need them failed; {defect}",
            "backward of aot_eager: 1 of 3 tests that need it failed; others pass, so it is there: *",
            f"mutation of aot_eager: the only test that needs it failed; {defect}",
            f"rng of aot_eager: all 2 tests that need it failed; {defect}",
            "aliasing and channels_last of mine: all 2 tests that need them failed; no test shows which of them is *",
            "backward of mine: 1 of 3 tests that need it failed; others pass, so it is there: *",
            "mutation of mine: the only test that needs it failed; one test does not say whether it is absent or has *",
            f"rng of mine: all 2 tests that need it failed; {declared}",
        ]
    )
    result.stdout.no_fnmatch_line("dynamic_shapes of*")


ENDINGS = """
    def wrong(x):
        y = block(x, x.T)
        return y + 1 if torch.compiler.is_compiling() else y

    @pytest.mark.regional_compile
    def test_p(regional):
        regional.assert_parity(wrong, regional.randn(8, 8))

    @pytest.mark.regional_compile
    def test_c(regional):
        with regional.expect(region_compiles=3):
            regional.run(block, *pair(regional))

    @pytest.mark.regional_compile
    def test_n(regional):
        with regional.no_compile():
            regional.run(block, *pair(regional))

    @pytest.mark.regional_compile
    def test_v(regional):
        pass

    @pytest.mark.regional_compile
    def test_u(regional):
        regional.counters.region_compile
"""


def test_lines_of_failed_tests_begin_with_what_happened(downstream, monkeypatch):
    """Of 80 columns the path of a module, ``pytest_regional.harness.parity.report``, leaves nothing for the message."""
    monkeypatch.setenv("COLUMNS", "80")
    result = downstream(ENDINGS, "--regional-backend=torch", "--regional-device=cpu", "-rf")

    lines = {line.split()[1].partition("::")[2]: line for line in result.outlines if line.startswith("FAILED")}
    assert {name: line.partition(" - ")[2][:44] for name, line in lines.items()} == {
        "test_p": "ParityError: the compiled program differs fr",
        "test_c": "CounterExpectationError: region_compiles: ex",
        "test_n": "CompileForbiddenError: Dynamo compiled block",
        "test_v": "Failed: VacuousTestError: no region was comp",
        "test_u": "UnknownCounterError: unknown counter 'region",
    }
    assert max(map(len, lines.values())) <= 80
