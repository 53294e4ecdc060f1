"""``PATH:LINE`` of generated code: in the text of a failure, in the JSON report, and among what is kept of a test."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.report.schemas import SARIF, check, published

SOURCE = """
    from torch.fx.traceback import annotate

    def fused(x):
        with annotate({"compile_with_inductor": {"inductor_region": "mlp"}}):
            return torch.sin(x * 2.0)

    @pytest.mark.regional_compile
    def test_order(regional):
        regional.run(fused, regional.randn(4, 8)).code.assert_order("aten.sin", "aten.mul")

    @pytest.mark.regional_compile
    def test_fusion(regional):
        regional.run(fused, regional.randn(4, 8)).code.assert_not_fused("aten.sin", "aten.mul")

    @pytest.mark.regional_compile
    def test_count(regional):
        regional.run(fused, regional.randn(4, 8)).code.assert_count("aten.sin", 2)

    @pytest.mark.regional_compile
    def test_memory(regional):
        regional.run(fused, regional.randn(4, 8)).code.assert_peak_live_bytes(at_most=1)

    @pytest.mark.regional_compile
    def test_parity(regional, monkeypatch):
        # The kernel itself is wrong: Inductor writes a cosine for a sine.
        from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
        monkeypatch.setattr(CppOverrides, "sin", staticmethod(CppOverrides.cos))
        monkeypatch.setattr(CppVecOverrides, "sin", staticmethod(CppVecOverrides.cos))
        regional.assert_parity(fused, regional.randn(4, 8))

    @pytest.mark.regional_compile
    def test_one_output_of_two(regional, monkeypatch):
        from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
        monkeypatch.setattr(CppOverrides, "sin", staticmethod(CppOverrides.cos))
        monkeypatch.setattr(CppVecOverrides, "sin", staticmethod(CppVecOverrides.cos))

        def two(x, w):
            with annotate({"compile_with_inductor": {"inductor_region": "mlp"}}):
                return x @ w, torch.sin(x * 2.0)

        regional.assert_parity(two, regional.randn(4, 8), regional.randn(8, 8))

    @pytest.mark.regional_compile
    def test_gradient(regional, monkeypatch):
        # Of the two graphs the backward is at fault: the gradient of a sine is a cosine, which Inductor writes as a sine.
        from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides
        monkeypatch.setattr(CppOverrides, "cos", staticmethod(CppOverrides.sin))
        monkeypatch.setattr(CppVecOverrides, "cos", staticmethod(CppVecOverrides.sin))
        regional.assert_parity(fused, regional.randn(4, 8, requires_grad=True))

    @pytest.mark.regional_compile
    def test_crash(regional):
        compiled = regional.compile(fused)
        compiled(regional.randn(4, 8))
        from torch._inductor.codecache import PyCodeCache
        (module,) = [one for one in PyCodeCache.modules if "sin" in str(vars(one))]
        compiled_kernel = next(name for name in vars(module) if name.startswith("cpp_fused"))
        setattr(module, compiled_kernel, lambda *_: 1 / 0)
        compiled(regional.randn(4, 8))

    @pytest.mark.regional_compile
    def test_its_own(regional):
        regional.compile(fused)(regional.randn(4, 8))
        assert not "wrong"
