"""``--regional-fuzz`` and ``--regional-findings``: campaigns, shards, what they leave and what the summary says."""

from __future__ import annotations

import json

import pytest

#: A campaign of programs on which no backend differs from eager.
HOLDS = """
    from pytest_regional.fuzz.draw.encoding import Options
    from pytest_regional.fuzz.draw.graphs import random_programs

    def programs(seed):
        return random_programs(seed, options=Options(families=("view",)))

    @pytest.mark.regional_compile(expects_regions=False)
    def test_any(regional_fuzz):
        result = regional_fuzz.run("native", draw=programs, oracles=("compiles",))
        print("checked", result.examples, "of shard", regional_fuzz.shard, "seed", result.seed)
"""

#: A backend of one fault: it negates the first result where the graph holds a sine; and a campaign that draws one.
BREAKS = """
    from torch._dynamo.backends.debugging import aot_eager
    from pytest_regional.fuzz.model.arguments import TensorInput
    from pytest_regional.fuzz.model.program import Program, Step

    def faulty(gm, inputs):
        compiled = aot_eager(gm, inputs)
        if "sin" not in gm.code:
            return compiled
        return lambda *args: tuple(-value for value in compiled(*args))

    def programs(seed):
        while True:
            yield Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)
            steps = Step("neg", (0,), (), (1,)), Step("sin", (1,), (), (2,))
            yield Program((TensorInput((4,)),), steps, (2,), training=False)

    @pytest.mark.regional_compile(expects_regions=False)
    def test_any(regional_fuzz):
        regional_fuzz.run("native", draw=programs, oracles=("compiles", "parity"))
"""


def fuzzed(downstream, source, *arguments, backend="aot_eager", blame="region", **options):
    """Run fuzz tests; what is to blame for a finding is searched for in one of them only: it takes its time."""
    backend, blame = f"--regional-backend={backend}", f"--regional-blame={blame}"
    return downstream(source, backend, blame, "--regional-device=cpu", "-s", *arguments, **options)


def test_a_number_of_programs(downstream):
    result = fuzzed(downstream, HOLDS, "--regional-fuzz=3", "--regional-seed=7")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*each fuzz test 3 programs, drawn from seed 7 (--regional-seed=7 draws the same)*",
            "*checked 3 of shard 0 seed 7063*",
            "*= regional fuzzing =*",
            "aot_eager (cpu), it, mode native: 3 programs in * s (* a second), 0 failed, 0 new findings",
        ]
    )


@pytest.mark.slow(
    "starts runs with two workers, which import torch",
    fast="tests/fuzz/test_fuzz_tests.py::test_shards_share_a_number_of_programs",
)
@pytest.mark.parametrize(("budget", "shared"), [("5", True), ("1s", False)])
def test_shards_share_a_number_of_programs(downstream, pytester, budget, shared):
    """Of a number of programs two workers check the odd and the even ones of one seed; in a time each draws its own."""
    source = """
        from pathlib import Path
        from pytest_regional.fuzz.model.arguments import TensorInput
        from pytest_regional.fuzz.model.program import Program, Step

        def programs(seed):
            length = 0
            while True:
                length += 1
                steps = [Step("neg", (place,), (), (place + 1,)) for place in range(length)]
                yield Program((TensorInput((4,)),), tuple(steps), (length,), training=False)

        @pytest.mark.regional_compile(expects_regions=False)
        def test_any(regional_fuzz, monkeypatch):
            from pytest_regional.fuzz import oracles

            def check(regional, program, **options):
                with Path(f"checked-{regional_fuzz.shard}.txt").open("a") as file:
                    file.write(f"{len(program.steps)} ")

            monkeypatch.setattr(oracles, "check", check)
            result = regional_fuzz.run("native", draw=programs)
            Path(f"seed-{regional_fuzz.shard}.txt").write_text(str(result.seed))
    """
    result = fuzzed(downstream, source, f"--regional-fuzz={budget}", "--regional-seed=7", "-n2")

    result.assert_outcomes(passed=2)
    checked = [(pytester.path / f"checked-{shard}.txt").read_text().split() for shard in range(2)]
    seeds = [int((pytester.path / f"seed-{shard}.txt").read_text()) for shard in range(2)]
    if shared:
        assert (checked, seeds) == ([["1", "3", "5"], ["2", "4"]], [7063, 7063])
    else:
        assert seeds == [7063, 7064]
        assert all(one[:2] == ["1", "2"] for one in checked)


