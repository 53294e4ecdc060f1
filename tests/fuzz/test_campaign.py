"""Campaigns with checks of their own: nothing is compiled here."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest

from pytest_regional import BadProgramError
from pytest_regional._torch.vetoes import Application
from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import CHECKED_ANYWAY, MANY_HITS, Campaign, Programs
from pytest_regional.fuzz.findings.files import too_many
from pytest_regional.fuzz.findings.folder import from_data, to_data
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Region, Step
from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.harness.blame.culprit import Culprit, Experiment


def chain(*operators, region=None):
    """Return a program that applies one operator after the other."""
    scope = () if region is None else (Region(region),)
    steps = [
        Step(name, (index, index) if name in ("add", "mul") else (index,), (), (index + 1,), scope)
        for index, name in enumerate(operators)
    ]
    return Program((TensorInput((4,)),), tuple(steps), (len(operators),))


def faulty(*operators, oracle="parity"):
    """Return a check that refuses programs with all of ``operators``."""

    def check(program):
        if set(operators) <= set(program.operators):
            raise OracleViolationError(oracle, "run", f"{operators} together", origin="value of output")

    return check


def checking(*checks):
    """Return a check that asks all ``checks``, each about an oracle of its own."""

    def check(program, *, oracles, blame, known):
        for one in checks:
            try:
                one(program)
            except OracleViolationError as violation:
                if (oracles is None or violation.oracle in oracles) and not known(violation):
                    raise

    return check


def never_ending(*programs):
    return lambda seed: itertools.cycle(programs)


def campaign(check, *programs, budget=6, folder=None, **options):
    checks = check if isinstance(check, list) else [check]
    return campaign_of(checking(*checks), *programs, budget=budget, folder=folder, **options)


def campaign_of(checker, *programs, budget, folder=None, stopped=bool, **options):
    subject = Programs(checker, never_ending(*programs), **options)
    return Campaign(subject, Budget(examples=budget), 0, folder, stopped=stopped)


def holding(known):
    """Return a folder that holds what ``known`` returns, and keeps nothing."""
    return SimpleNamespace(readable=known, save_shown=lambda finding, run: str(finding))


def test_it_goes_on_past_what_it_finds():
    checked = []

    def check(program):
        checked.append(program)
        faulty("mul", "sin")(program)
        faulty("neg")(program)

    result = campaign(check, chain("add", "mul", "sin"), chain("add"), chain("neg", "add")).run()

    assert [finding.program.operators for finding in result.findings] == [("mul", "sin"), ("neg",)]
    assert result.discovered_at == {result.findings[0].name: 1, result.findings[1].name: 3}
    assert result.examples == 6
    assert len(checked) > result.examples  # reducing checked more


def test_what_holds_is_no_finding():
    result = campaign(faulty("exp"), chain("add"), chain("mul")).run()

    assert (result.examples, result.findings, dict(result.hits)) == (6, [], {})


def test_the_same_defect_is_counted_and_not_reduced_again():
    reduced = []

    def check(program):
        reduced.append(program)
        faulty("neg")(program)

    result = campaign(check, chain("neg", "add"), chain("neg", "mul"), budget=2).run()

    assert [finding.program.operators for finding in result.findings] == [("neg",)]
    assert result.hits[result.findings[0].name] == 2
    assert reduced[-1] == chain("neg", "mul")  # checked once, not reduced


def test_another_oracle_is_another_finding():
    def check(program):
        if "neg" in program.operators:
            raise OracleViolationError("region_boundary", "run", "", origin="value of output")
        faulty("sin")(program)

    result = campaign(check, chain("neg"), chain("sin")).run()

    assert {finding.signature.oracle for finding in result.findings} == {"region_boundary", "parity"}


def test_a_reduced_program_breaks_the_same_oracle_for_the_same_reason():
    """A smaller program that fails otherwise is another defect, not this one made smaller."""

    def check(program):
        if len(program.steps) < 2 and "neg" in program.operators:
            raise OracleViolationError("parity", "run", "", origin="stride of output")
        faulty("neg", "sin")(program)

    result = campaign(check, chain("add", "neg", "sin"), budget=1).run()

    assert [finding.program.operators for finding in result.findings] == [("neg", "sin")]


def test_known_findings_are_counted_and_not_found():
    first = campaign(faulty("neg"), chain("neg")).run()
    known = first.findings[0]

    again = campaign(faulty("neg"), chain("neg", "add"), folder=holding(lambda: [known]), budget=2).run()

    assert again.findings == []
    assert again.hits == {known.name: 2}


def test_an_interrupt_ends_the_campaign_and_loses_nothing():
    calls = []

    def check(program):
        calls.append(program)
        if len(calls) > 1:
            raise KeyboardInterrupt  # while what was found is made smaller
        faulty("neg")(program)

    kept = []
    folder = SimpleNamespace(readable=list, save_shown=lambda finding, run: kept.append((finding.program, run)))
    result = campaign(check, chain("neg", "add"), folder=folder).run()

    assert (result.interrupted, result.examples) == (True, 1)
    assert [finding.program for finding in result.findings] == [chain("neg", "add")]
    assert kept == [(chain("neg", "add"), False)], "no time to try its script"


def test_an_interrupt_that_was_lost_ends_it_before_the_next_program():
    ended = iter((False, False, True))
    result = campaign(faulty("sin"), chain("neg"), stopped=lambda: next(ended)).run()

    assert (result.interrupted, result.examples) == (True, 2)


def test_findings_of_another_shard_are_known_meanwhile():
    (other,) = campaign(faulty("neg"), chain("neg", "add"), budget=1).run().findings
    asked = []

    def known():
        asked.append(True)
        return [other] if len(asked) > 1 else []

    result = campaign(faulty("neg"), chain("neg", "add"), folder=holding(known), budget=2).run()

    assert result.findings == []
    assert result.hits == {other.name: 2}
    assert len(asked) == 2  # once at the start, and not again for what is explained


def test_parts_of_a_campaign_share_its_programs():
    """Three parts check together what one campaign checks, each program once."""
    programs = [chain(*["neg"] * length) for length in range(1, 13)]

    def checked(budget, part=0, parts=1):
        seen = []

        def check(program):
            seen.append(len(program.steps))

        one = campaign(check, *programs, budget=budget)
        one.part, one.parts = part, parts
        one.run()
        return seen

    assert checked(12) == [*range(1, 13)]
    assert [checked(4, part=part, parts=3) for part in range(3)] == [[1, 4, 7, 10], [2, 5, 8, 11], [3, 6, 9, 12]]


def test_programs_that_only_show_what_is_known_are_mostly_skipped():
    result = campaign(faulty("neg"), chain("neg"), chain("add"), budget=200).run()

    assert result.examples == 200
    # Every second program drawn has the defect; of those one in ten is checked once it has many hits.
    assert result.skipped_known > 100
    assert MANY_HITS < result.hits[result.findings[0].name] < 200 * CHECKED_ANYWAY * 2


def test_a_program_that_eager_refuses_is_the_generators_fault():
    def check(program):
        raise BadProgramError(_FailedExecution())

    result = campaign(check, chain("add"), budget=3).run()

    assert (result.refused.total(), result.findings) == (3, [])
    assert result.refused == {"forward: RuntimeError: no N at N": 3}


def test_what_eager_refuses_while_a_finding_is_reduced_is_no_program_of_the_generators():
    def check(program):
        if program.operators == ("neg",):
            raise BadProgramError(_FailedExecution())
        faulty("neg")(program)

    result = campaign(check, chain("neg", "sin"), budget=1).run()

    assert [finding.program.operators for finding in result.findings] == [("neg", "sin")]
    assert not result.refused


class _FailedExecution:
    exception = RuntimeError("no 3 at 0x7f3a10")
    stage = "forward"
    outputs = ()


@pytest.mark.parametrize(
    ("refused", "examples", "wrong"), [(2, 25, False), (3, 25, True), (5, 500, False), (6, 500, True), (1, 1, False)]
)
def test_a_few_refused_programs_are_skipped_and_many_are_an_error(refused, examples, wrong):
    reasons = {"forward: no": refused - refused // 2, "backward: no": refused // 2}

    said = too_many(reasons, examples)

    assert bool(said) == wrong
    assert not wrong or (f"refuses {refused} of {examples} programs" in said and "times: forward: no" in said)


def test_the_program_that_is_checked_is_on_disk(tmp_path):
    note, seen = tmp_path / "checking.json", []

    def check(program):
        seen.append(note.read_text())

    campaign(check, chain("neg"), budget=1, running=note).run()

    assert '"neg"' in seen[0]
    assert not note.exists()


@pytest.mark.parametrize("error", [OracleViolationError("parity", "run", "", origin=""), KeyboardInterrupt()])
def test_no_program_stays_on_disk_where_the_process_lives(tmp_path, error):
    note = tmp_path / "checking.json"

    def check(program):
        raise error

    with contextlib.suppress(KeyboardInterrupt):
        campaign(check, chain("neg"), budget=1, running=note).run()

    assert not note.exists()


def test_findings_and_progress_are_reported_at_once():
    told = []
    folder = SimpleNamespace(readable=list, save_shown=lambda finding, run: told.append(finding.program.operators))
    running = campaign(faulty("neg"), chain("add"), chain("neg"), budget=3, folder=folder)
    running.progress = lambda result, clock: told.append(result.examples)
    running.run()

    assert told == [1, ("neg",), 2, 3]


def test_a_known_defect_does_not_hide_another_in_the_same_program():
    checks = [faulty("neg", oracle="configs"), faulty("neg", "sin")]
    result = campaign(checks, chain("neg"), chain("neg", "sin"), budget=2).run()

    assert [finding.signature.oracle for finding in result.findings] == ["configs", "parity"]
    assert result.hits[result.findings[0].name] == 2


def test_where_the_origin_says_it_all_other_programs_are_the_same_defect():
    checks = faulty("neg", oracle="annotations_in_key"), faulty("sin", oracle="annotations_in_key")
    result = campaign(list(checks), chain("neg"), chain("sin"), budget=2).run()

    assert len(result.findings) == 1
    assert result.hits[result.findings[0].name] == 2


def test_which_region_is_to_blame_is_asked_once():
    asked = []

    def check(program, *, oracles, blame, known):
        asked.append(blame)
        raise OracleViolationError("parity", "run", "", origin="value", region="a" if blame else None)

    result = campaign_of(check, chain("neg", "add"), budget=1).run()

    assert result.findings[0].region == "a"
    assert (asked[-1], asked.count(True)) == (True, 1)


def test_what_is_to_blame_is_searched_for_once_and_kept_with_the_finding():
    searched = []

    def blamer(check):
        with pytest.raises(OracleViolationError, match="parity") as caught:
            check()
        searched.append(caught.value.oracle)
        step = Application("rewrite", "pad_mm at mm")
        made = (Experiment("without rewrite pad_mm at mm", "fixed", 1.0),)
        return Culprit("rewrite", (step,), confidence="confirmed", experiments=made)

    result = campaign(faulty("neg"), chain("neg", "sin"), budget=1, backend="inductor", blamer=blamer).run()

    (finding,) = result.findings
    assert searched == ["parity"]
    assert finding.culprit.startswith("rewrite pad_mm at mm: right where that is left out (confirmed)\nfixed")
    assert from_data(to_data(finding)) == finding
    assert "To blame:\nrewrite pad_mm at mm: right where" in finding.script_with_torch_alone
    assert "# rewrite pad_mm at mm: right where" in finding.script


def test_failures_without_the_backend_are_findings_of_aot_eager():
    def check(program, *, oracles, blame, known):
        violation = OracleViolationError("parity", "run", "", origin="value")
        violation.without_backend = "neg" in program.operators
        if not known(violation):
            raise violation

    result = campaign_of(check, chain("neg"), chain("sin"), budget=2, device="cuda").run()

    assert [(finding.backend, finding.device) for finding in result.findings] == [
        ("aot_eager", "cpu"),
        ("reference", "cuda"),
    ]


def test_what_dynamo_does_not_show_is_no_finding():
    dynamo = checking(faulty("mul"))
    result = campaign([faulty("mul"), faulty("exp")], chain("exp"), chain("mul"), through_dynamo=dynamo).run()

    assert [finding.program.operators for finding in result.findings] == [("mul",)]
    assert result.unconfirmed == {"parity (run): value of output": 4}  # the third product is skipped as known
    assert result.examples == 6


def test_what_dynamo_shows_is_a_finding_of_the_mode_that_goes_through_it():
    dynamo = checking(faulty("mul"))
    result = campaign([faulty("mul")], chain("exp", "mul"), mode="graph", through_dynamo=dynamo).run()

    (found,) = result.findings
    assert (found.mode, result.hits[found.name], dict(result.unconfirmed)) == ("interpret", 6, {})