"""

RUN = ("--regional-device=cpu", "--regional-report=r.json")


def places(text):
    """Return file, line and what is said, of each line that an editor opens."""
    found = re.finditer(r"^(/.+?\.py):(\d+): ((?:kernel|cpp|allocate|raised|the code) .*)$", text, re.MULTILINE)
    return [(Path(one[1]), int(one[2]), one[3]) for one in found]


def line_at(place):
    path, line, _ = place
    return path.read_text(encoding="utf-8").splitlines()[line - 1]


def reported(pytester):
    report = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))
    return {test["test"].partition("::test_")[2]: test for test in report["tests"]}


def code_of(test):
    return [(Path(one["path"]), one["line"], one["what"]) for one in test.get("generated_code", ())]


FAILS_NINE_TIMES = pytest.mark.slow(
    "compiles nine programs, and searches for their culprits",
    fast="test_the_path_is_there_after_the_run_and_the_line_is_that_of_the_kernel",
)


@pytest.mark.parametrize("backend", [pytest.param("inductor", marks=FAILS_NINE_TIMES), "reference"])
def test_the_path_is_there_after_the_run_and_the_line_is_that_of_the_kernel(downstream, pytester, backend):
    result = downstream(SOURCE, f"--regional-backend={backend}", *RUN)
    result.assert_outcomes(failed=9)
    tests = reported(pytester)
    for name in ("order", "fusion", "count", "parity", "crash"):
        found = code_of(tests[name])
        assert re.match(r"\s*cpp_fused_\w+\(", line_at(found[0])), name
        if name != "crash":
            assert re.match(r"cpp_fused_\w+ = async_compile", line_at(found[1])), name
            assert "aten.sin" in found[0][2]
    assert "raised ZeroDivisionError" in str(code_of(tests["crash"]))
    (launch, _) = code_of(tests["one_output_of_two"])
    assert "aten.sin" in launch[2]
    assert "backward" in code_of(tests["gradient"])[0][0].name
    assert "aten.cos" in code_of(tests["gradient"])[0][2]
    assert any("empty_strided_cpu" in line_at(place) for place in code_of(tests["memory"]))
    for test in tests.values():
        assert places(test["failure"]) == code_of(test)
    assert not code_of(tests["its_own"])


def test_with_a_directory_for_failed_tests_the_path_is_in_it(downstream, pytester):
    source = SOURCE.partition("    @pytest.mark.regional_compile\n    def test_count")[0]
    downstream(source, "--regional-backend=reference", *RUN, "--regional-report=r.json,kept/")
    for name in ("order", "fusion"):
        (launch, _) = code_of(reported(pytester)[name])
        assert launch[0].is_relative_to(pytester.path / "kept")
        assert "cpp_fused" in line_at(launch)
        failure = (launch[0].parent.parent / "failure.txt").read_text(encoding="utf-8")
        assert places(failure)[0] == launch


FUZZED = """
    from torch._inductor.compile_fx import compile_fx
    from pytest_regional.fuzz.campaign import Programs
    from pytest_regional.fuzz.model.arguments import TensorInput
    from pytest_regional.fuzz.model.program import Program, Step

    def faulty(gm, inputs):
        compiled = compile_fx(gm, inputs)
        return compiled if gm.code.count("mm(") < 2 else lambda *args: tuple(-value for value in compiled(*args))

    def programs(seed):
        x = (TensorInput((4, 4)),)
        one, other = Step("mm", (0, 0), (), (1,)), Step("mm", (1, 0), (), (2,))
        while True:
            yield Program(x, (one,), (1,), training=False)
            yield Program(x, (one, other), (2,), training=False)

    @pytest.mark.regional_compile(expects_regions=False)
    def test_any(regional_fuzz, monkeypatch):
        # Two hundred compiles would say that it cannot be made smaller.
        monkeypatch.setattr(Programs, "reduce", lambda self, example, still_fails, seconds: example)
        regional_fuzz.run("native", draw=programs, oracles=("compiles", "parity"))
"""


@pytest.mark.slow("fuzzes", fast="tests/plugin/test_evidence.py::test_of_a_fuzz_test_the_code_of_its_finding_is_kept")
def test_of_a_fuzz_test_the_code_of_its_finding_is_named(downstream, pytester):
    """And not that of a program which the campaign checked before or after it."""
    (pytester.path / ".git").mkdir()
    options = ("--regional-backend=test_it:faulty", "--regional-blame=off", "--regional-fuzz=5")
    reports = "--regional-report=r.json,r.sarif,kept/"
    downstream(FUZZED, *options, *RUN, reports).assert_outcomes(failed=1)
    (test,) = json.loads((pytester.path / "r.json").read_text(encoding="utf-8"))["tests"]
    (finding,) = test["fuzz"]["findings"]
    (place,) = code_of(test)
    assert line_at(place).startswith("    def call(")
    assert place[0].read_text(encoding="utf-8").count("extern_kernels.mm(") == 2
    assert test["generated_code"][0]["finding"] == finding["name"]
    assert finding["name"] in place[2]
    log = json.loads((pytester.path / "r.sarif").read_text(encoding="utf-8"))
    check(log, published(SARIF))
    (result,) = log["runs"][0]["results"]
    related = [one["physicalLocation"] for one in result["relatedLocations"]]
    assert [one["artifactLocation"]["uri"].split("/")[0] for one in related] == ["regional-findings", "kept"]
    assert related[1]["region"]["startLine"] == place[1]
