"""The search, with a failure that is told what it is: every layer, each confidence, and what is no culprit."""

import contextlib
import itertools
import random
from collections import Counter
from dataclasses import dataclass
from string import ascii_lowercase

import pytest

from pytest_regional._torch.vetoes import Application, Setting
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.blame.culprit import Experiments
from pytest_regional.harness.blame.facts import CompileFacts
from pytest_regional.harness.blame.layers import Suspects, Veto
from pytest_regional.harness.blame.layers import search as search_layers

USUAL = frozenset({"value of output"})
PASSES = [Application("post_grad_pass", name) for name in ("reorder", "remove_noop_ops", "decompose")]
LOWERINGS = [Application("lowering", name) for name in ("add", "argmax", "mul", "argmin")]
SETTINGS = tuple(
    Setting(name, layer, name.upper) for name, layer in (("no vectors", "codegen"), ("no reuse", "memory"))
)
CAPTURES = {"dynamo": "eager", "aot_autograd": "aot", "other_partitioner": "aot, min_cut"}


@dataclass(frozen=True)
class Tried:
    """What one experiment does otherwise, as a fake failure sees it."""

    compiles: bool = True
    backend: str | None = None
    vetoes: bool = False
    steps: frozenset[Application] = frozenset()
    settings: frozenset[str] = frozenset()
    eager: frozenset[str] = frozenset()
    passes: frozenset[int] = frozenset()
    instead: bool = False


def search(
    fails,
    applied=(*PASSES, *LOWERINGS),
    captures=CAPTURES,
    limits=None,
    eager_fails=False,
    usual=USUAL,
    settings=SETTINGS,
    later=(),
    needs=None,
    **suspects,
):
    """Search with an experiment ``fails(tried)`` that says what fails.

    ``later`` steps come once others go; a step that ``needs`` another one goes with it.
    """
    at_first, applied = applied, [*applied, *later]

    def reproduce(change):
        veto, steps = change.within, set()
        if isinstance(veto, Veto):
            steps = {
                step
                for step in applied
                if step in veto.steps or (step.kind in veto.kinds and not step.required) or step.family in veto.families
            }
            gone = {step for step, other in (needs or {}).items() if other in steps}
            veto.applied = [step for step in applied if step not in gone]
        known = {one.sentence for one in settings}
        held = known if change.sentence == "with all settings below" else known & {change.sentence}
        if change.sentence == "with the settings behind it":
            held = known - {settings[0].sentence}
        tried = Tried(
            change.compiles,
            change.backend,
            isinstance(veto, Veto),
            frozenset(steps),
            frozenset(held),
            change.eager_regions,
            change.passes_left_out,
            change.instead is not None,
        )
        answer = (tried.compiles or eager_fails) and fails(tried)
        return answer if isinstance(answer, frozenset) else USUAL if answer else frozenset()

    experiments = Experiments(reproduce, usual, **(limits or {}))
    return search_layers(experiments, Suspects(at_first, captures, settings=settings, **suspects))


def of_steps(guilty, needs=all):
    """Return a failure that is fixed where the ``guilty`` steps are left out."""
    return lambda tried: not (tried.backend or needs(step in tried.steps for step in guilty))


def test_a_partitioner_that_the_backend_does_not_use():
    found = search(lambda tried: tried.backend in (None, "aot, min_cut") and LOWERINGS[0] not in tried.steps)
    assert (found.layer, found.steps) == ("lowering", (LOWERINGS[0],))


@pytest.mark.parametrize(
    ("backends", "layer"),
    [
        ({None, "eager", "aot", "aot, min_cut"}, "dynamo"),
        ({None, "aot", "aot, min_cut"}, "aot_autograd"),
        ({None, "aot"}, "partitioner"),
    ],
)
def test_what_fails_without_code_of_the_backend(backends, layer):
    found = search(lambda tried: tried.backend in backends)
    assert (found.layer, found.confidence) == (layer, "confirmed")
    assert len(found.experiments) <= 17


