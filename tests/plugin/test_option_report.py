"""``--regional-report``: names that cannot be; what is written, test_xdist reads."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize(
    ("name", "said"),
    [("report.txt", "expected a name that ends in .json"), ("test_it.py/a.json", "*is not a writable directory")],
)
def test_a_file_that_cannot_be_written_is_a_usage_error(downstream, name, said):
    result = downstream("def test_it(): pass", "--regional-backend=aot_eager", f"--regional-report={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--regional-report*{said}*"])


def test_errors_of_a_training_that_holds_and_of_one_that_does_not(downstream, pytester):
    source = """
        def train(regional, level):
            batches = [(regional.randn(3, 4), regional.randn(3, 2)) for _ in range(2)]
            loss = torch.nn.functional.mse_loss
            regional.assert_training_parity(torch.nn.Linear(4, 2), batches, loss=loss, compiled=level)

        @pytest.mark.regional_compile
        def test_holds(regional):
            train(regional, None)

        @pytest.mark.regional_compile
        def test_fails(regional):
            def spoilt(model):
                model.weight.register_hook(lambda gradient: gradient * 2)
                return model

            train(regional, spoilt)
        """
    result = downstream(source, "--regional-backend=aot_eager", "--regional-device=cpu", "--regional-report=all.json")
    result.assert_outcomes(passed=1, failed=1)
    holds, fails = json.loads((pytester.path / "all.json").read_text())["tests"]
    for test in (holds, fails):
        errors = {error["where"]: error for error in test["details"]["errors"]}
        (where,) = (
            name for name in errors if name.endswith("gradient of weight")
        )  # of one step, the worst or first bad
        gradient = errors[where]
        assert (gradient["candidate"] <= gradient["allowed"]) is (test is holds)
    assert where == "training: step 1: gradient of weight"
    assert holds["worst_parity"] <= 1 < fails["worst_parity"]


def test_a_report_that_cannot_be_written_in_the_end_fails_the_run_and_says_why(downstream, pytester):
    source = """
        from pathlib import Path

        @pytest.mark.regional_compile(expects_regions=False)
        def test_takes_the_name():
            Path("all.json").unlink()  # it stands there, unfinished
            Path("all.json").mkdir()
        """
    names = "--regional-report=all.json,all.html"
    result = downstream(source, "--regional-backend=aot_eager", "--regional-device=cpu", names)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["--regional-report: */all.json could not be written: Is a directory"])
    assert (pytester.path / "all.html").exists()
