"""``--regional-backend`` and its ini twin."""

from __future__ import annotations

import pytest

PARITY = """
    @pytest.mark.regional_compile
    def test_parity(regional):
        regional.assert_parity(block, *pair(regional))
        print("ran on", regional.backend)
"""


def test_without_the_option_marked_tests_are_skipped_with_a_reason_that_names_it(downstream):
    result = downstream(PARITY)
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs --regional-backend (or regional_backend in the ini file)*"])


def test_without_value_the_reference_is_tested(downstream):
    result = downstream(PARITY, "--regional-backend", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*regional: backend reference; device auto; torch *", "*ran on reference*"])


def test_what_follows_the_bare_option_is_a_path(downstream, pytester):
    pytester.mkdir("suites").joinpath("test_other.py").write_text("def test_other(): pass\n")
    result = downstream(PARITY, "--regional-backend", "suites")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["suites?test_other.py*"])


def test_several_backends_are_in_the_ids(downstream):
    result = downstream(PARITY, "--regional-backend=torch,aot_eager", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_parity?torch? PASSED*", "*test_parity?aot_eager? PASSED*"])


def test_one_backend_leaves_the_id_alone(downstream):
    result = downstream(PARITY, "--regional-backend=aot_eager", "-v")
    result.stdout.fnmatch_lines(["*::test_parity PASSED*"])


def test_ini(downstream, pytester):
    pytester.makeini("[pytest]\nregional_backend = aot_eager\n")
    downstream(PARITY, "-s").stdout.fnmatch_lines(["*ran on aot_eager*"])


def test_the_command_line_wins_over_the_ini_file(downstream, pytester):
    pytester.makeini("[pytest]\nregional_backend = inductor\n")
    downstream(PARITY, "-s", "--regional-backend=aot_eager").stdout.fnmatch_lines(["*ran on aot_eager*"])


def test_environment_addopts(downstream, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--regional-backend=aot_eager")
    downstream(PARITY, "-s").stdout.fnmatch_lines(["*ran on aot_eager*"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "refrence",
            "*unknown backend 'refrence'. Did you mean 'reference'?*Known: aot_eager, inductor, reference, torch*",
        ),
        ("torch,,inductor", "*an empty name in the comma-separated list*"),
        ("torch,torch", "*torch is listed twice*"),
        ("program:missing", "*backend 'program:missing' could not be loaded: AttributeError*missing*"),
        ("no_such_package:thing", "*could not be loaded: ModuleNotFoundError*no_such_package*"),
        ("program:PROGRAM_IS_NO_BACKEND", "*could not be loaded*"),
        ("torch:float32", "*is dtype; expected a BackendSpec or a Dynamo backend*"),
    ],
)
def test_a_wrong_value_is_a_usage_error(downstream, value, message):
    result = downstream(PARITY, f"--regional-backend={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_a_dynamo_backend_by_module_and_attribute(downstream, pytester):
    pytester.makepyfile(mine="def eager(gm, inputs):\n    return gm.forward\n")
    result = downstream(
        """
        @pytest.mark.regional_compile(expects_regions=False)
        def test_it(regional):
            regional.assert_parity(block, *pair(regional))
            assert regional.backend == "eager"
        """,
        "--regional-backend=mine:eager,aot_eager",
        "-v",
    )
    result.stdout.fnmatch_lines(["*test_it?eager? PASSED*"])


def test_a_specification_by_module_and_attribute(downstream, pytester):
    pytester.makepyfile(
        mine="""
        from pytest_regional import BackendSpec, declared, unsupported
        spec = BackendSpec("mine", lambda: "aot_eager", declared(compiles_regions=unsupported("by design"))())
        """
    )
    result = downstream(PARITY, "--regional-backend=mine:spec", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*ran on mine*"])


def test_an_entry_point(downstream, pytester):
    pytester.makepyfile(mine="def eager(gm, inputs):\n    return gm.forward\n")
    info = pytester.mkdir("mine-1.0.dist-info")
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text("[pytest_regional.backends]\ninstalled = mine:eager\n")
    result = downstream(
        """
        @pytest.mark.regional_compile(expects_regions=False)
        def test_it(regional):
            regional.assert_parity(block, *pair(regional))
            assert regional.backend == "installed"
        """,
        "--regional-backend=installed",
    )
    result.assert_outcomes(passed=1)
    unknown = downstream(PARITY, "--regional-backend=instaled")
    unknown.stderr.fnmatch_lines(["*Did you mean 'installed'*"])


def test_help_marks_and_fixtures_tell_everything(pytester):
    from pytest_regional.options import OPTIONS

    help_text = pytester.runpytest_inprocess("--help").stdout.str()
    for option in OPTIONS:
        assert option.flag in help_text
        assert f"{option.ini} (" in help_text
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(
        [
            "@pytest.mark.regional_compile(backend=None, device=None, dynamic=None*",
            "@pytest.mark.regional_known_failure(*",
        ]
    )
    fixtures = pytester.runpytest_inprocess("--fixtures").stdout.str()
    for name in ("regional", "pre_grad_pass", "regional_backend", "regional_device", "regional_cache_dir", "fake_pg"):
        assert f"\n{name} -- " in fixtures
