"""Compile times in reports: measured where asked for, also by workers."""

from __future__ import annotations

import json

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


def test_workers_measure_too(downstream, pytester):
    options = ("--regional-backend=reference", "--regional-device=cpu", "--regional-report=all.json", "-n2")
    downstream(source(2), *options, "-k", "product").assert_outcomes(passed=2)
    tests = json.loads((pytester.path / "all.json").read_text())["tests"]
    assert all(one["compile_times"]["phases"] for one in tests)


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
