"""A failure begins with its answer, and shows the user's code, none of this package's."""

import itertools
import re
from pathlib import Path

import pytest

import pytest_regional

OPTIONS = ("--regional-backend=reference", "--regional-device=cpu", "-p", "no:randomly")

PROGRAMS = """
    import torch
    from pytest_regional import region

    pytestmark = pytest.mark.regional_compile

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = (torch.nn.Parameter(torch.randn(8, 8)) for _ in range(2))

        def forward(self, x):
            with region("ffn"):
                return x @ self.up @ self.down

    def in_region(x):
        with region("r"):
            return x.sin() + 1
"""


def outcome(downstream, tests, *options):
    return downstream(PROGRAMS + tests, *OPTIONS, *options)


def test_the_answer_comes_first_and_three_differences_follow(downstream):
    """Wrong in the region alone: Inductor multiplies in the wrong order."""
    tests = """
    from torch._inductor.lowering import lowerings
    aten = torch.ops.aten

    def test_wrong(regional, monkeypatch):
        for name in (aten.mm.default, aten.mm):
            monkeypatch.setitem(lowerings, name, lambda x, y, right=lowerings[name]: right(y, x))
        regional.assert_parity(Block(), regional.randn(8, 8, requires_grad=True))
    """
    result = outcome(downstream, tests)
    answer = "region 'ffn' differs from eager: * of 8 tensors, worst *, *x allowed"
    result.stdout.fnmatch_lines(
        [
            f"E * {answer}",
            "E * - *: value: *",
            "E * - *",
            "E * - *",
            "E * and * more differences, which pytest -v shows",
        ]
    )
    assert sum(line.startswith("E         - ") for line in result.outlines) == 3
    result.stdout.fnmatch_lines(["FAILED test_it.py::test_wrong - ParityError: region 'ffn' differs *"])
    result.stdout.no_fnmatch_line("*regional: all differences*")
    verbose = outcome(downstream, tests, "-v")
    verbose.stdout.fnmatch_lines(["*regional: all differences*", "second call, on fresh inputs: output: value: *"])


VACUOUS = """
    def plain(x):
        return x.sin()

    @region("late")
    def decorated(x):
        return x.cos()

    def other_branch(x):
        return decorated(x) if x.ndim > 5 else x.sin()

    def test_no_annotation(regional):
        regional.assert_parity(plain, regional.randn(4))

    def test_no_annotation_in_a_pipeline(regional):
        model, x = torch.nn.Linear(4, 4), regional.randn(2, 4)
        regional.assert_parity(model, x, compiled=lambda m: regional.pipeline.compile(m, (x,)))

    def test_not_reached(regional):
        regional.assert_parity(other_branch, regional.randn(4))

    def test_not_reached_in_what_the_test_compiles(regional):
        regional.assert_parity(other_branch, regional.randn(4), compiled=regional.compile)

    def test_program_is_not_known(regional):
        torch.compile(other_branch, backend=regional.dynamo_backend)(regional.randn(4))

    def test_nothing_called(regional):
        regional.compile(in_region)
"""


def test_each_case_of_vacuity_has_its_text(downstream):
    result = outcome(downstream, VACUOUS)
    result.assert_outcomes(failed=6)
    begin = "VacuousTestError: no region was compiled or loaded with backend 'reference', so the test proves nothing: "
    said = [line.removeprefix(begin) for line in result.outlines if line.startswith(begin)]
    assert [line.split(".")[0] for line in (said[0], said[1], said[4], said[5])] == [
        "the program has no annotation",
        "the program has no annotation",
        "no op that the backend was given has an annotation",
        "the test called no compiled program",
    ]
    assert said[2] == said[3]
    assert re.match(
        r"decorated \(.*test_it\.py:\d+\) has an annotation, and no op under it reached the backend", said[2]
    )
    result.stdout.no_fnmatch_line("*gave to torch.compile*")
    result.stdout.no_fnmatch_line("*During handling*")


MISUSE = """
    def invalid(graph: torch.fx.Graph):
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = 3

    def test_no_pass(regional):
        regional.run_pass(3, in_region, regional.randn(4))

    def test_invalid_graph(regional):
        regional.run_pass(invalid, in_region, regional.randn(4))

    def test_no_program(regional):
        regional.assert_parity(3, regional.randn(4))

    def test_unknown_level(regional):
        regional.assert_parity(in_region, regional.randn(4), level="clos")

    def test_counter(regional):
        with regional.expect(region_compiles=3):
            regional.run(in_region, regional.randn(4))

    def test_refused(regional):
        def refuses(x):
            raise KeyError("mine")
        regional.run(refuses, regional.randn(4))
"""


def test_no_failure_shows_code_of_the_package_or_of_what_calls_it(downstream):
    result = outcome(downstream, MISUSE)
    result.assert_outcomes(failed=6)
    source = [line for line in result.outlines if line.startswith((">", "    "))]
    assert {line.strip() for line in source if line.startswith(">")} == {
        ">       regional.run_pass(3, in_region, regional.randn(4))",
        ">       regional.run_pass(invalid, in_region, regional.randn(4))",
        ">       regional.assert_parity(3, regional.randn(4))",
        '>       regional.assert_parity(in_region, regional.randn(4), level="clos")',
        ">       with regional.expect(region_compiles=3):",
        ">       regional.run(refuses, regional.randn(4))",
    }
    # The last sections, of warnings and of totals, name no code of a test.
    ends = ("warnings summary", "regional conformance")
    failures = itertools.takewhile(lambda line: not any(end in line for end in ends), result.outlines)
    for line in failures:
        assert "pytest_regional/" not in line
        assert "torch/_" not in line


def test_the_whole_traceback_can_be_had(downstream):
    result = outcome(downstream, MISUSE, "--full-trace", "-k", "no_program")
    result.stdout.fnmatch_lines(["*pytest_regional*compiling.py:*"])


@pytest.mark.parametrize(
    ("folder", "statement", "shown"),
    [
        ("harness", "None.missing", True),
        ("harness", "raise ValueError", False),
        ("suites", "raise ValueError", True),  # as a wheel has them: tests
    ],
)
def test_only_a_defect_of_the_package_keeps_its_traceback(downstream, folder, statement, shown):
    file = str(Path(pytest_regional.__file__).with_name(folder) / "made.py")
    test = f"""
    @pytest.mark.regional_compile(expects_regions=False)
    def test_it():
        exec(compile("def called():\\n    {statement}\\ncalled()", {file!r}, "exec"), {{}})
    """
    result = downstream(test, *OPTIONS, "--tb=native")
    result.assert_outcomes(failed=1)
    assert (f'File "{file}"' in result.stdout.str()) == shown


@pytest.mark.parametrize("plain", ["raise ValueError('mine')", "assert 1 == 2"])
def test_a_users_own_frames_stay(downstream, plain):
    tests = f"""
    def helper(graph: torch.fx.Graph):
        {plain}

    def test_it(regional):
        regional.run_pass(helper, in_region, regional.randn(4))
    """
    result = outcome(downstream, tests)
    result.stdout.fnmatch_lines([f">       {plain}", "*raised by the pass helper at stage*"])
