"""What a program writes besides its outputs: into its arguments, and into Python state that it reaches itself."""

from __future__ import annotations

import itertools
import os
import random

import pytest
import torch
from torch import nn

from pytest_regional import ParityError
from pytest_regional.harness.parity.execution import execute
from pytest_regional.testing import regional


class Count:
    def __init__(self):
        self.n = 0

    def step(self):
        self.n += 1
        return self.n


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Shared(nn.Module):
    calls = 0

    def forward(self, x):
        Shared.calls += 1
        return x * Shared.calls


class Steps(nn.Module):
    def __init__(self, count=None):
        super().__init__()
        self.n, self.count = 0, count

    def forward(self, x):
        self.n += 1
        if self.count is not None:
            self.count.n += 1
        return x * self.n


CALLS = 0
LOG = []


def counted():
    global CALLS
    CALLS += 1
    LOG.append(CALLS)
    return CALLS


class Indirect(nn.Module):
    def forward(self, x):
        return x * self.number()

    def number(self):
        return counted()


def _counting(count):
    def program(x):
        count.n += 1
        return x * count.n

    return program


def _with_a_tensor():
    count = Count()
    count.t = torch.zeros(2)
    return _counting(count)


def _nonlocal():
    n = 0

    def program(x):
        nonlocal n
        n += 1
        return x * n

    return program


def _list():
    log = [1]

    def program(x):
        log[0] += 1
        log.append(2)
        return x * log[0] * len(log)

    return program


def _default(log=None):
    def program(x, log={}):  # noqa: B006 - that is what is tested
        log["n"] = log.get("n", 0) + 1
        return x * log["n"]

    return program


def _class_attribute():
    Shared.calls = 0
    return Shared()


def _arguments(*state):
    def program(x, count):
        count.n += 1
        return x * count.n

    return program


#: What makes a program, and its further arguments. Each is right on every backend.
RIGHT = {
    "object in a closure": (lambda: _counting(Count()),),
    "object with a tensor in a closure": (_with_a_tensor,),
    "object with slots in a closure": (lambda: _counting(Slotted()),),
    "variable of a closure": (_nonlocal,),
    "list in a closure": (_list,),
    "dictionary as a default": (_default,),
    "number of a module": (Steps,),
    "object of a module": (lambda: Steps(Count()),),
    "attribute of a class": (_class_attribute,),
    "global variables of a function that a method calls": (Indirect,),
    "object as an argument": (_arguments, Count),
}


def test_each_run_starts_from_the_same_python_state():
    with regional("aot_eager", expects_regions=False, seed=1) as r:
        for name, (make, *arguments) in RIGHT.items():
            r.restart()
            program = make()
            with r.expect(recompiles=0):
                report = r.assert_parity(program, r.randn(3), *(argument() for argument in arguments))
            assert report.ok, name
            assert report.not_compared == (), name
            first, second = (execute(program, (torch.ones(3), *(one() for one in arguments))) for _ in range(2))
            assert first.changes, name
            assert torch.equal(first.outputs[0][1].value, second.outputs[0][1].value), name
    assert (CALLS, LOG) == (0, [])


def test_tensors_that_only_one_of_them_keeps_are_a_difference():
    kept = []

    def program(x):
        kept.append({"x": x.clone()})
        return x * 2

    wrong = {"compiled": lambda fn: lambda x: x * 2}
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(
            ParityError, match=r"kept\[0\]\['x'\] \(after the call\): .*compiled nothing, eager a tensor"
        ):
            r.assert_parity(program, r.randn(2), **wrong)
        assert r.assert_parity(program, r.randn(2), ignore_state="kept", **wrong).ok
    assert kept == []


def test_a_name_that_is_no_changed_state_is_an_error():
    count = Count()
    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(ValueError, match=r"ignore_state: .*count.m"):
            r.assert_parity(_counting(count), r.randn(3), compiled=lambda fn: fn, ignore_state="count.m")
        assert r.assert_parity(_counting(count), r.randn(3), compiled=lambda fn: fn, ignore_state="count.n").ok


def test_a_program_that_only_writes_is_compared():
    def program(x, held):
        held["n"] = len(x)

    with regional("aot_eager", expects_regions=False) as r:
        assert r.assert_parity(program, r.randn(3), {}, compiled=lambda fn: fn).ok


