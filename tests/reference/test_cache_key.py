"""The key: computed ahead it is the one that is used, and every field of every part of it counts."""

import dataclasses
import enum

import pytest
import torch

from pytest_regional.reference import cache_key
from pytest_regional.reference.caching import outer
from pytest_regional.reference.caching.outer import (
    KeyDetails,
    TargetFingerprint,
    digest,
    stable_text,
    this_machine,
)
from pytest_regional.reference.caching.store import default_folder
from pytest_regional.reference.options import BackendOptions
from tests.reference.caches import compiled, entries, outcomes
from tests.reference.test_outer_cache import Owner, leaves, program, tensors, unmarked


@pytest.mark.parametrize("inputs", [tensors, leaves])
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_key_ahead_is_the_key_used(inputs, dynamic):
    ahead = cache_key(program, *inputs(), dynamic=dynamic)
    compiled(program, dynamic=dynamic)(*inputs())
    assert [path.parent.name for path in default_folder().glob("*/*.artifact")] == [ahead]


def test_the_key_of_a_module_and_of_options():
    model = torch.nn.Linear(4, 4)
    options = {"partitioner": "min_cut"}
    ahead = cache_key(model, tensors()[0], options=options)
    compiled(model, options=options)(tensors()[0])
    assert [path.parent.name for path in default_folder().glob("*/*.artifact")] == [ahead]
    assert cache_key(model, tensors()[0]) != ahead


def test_computing_the_key_compiles_stores_and_changes_nothing():
    def mutating(x, w):
        x.add_(w)
        return program(x, w)

    x, w = tensors()
    before = x.clone()
    with outcomes() as seen:
        keys = {cache_key(mutating, x, w) for _ in range(2)}
    assert len(keys) == 1
    assert set(seen.values()) == {0}
    assert entries() == []
    assert torch.equal(x, before)


def test_the_key_is_the_same_with_a_full_cache():
    ahead = cache_key(program, *tensors())
    compiled(program)(*tensors())
    assert cache_key(program, *tensors()) == ahead


def test_a_program_without_a_key_says_why():
    from torch.fx.traceback import annotate

    def marked(x, w):
        with annotate({"owner": Owner}):
            return program(x, w)

    with pytest.raises(Exception, match="means nothing in another process"):
        cache_key(marked, *tensors())
    with pytest.raises(Exception, match="passed no graph to the backend"):
        cache_key(lambda: 3)


def test_a_mistake_in_the_program_is_the_programs():
    with pytest.raises(Exception, match=r"mat1 and mat2|shapes cannot be multiplied|same reduction dim"):
        cache_key(unmarked, torch.ones(2, 3), torch.ones(4, 5))


def details(**changes):
    options, groups = BackendOptions(), ("0: 2 ranks",)
    base = KeyDetails(1, "program", ("0:mlp",), (), (), options, ("v1",), groups, "state", this_machine())
    return dataclasses.replace(base, **changes)


def test_equal_details_are_one_key():
    assert digest(details()) == digest(details())


CHANGES = {
    "format": 2,
    "program": "other",
    "annotations": ("0:other",),
    "code": ("operator mine::op: other",),
    "memory": ("input 0: other",),
    "options": BackendOptions(partitioner="min_cut"),
    "passes": ("v2",),
    "groups": ("0: 4 ranks",),
    "state": "other",
    "machine": dataclasses.replace(this_machine(), cpu="other"),
}


def test_every_field_has_a_change_here():
    assert set(CHANGES) == {field.name for field in dataclasses.fields(KeyDetails)}


@pytest.mark.parametrize("name", CHANGES)
def test_every_field_counts(name):
    assert digest(details(**{name: CHANGES[name]})) != digest(details())


@pytest.mark.parametrize("part", [KeyDetails, BackendOptions, TargetFingerprint])
def test_a_field_that_somebody_adds_counts(part):
    @dataclasses.dataclass(frozen=True)
    class Extended(part):
        added: str = "a"

    base = {
        KeyDetails: lambda: {field.name: getattr(details(), field.name) for field in dataclasses.fields(KeyDetails)},
        BackendOptions: dict,
        TargetFingerprint: lambda: this_machine().as_dict(),
    }[part]()
    first, second = Extended(**base), Extended(**base, added="b")
    if part is KeyDetails:
        assert digest(first) != digest(second)
    else:
        name = "options" if part is BackendOptions else "machine"
        assert digest(details(**{name: first})) != digest(details(**{name: second}))


def test_a_field_that_says_so_does_not_count():
    assert digest(BackendOptions(outer_cache=False)) == digest(BackendOptions())


def test_a_new_format_is_another_key(monkeypatch):
    before = cache_key(program, *tensors())
    monkeypatch.setattr(outer, "FORMAT", outer.FORMAT + 1)
    assert cache_key(program, *tensors()) != before


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pass:
    def __init__(self, uuid):
        self._uuid = uuid

    def uuid(self):
        return self._uuid


DIFFERENT = [
    1,
    1.0,
    True,
    "1",
    b"1",
    None,
    (1,),
    (1, 2),
    (2, 1),
    ((1,), 2),
    (1, (2,)),
    {"a": 1},
    {"a": "1"},
    {"a": 1, "b": 2},
    {1, 2},
    slice(1, 2),
    slice(1, 2, 3),
    torch.float32,
    torch.float64,
    torch.device("cpu"),
    torch.device("cuda:0"),
    torch.channels_last,
    Colour.RED,
    Colour.BLUE,
    Pass("v1"),
    Pass("v2"),
    Pass(b"v1"),
    BackendOptions(),
    ["a", "b"],
    ["a,b"],
    ["a','b"],
    "[]",
    [],
    {},
]


def test_different_values_have_different_texts():
    texts = [stable_text(value) for value in DIFFERENT]
    assert len(set(texts)) == len(texts)


def test_order_counts_where_it_means_something():
    assert stable_text({"a": 1, "b": 2}) == stable_text({"b": 2, "a": 1})
    assert stable_text({3, 1, 2}) == stable_text({2, 3, 1})
    assert stable_text([1, 2]) != stable_text([2, 1])


@pytest.mark.parametrize("value", [object(), lambda: 1, Owner, Pass(None), {"a": [object()]}, print])
def test_values_that_mean_nothing_elsewhere_are_refused(value):
    with pytest.raises(ValueError, match=r"means nothing in another process: .* uuid\(\)"):
        stable_text(value)
