"""A marked test that compiles with a backend that is not under test shows nothing of the one that is."""

from __future__ import annotations

import pytest

OTHERS = """
    @pytest.mark.regional_compile
    def test_by_name():
        torch.compile(block, backend="{other}")(torch.randn(4, 8), torch.randn(8, 8))

    @pytest.mark.regional_compile
    def test_by_default():
        torch.compile(block)(torch.randn(4, 8), torch.randn(8, 8))

    @pytest.mark.regional_compile
    def test_decorated():
        decorated = torch.compile(backend="{other}")(block)
        decorated(torch.randn(4, 8), torch.randn(8, 8))

    @pytest.mark.regional_compile(expects_regions=False)
    def test_on_purpose():
        torch.compile(block, backend="{other}")(torch.randn(4, 8), torch.randn(8, 8))

    @pytest.mark.regional_compile
    def test_next_to_the_one_under_test(regional):
        torch.compile(block, backend="{other}")(*pair(regional))
        regional.assert_parity(block, *pair(regional))
"""

OWN = """
    @pytest.mark.regional_compile
    def test_name(regional_backend):
        torch.compile(block, backend=regional_backend)(torch.randn(4, 8), torch.randn(8, 8))

    @pytest.mark.regional_compile
    def test_callable(regional):
        torch.compile(block, backend=regional.dynamo_backend)(*pair(regional))

    @pytest.mark.regional_compile
    def test_module(regional):
        class Block(torch.nn.Module):
            def forward(self, x, w):
                return block(x, w)

        module = Block()
        module.compile(backend=regional.dynamo_backend)
        module(*pair(regional))

    @pytest.mark.regional_compile
    def test_what_another_backend_compiled(regional):
        regional.assert_parity(torch.compile(block, backend="aot_eager"), *pair(regional))
"""

SPEC = """
from pytest_regional import BackendSpec
from pytest_regional._torch.dynamo import regional_inductor_backend

spec = BackendSpec("mine", regional_inductor_backend)
"""


def test_another_backend_proves_nothing(downstream):
    result = downstream(OTHERS.format(other="inductor"), "--regional-backend=reference")
    result.assert_outcomes(failed=3, passed=2)
    result.stdout.fnmatch_lines(
        [
            "VacuousTestError: no region was compiled or loaded with backend 'reference'*'inductor' compiled, "
            "which the test gave to torch.compile. Use regional.compile(fn), or torch.compile(fn, "
            "backend=regional.dynamo_backend)*regional_compile(backend=...)*"
        ]
    )


def test_another_backend_of_regions_proves_nothing(downstream):
    result = downstream(OTHERS.format(other="regional"), "--regional-backend=torch")
    result.assert_outcomes(failed=3, passed=2)
    result.stdout.fnmatch_lines(["*with backend 'torch'*'regional' compiled*"])


def test_asked_for_by_name_it_is_the_one_under_test(downstream):
    result = downstream(OTHERS.format(other="regional"), "--regional-backend=reference")
    result.assert_outcomes(failed=1, passed=4)
    result.stdout.fnmatch_lines(["FAILED *::test_by_default*"])


@pytest.mark.parametrize("backend", ["reference", "torch", "inductor", "aot_eager", "mine:spec", "installed", "eager"])
def test_the_backend_under_test_is_there_for_torch_compile(downstream, pytester, backend):
    pytester.makepyfile(mine=SPEC)
    info = pytester.mkdir("mine-1.0.dist-info")
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text("[pytest_regional.backends]\ninstalled = mine:spec\n")
    downstream(OWN, f"--regional-backend={backend}").assert_outcomes(passed=4)
