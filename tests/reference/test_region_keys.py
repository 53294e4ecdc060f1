"""Keys of regions in words are equal exactly where the backend shares the code of the regions."""

import itertools

import pytest
import torch

from pytest_regional import region
from pytest_regional.reference import key_explanation, region_keys
from pytest_regional.reference.compile_regions import request_for
from pytest_regional.reference.fingerprint import fingerprint


def scaled(number):
    return lambda x: (x * number).sin()


def within(name, **configs):
    def program(x):
        with region(name, configs=configs or None):
            return x * 2

    return program


def in_region(function):
    def program(x):
        with region("r"):
            return function(x)

    return program


def branches(x):
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,))


def other_branches(x):
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.tan(), (x,))


X = torch.randn(3, 4)
PROGRAMS = {
    "a float": (in_region(scaled(2.0)), X),
    "an integer": (in_region(scaled(2)), X),
    "another float": (in_region(scaled(3.0)), X),
    "another op": (in_region(lambda x: (x * 2.0).cos()), X),
    "another name": (lambda renamed: in_region(scaled(2.0))(renamed), X),
    "a double": (in_region(scaled(2.0)), X.double()),
    "strides": (in_region(scaled(2.0)), X.t().contiguous().t()),
    "a shape": (in_region(scaled(2.0)), torch.randn(5, 4)),
    "two results": (in_region(lambda x: ((x * 2.0).sin(), x * 2.0)), X),
    "a slice": (in_region(lambda x: x[:, 1:3] * 2.0), X),
    "another slice": (in_region(lambda x: x[:, 0:2] * 2.0), X),
    "an offset": (in_region(scaled(2.0)), torch.randn(4, 4)[1:]),
    "configs": (within("r", max_fusion_size=3), X),
    "other configs": (within("r", max_fusion_size=4), X),
    "no configs": (within("r"), X),
    "dtype as an argument": (in_region(lambda x: x.to(torch.float16)), X),
    "another dtype as an argument": (in_region(lambda x: x.to(torch.bfloat16)), X),
    "branches": (in_region(branches), X),
    "other branches": (in_region(other_branches), X),
}


@pytest.fixture
def tokens(monkeypatch):
    """Return keys in words and fingerprints of the regions of each program."""
    seen = []

    def noting(extracted):
        request = request_for(extracted)
        seen.append(fingerprint(request))
        return request

    monkeypatch.setattr(region_keys, "request_for", noting)

    def collect(name):
        program, x = PROGRAMS[name]
        found = []
        seen.clear()

        def backend(gm, inputs):
            found.extend(key_explanation.explain_key(gm, inputs).regions)
            return gm.forward

        torch._dynamo.reset()
        torch.compile(program, backend=backend)(x)
        return [(key, token) for key, token in zip(found, seen, strict=True)]

    return collect


def test_keys_are_equal_where_fingerprints_are(tokens):
    pairs = [(name, *pair) for name in PROGRAMS for pair in tokens(name)]
    assert {name for name, *_ in pairs} == set(PROGRAMS)
    equal = 0
    for (name, key, token), (other_name, other_key, other_token) in itertools.combinations(pairs, 2):
        same = token.token == other_token.token
        assert (key.key == other_key.key) == same, f"{name} and {other_name}: {key.ingredients} {other_key.ingredients}"
        equal += same
    assert equal
    assert [token.symbolic for _, _, token in pairs] == [key.symbolic for _, key, _ in pairs]


def test_what_a_region_is_made_of_in_words(tokens):
    ((key, _),) = tokens("configs")
    assert (key.name, key.region) == ("inference.compiled_region_r_0", "r")
    assert key.ingredients == {
        "the configs": "('max_fusion_size', 3)",
        "input %0": "float32 [3, 4] strides [4, 1] on cpu in storage 0",
        "op %1": "aten.mul.Tensor(%0, 2) -> float32 [3, 4] strides [4, 1] on cpu",
        "the results": "((%1), 1)",
        "the order of its ops": "()",
    }
