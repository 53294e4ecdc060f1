"""``regional_kernel_store``: kernels are kept where it says, and tests start as empty as without."""

from __future__ import annotations

import pytest

SOURCE = """
    from torch.fx.traceback import annotate

    def sine(x):
        with annotate({"compile_with_inductor": {"inductor_region": "sine"}}):
            return torch.sin(x) + 3

    @pytest.mark.regional_compile
    @pytest.mark.parametrize("again", [0, 1])
    def test_compiled(regional, again):
        with regional.expect(region_compiles=1, region_cache_hits=0):
            regional.compile(sine)(regional.randn(4))
"""
RUN = ("--regional-backend=torch", "--regional-device=cpu")


def kernels_in(folder):
    """Return the libraries among the files, each behind its digest; preprocessed headers are others."""
    return [path for path in folder.glob("??/*") if path.read_bytes()[32:36] == b"\x7fELF"]


@pytest.mark.parametrize("how", ["ini", "environment"])
def test_a_folder(downstream, pytester, monkeypatch, how):
    monkeypatch.delenv("PYTEST_REGIONAL_KERNEL_STORE", raising=False)
    folder = pytester.path / "kept"
    pytester.makeini("[pytest]\n" + ("regional_kernel_store = kept\n" if how == "ini" else ""))
    if how == "environment":
        monkeypatch.setenv("PYTEST_REGIONAL_KERNEL_STORE", str(folder))
    result = downstream(SOURCE, *RUN)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines([f"regional: *compiled kernels kept in {folder}"])
    assert len(kernels_in(folder)) == 1


def test_off(downstream, pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_REGIONAL_KERNEL_STORE", str(pytester.path / "kept"))
    result = downstream(SOURCE, *RUN, "-oregional_kernel_store=off")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["regional: *compiled kernels not kept"])
    assert not (pytester.path / "kept").exists()


def test_an_unusable_directory(downstream, pytester):
    folder = pytester.path / "kept"
    folder.mkdir()
    folder.chmod(0o777)
    result = downstream(SOURCE, *RUN, "-oregional_kernel_store=kept")
    result.stderr.fnmatch_lines(["*regional_kernel_store=kept: *can be written to by everybody*chmod go-w*"])


def test_the_store_keeps_to_its_size(downstream, pytester, monkeypatch):
    monkeypatch.setattr("pytest_regional.harness.kernel_store.files.KernelFiles.prune.__defaults__", (0,))
    downstream(SOURCE, *RUN, "-oregional_kernel_store=kept").assert_outcomes(passed=2)
    assert not kernels_in(pytester.path / "kept")
