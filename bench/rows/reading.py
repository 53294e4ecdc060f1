"""What reading generated code and checking parity cost beside the compile that they look at."""

from __future__ import annotations

from .row import Claim, Row, Target

SHARE = "{:.2%}"
READER = Target("at most 2 %", most=0.02)
CLAIMS = (
    Claim(
        "reading: code of a transformer block",
        "listening, reading, seven assertions",
        "the compile, processor time without the C++ compiler",
        "s",
        READER,
        style=SHARE,
    ),
    Claim(
        "reading: code of eight matrix products",
        "listening, reading, six assertions",
        "the compile, no kernel in it",
        "s",
        READER,
        style=SHARE,
    ),
    Claim(
        "reading: parity of a transformer block",
        "`assert_parity` of what is compiled",
        "the compile",
        "s",
        Target("at most 15 %", most=0.15),
        style=SHARE,
    ),
)


def measure(rounds: int) -> list[Row]:
    """Take turns of both programs, each of which has its compile beside it."""
    import torch

    from bench.code_reader import Block, Costs, Products, check_block, check_products
    from bench.code_reader import measure as read

    torch.manual_seed(0)
    block, products = Block(32), Products(32)

    def turn() -> tuple[Costs, Costs]:
        return read(block, check_block, 2, 16, 32), read(products, check_products, 16, 32)

    turn()  # imports
    of_block, of_products = zip(*(turn() for _ in range(rounds)), strict=True)
    return [
        CLAIMS[0].row([one.looking for one in of_block], [one.compiled for one in of_block]),
        CLAIMS[1].row([one.looking for one in of_products], [one.compiled for one in of_products]),
        CLAIMS[2].row([one.parity for one in of_block], [one.wall for one in of_block]),
    ]
