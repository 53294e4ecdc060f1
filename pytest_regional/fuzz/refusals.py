"""Programs that eager refuses: counted by reason, passed over, and too many of them are the generator's fault."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_regional._text import plural

if TYPE_CHECKING:
    from pytest_regional.harness.parity.report import BadProgramError

#: Of the programs of a campaign, the share that eager may refuse.
REFUSED_AT_MOST = 0.02

#: That many refused programs say nothing of a generator yet, however short the campaign.
REFUSED_BY_CHANCE = 2

_LONGEST_REASON = 160


def reason_of(error: BadProgramError) -> str:
    """Return why eager refuses a program, without what differs from one program to the next: numbers, addresses."""
    exception = error.execution.exception
    first = str(exception).strip().partition("\n")[0]
    plain = re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?", "N", first)
    shown = plain if len(plain) <= _LONGEST_REASON else f"{plain[:_LONGEST_REASON]} ..."
    return f"{error.execution.stage}: {type(exception).__name__}: {shown}"


def too_many(refused: Mapping[str, int], examples: int) -> str:
    """Return what is wrong with a generator whose programs eager refuses so often; empty where nothing is."""
    count = sum(refused.values())
    if count <= max(REFUSED_BY_CHANCE, REFUSED_AT_MOST * examples):
        return ""
    reasons = "".join(f"\n  {number} times: {reason}" for reason, number in sorted(refused.items(), key=_often_first))
    return (
        f"eager refuses {count} of {plural(examples, 'program')}, more than {REFUSED_AT_MOST:.0%}: "
        f"the generator is to be mended, or the programs that draw= gives{reasons}"
    )


def _often_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


__all__ = ["REFUSED_AT_MOST", "REFUSED_BY_CHANCE", "reason_of", "too_many"]