def test_a_capture_that_crashes_says_nothing_while_a_step_fixes_wrong_values():
    crash = frozenset({"raised RuntimeError at torch"})
    found = search(lambda tried: crash if tried.backend else PASSES[1] not in tried.steps)
    assert (found.layer, found.steps) == ("pass", (PASSES[1],))


def test_a_capture_that_crashes_where_no_step_fixes_wrong_values():
    """Eager's autograd notices what generated code computes wrongly."""
    crash = frozenset({"raised RuntimeError at torch"})
    found = search(lambda tried: crash if tried.backend in ("aot", "aot, min_cut") else tried.backend is None)
    assert (found.layer, found.confidence) == ("aot_autograd", "confirmed")
    found = search(lambda tried: crash if tried.backend == "aot" else tried.backend is None)
    assert (found.layer, found.confidence) == ("partitioner", "confirmed")
    found = search(lambda tried: crash if tried.backend else True)
    assert found.layer == "unknown"


def test_an_assertion_of_the_checks_is_no_crash_of_a_capture():
    asserted = frozenset({"raised by the check at test_it.py:3"})
    found = search(lambda tried: asserted if tried.backend else True)
    assert found.layer == "unknown"


def test_one_pass():
    found = search(of_steps([PASSES[1]]))
    assert (found.layer, found.steps, found.confidence) == ("pass", (PASSES[1],), "confirmed")
    assert found.sentence == "post-grad pass remove_noop_ops: right where that is left out (confirmed)"


def test_two_lowerings_that_are_both_wrong():
    guilty = (LOWERINGS[1], LOWERINGS[3])
    found = search(of_steps(guilty))
    assert (found.layer, found.steps, found.confidence) == ("lowering", guilty, "necessary")
    assert "argmax and lowering of argmin: right where these are left out together" in found.sentence


def test_a_decomposition_that_takes_the_place_of_a_lowering():
    """It is asked for where nothing else fixes the failure: a wrong lowering in what it is made of comes first."""
    needed = [Application("decomposition", name, required=True) for name in ("aten.std", "aten.gelu")]
    found = search(of_steps(needed[:1]), applied=[*needed, *LOWERINGS])
    assert (found.layer, found.steps, found.confidence) == ("decomposition", (needed[0],), "confirmed")
    found = search(of_steps([needed[1], LOWERINGS[0]], needs=any), applied=[*needed, *LOWERINGS])
    assert found.steps == (LOWERINGS[0],)


def test_a_setting():
    found = search(lambda tried: not (tried.backend or "no vectors" in tried.settings))
    assert (found.layer, found.setting, found.confidence) == ("codegen", "no vectors", "confirmed")
    assert found.sentence == "code generation: right with no vectors (confirmed)"


def test_a_failure_that_does_not_come_again():
    found = search(lambda tried: False)
    assert found.layer == "nothing"
    assert "does not come again" in found.sentence


def test_another_failure_fixes_nothing():
    """Without its lowerings the program may not compile at all."""
    other = frozenset({"RuntimeError"})
    found = search(lambda tried: not tried.backend and (other if tried.steps else True))
    assert (found.layer, found.steps, found.confidence) == ("backend", (), "necessary")
    assert "the failure remains, or another one comes, without any" in found.sentence


def test_experiments_run_out():
    """What is known by then is told: that one of the passes is to blame, if not which."""
    found = search(of_steps([PASSES[1]]), limits={"most": 7})
    assert (found.layer, found.steps, found.confidence) == ("pass", tuple(PASSES), "necessary")
    assert len(found.experiments) == 7
    assert found.ended_early
    assert "the search ran out of time" in found.sentence
    assert search(of_steps([PASSES[1]]), limits={"most": 3}).layer == "unknown"


PATTERNS = [Application("rewrite", name) for name in ("sfdp_1 at view", "sfdp_3 at view", "bmm at mm", "addmm at add")]


def test_what_another_step_of_its_name_would_do_as_well():
    """Where one pattern is left out, the next one matches: all of that name are to blame, which is confirmed."""
    found = search(of_steps(PATTERNS[:2]), applied=PATTERNS)
    assert (found.layer, found.steps, found.confidence) == ("rewrite", tuple(PATTERNS[:2]), "confirmed")


