"""Guided campaigns: what is drawn, mutated and kept, and that a fault is found that drawing alone does not meet."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pytest_regional.fuzz.budget import Budget
from pytest_regional.fuzz.campaign import Campaign
from pytest_regional.fuzz.corpus import CorpusFolder
from pytest_regional.fuzz.draw.encoding import Options
from pytest_regional.fuzz.draw.graphs import random_programs
from pytest_regional.fuzz.guidance import Guidance, GuidanceCounts
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Program, Step
from pytest_regional.fuzz.oracles import BadProgramError, OracleViolationError
from pytest_regional.fuzz.programs import Programs

PLAIN = Program((TensorInput((4,)),), (Step("sin", (0,), results=(1,)),), (1,), training=False)
TWO_SINES = Program(
    (TensorInput((4,)),), (Step("sin", (0,), results=(1,)), Step("sin", (1,), results=(2,))), (2,), training=False
)


def compiled(program, *, oracles, blame, known):
    """Check nothing; what the compiler decides is what guidance sees."""
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(program.function, backend="aot_eager")(*program.inputs())


def violating(wrong):
    """Return a check of programs that compile; those that are ``wrong`` violate parity."""

    def check(program, *, oracles, blame, known):
        compiled(program, oracles=oracles, blame=blame, known=known)
        error = OracleViolationError("parity", "run", "wrong", origin="value of output")
        if wrong(program) and not known(error):
            raise error

    return check


def guided(check, *programs, budget=6, folder=None, share=0.5, seed=0):
    guidance = Guidance(seed, Options(), folder, share=share)
    drawn = (lambda seed: itertools.cycle(programs)) if programs else random_programs
    subject = Programs(check, drawn, guidance=guidance)
    return guidance, Campaign(subject, Budget(examples=budget), seed).run()


def test_programs_are_drawn_and_mutated_and_those_with_new_keys_are_kept():
    guidance, result = guided(compiled, PLAIN, budget=12)

    counts = guidance.counts
    assert result.examples == counts.drawn + counts.mutated == 12
    assert min(counts.drawn, counts.mutated) > 2
    assert counts.kept == len(guidance.corpus) > 2
    assert counts.keys == len(guidance.corpus.reached) > 20


def test_without_a_share_all_are_drawn_and_the_second_of_two_equal_ones_is_not_kept():
    guidance, _ = guided(compiled, PLAIN, budget=3, share=0.0)
    assert guidance.counts == GuidanceCounts(drawn=3, kept=1, keys=len(guidance.corpus.reached))


def test_the_same_seed_checks_the_same_programs():
    def checked(seed):
        programs = []

        def check(program, **how):
            programs.append(program.identity)
            compiled(program, **how)

        guided(check, PLAIN, TWO_SINES, budget=8, seed=seed)
        return programs

    assert checked(1) == checked(1)
    assert checked(1) != checked(2)


def test_a_fault_that_no_drawn_program_has_is_found_in_a_mutant():
    """The draws are of one program; the fault needs three steps."""

    def wrong(program):
        return len(program.steps) > 2

    _, undirected = guided(violating(wrong), TWO_SINES, budget=30, share=0.0)
    guidance, result = guided(violating(wrong), TWO_SINES, budget=30)

    assert undirected.findings == []
    assert {len(finding.program.steps) for finding in result.findings} == {3}
    assert all(not wrong(program) for program in guidance.corpus)  # what shows a finding is not kept


@pytest.mark.parametrize("known", [True, False])
def test_what_shows_a_finding_is_not_kept_known_or_not(known):
    guidance = Guidance(0)
    subject = Programs(violating(lambda program: True), lambda seed: iter([PLAIN]), guidance=guidance)

    failure = subject.check(PLAIN, lambda violation, *features: known)

    assert (failure is None) is known
    assert list(guidance.corpus) == []
    assert guidance.counts.keys > 0  # and counts: what it reaches is no news


def test_what_takes_too_long_is_not_kept():
    def check(program, **how):
        compiled(program, **how)
        while True:
            pass

    guidance = Guidance(0)
    subject = Programs(check, lambda seed: iter([PLAIN]), guidance=guidance, limit=5.0)

    failure = subject.check(PLAIN, lambda violation, *features: False)

    assert "longer than the time" in failure.violation.origin
    assert list(guidance.corpus) == []


def test_what_eager_refuses_is_not_kept():
    def check(program, **how):
        compiled(program, **how)
        raise BadProgramError(SimpleNamespace(exception=RuntimeError("no"), stage="forward"))

    guidance, result = guided(check, PLAIN, budget=2)

    assert result.bad == 2
    assert (guidance.counts.kept, guidance.counts.keys) == (0, 0)


def test_every_second_program_of_the_next_campaign_is_a_kept_one(tmp_path):
    folder = CorpusFolder(tmp_path)
    before, _ = guided(compiled, PLAIN, TWO_SINES, budget=10, folder=folder)
    kept = {program.identity for program in before.corpus}
    assert kept == {path.stem for path in tmp_path.iterdir()}
    checked = []

    def check(program, **how):
        checked.append(program.identity)
        compiled(program, **how)

    after, _ = guided(check, PLAIN, budget=2 * len(kept) + 1, folder=folder, share=0.0)

    assert set(checked[: 2 * len(kept) : 2]) == kept
    assert (after.counts.replayed, after.counts.drawn) == (len(kept), len(kept) + 1)
    assert len(after.corpus) > 1


def test_a_file_that_reaches_nothing_of_its_own_any_more_is_deleted(tmp_path):
    folder = CorpusFolder(tmp_path)
    folder.save(PLAIN)
    folder.save(replace(PLAIN, arguments=(TensorInput((5,)),)))  # reaches the same

    guided(compiled, PLAIN, budget=3, folder=folder, share=0.0)

    assert len(list(tmp_path.iterdir())) == 1


def test_a_kept_program_that_may_not_be_drawn_any_more_is_left_out(tmp_path):
    folder = CorpusFolder(tmp_path)
    folder.save(replace(PLAIN, settings=(("inductor.max_fusion_size", 1),)))
    folder.save(PLAIN)

    first = next(Guidance(0, Options(), folder).guided(iter(())))

    assert first.identity == PLAIN.identity
