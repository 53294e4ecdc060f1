"""The JUnit file says what was compiled, for each test and for the run, under xdist too."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

SOURCE = """
    @pytest.mark.regional_compile
    @pytest.mark.parametrize("n", [2, 3])
    def test_parity(regional, n):
        regional.assert_parity(block, *pair(regional, n))

    @pytest.mark.regional_compile
    def test_vacuous(regional):
        pass
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["serial", "n2"])
def test_properties_of_tests_and_of_the_run(downstream, pytester, workers):
    downstream(SOURCE, "--regional-backend=torch", "--junitxml=result.xml", *workers, subprocess=True)

    suite = ElementTree.parse(pytester.path / "result.xml").getroot().find("testsuite")
    run = {found.get("name"): found.get("value") for found in suite.findall("properties/property")}
    assert run["regional.torch.cpu.passed"] == "2"
    assert run["regional.torch.cpu.failed"] == "1"
    assert run["regional.region_compiles"] == "2"
    case = next(case for case in suite.iter("testcase") if "test_parity" in case.get("name"))
    of_test = {found.get("name"): found.get("value") for found in case.iter("property")}
    assert (of_test["regional_backend"], of_test["regional_region_compiles"]) == ("torch", "1")
    assert float(of_test["regional_worst_parity"]) <= 1
