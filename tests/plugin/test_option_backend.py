"""``--regional-backend`` and its ini twin."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from pytest_regional.cli import main
from pytest_regional.plugin.options import give_bare_options_their_values

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


@pytest.mark.parametrize("name", ["aot_eager", "mine:eager", "aot_eager,mine:eager"])
def test_a_name_may_follow_after_a_space(downstream, pytester, name):
    pytester.makepyfile(mine="def eager(gm, inputs):\n    return gm.forward\n")
    marked = (
        "@pytest.mark.regional_compile(expects_regions=False)\ndef test_it(regional): print('ran on', regional.backend)"
    )
    result = downstream(marked, "--regional-backend", name, "test_it.py", "-s")
    result.assert_outcomes(passed=1 + name.count(","))
    result.stdout.fnmatch_lines([f"*ran on {each.rpartition(':')[2]}*" for each in name.split(",")])


def test_a_misspelled_name_after_a_space_is_an_unknown_backend(downstream):
    result = downstream(PARITY, "--regional-backend", "refrence")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown backend 'refrence'. Did you mean 'reference'?*"])


def test_a_directory_named_like_a_backend_is_a_path(downstream, pytester):
    pytester.mkdir("torch").joinpath("test_other.py").write_text("def test_other(): pass\n")
    result = downstream(PARITY, "--regional-backend", "torch")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*regional: backend reference; *", "torch?test_other.py*"])


def test_words_after_an_option_that_may_be_bare(pytester):
    for given, parsed in {
        "--regional-backend": "--regional-backend=reference",
        "--regional-backend -v": "--regional-backend=reference -v",
        "--regional-backend torch,inductor -v": "--regional-backend=torch,inductor -v",
        "--regional-backend mine:spec": "--regional-backend=mine:spec",
        "--regional-backend test_it.py::test_it": "--regional-backend=reference test_it.py::test_it",
        "--regional-backend my.suites --pyargs": "--regional-backend=reference my.suites --pyargs",
        "--regional-verify 2.5 --regional-backend": "--regional-verify=2.5 --regional-backend=reference",
        "--regional-verify tests -- --regional-backend": "--regional-verify=20 tests -- --regional-backend",
    }.items():
        arguments = given.split()
        assert give_bare_options_their_values(arguments), given
        assert " ".join(arguments) == parsed, given


def test_an_untested_torch_is_named_in_the_header(downstream, monkeypatch):
    tested = downstream(PARITY, "--regional-backend=aot_eager", "--collect-only")
    tested.stdout.no_fnmatch_line("*is untested*")
    monkeypatch.setattr(torch, "__version__", "main+git1234567")
    result = downstream(PARITY, "--regional-backend=aot_eager")
    result.assert_outcomes(passed=1)
    untested = "regional: torch main+git1234567 is untested: pytest-regional is tested with torch 2.11 to 2.15"
    result.stdout.fnmatch_lines(["regional: backend aot_eager; *; torch main+git1234567; *", untested])


def test_several_backends_are_in_the_ids(downstream):
    result = downstream(PARITY, "--regional-backend=torch,aot_eager", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*test_parity?torch? PASSED*", "*test_parity?aot_eager? PASSED*"])


def test_one_backend_leaves_the_id_alone(downstream):
    result = downstream(PARITY, "--regional-backend=aot_eager", "-v")
    result.stdout.fnmatch_lines(["*::test_parity PASSED*"])


def test_the_command_line_wins_over_the_ini_file(downstream, pytester):
    pytester.makeini("[pytest]\nregional_backend = inductor\n")
    downstream(PARITY, "-s").stdout.fnmatch_lines(["*ran on inductor*"])
    downstream(PARITY, "-s", "--regional-backend=aot_eager").stdout.fnmatch_lines(["*ran on aot_eager*"])


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


TORCH_BACKENDS = """
from torch._dynamo.backends.common import aot_autograd
from functorch.compile import make_boxed_func

def compile_graph(gm, inputs):
    return make_boxed_func(gm.forward)

def whole(gm, inputs):
    return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)(gm, inputs)

def broken():
    raise ImportError("no such library")
