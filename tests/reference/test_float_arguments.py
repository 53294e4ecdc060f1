"""The outer cache and float arguments, which Dynamo makes an input at their second value and a constant if it must."""

import pytest
import torch

from pytest_regional import region
from pytest_regional._torch.inductor import interpreting_regions
from tests.reference.caches import compiled, outcomes


def scaled(x, s):
    with region("a"):
        return (x * s).sin() + s


def filled(x, s):
    """No float can be an input here: each value of ``s`` is a program, as with every backend behind Dynamo."""
    with region("a"):
        return x + torch.full((4,), s)


def filled_and_scaled(x, s, t):
    with region("a"):
        return x * t + torch.full((4,), s)


@pytest.mark.parametrize(
    ("fn", "calls", "compiles"),
    [
        (scaled, [(1.5,), (2.5,), (3.5,)], 2),
        (filled, [(1.5,), (2.5,), (3.5,)], 3),
        (filled_and_scaled, [(1.5, 1.5), (2.5, 2.5)], 2),
    ],
)
def test_what_one_process_compiled_the_next_one_loads(fn, calls, compiles):
    with interpreting_regions():
        for warm in (False, True):
            program = compiled(fn)
            with outcomes() as seen:
                for numbers in calls:
                    x = torch.arange(4.0)
                    torch.testing.assert_close(program(x, *numbers), fn(x, *numbers))
            if warm:
                assert (seen["miss"], seen["saved"], seen["regions"]) == (0, 0, 0)
            else:
                assert (seen["hit"], seen["regions"]) == (0, compiles)