@pytest.mark.parametrize("most", range(5, 12))
def test_families_that_are_not_narrowed_in_time_are_all_named(most):
    """With several applications of a family, families are narrowed first."""
    found = search(of_steps(PATTERNS[:1]), applied=[*PATTERNS, PATTERNS[0]], limits={"most": most})
    assert found.ended_early
    assert ": : " not in found.sentence
    assert found.layer == "unknown" or set(PATTERNS[:1]) <= set(found.steps)


def test_steps_of_two_kinds():
    guilty = (PATTERNS[2], LOWERINGS[1])
    found = search(of_steps(guilty), applied=[*PATTERNS, *LOWERINGS])
    assert (found.layer, found.steps, found.confidence) == ("rewrite", guilty, "necessary")


def test_either_of_two_steps():
    found = search(of_steps([PASSES[0], PASSES[2]], needs=any))
    assert (found.layer, found.steps, found.confidence) == ("pass", (PASSES[0],), "necessary")
    assert [one.steps for one in found.also] == [(PASSES[2],)]
    assert found.sentence == (
        "one of post-grad pass reorder, post-grad pass decompose: right where any one of them is left out (necessary)"
    )


CAT = Application("decomposition", "aten.cat.default")
FUSION = Application("fusion", "op0 (aten.abs) with op1 (aten.sum)")


@pytest.mark.parametrize(
    ("guilty", "also"),
    [
        ([CAT, LOWERINGS[1]], ["lowering"]),
        ([PASSES[1], FUSION], ["fusion"]),
        ([PASSES[1], FUSION, CAT], ["fusion", "decomposition"]),
        ([FUSION, LOWERINGS[0], LOWERINGS[1]], ["lowering", "lowering"]),
    ],
)
def test_what_a_step_of_another_kind_fixes_as_well_is_not_confirmed(guilty, also):
    """Each of them is left out alone, while the first one still does its work."""
    found = search(of_steps(guilty, needs=any), applied=[*PASSES, CAT, *LOWERINGS, FUSION])
    assert (found.steps, found.confidence) == ((guilty[0],), "necessary")
    assert [one.layer for one in found.also] == also
    assert [one.steps for one in found.also] == [(step,) for step in guilty[1:]]
    assert found.sentence.startswith("one of ")
    assert [one["layer"] for one in found.as_data()["also"]] == also


def test_what_takes_the_step_out_with_it_contradicts_nothing():
    """Without the lowering nothing is fused: that this is right as well says nothing against the fusion."""

    def fails(tried):
        return not (tried.backend or FUSION in tried.steps or LOWERINGS[0] in tried.steps)

    found = search(fails, applied=[*LOWERINGS, FUSION], needs={FUSION: LOWERINGS[0]})
    assert (found.steps, found.also, found.confidence) == ((FUSION,), (), "confirmed")


def test_what_the_program_needs_stays_where_the_rest_of_a_kind_is_left_out():
    """Without that it fails otherwise."""
    other = frozenset({"RuntimeError"})

    def fails(tried):
        if tried.backend or PASSES[0] in tried.steps:
            return other if tried.steps else False
        return PASSES[1] not in tried.steps

    found = search(fails)
    assert (found.steps, found.confidence) == ((PASSES[1],), "confirmed")


def test_two_settings_of_which_either_fixes():
    found = search(lambda tried: not (tried.backend or tried.settings))
    assert (found.setting, [one.setting for one in found.also], found.confidence) == (
        "no vectors",
        ["no reuse"],
        "necessary",
    )
    assert found.sentence.startswith("one of code generation (no vectors), reuse of memory (no reuse): right where")


def test_a_setting_that_fixes_what_a_pass_does_as_well():
    found = search(lambda tried: not (tried.backend or PASSES[1] in tried.steps or "no reuse" in tried.settings))
    assert (found.steps, [one.setting for one in found.also]) == ((PASSES[1],), ["no reuse"])


