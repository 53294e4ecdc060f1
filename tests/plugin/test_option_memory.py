"""``regional_memory``: a test that takes too much fails, and the run goes on."""

from __future__ import annotations

import resource

import pytest

from pytest_regional._base.limits import memory_limit, memory_of

SOURCE = """
    def greedy(gm, inputs):
        kept = torch.empty(3 * 2**30, dtype=torch.uint8)  # never touched: only asked for
        return gm.forward

    @pytest.mark.regional_compile(expects_regions=False)
    def test_greedy(regional):
        torch.compile(torch.sin, backend=greedy)(torch.ones(2))

    @pytest.mark.regional_compile(expects_regions=False)
    def test_next(regional):
        regional.run(torch.sin, regional.randn(2))
"""


def test_too_much(downstream, pytester):
    pytester.makeini("[pytest]\nregional_memory = 2G\n")
    result = downstream(SOURCE, "--regional-backend=aot_eager")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*can't allocate memory*", "*regional_memory lets a test take 2 GiB*"])


def test_enough(downstream):
    downstream(SOURCE, "--regional-backend=aot_eager", "-oregional_memory=8G").assert_outcomes(passed=2)


def test_the_limit_ends_with_the_test():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryError) as caught, memory_limit(2**28):
        assert resource.getrlimit(resource.RLIMIT_DATA) != before
        bytearray(2**30)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert caught.value.__notes__ == ["regional_memory lets a test take 0.25 GiB"]


def test_other_errors_get_no_note():
    with pytest.raises(RuntimeError) as caught, memory_limit(2**28):
        raise RuntimeError("something else")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize(
    ("text", "number"),
    [("4G", 2**32), ("500M", 500 * 2**20), ("1.5g", 3 * 2**29), ("2GiB", 2**31), ("100000000", 10**8)],
)
def test_sizes(text, number):
    assert memory_of(text) == number


@pytest.mark.parametrize("backend", [["--regional-backend=aot_eager"], []], ids=["on", "off"])
def test_a_wrong_value_is_a_usage_error(downstream, backend):
    result = downstream(SOURCE, *backend, "-oregional_memory=4X")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*regional_memory=*expected a size from 64M*to 1024T, such as 8G or 500M*"])
