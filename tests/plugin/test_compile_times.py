"""Compile times in reports and histories: measured where asked for, also by workers, and then compared."""

from __future__ import annotations

import json

from pytest_regional.command_line import main
from pytest_regional.report import history

SOURCE = """
    import time

    from pytest_regional._torch import compile_phases

    class Slow:
        def __call__(self, graph):
            time.sleep(0.25)

        def uuid(self):
            return "slow"

    @pytest.mark.regional_compile
    @pytest.mark.parametrize("number", range(NUMBER))
    def test_product(regional, number):
        with torch._inductor.config.patch(pre_grad_custom_pass=SLOW):
            regional.run(block, *pair(regional))

    @pytest.mark.regional_compile
    def test_checks(regional):
        regional.compile_times(block, *pair(regional), repeat=2)
"""


def source(number, slow="None"):
    return SOURCE.replace("NUMBER", str(number)).replace("SLOW", slow)


def test_a_report_holds_phases_of_each_test(downstream, pytester):
    options = ("--regional-backend=reference", "--regional-device=cpu", "--regional-report=all.json")
    result = downstream(source(1, "Slow()"), *options)
    result.assert_outcomes(passed=2)
    product, checks = json.loads((pytester.path / "all.json").read_text())["tests"]
    times = product["compile_times"]
    assert times["not_measured"] == []
    assert 0.25 < times["phases"]["passes"] < 0.5
    assert {"dynamo", "aot_autograd", "inductor", "cache"} <= set(times["phases"])
    # The pass sleeps, which takes no processor.
    assert 0 < times["cpu"]["phases"]["passes"] < 0.25
    assert times["cpu"]["phases"]["dynamo"] > 0
    assert set(times["cpu"]["regions"]) == set(times["regions"])
    assert set(times["regions"]) == {"region mlp of the inference graph", "the inference graph"}
    # Of what it compiled again and again only the first counts, as with counters.
    once, phases = sum(checks["compile_times"]["phases"].values()), times["phases"]
    assert once < 2 * (sum(phases.values()) - phases["passes"])
    assert json.loads((pytester.path / "all.json").read_text())["machine"].keys() >= {"model", "cores"}


NAMES = ("--regional-backend=reference", "--regional-device=cpu", "--regional-report=times.jsonl")


def test_runs_append_to_a_history_that_compare_reads(downstream, pytester, capsys):
    path = pytester.path / "times.jsonl"
    downstream(source(8), *NAMES, "-k", "product").assert_outcomes(passed=8)
    assert len(history.read(path)) == 1
    downstream(source(8, "Slow()"), *NAMES, "-k", "product").assert_outcomes(passed=8)
    assert [len(run.tests) for run in history.read(path)] == [8, 8]
    # The first test of a process is the one that takes 1.2 times as long: it also fills PyTorch's tables of patterns.
    assert main(["compare", str(path), "--fail-slower=passes:5%"]) == 1
    assert "slower than --fail-slower=passes:5% allows:" in capsys.readouterr().out


def test_workers_leave_one_line_together(downstream, pytester):
    downstream(source(2), *NAMES, "-n2", "-k", "product").assert_outcomes(passed=2)
    (run,) = history.read(pytester.path / "times.jsonl")
    assert len(run.tests) == 2


def test_nothing_is_measured_where_no_report_holds_it(downstream):
    checked = """
    from pytest_regional._stash import PHASES
    from pytest_regional._torch.patching import PatchPoint

    @pytest.mark.regional_compile
    def test_it(regional, request):
        regional.run(block, *pair(regional))
        logger = PatchPoint("torch._dynamo.utils:ChromiumEventLogger", "log_event_start")
        assert PHASES not in request.node.stash
        assert logger.current().__module__ == "torch._dynamo.utils"
    """
    options = ("--regional-backend=reference", "--regional-device=cpu")
    downstream(checked, *options, "--regional-report=a.html").assert_outcomes(passed=1)
    downstream(checked, *options, "--regional-report=a.json").assert_outcomes(failed=1)
