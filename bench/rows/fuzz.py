"""Programs a second in each mode of the fuzzer: beside the loop that one would write, and beside each other."""

from __future__ import annotations

from .row import Claim, Row, Target

_BESIDE_THE_LOOP = tuple(
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

_BESIDE_INTERPRET = tuple(
    Claim(
        f"fuzz: programs in mode `{mode}`",
        "drawn and checked",
        "mode `interpret`",
        "s a program",
        None,
        "theirs / ours",
        "{:.1f} x",
    )
    for mode in ("graph", "aten")
)

CLAIMS = (*_BESIDE_THE_LOOP, *_BESIDE_INTERPRET)


def measure(rounds: int) -> list[Row]:
    """Check programs, each of which is a turn; one before them does not count."""
    import logging
    import warnings

    from bench.fuzz_modes import measure as seconds_of
    from bench.fuzz_modes import with_regions
    from bench.fuzz_throughput import measure as seconds_of_judged

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    spent = seconds_of("reference", with_regions(rounds + 4), ("naive", "interpret", "emulated", "native"))
    modes = ("interpret", "emulated", "native")
    after = {"emulated": "after the others: an emulated GPU takes no turns"}
    rows = [
        claim.row(spent[mode], spent["naive loop"], after.get(mode, ""))
        for claim, mode in zip(_BESIDE_THE_LOOP, modes, strict=True)
    ]
    judged = seconds_of_judged(rounds)
    rows += [
        claim.row(judged[mode], judged["interpret"], "a turn is 16 drawn programs")
        for claim, mode in zip(_BESIDE_INTERPRET, ("graph", "aten"), strict=True)
    ]
    return rows