def test_a_large_container_is_not_looked_at():
    words = dict.fromkeys(range(30_000), 0)

    def program(x):
        words[0] += 1
        return x + len(words)

    run = execute(program, (torch.ones(2),))
    assert run.not_compared == ("words (dict of 30000 items)",)


def test_what_cannot_be_restored_is_reported():
    numbers = itertools.count(1)

    def program(x, more):
        return x * next(numbers)

    with regional("aot_eager", expects_regions=False) as r, pytest.raises(ParityError) as caught:
        r.assert_parity(program, r.randn(3), iter([1]), compiled=lambda fn: fn)
    assert caught.value.report.not_compared == (
        "numbers (itertools.count)",
        "input 1 (builtins.list_iterator)",
    )
    assert "not compared: numbers (itertools.count)" in str(caught.value)


def test_rounding_that_differs_between_eager_runs_is_no_state():
    numbers = itertools.count()

    def program(x):
        """Add in another order in each call, as threads do."""
        first, second = (0.1, 0.2) if next(numbers) % 2 else (0.2, 0.1)
        return x + first + second

    with regional("aot_eager", expects_regions=False) as r:
        x = r.randn(1000)
        assert not torch.equal(program(x), program(x))
        report = r.assert_parity(program, x, compiled=lambda fn: fn)
    assert report.anchored
    assert report.not_compared == ("numbers (itertools.count)",)


def test_state_that_only_the_first_run_changes_is_no_rounding():
    """Both runs in float64 agree then, and eager's error, measured by them, would allow any result."""
    first = iter([5.0])
    with regional("aot_eager", expects_regions=False) as r, pytest.raises(ParityError, match="list_iterator"):
        r.assert_parity(lambda x: x.sin() + next(first, 0.0), r.randn(8), compiled=lambda fn: fn)


def test_state_that_differs_in_every_run_is_reported_and_not_compared():
    class Ticket:
        last = ""

    ticket = Ticket()

    def program(x):
        ticket.last = os.urandom(4).hex()
        return x * 2

    with regional("aot_eager", expects_regions=False) as r:
        report = r.assert_parity(program, r.randn(3), compiled=lambda fn: fn)
    assert report.not_compared == ("ticket.last (after the call): two eager runs differ",)


def test_a_python_generator_that_the_program_holds_is_restored_and_compared():
    generator = random.Random(1)

    def program(x):
        return x * generator.random()

    def draws_more(x):
        result = x * generator.random()
        generator.random()
        return result

    with regional("aot_eager", expects_regions=False) as r:
        assert r.assert_parity(program, r.randn(3), compiled=lambda fn: fn).worst_ratio <= 1
        for wrong, text in ((lambda x: x * 0.123, "elements differ"), (draws_more, "generator.state")):
            with pytest.raises(ParityError, match=text):
                r.assert_parity(program, r.randn(3), compiled=lambda fn, wrong=wrong: wrong)


def test_a_generator_that_the_program_holds_is_restored_and_compared():
    generator = torch.Generator().manual_seed(3)

    def program(x):
        return x + torch.rand(3, generator=generator)

    def draws_more(x):
        torch.rand(3, generator=generator)
        return x + torch.rand(3, generator=torch.Generator().manual_seed(3))

    before = generator.get_state()
    with regional("aot_eager", expects_regions=False) as r:
        assert r.assert_parity(program, r.randn(3), compiled=lambda fn: fn).ok
        with pytest.raises(ParityError, match=r"leaves the random generator .generator. in another state"):
            r.assert_parity(program, r.randn(3), compiled=lambda fn: lambda x: (draws_more(x), draws_more(x))[0])
    assert torch.equal(generator.get_state(), before)


def test_objects_keep_their_identity():
    count, log, items = Count(), [1], {"a": 1}
    count.log = log

    def program(x):
        count.log, count.new = [2], 3
        log.append(4)
        items.clear()
        program.calls += 1
        return x

    program.calls = 0
    changes = execute(program, (torch.ones(2),)).changes
    assert (changes["calls"].after, program.calls) == (1, 0)
    assert vars(count) == {"n": 0, "log": log}
    assert count.log is log
    assert (log, items) == ([1], {"a": 1})
