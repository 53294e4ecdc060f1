"""``--regional-timeout``: a hang fails that test with its stacks, and the run goes on."""

from __future__ import annotations

import pytest

HANG = """
    import time

    def hangs(gm, inputs):
        time.sleep(60)

    @pytest.mark.regional_compile
    def test_hangs(regional):
        torch.compile(block, backend=hangs)(*pair(regional))

    @pytest.mark.regional_compile
    def test_next(regional):
        regional.assert_parity(block, *pair(regional))
"""


@pytest.mark.parametrize("source", ["option", "ini"])
def test_a_hang(downstream, pytester, source):
    pytester.makeini("[pytest]\n" + ("regional_timeout = 2\n" if source == "ini" else ""))
    arguments = ["--regional-timeout=2"] if source == "option" else []
    result = downstream(HANG, "--regional-backend=aot_eager", *arguments)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*still running after --regional-timeout=2 seconds*", "*Thread MainThread:*", "*in hangs*"]
    )


def test_a_hang_in_a_new_process_shows_where_it_is(downstream):
    """The test's own code first, then what it waited in; threads of pytest's and of this plugin's last."""
    result = downstream(
        """
        import os, pathlib, signal, threading, time

        def waits(file):
            file.touch()
            time.sleep(600)

        def of_the_test(file):
            while not file.exists():
                time.sleep(0.1)
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGALRM)  # as if the time were over: how long an import takes nobody knows
            time.sleep(600)

        @pytest.mark.regional_compile(expects_regions=False)
        def test_hangs(regional, tmp_path):
            threading.Thread(target=of_the_test, args=(tmp_path / "hangs",), daemon=True).start()
            regional.in_new_process(waits, tmp_path / "hangs")
        """,
        "--regional-backend=aot_eager",
        "--regional-timeout=500",
        "-W",
        "ignore",
        subprocess=True,
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    order = [
        "Process ",
        "in waits",
        "Thread MainThread:",
        "in test_hangs",
        "in of_the_test",
    ]
    places = [text.index(part, text.index("still running after")) for part in order]
    assert places == sorted(places)
    assert "pytest_pyfunc_call" not in text[places[0] :]
    assert "in interrupt" not in text[places[0] :]


def test_a_hang_inside_a_parity_check_is_not_taken_for_the_programs_own_error(downstream):
    result = downstream(
        """
        import time

        def slow(x, w):
            if torch.compiler.is_compiling():
                return x @ w
            time.sleep(60)

        @pytest.mark.regional_compile
        def test_hangs(regional):
            regional.assert_parity(slow, *pair(regional))
        """,
        "--regional-backend=aot_eager",
        "--regional-timeout=2",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*still running after --regional-timeout=2 seconds*"])


def test_a_property_test_ends_too_and_says_what_had_failed(downstream):
    """Hypothesis takes a failure for that of one example, and would look for a smaller one that fails so."""
    result = downstream(
        """
        import time
        from hypothesis import given, strategies as st

        @given(size=st.integers(0, 10**6))
        @pytest.mark.regional_compile(expects_regions=False)
        def test_slow(regional, size):
            time.sleep(0.4)
            assert size < 10, "too large"

        @pytest.mark.regional_compile
        def test_next(regional):
            regional.assert_parity(block, *pair(regional))
        """,
        "--regional-backend=aot_eager",
        "--regional-timeout=2",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(
        ["*still running after --regional-timeout=2 seconds*", "*an example had failed, the last with: *too large*"]
    )
