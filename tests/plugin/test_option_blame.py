"""``--regional-blame``: what a failure says, what the JSON report holds, and what is no depth."""

from __future__ import annotations

import json

import pytest

from tests.harness.blame.conftest import repeat_less


@pytest.fixture(autouse=True)
def few_repeats(monkeypatch):
    """Have each search make fewer experiments: runs of pytest are in this process."""
    repeat_less(monkeypatch)


WRONG = """
    import torch

    @pytest.mark.regional_compile(expects_regions=False)
    def test_product(regional):
        regional.assert_parity(lambda x: torch.ones_like(x) * x, regional.randn(4))
"""
NAMED = "*blame: joint-graph pass constant_fold_uniform_value: right where that is left out (confirmed)"


def test_deep(downstream, pytester):
    result = downstream(WRONG, "--regional-backend=inductor", "--regional-blame=deep", "--regional-report=run.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([NAMED, "*the same * nothing changed"])
    (test,) = json.loads((pytester.path / "run.json").read_text())["tests"]
    (culprit,) = test["culprits"]
    assert (culprit["layer"], culprit["steps"]) == ("pass", ["joint_graph_pass constant_fold_uniform_value"])
    assert test["counters"]["region_compiles"] == 1


ALWAYS = """
    import time

    @pytest.mark.regional_compile(expects_regions=False)
    def test_it(regional):
        time.sleep({seconds})
        assert False
"""


def test_ini(downstream, pytester):
    pytester.makeini("[pytest]\nregional_blame = deep\n")
    result = downstream(ALWAYS.format(seconds=0), "--regional-backend=aot_eager")
    result.stdout.fnmatch_lines(SECTION_OF_EAGER)


@pytest.mark.parametrize(("depth", "said"), [("off", False), ("region", True)])
def test_less(downstream, pytester, depth, said):
    arguments = ("--regional-backend=inductor", f"--regional-blame={depth}", "--regional-report=run.json")
    assert ("blame: no region" in downstream(WRONG, *arguments).stdout.str()) == said
    (test,) = json.loads((pytester.path / "run.json").read_text())["tests"]
    assert "culprits" not in test


COUNTING = """
    COMPILED = []

    def backend(gm, inputs):
        COMPILED.append(gm)
        factor = 3 if len(COMPILED) == 2 else 1
        return lambda *given: [factor * one for one in gm(*given)]
"""
EARLIER = """
    import torch
    from counting import COMPILED

    @pytest.mark.regional_compile(expects_regions=False)
    def test_two(regional):
        regional.assert_parity(torch.cos, regional.randn(4), level="bitwise")
        regional.assert_parity(torch.sin, regional.randn(4), level="bitwise")
"""


def test_a_failure_that_needs_an_earlier_part_of_the_test(downstream, pytester):
    """The comparison alone does not fail again: the whole test is repeated."""
    pytester.makepyfile(counting=COUNTING)
    options = ("--regional-backend=counting:backend", "--regional-blame=deep", "--regional-report=run.json")
    result = downstream(EARLIER, *options)
    (test,) = json.loads((pytester.path / "run.json").read_text())["tests"]
    (culprit,) = test["culprits"]
    assert culprit["layer"] == "backend"
    result.stdout.fnmatch_lines(
        ["*blame: nothing can be blamed: *does not come again*", SECTION[0], "the backend: right*"]
    )


def test_what_is_no_depth(downstream):
    result = downstream(WRONG, "--regional-blame=deeper")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--regional-blame=deeper: expected one of off, region, deep, or deep:S*"])


FACTS = """
    import pytest, torch

    @pytest.fixture
    def calls():
        return []

    class TestOnes:
        @pytest.mark.regional_compile(expects_regions=False)
        @pytest.mark.parametrize("size", [4])
        def test_copy(self, regional, calls, size):
            print("once")
            calls.append(size)
            x = regional.randn(size)
            made = regional.compile(lambda x: torch.ones_like(x) * x)(x)
            if made is x:
                {fails}
"""
SECTION = [
    "*- regional: what is to blame -*",
    "joint-graph pass constant_fold_uniform_value: right where that is left out (confirmed)",
    "the same * nothing changed",
]


SECTION_OF_EAGER = [SECTION[0], "no compiler: the same fails where nothing is compiled*"]


@pytest.mark.parametrize("fails", ["raise AssertionError('the input')", "pytest.fail('the input')", "assert not size"])
def test_any_failure_is_followed_up(downstream, pytester, fails):
    options = ("--regional-backend=inductor", "--regional-report=run.json,run.html")
    result = downstream(FACTS.format(fails=fails), *options, "--regional-blame=deep")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(SECTION)
    assert result.stdout.str().count("once") == 2  # in the source, and as captured output
    (test,) = json.loads((pytester.path / "run.json").read_text())["tests"]
    (culprit,) = test["culprits"]
    assert culprit["steps"] == ["joint_graph_pass constant_fold_uniform_value"]
    assert test["counters"]["region_compiles"] == 1


def test_less_is_followed_up_no_further(downstream, pytester):
    result = downstream(FACTS.format(fails="assert False"), "--regional-backend=inductor")
    assert "to blame" not in result.stdout.str()


ONCE = """
    import pytest, unittest

    @pytest.mark.regional_compile(expects_regions=False)
    def test_first_call_alone(regional, request):
        request.config.failed = not hasattr(request.config, "failed")
        assert not request.config.failed

    @pytest.mark.regional_compile(expects_regions=False)
    @pytest.mark.xfail(reason="known")
    def test_known(regional):
        assert False

    @pytest.mark.regional_compile(expects_regions=False)
    class TestOld(unittest.TestCase):
        def test_old(self):
            assert False
"""


def test_what_does_not_fail_again(downstream, pytester):
    options = ("--regional-backend=aot_eager", "--regional-blame=deep", "--regional-report=run.json")
    result = downstream(ONCE, *options)
    result.assert_outcomes(failed=2, xfailed=1)
    tests = json.loads((pytester.path / "run.json").read_text())["tests"]
    said = {test["test"].rpartition("::")[2]: [one["layer"] for one in test.get("culprits", ())] for test in tests}
    assert said == {"test_first_call_alone": ["nothing"], "test_known": [], "test_old": []}


def test_a_search_does_not_count_as_the_tests_time(downstream):
    """The test takes a second, so that a search, which calls it several times, takes more than the limit."""
    options = ("--regional-backend=aot_eager", "--regional-blame=deep", "--regional-timeout=4")
    result = downstream(ALWAYS.format(seconds=1), *options)
    assert "still running" not in result.stdout.str()
    result.stdout.fnmatch_lines(SECTION_OF_EAGER)


STATE = """
    import pytest, torch

    RAN = []

    @pytest.fixture(autouse=True)
    def cleared():
        RAN.clear()

    @pytest.fixture
    def seen():
        return []

    @pytest.fixture(autouse=True)
    def torn_down_with_what_the_test_left(seen, pytestconfig):
        yield
        seen.append(1)
        assert seen == [0, 1] and RAN == [0]
        first, *later = pytestconfig.states
        assert later and all(state == first for state in later), "state is as it was"

    @pytest.fixture
    def weight(regional):
        return regional.randn(4)

    @pytest.mark.regional_compile(expects_regions=False)
    def test_state(regional, seen, weight, pytestconfig):
        seen.append(0)
        RAN.append(0)
        weight.mul_(2)
        pytestconfig.states = getattr(pytestconfig, "states", [])
        pytestconfig.states.append(([*seen], [*RAN], weight.tolist()))
        if len(pytestconfig.states) > 1:
            seen.append(2)  # in experiments alone
        assert False, "the failure"
"""
VACUOUS = """
    import pytest, torch

    @pytest.mark.regional_compile
    def test_nothing(regional):
        regional.compile(torch.sin)(regional.randn(2))
"""


def test_values_of_fixtures_are_put_back(downstream):
    result = downstream(STATE, "--regional-backend=aot_eager", "--regional-blame=deep")
    result.stdout.fnmatch_lines(SECTION_OF_EAGER)
    result.assert_outcomes(failed=1)


def test_a_vacuous_test_is_followed_up_too(downstream):
    result = downstream(VACUOUS, "--regional-backend=reference", "--regional-blame=deep")
    result.stdout.fnmatch_lines(SECTION_OF_EAGER)
