"""unittest classes take marks, and nothing else: they are skipped, isolated and checked all the same."""

from __future__ import annotations

SOURCE = """
    import unittest
    from pytest_regional import testing

    @pytest.mark.regional_compile
    class BlockTest(unittest.TestCase):
        def test_parity(self):
            r = testing.current()
            testing.assert_parity(block, *pair(r))
            print("ran on", r.backend)

        def test_vacuous(self):
            testing.assert_parity(plain, *pair(testing.current()))
"""


def test_skipped_without_the_option(downstream):
    downstream(SOURCE).assert_outcomes(skipped=2)


def test_isolated_and_checked(downstream):
    result = downstream(SOURCE, "--regional-backend=torch")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*no region was compiled*", "FAILED test_it.py::BlockTest::test_vacuous*"])


def test_once_per_backend(downstream):
    result = downstream(SOURCE, "--regional-backend=torch,aot_eager", "-s", "-v")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["*BlockTest::test_parity?torch?*ran on torch*", "*BlockTest::test_parity?aot_eager?*ran on aot_eager*"]
    )
