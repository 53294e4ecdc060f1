import pytest

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import duration
from pytest_regional.fuzz.budget import PROFILES, Budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("500", Budget(examples=500)),
        ("30s", Budget(seconds=30)),
        (" 10M ", Budget(seconds=600)),
        ("1.5h", Budget(seconds=5400)),
        ("ci", PROFILES["ci"]),
        ("Nightly", PROFILES["nightly"]),
    ],
)
def test_forms_of_a_budget(text, budget):
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "0", "0s", "-3", "1.5", "ten", "10 d", "5m30s"])
def test_invalid_budgets(text):
    with pytest.raises(RegionalValueError, match=r"number of programs \(500\), a time \(30s, 10m, 2h\), or a profile"):
        Budget.parse(text)


def test_shards_share_programs_and_each_have_the_whole_time():
    assert [Budget(examples=8).share(number, 3).examples for number in range(3)] == [3, 3, 2]
    assert Budget(seconds=60).share(1, 3) == Budget(seconds=60)
    assert PROFILES["ci"].share(0, 2).fixed


def test_a_part_of_a_number_is_smaller_and_never_nothing():
    assert [Budget(examples=number).part(5).examples for number in (25, 3)] == [5, 1]
    assert Budget(seconds=60).part(5) == Budget(seconds=60)


def test_a_clock_is_over_when_its_programs_are_spent():
    clock = Budget(examples=2).start()
    over = []
    for _ in range(3):
        over.append(clock.over)
        clock.spent += 1
    assert over == [False, False, True]


def test_a_clock_is_over_when_its_time_is_spent():
    assert not Budget(seconds=3600).start().over
    clock = Budget(seconds=5).start()
    clock.begun -= 6
    assert clock.over


def test_the_last_one_gets_the_remaining_time_and_a_minimum():
    clock = Budget(seconds=100).start()
    asked = []
    for begun in (0, 70, 99):
        clock.begun -= begun
        asked.append(round(clock.time_for(60)))
        clock.begun += begun
    assert asked == [60, 30, 10]
    assert Budget(examples=1).start().time_for(60) == 60


def test_durations_as_people_write_them():
    assert [duration(0.25), duration(59), duration(60), duration(95)] == ["0.25 s", "59 s", "1 min", "1 min 35 s"]