REGIONS = ("attention", "mlp", "norm")


def test_the_region_and_the_step_in_it():
    """The steps of other regions are not left out: these run eager meanwhile."""

    def fails(tried):
        return not (tried.backend or "mlp" in tried.eager or PATTERNS[2] in tried.steps)

    found = search(fails, applied=PATTERNS, regions=REGIONS)
    assert (found.layer, found.regions, found.steps) == ("rewrite", ("mlp",), (PATTERNS[2],))
    assert found.sentence.startswith("region 'mlp': rewrite bmm at mm: right where")


def test_a_region_that_is_wrong_without_inductor():
    """No step of Inductor's is tried then."""
    found = search(
        lambda tried: not (tried.backend or "mlp" in tried.eager),
        regions=REGIONS,
        interpreting=contextlib.nullcontext,
    )
    assert (found.layer, found.regions, found.without_inductor) == ("region", ("mlp",), True)
    assert found.sentence == (
        "region 'mlp': right where left eager, wrong where interpreted, so that it is not Inductor (confirmed)"
    )
    assert not any(one.sentence.startswith("without any") for one in found.experiments)


def test_a_region_without_a_step():
    found = search(lambda tried: not (tried.backend or "mlp" in tried.eager), regions=REGIONS)
    assert (found.layer, found.regions, found.confidence) == ("region", ("mlp",), "confirmed")
    assert found.sentence == "region 'mlp': right where left eager (confirmed); no single step fixes it"


def test_no_region():
    found = search(lambda tried: not tried.backend, regions=REGIONS)
    assert (found.layer, found.regions) == ("backend", ())


def test_backends_are_compared_with_every_region_left_eager():
    """Where it is wrong with all of them eager, what it makes of regions is no explanation."""
    sine, cosine = (CompileFacts(eager=[Counter([name])]) for name in ("aten.sin.default", "aten.cos.default"))
    instead, eager = "backend 'torch' in its place", "all regions left eager"
    found = search(
        lambda tried: not (tried.backend or tried.instead),
        regions=REGIONS,
        peers={"torch": BackendSpec("torch", lambda: None)},
        seen={"": sine, eager: cosine, instead: cosine, f"{instead}, {eager}": cosine},
    )
    assert (found.layer, found.regions, found.difference) == ("backend", (), "")


def test_what_the_backend_does_otherwise():
    suspects = {
        "alternatives": {"equal regions compiled one by one": "one by one"},
        "partitioners": {"the min_cut partitioner": "reference, min_cut"},
    }
    found = search(lambda tried: tried.backend is None, **suspects, regions=REGIONS)
    assert (found.layer, found.setting) == ("backend", "equal regions compiled one by one")
    found = search(lambda tried: tried.backend in (None, "one by one"), **suspects, regions=REGIONS)
    assert (found.layer, found.setting) == ("partitioner", "the min_cut partitioner")


def tried_in(found):
    return [one.sentence for one in found.experiments]


def of_many(guilty, acting):
    """Search among 26 passes of which few did something."""
    steps = [Application("post_grad_pass", f"pass_{letter}", acted=letter in acting) for letter in ascii_lowercase]
    names = {f"pass_{letter}" for letter in guilty}
    return search(of_steps([step for step in steps if step.what in names]), applied=steps)


def test_passes_that_changed_the_graph_are_left_out_first():
    found = of_many("k", acting="fkx")
    assert ([step.what for step in found.steps], found.confidence) == (["pass_k"], "confirmed")
    assert tried_in(found)[4:8] == [
        "without any pass or rewrite",
        "without any pass pass_f, pass pass_k, pass pass_x",
        "without any pass pass_f",
        "without any pass pass_k, pass pass_x",
    ]
    assert sum(one.generated_code for one in found.experiments) <= 16


def test_a_pass_that_changed_no_graph_can_be_to_blame():
    found = of_many("c", acting="fkx")
    assert ([step.what for step in found.steps], found.confidence) == (["pass_c"], "confirmed")
    assert [step.what for step in of_many("ck", acting="fkx").steps] == ["pass_c", "pass_k"]


