"""What a user is told where an optional package of this one is not there; ``tools/core`` deletes them."""

from __future__ import annotations

import pytest

from .conftest import in_a_process

PARITY = """
import pytest, torch

@pytest.mark.regional_compile(expects_regions=False)
def test_parity(regional):
    regional.assert_parity(torch.sin, regional.randn(3, requires_grad=True))
"""


@pytest.fixture
def hidden(pytester):
    """Return a function that hides one of these packages from nested runs."""

    def hide(name):
        pytester.makeconftest(
            f"""
            import importlib.util, sys
            found = importlib.util.find_spec
            importlib.util.find_spec = lambda one, *more: None if one == "pytest_regional.{name}" else found(one, *more)
            sys.modules["pytest_regional.{name}"] = None
            """
        )

    return hide


@pytest.mark.parametrize("part", ["reference", "fuzz", "verify", "emulation"])
def test_another_backend_is_tested(pytester, hidden, part):
    hidden(part)
    pytester.makepyfile(test_it=PARITY)
    in_a_process(pytester, "--regional-backend=aot_eager", "--regional-device=cpu").assert_outcomes(passed=1)


def test_the_reference_is_a_usage_error_that_names_the_others(pytester, hidden):
    hidden("reference")
    pytester.makepyfile(test_it=PARITY)
    result = in_a_process(pytester, "--regional-backend")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown backend 'reference'. Known: aot_eager, inductor, torch.*"])


def test_a_fuzz_test_fails_and_says_what_it_needs(pytester, hidden):
    hidden("fuzz")
    pytester.makepyfile(test_it=PARITY.replace("test_parity(regional)", "test_parity(regional, regional_fuzz)"))
    result = in_a_process(pytester, "--regional-backend=aot_eager", "--regional-device=cpu")
    result.stdout.fnmatch_lines(["*regional_fuzz needs the package pytest_regional.fuzz, which is not here*"])
    result.stdout.no_fnmatch_line("*ModuleNotFoundError*")
    result = in_a_process(pytester, "--regional-backend=aot_eager", "--regional-fuzz=30s")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--regional-fuzz: needs the package pytest_regional.fuzz, which is not here*"])
