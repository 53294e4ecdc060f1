"""Under pytest-xdist: the same results, folders of their own, nothing left behind."""

from __future__ import annotations

import tempfile

import pytest

SOURCE = """
    import os

    @pytest.mark.regional_compile
    @pytest.mark.parametrize("n", [2, 3, 4, 5])
    def test_parity(regional, n):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        assert f"/{worker}/tests/" in os.environ["TORCHINDUCTOR_CACHE_DIR"]
        with regional.expect(region_compiles=1, region_cache_hits=0):
            regional.compile(block)(*pair(regional, n))

    @pytest.mark.regional_compile
    def test_vacuous(regional):
        pass

    @pytest.mark.regional_compile(requires=("share_identical",))
    def test_skipped(regional):
        pass
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["serial", "n2"])
def test_the_same_results_and_nothing_left_behind(downstream, pytester, workers, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    result = downstream(SOURCE, "--regional-backend=torch", *workers, subprocess=True)
    result.assert_outcomes(passed=4, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["it *4 passed, 1 failed, 1 skipped*", "4 region compiles, *"])
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("pytest-regional")]
    assert left == []
    # What pytester itself writes beside the tests: the folders and the output of its run.
    own = ("__pycache__", "runpytest", "stdout", "stderr")
    assert sorted(p.name for p in pytester.path.iterdir() if not p.name.startswith(own)) == ["program.py", "test_it.py"]


def test_a_crashing_worker_does_not_lose_the_others_facts(downstream):
    """Nor the shards of a fuzz test; and of a fuzz test that crashed stays the program that was judged."""
    result = downstream(
        """
        import os
        from pytest_regional.fuzz.arguments import TensorInput
        from pytest_regional.fuzz.program import Program, Step

        @pytest.mark.regional_compile
        @pytest.mark.parametrize("n", [2, 3])
        def test_parity(regional, n):
            regional.compile(block)(*pair(regional, n))

        @pytest.mark.regional_compile(backend="aot_eager", expects_regions=False)
        def test_any(regional_fuzz):
            regional_fuzz.run("full", laws=("compiles", "parity"))

        def programs(seed):
            while True:
                yield Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)

        def crash(*args, **options):
            os._exit(3)

        @pytest.mark.regional_compile(expects_regions=False)
        def test_crash(regional_fuzz, monkeypatch):
            if regional_fuzz.shard == 1:
                monkeypatch.setattr(type(regional_fuzz), "_judge", crash)
                regional_fuzz.run("full", draw=programs)
        """,
        "--regional-backend=torch",
        "--regional-device=cpu",
        "--regional-fuzz=5",
        "--regional-seed=7",
        "-n2",
        subprocess=True,
    )
    result.stdout.fnmatch_lines(
        [
            "*worker 'gw*' crashed*",
            "it *2 passed, 1 failed, 1 crashed*",
            "*1 workers were lost: the totals are incomplete*",
            "aot_eager (cpu), it, lane full: 5 programs in *, 0 failed, 0 new findings",
            "a process died while it judged the program in */regional-findings/judging/full-1-*.json:",
            "*torch.neg(x0)",
        ]
    )


def test_a_wrong_mark_is_readable(downstream):
    result = downstream(
        """
        @pytest.mark.regional_compile(fullgrap=True)
        def test_it(regional):
            pass
        """,
        "--regional-backend=torch",
        "-n2",
        subprocess=True,
    )
    assert result.ret != 0
    text = result.stdout.str() + result.stderr.str()
    assert "unknown keyword 'fullgrap'" in text
