"""What a repository's ``pyproject.toml`` says of its backends."""

from __future__ import annotations

import pytest

MINE = """
from pytest_regional import BackendSpec

specification = BackendSpec("mine", factory=lambda: "aot_eager")
"""
TESTS = """
@pytest.mark.regional_compile(requires=("rng",), expects_regions=False)
def test_rng(regional):
    regional.run(torch.sin, regional.randn(2))

@pytest.mark.regional_compile(expects_regions=False)
def test_wrong(regional):
    assert False, "as known"
"""


@pytest.fixture
def run(downstream, pytester):
    pytester.makepyfile(mine=MINE)

    def run(section, *arguments, source=TESTS):
        pytester.makepyprojecttoml("[tool.pytest.ini_options]\n" + section)
        return downstream(source, "--regional-backend=mine:specification", *arguments)

    return run


def test_disclaimed_tests_are_skipped(run):
    result = run(
        """
        [tool.pytest-regional.backends.mine]
        disclaims = { rng = "no seeds are kept yet" }
        """
    )
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["SKIPPED*backend 'mine' disclaims rng: no seeds are kept yet"])


WITH_STATE = """
from pytest_regional import BackendSpec, Capabilities, supported

class Stated(Capabilities):
    def __init__(self, seeds):
        self.seeds = seeds

    @property
    def rng(self):
        return supported() if self.seeds else None

capabilities = Stated(seeds=True)
specification = BackendSpec("mine", factory=lambda: "aot_eager", capabilities=capabilities)
"""


def test_it_wins_over_the_classes_own_answer_and_leaves_the_object_alone(run, pytester):
    pytester.makepyfile(mine=WITH_STATE)
    result = run(
        """
        [tool.pytest-regional.backends.mine]
        disclaims = { rng = "no seeds are kept yet" }
        """,
        source=TESTS
        + """
def test_the_object():
    import mine
    assert mine.capabilities.get("rng")
""",
    )
    result.assert_outcomes(skipped=1, failed=1, passed=1)


def test_without_the_section_nothing_is_disclaimed(run):
    run("").assert_outcomes(passed=1, failed=1)


def test_the_audit_runs_what_is_disclaimed(run):
    result = run(
        """
        [tool.pytest-regional.backends.mine]
        disclaims = { rng = "no seeds are kept yet" }
        """,
        "--regional-audit",
        "-k",
        "rng",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no seeds are kept yet; it works, so claim the capability*"])


def test_disclaimers_of_another_backend_are_not_ours(run):
    run(
        """
        [tool.pytest-regional.backends.another]
        disclaims = { rng = "no seeds are kept yet" }
        """
    ).assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("[tool.pytest-regional]\nbackends = 1", "*backends]: expected a table for each backend*"),
        (
            "[tool.pytest-regional]\nbackend = 1",
            "*[[]tool.pytest-regional]: unknown key 'backend'. Did you mean 'backends'*",
        ),
        (
            "[tool.pytest-regional.backends]\nmine = 1",
            "*backends.mine]: expected a table with disclaims*",
        ),
        ("[tool.pytest-regional.backends.mine]\ndisclaim = {}", "*unknown key 'disclaim'. Did you mean 'disclaims'*"),
        ("[tool.pytest-regional.backends.mine]\ndisclaims = ['rng']", "*disclaims: expected a table of capabilities*"),
        (
            "[tool.pytest-regional.backends.mine]\ndisclaims = { rgn = 'no' }",
            "*disclaims: unknown capability 'rgn'. Did you mean 'rng'*",
        ),
        (
            "[tool.pytest-regional.backends.mine]\nknown-failures = []",
            "*unknown key 'known-failures'. Known: disclaims*",
        ),
    ],
)
def test_invalid_values_are_a_usage_error(run, section, said):
    result = run(section)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_former_names_of_capabilities_work_and_warn(run, pytester):
    """In a mark, in the project's file, in a file of known failures, as a keyword and in the body of a class."""
    pytester.makefile(".txt", known="mine | capability:outer_cache_of_functions | not yet | https://example.org/1\n")
    pytester.makepyfile(
        mine="""
        from pytest_regional import BackendSpec, Capabilities, unsupported

        class Former(Capabilities, full_graph_artifacts=unsupported("not saved")):
            @property
            def pre_grad_timing_checked(self):
                return unsupported("not checked")

        specification = BackendSpec("mine", factory=lambda: "aot_eager", capabilities=Former())
        """
    )
    result = run(
        """
        regional_known_failures = "known.txt"

        [tool.pytest-regional.backends.mine]
        disclaims = { region_edges = "not ordered" }
        """,
        source="""
pytestmark = pytest.mark.regional_compile(expects_regions=False)

@pytest.mark.regional_compile(requires="region_edges")
def test_order(regional): ...

@pytest.mark.regional_compile(requires="annotation_checks")
def test_checks(regional): ...

@pytest.mark.regional_compile(requires="full_graph")
def test_graph(regional): ...

@pytest.mark.regional_compile(requires="outer_cache_of_training")
def test_cache(regional):
    assert False

def test_names(regional_backend):
    import mine
    names = mine.Former.names()
    assert "region_order" in names and "pre_grad_timing_checked" not in names
""",
    )
    result.assert_outcomes(skipped=3, xfailed=1, passed=1)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED*disclaims region_order: not ordered",
            "SKIPPED*disclaims annotation_checks: not checked",
            "SKIPPED*disclaims full_graph: not saved",
        ]
    )
    result.stdout.fnmatch_lines(
        ["*DeprecationWarning: capability 'region_edges' goes with 1.0*part of 'region_order'*"]
    )
