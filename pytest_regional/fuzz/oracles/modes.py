"""The law ``inference``: a program that trains also runs without gradients, compiled by the same process."""

from __future__ import annotations

from dataclasses import replace

from pytest_regional.fuzz.oracles.errors import kinds_of
from pytest_regional.fuzz.oracles.law import Law, NoClaim
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure
from pytest_regional.fuzz.oracles.trial import Trial


def check_inference(trial: Trial) -> None:
    """Raise where the program without gradients fails or differs from eager, its training compiled before."""
    if not trial.trains:
        raise NoClaim("the program is for inference already")
    _ = trial.cold
    inference = Trial(trial.regional, replace(trial.program, training=False), trial.lane, blame=False)
    run = inference.run(inference.program)
    raise_failure(inference, run, "inference")
    mismatches = mismatches_of(inference, run)
    if mismatches:
        raise inference.broken(
            "inference",
            "run",
            f"without gradients: {'; '.join(map(str, mismatches[:4]))}",
            origin=kinds_of(mismatches),
        )


LAWS = (
    Law(
        "inference",
        "A program that trains gives eager's values without gradients too, compiled beside its training graphs.",
        check_inference,
        every=4,
    ),
)