"""


@pytest.fixture
def registered(pytester):
    """Install a package that names backends for torch.compile, and nothing for tests."""
    pytester.makepyfile(theirs=TORCH_BACKENDS)
    pytester.makepyfile(unimportable="raise ImportError('a library is missing')")
    info = pytester.mkdir("theirs-1.0.dist-info")
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text(
        "[torch_dynamo_backends]\nwholesale = theirs:whole\nunimportable = unimportable:thing\n"
    )


def test_a_name_that_torch_compile_takes(downstream, registered):
    """It claims nothing about regions, and has to have been handed a graph."""
    result = downstream(
        """
        @pytest.mark.regional_compile
        def test_parity(regional):
            assert regional.backend == "wholesale"
            regional.assert_parity(plain, *pair(regional))

        @pytest.mark.regional_compile
        def test_vacuous(regional):
            regional.compile(plain)

        @pytest.mark.regional_compile
        def test_empty_graph(regional):
            regional.compile(lambda x: x)(regional.randn(3))

        @pytest.mark.regional_compile(requires=("regions",))
        def test_regions(regional):
            pass
        """,
        "--regional-backend=wholesale",
    )
    result.assert_outcomes(passed=1, failed=2, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*VacuousTestError: no graph was compiled or loaded with backend 'wholesale'*the test called no compiled program.*",
            "*graphs, 0 region compiles, 0 region loads*",
            "SKIPPED * backend 'wholesale' disclaims regions: a backend that torch.compile knows by name*",
        ]
    )


@pytest.mark.parametrize("name", ["eager", "aot_eager_decomp_partition", "cudagraphs"])
def test_a_name_that_torch_has_itself(downstream, name):
    result = downstream(
        "@pytest.mark.regional_compile(expects_regions=False)\ndef test_it(regional):\n    pass\n",
        f"--regional-backend={name}",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*regional: backend {name};*"])


def test_our_name_for_torch_compile_is_the_reference(downstream):
    downstream(PARITY, "-s", "--regional-backend=regional").stdout.fnmatch_lines(["*ran on reference*"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("wholesail", "*unknown backend 'wholesail'. Did you mean 'wholesale'?*Known: *wholesale*"),
        ("cudagraph", "*unknown backend 'cudagraph'. Did you mean 'cudagraphs'?*torch.compile also has *cudagraphs*"),
        ("unimportable", "*backend 'unimportable' could not be loaded: ImportError: a library is missing*"),
    ],
)
def test_names_for_torch_compile_are_offered(downstream, registered, value, message):
    result = downstream(PARITY, f"--regional-backend={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_names_for_torch_compile_are_listed(pytester, registered, capsys):
    pytester.syspathinsert()
    assert main(["backends"]) == 0
    matcher = pytest.LineMatcher(capsys.readouterr().out.splitlines())
    matcher.fnmatch_lines(
        [
            "wholesale  (theirs:whole, of theirs, registered with torch.compile)",
            "    claims * capabilities",
            "    - *: a backend that torch.compile knows by name is not taken*",
        ]
    )
    matcher.fnmatch_lines(["unimportable  (*", "    cannot be used: *a library is missing*"])


@pytest.mark.slow("starts processes that import torch", fast="test_names_for_torch_compile_are_offered")
def test_changes_of_its_import_are_not_a_tests(downstream, pytester, registered):
    pytester.makepyfile(
        theirs=TORCH_BACKENDS + "\nimport torch._dynamo.config\ntorch._dynamo.config.recompile_limit = 3\n"
    )
    result = downstream(
        """
        import torch._dynamo.config
        _before = torch._dynamo.config.recompile_limit

        @pytest.mark.parametrize("number", [1, 2])
        @pytest.mark.regional_compile
        def test_it(regional, number):
            assert torch._dynamo.config.recompile_limit == 3
            regional.assert_parity(plain, *pair(regional))
        """,
        "--regional-backend=wholesale",
        "-W",
        "error",
        subprocess=True,
    )
    result.assert_outcomes(passed=2)


def test_a_plain_callable_that_compiles_graphs_is_an_error_with_a_hint(downstream, pytester):
    """It is taken to claim everything; where it was handed graphs and no region was compiled, it may have none."""
    pytester.makepyfile(theirs=TORCH_BACKENDS)
    result = downstream(PARITY, "--regional-backend=theirs:whole")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*no region was compiled*backend 'whole' was handed * If it compiles graphs, not regions*disclaims = { regions*"
        ]
    )
    pytester.makepyprojecttoml(
        """
        [tool.pytest-regional.backends.whole]
        disclaims = { regions = "it compiles graphs" }
        """
    )
    downstream(PARITY, "--regional-backend=theirs:whole").assert_outcomes(passed=1)


def test_each_option_is_parsed_into_a_field_of_the_settings():
    from pytest_regional.plugin import options, settings

    names = {option.setting for option in options.OPTIONS}
    assert names == settings._PARSERS.keys()
    # fuzz_seed is no option: it depends on the seed and on the budget.
    assert names == {field.name for field in fields(settings.Settings)} - {"fuzz_seed"}


def test_help_marks_and_fixtures_tell_everything(pytester):
    from pytest_regional.plugin.options import OPTIONS

    help_text = pytester.runpytest_inprocess("--help").stdout.str()
    for option in OPTIONS:
        assert option.flag in help_text
        assert (f"{option.ini} (" in help_text) is option.in_ini_file
    pytester.runpytest_inprocess("--markers").stdout.fnmatch_lines(
        [
            "@pytest.mark.regional_compile(backend=None, device=None, dynamic=None*",
            "@pytest.mark.regional_known_failure(*",
        ]
    )
    fixtures = pytester.runpytest_inprocess("--fixtures").stdout.str()
    for name in ("regional", "pre_grad_pass", "regional_backend", "regional_device", "regional_cache_dir", "fake_pg"):
        assert f"\n{name} -- " in fixtures
