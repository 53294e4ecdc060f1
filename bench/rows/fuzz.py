"""Programs a second in each lane of the fuzzer beside the loop that one would write."""

from __future__ import annotations

from .row import Claim, Row, Target

CLAIMS = tuple(
    Claim(
        f"fuzz: lane `{lane}`",
        "judged by `compiles` and `parity`",
        "naive loop",
        "s a program",
        Target(f"at least {times:g} times as fast", least=times),
        "theirs / ours",
        "{:.1f} x",
    )
    for lane, times in (("structure", 50.0), ("fast", 5.0), ("full", 1.5))
)


def measure(rounds: int) -> list[Row]:
    """Judge programs, each of which is a turn; one before them does not count."""
    import logging
    import warnings

    from bench.fuzz_lanes import measure as seconds_of
    from bench.fuzz_lanes import with_regions

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    spent = seconds_of("reference", with_regions(rounds + 4), ("naive", "structure", "fast", "full"))
    lanes = ("structure", "fast", "full")
    after = {"fast": "after the others: an emulated GPU takes no turns"}
    return [
        claim.row(spent[lane], spent["naive loop"], after.get(lane, ""))
        for claim, lane in zip(CLAIMS, lanes, strict=True)
    ]