def test_an_interrupt_ends_a_campaign_and_the_run_and_the_summary_is_written(downstream):
    source = """
        import os, signal
        from pytest_regional.fuzz.model.arguments import TensorInput
        from pytest_regional.fuzz.model.program import Program, Step

        def programs(seed):
            for _ in range(2):
                yield Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                pass  # as Python does in a callback of the garbage collector
            while True:
                yield Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)

        @pytest.mark.regional_compile(expects_regions=False)
        def test_any(regional_fuzz):
            regional_fuzz.run("native", draw=programs, oracles=("compiles", "parity"))

        def test_other():
            pass
    """
    result = fuzzed(downstream, source, "--regional-fuzz=90")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "aot_eager (cpu), it, mode native: 3 programs in *, 0 failed, 0 new findings, interrupted",
            "*Interrupted: a campaign was ended before its time*",
        ]
    )


@pytest.mark.slow(
    "fuzzes twice", fast="tests/fuzz/test_fuzz_tests.py::test_a_finding_is_kept_and_reported_and_known_from_then_on"
)
def test_findings_are_kept_and_known_from_then_on(downstream, pytester):
    arguments = ("--regional-fuzz=4", "--regional-seed=1", "--regional-findings=found")
    first = fuzzed(downstream, BREAKS, *arguments, backend="test_it:faulty", blame="deep")

    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(
        [
            "*CampaignError: 1 new finding in 4 programs (--regional-seed=1):*",
            "faulty (cpu), it, mode native: 4 programs in *, 2 failed, 1 new finding",
            "  faulty-parity-*: parity (*): value of output* (sin)",
            "    1 step, discovered at program 2, 2 hits: *found/faulty-parity-*.py",
        ]
    )
    (data,) = pytester.path.glob("found/*.json")
    kept = json.loads(data.read_text())
    assert [step["operator"] for step in kept["program"]["steps"]] == ["sin"]
    assert [step["operator"] for step in kept["original_program"]["steps"]] == ["neg", "sin"]
    assert data.with_suffix(".py").exists()
    assert kept["culprit"].startswith("the backend: right where AOTAutograd's graphs run eagerly (necessary); ")
    assert "\nthe same " in kept["culprit"]

    second = fuzzed(downstream, BREAKS, *arguments, backend="test_it:faulty")
    second.assert_outcomes(passed=1)
    second.stdout.fnmatch_lines(["faulty (cpu), it, mode native: 4 programs in *, 2 failed, 0 new findings"])


def test_a_file_without_a_finding_is_reported_and_stops_nothing(downstream, pytester):
    found = pytester.mkdir("found")
    (found / "odd.json").write_text("nonsense")

    result = fuzzed(downstream, HOLDS, "--regional-fuzz=2", "--regional-seed=7", "--regional-findings=found")

    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*RegionalWarning: *odd.json is not JSON*"])


@pytest.mark.parametrize("place", ["test_it.py", "test_it.py/below"])
def test_findings_that_cannot_be_written_are_a_usage_error(downstream, place):
    result = fuzzed(downstream, HOLDS, "--regional-fuzz=2", f"--regional-findings={place}")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--regional-findings: *{place} cannot be written: *"])


def test_a_directory_that_cannot_be_made_is_reported_at_once(downstream, monkeypatch):
    """Where the permissions of the folder above promise too much, as those of some file systems do."""
    result = fuzzed(downstream, HOLDS, "--regional-fuzz=2", "--regional-findings=/proc/findings")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["--regional-findings: /proc/findings cannot be written: *--regional-findings=DIR"])


