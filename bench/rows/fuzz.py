"""Programs a second in each mode of the fuzzer, compared with the loop that one would write."""

from __future__ import annotations

from .row import Claim, Row, Target

CLAIMS = tuple(
    Claim(
        f"fuzz: mode `{mode}`",
        "oracles `compiles` and `parity`",
        "naive loop",
        "s a program",
        Target(f"at least {times:g} times as fast", least=times),
        "theirs / ours",
        "{:.1f} x",
    )
    for mode, times in (("interpret", 50.0), ("emulated", 5.0), ("native", 1.5))
)


def measure(rounds: int) -> list[Row]:
    """Check programs, each of which is a turn; one before them does not count."""
    import logging
    import warnings

    from bench.fuzz_modes import measure as seconds_of
    from bench.fuzz_modes import with_regions

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    spent = seconds_of("reference", with_regions(rounds + 4))
    modes = ("interpret", "emulated", "native")
    after = {"emulated": "after the others: an emulated GPU takes no turns"}
    return [
        claim.row(spent[mode], spent["naive loop"], after.get(mode, ""))
        for claim, mode in zip(CLAIMS, modes, strict=True)
    ]