def test_passes_of_which_none_changed_the_graph_are_left_out_last():
    found = of_many("c", acting="")
    assert ([step.what for step in found.steps], found.confidence) == (["pass_c"], "confirmed")
    assert tried_in(found)[4:6] == ["with all settings below", "without any step that can be left out"]


def test_a_pattern_that_gets_its_turn_where_another_is_left_out():
    """It has to be left out as well, and was not seen when the failure came first."""
    found = search(of_steps(PATTERNS[:2]), applied=[PATTERNS[0], *PATTERNS[2:]], later=[PATTERNS[1]])
    assert (set(found.steps), found.confidence) == (set(PATTERNS[:2]), "confirmed")


ONE_BY_ONE = {"equal regions compiled one by one": "one by one"}


def test_what_the_backend_does_otherwise_is_tried_late():
    """A step of Inductor's costs no compile with an option of the backend."""
    fails = of_steps([LOWERINGS[1]])
    suspects = {"regions": ("mlp",), "alternatives": ONE_BY_ONE}
    found = search(lambda tried: "mlp" not in tried.eager and fails(tried), **suspects)
    assert (found.layer, found.confidence) == ("lowering", "confirmed")
    assert not set(ONE_BY_ONE) & set(tried_in(found))
    found = search(lambda tried: tried.backend is None and "mlp" not in tried.eager, **suspects)
    assert (found.layer, found.setting) == ("backend", *ONE_BY_ONE)
    sentences = tried_in(found)
    assert sentences.index("without any step that can be left out") < sentences.index(*ONE_BY_ONE)


def answered():
    facts = CompileFacts()
    facts.note(["cache_hits"], (), lambda capability: True)
    return {"": facts}


@pytest.mark.parametrize(
    "early",
    [
        {"seen": answered()},
        {"interpreting": contextlib.nullcontext},
        {"eager_fails": True, "usual": frozenset({"raised by the check at test_it.py:3"})},
    ],
)
def test_what_the_backend_does_otherwise_is_tried_early(early):
    """Where a cache answered, regions fail without Inductor, or the check is about the compile."""
    usual = early.get("usual", USUAL)
    found = search(
        lambda tried: usual if tried.backend is None and "mlp" not in tried.eager else frozenset(),
        regions=("mlp",),
        alternatives=ONE_BY_ONE,
        **early,
    )
    assert found.setting == "equal regions compiled one by one"
    assert not any(sentence.startswith("without any") for sentence in tried_in(found))


@pytest.mark.parametrize(("seen", "layer"), [({}, "codegen"), (answered(), "cache")])
def test_a_cache_that_gave_no_answer_is_left_out_late(seen, layer):
    """It may fail where it keeps one, so it is left out all the same."""
    cache = Setting("no cache", "cache", contextlib.nullcontext)
    suspects = {"seen": seen, "settings": (cache, *SETTINGS)}
    assert search(lambda tried: not (tried.backend or tried.settings), **suspects).layer == layer
    assert search(lambda tried: not (tried.backend or "no cache" in tried.settings), **suspects).layer == "cache"


def test_which_experiments_generate_code():
    found = search(
        lambda tried: not (tried.backend or tried.eager == {"mlp", "norm"}),
        regions=("mlp", "norm"),
        interpreting=contextlib.nullcontext,
    )
    assert {one.sentence for one in found.experiments if not one.generated_code} == {
        "nothing compiled",
        "Dynamo's graph run eagerly",
        "AOTAutograd's graphs run eagerly",
        "all regions left eager",
        "graphs of regions interpreted, not compiled by Inductor",
    }
    assert [one["compiled"] for one in found.as_data()["experiments"]][:2] == [True, False]


def test_a_pass_of_the_users():
    """It is left out by its place: the same one may be twice in the list."""
    found = search(lambda tried: not (tried.backend or 2 in tried.passes), passes=("clean", "fuse", "clean"))
    assert (found.layer, found.steps) == ("pass", (Application("graph_pass", "clean", 1),))
    assert found.sentence == "graph pass clean: right where that is left out (confirmed)"