def test_a_fuzz_test_that_runs_no_campaign_fails(downstream):
    result = fuzzed(
        downstream,
        """
        @pytest.mark.regional_compile(expects_regions=False)
        def test_any(regional_fuzz):
            assert regional_fuzz.shard == 0
        """,
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*uses regional_fuzz and runs no campaign: call regional_fuzz.run(mode)*"])


def test_one_process_has_one_shard(downstream):
    result = fuzzed(downstream, HOLDS, "--collect-only", "-q")

    result.stdout.fnmatch_lines(["test_it.py::test_any[[]shard0[]]"])


def test_the_limit_is_for_each_program(downstream):
    """A program that takes longer than ``--regional-timeout`` is a finding; the campaign may take longer."""
    result = fuzzed(
        downstream,
        """
        import time
        from pytest_regional.fuzz.model.arguments import TensorInput
        from pytest_regional.fuzz.model.program import Program, Step

        def hangs(gm, inputs):
            time.sleep(60)

        def programs(seed):
            while True:
                yield Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)

        @pytest.mark.regional_compile(expects_regions=False)
        def test_any(regional_fuzz):
            regional_fuzz.run("native", draw=programs, oracles=("compiles",))
        """,
        "--regional-fuzz=1",
        "--regional-timeout=1",
        backend="test_it:hangs",
    )

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*hangs-compiles-compile-*: compiles (compile): longer than the time that one*"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--regional-fuzz=many", "*--regional-fuzz: 'many' is no budget: give a number of programs (500), a time*"),
        ("--regional-fuzz=0", "*--regional-fuzz: '0' is no budget*"),
        ("--regional-fuzz=", "*--regional-fuzz= has no value: give one, or leave the option out*"),
        ("--regional-seed=", "*--regional-seed= has no value*"),
    ],
)
@pytest.mark.parametrize("backend", [["--regional-backend=aot_eager"], []], ids=["on", "off"])
def test_a_budget_that_is_none_is_a_usage_error(downstream, option, message, backend):
    result = downstream(HOLDS, *backend, option)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


#: The first of every so many programs writes to a leaf that wants a gradient, which eager refuses.
REFUSED = """
    from pytest_regional.fuzz.model.arguments import TensorInput
    from pytest_regional.fuzz.model.program import Program, Step

    def programs(seed):
        while True:
            yield Program((TensorInput((4,), requires_grad=True),), (Step("add_number_", (0,), (("value", 1.0),)),), (0,))
            for value in range({others}):
                yield Program((TensorInput((4,)),), (Step("neg", (0,), (), (1,)),), (1,), training=False)

    @pytest.mark.regional_compile(expects_regions=False)
    def test_any(regional_fuzz):
        regional_fuzz.run("native", draw=programs, oracles=("compiles", "parity"))
"""


@pytest.mark.parametrize(("others", "budget", "ended"), [(5, 6, {"passed": 1}), (0, 6, {"failed": 1})])
def test_a_program_that_eager_refuses_is_skipped_and_too_many_are_an_error(downstream, others, budget, ended):
    result = fuzzed(downstream, REFUSED.format(others=others), f"--regional-fuzz={budget}")

    result.assert_outcomes(**ended)
    count = budget // (others + 1)
    result.stdout.fnmatch_lines(
        [
            *([f"*CampaignError: eager refuses {count} of {budget} programs*"] if "failed" in ended else []),
            f"*{budget} programs in *, {count} that eager refuses",
            f"  {count} refused by eager and skipped: forward: RuntimeError: a leaf Variable that requires grad *",
        ]
    )


CAMPAIGN = """
    @pytest.mark.regional_compile(expects_regions=False)
    def test_any(regional_fuzz):
        regional_fuzz.run("native", oracles=("compiles", "counters"))
"""


@pytest.mark.slow(
    "draws some hundred programs, in two runs",
    fast="tests/fuzz/test_fuzz_tests.py::test_what_a_backend_disclaims_is_drawn_in_an_audit_alone",
)
def test_a_backend_that_claims_nothing_is_given_nothing_else_and_an_audit_gives_it_everything(downstream):
    options = {"backend": "tests.splitting_backend:BARE"}
    # With some seeds there are programs that PyTorch's split_module, which this backend uses, does not compile.
    result = fuzzed(downstream, CAMPAIGN, "--regional-fuzz=20", "--regional-seed=1", **options)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["bare (cpu), *: 20 programs in *, 0 failed, 0 new findings"])

    audit = fuzzed(downstream, CAMPAIGN, "--regional-fuzz=5", "--regional-seed=1", "--regional-audit", **options)
    audit.assert_outcomes(failed=1)
    audit.stdout.fnmatch_lines(["*compiles (run): RefusedError at tests.splitting_backend:*"])
