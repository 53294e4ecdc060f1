"""The search, with a failure that is told what it is: every layer, each confidence, and what is no culprit."""

import pytest

from pytest_regional._torch.vetoes import Application
from pytest_regional.harness.blame.experiments import Experiments
from pytest_regional.harness.blame.layers import culprit_of

USUAL = frozenset({"value of output"})
PASSES = [Application("post_grad_pass", name) for name in ("reorder", "remove_noop_ops", "decompose")]
LOWERINGS = [Application("lowering", name) for name in ("add", "argmax", "mul", "argmin")]
SETTINGS = {"no vectors": lambda: "no vectors", "no reuse of buffers": lambda: "no reuse"}
CAPTURES = {"dynamo": "eager", "aot_autograd": "aot", "partitioner": "aot, other"}


def search(fails, applied=(*PASSES, *LOWERINGS), **limits):
    """Search with an experiment ``fails(backend, vetoed steps, vetoed kinds, setting)`` that says what fails."""

    def reproduce(change):
        arguments = getattr(change.within, "args", ())
        vetoed, kinds = (*arguments, (), ())[:2]
        setting = change.sentence if change.sentence in SETTINGS else ""
        answer = fails(change.backend, set(vetoed), set(kinds), setting)
        return answer if isinstance(answer, frozenset) else USUAL if answer else frozenset()

    experiments = Experiments(reproduce, USUAL, **limits)
    return culprit_of(experiments, applied, captures=CAPTURES, settings=SETTINGS)


def of_steps(guilty, needs=all):
    """Return a failure that is mended where the ``guilty`` steps are left out."""
    kind = guilty[0].kind
    return lambda backend, vetoed, kinds, setting: (
        not (backend or kind in kinds or needs(step in vetoed for step in guilty))
    )


@pytest.mark.parametrize(
    ("backends", "layer"),
    [
        ({None, "eager", "aot", "aot, other"}, "dynamo"),
        ({None, "aot", "aot, other"}, "aot_autograd"),
        ({None, "aot"}, "partitioner"),
    ],
)
def test_what_fails_without_code_of_the_backend(backends, layer):
    found = search(lambda backend, *others: backend in backends)
    assert (found.layer, found.confidence) == (layer, "confirmed")
    assert len(found.experiments) <= 4


def test_one_pass():
    found = search(of_steps([PASSES[1]]))
    assert (found.layer, found.steps, found.confidence) == ("pass", (PASSES[1],), "confirmed")
    assert found.sentence == "post-grad pass remove_noop_ops: right where that is left out (confirmed)"


def test_two_lowerings_that_are_both_wrong():
    guilty = (LOWERINGS[1], LOWERINGS[3])
    found = search(of_steps(guilty))
    assert (found.layer, found.steps, found.confidence) == ("lowering", guilty, "necessary")
    assert "argmax and lowering of argmin: right where these are left out together" in found.sentence


def test_a_setting():
    found = search(lambda backend, vetoed, kinds, setting: not (backend or setting == "no vectors"))
    assert (found.layer, found.setting, found.confidence) == ("setting", "no vectors", "confirmed")


def test_a_failure_that_does_not_come_again():
    found = search(lambda *change: False)
    assert found.layer == "nothing"
    assert "does not come again" in found.sentence


def test_another_failure_mends_nothing():
    """Without its lowerings the program may not compile at all."""
    other = frozenset({"RuntimeError"})
    found = search(lambda backend, vetoed, kinds, setting: not backend and (other if kinds else True))
    assert (found.layer, found.steps, found.confidence) == ("unknown", (), "unknown")
    assert "without any lowering" in found.sentence


def test_experiments_run_out():
    """What is known by then is told: that one of the passes is to blame, if not which."""
    found = search(of_steps([PASSES[1]]), most=5)
    assert (found.layer, found.steps, found.confidence) == ("pass", tuple(PASSES), "necessary")
    assert len(found.experiments) == 5
    assert search(of_steps([PASSES[1]]), most=3).layer == "unknown"