def test_two_values_with_a_cause_each():
    """The first is searched for, whatever becomes of the second, and then the second."""
    both = {"value of output[0]", "value of output[1]"}

    def fails(tried):
        if tried.backend:
            return False
        fixed = {"value of output[0]": PASSES[1] in tried.steps, "value of output[1]": LOWERINGS[2] in tried.steps}
        return frozenset(part for part, right in fixed.items() if not right)

    found = search(fails, usual=frozenset(both))
    assert (found.steps, found.confidence) == ((PASSES[1],), "confirmed")
    (other,) = found.others
    assert (other.steps, other.confidence) == ((LOWERINGS[2],), "confirmed")
    assert "; and of another value: lowering of mul: right where" in found.sentence


def test_an_operator_that_the_backward_has_as_well():
    """Without the one of the forward the gradient remains wrong: both are to blame, and one value is no other's."""
    wrong = [Application("lowering", "erf at erf"), Application("lowering", "erf at erf", 1)]

    def fails(tried):
        values = ("value of output", "value of grad of input 0")
        return frozenset(
            v for v, step in zip(values, wrong, strict=True) if not tried.backend and step not in tried.steps
        )

    usual = frozenset({"value of output", "value of grad of input 0"})
    found = search(fails, applied=[*wrong, *LOWERINGS], usual=usual)
    assert (found.layer, found.steps, found.others) == ("lowering", tuple(wrong), ())
    assert found.confidence == "confirmed"
    assert found.sentence.startswith("lowering of erf at erf: right where these are left out together")


def test_a_pass_of_two_stages_or_another():
    """In one of its stages alone the pass does no harm, but leaving that stage out is not enough."""
    twice = [Application("joint_graph_pass", "noops"), Application("post_grad_pass", "noops")]

    def fails(tried):
        return not (tried.backend or set(twice) <= tried.steps or PASSES[2] in tried.steps)

    found = search(fails, applied=[*twice, *PASSES, PASSES[2]])
    assert (set(found.steps), found.confidence) == (set(twice), "necessary")
    assert [one.steps for one in found.also] == [(PASSES[2],)]


# What has no culprit


def test_a_flaky_failure():
    """Runs that fail in turns: nothing is named."""
    outcomes = itertools.cycle([False, True])
    found = search(lambda tried: next(outcomes))
    assert found.layer == "flaky"
    assert "1 of 2 runs" in found.sentence


def test_a_check_that_fails_without_a_compiler():
    found = search(lambda tried: True, eager_fails=True)
    assert (found.layer, found.confidence) == ("eager", "confirmed")


@pytest.mark.parametrize("often", [0.2, 0.4, 0.5, 0.6, 0.8])
@pytest.mark.parametrize("everywhere", [True, False])
def test_a_failure_that_comes_by_chance(often, everywhere):
    """Hardly ever is a wrong culprit named with confidence: in at most one of two hundred and fifty searches.

    The program itself fails so, or what the backend makes of its regions: then the regions are right.
    """

    def searched(chance):
        def fails(tried):
            comes = everywhere or not (tried.backend or tried.eager == set(REGIONS))
            return comes and chance.random() < often

        return search(fails, applied=PATTERNS, regions=REGIONS, eager_fails=everywhere)

    found = [searched(random.Random(seed)) for seed in range(500)]
    right = ("eager",) if everywhere else ("eager", "region")
    wrong = [one.layer for one in found if one.confidence == "confirmed" and one.layer not in right]
    assert len(wrong) <= 2, Counter(wrong)


def test_a_failure_that_goes_with_any_change():
    found = search(lambda tried: not (tried.backend or tried.steps or tried.settings))
    assert (found.layer, found.confidence) == ("unknown", "unknown")
    only = search(lambda tried: tried == Tried(), applied=PATTERNS[:1])
    assert (only.layer, only.confidence) == ("unknown", "unknown")
