"""Programs with state in objects of their own classes: caches as arguments, in closures, in attributes of modules."""

from __future__ import annotations

import threading

import pytest
import torch

from pytest_regional import BackendSpec, ParityError
from pytest_regional._base.errors import RegionalValueError
from pytest_regional.harness.parity.execution import execute
from pytest_regional.harness.parity.inputs import copy_inputs, fresh_call
from pytest_regional.testing import regional

from .programs import in_region


class Layer:
    """Keys and values of one layer, made at the first update and longer after each."""

    def __init__(self):
        self.keys = self.values = None
        self.is_initialized = False

    def update(self, keys, values):
        if not self.is_initialized:
            self.keys, self.values = keys[..., :0, :], values[..., :0, :]
            self.is_initialized = True
        self.keys, self.values = torch.cat([self.keys, keys], -2), torch.cat([self.values, values], -2)
        return self.keys, self.values


class GrowingCache:
    """As a ``DynamicCache``: layers appear when they are first used."""

    def __init__(self, layers=0):
        self.layers = [Layer() for _ in range(layers)]
        self.seen = 0

    def update(self, keys, values, index):
        while len(self.layers) <= index:
            self.layers.append(Layer())
        self.seen += keys.shape[-2] if index == 0 else 0
        return self.layers[index].update(keys, values)


class FixedCache:
    """As a ``StaticCache``: tensors of a fixed length, written in place."""

    __slots__ = ("keys", "length", "values")

    def __init__(self, length=8, size=8):
        self.keys, self.values = torch.zeros(2, length, size), torch.zeros(2, length, size)
        self.length = torch.tensor(2)

    def update(self, keys, values, index=0):
        where = torch.arange(keys.shape[-2]) + self.length
        self.length.add_(keys.shape[-2])
        self.keys.index_copy_(1, where, keys)
        self.values.index_copy_(1, where, values)
        return self.keys, self.values


class Decoder(torch.nn.Module):
    def __init__(self, layers=2, size=8):
        super().__init__()
        self.projections = torch.nn.ModuleList(torch.nn.Linear(size, 3 * size) for _ in range(layers))

    def forward(self, x, cache=None):
        for index, projection in enumerate(self.projections):
            with in_region(f"layer{index}"):
                q, k, v = projection(x).chunk(3, -1)
            if cache is not None:
                k, v = cache.update(k, v, index)
            x = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return x


def filled(r, layers=2):
    cache = GrowingCache(layers)
    for index in range(layers):
        cache.update(r.randn(2, 4, 8), r.randn(2, 4, 8), index)
    return cache


SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("how", ["positional", "keyword"])
@pytest.mark.parametrize("start", ["empty", "filled", "fixed"])
def test_a_cache_as_argument(seed, how, start):
    with regional("torch", seed=seed) as r:
        cache = {"empty": GrowingCache, "filled": lambda: filled(r), "fixed": FixedCache}[start]()
        layers = 1 if start == "fixed" else 2
        before = {name: value.clone() for name, value in _tensors(cache)}
        with torch.no_grad():
            x = r.randn(2, 3, 8)
            given = {"kwargs": {"cache": cache}} if how == "keyword" else {}
            report = r.assert_parity(Decoder(layers), x, *(() if given else (cache,)), **given)
    assert report.ok
    assert report.anchored
    # The output, and keys and values of each layer; the fixed one has a length as well. Two calls.
    assert report.compared == 2 * (1 + 2 * layers + (start == "fixed"))
    after = dict(_tensors(cache))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def _tensors(cache):
    layers = enumerate(cache.layers) if isinstance(cache, GrowingCache) else ((0, cache),)
    return [
        (f"{index}.{name}", tensor)
        for index, layer in layers
        for name in ("keys", "values", "length")
        if (tensor := getattr(layer, name, None)) is not None
    ]


def _cache_fault(fault):
    """Return a backend that changes one of the tensors that a graph returns for the cache."""

    def backend(gm, example_inputs):
        def call(*inputs):
            outputs = list(gm.forward(*inputs))
            which = next(i for i, out in enumerate(outputs) if isinstance(out, torch.Tensor) and out.shape[-2] == 7)
            outputs[which] = fault(outputs[which])
            return outputs

        return call

    return BackendSpec("wrong", lambda: backend)


def _one_element(tensor):
    tensor = tensor.clone()
    tensor[0, -1, 0] += 0.5
    return tensor


def test_a_wrong_entry_of_the_cache_is_named():
    with (
        regional(_cache_fault(_one_element), expects_regions=False) as r,
        torch.no_grad(),
        pytest.raises(ParityError) as caught,
    ):
        r.assert_parity(Decoder(), r.randn(2, 3, 8), kwargs={"cache": filled(r)})
    where = {mismatch.where for mismatch in caught.value.report.mismatches}
    assert any(name.startswith("input cache.layers[") and name.endswith("(mutated in place)") for name in where)


def test_a_lost_write_to_the_cache_is_named():
    cache = FixedCache()

    def program(x, cache):
        return cache.update(x, x)[0] * 2

    expected = execute(program, (torch.randn(2, 1, 8), cache))
    assert expected.mutated == {"input 1.keys", "input 1.values", "input 1.length"}
    assert torch.equal(cache.length, torch.tensor(2))


def test_values_that_are_no_tensors_are_compared_as_well():
    class Counter:
        def __init__(self):
            self.count, self.total = 0, torch.zeros(2)

    def program(x, counter):
        counter.count += 1 if not torch.compiler.is_compiling() else 2
        return x + counter.total

    with (
        regional("aot_eager", expects_regions=False) as r,
        pytest.raises(ParityError, match="compiled int 2, eager int 1"),
    ):
        r.assert_parity(program, r.randn(2), Counter())


def test_objects_shared_by_arguments_stay_shared():
    """With each other, with a plain argument, with the program; and two views of one storage."""

    class Holder:
        def __init__(self, **held):
            self.__dict__.update(held)

    weight = torch.nn.Parameter(torch.randn(4))
    base, common, model = torch.randn(8), Holder(x=torch.randn(2)), torch.nn.Linear(2, 2)
    first = Holder(view=base[:4], common=common, weight=weight, model=model, tied=base)
    second = Holder(view=base[2:6], common=common, me=None)
    second.me = second
    copied = copy_inputs((first, [second], base), keep=lambda tensor: tensor is weight)
    one, (other,), plain = copied.arguments
    assert type(one) is Holder
    assert one is not first
    assert one.common is other.common is not common
    assert other.me is other
    assert one.weight is weight
    assert one.model is model
    assert one.tied is plain is not base
    assert one.view.untyped_storage() is other.view.untyped_storage() is plain.untyped_storage()
    one.view.fill_(7)
    assert plain[3] == other.view[1] == 7
    assert not (base == 7).any()


def test_fresh_values_reach_into_objects():
    cache = FixedCache()
    cache.keys.normal_()
    (renewed,), _ = fresh_call((cache,), {}, 3)
    assert not torch.equal(renewed.keys, cache.keys)
    assert torch.equal(renewed.keys.abs().amax() <= cache.keys.abs().amax(), torch.tensor(True))
    # A length fits the rest of its object.
    assert torch.equal(renewed.length, cache.length)


def test_gradients_of_tensors_in_objects_are_compared():
    class Weights:
        def __init__(self, w):
            self.w = w

    with regional("torch") as r:

        def program(x, weights):
            with in_region("product"):
                h = x @ weights.w
            return h.sin()

        report = r.assert_parity(program, r.randn(4, 8), Weights(r.randn(8, 8, requires_grad=True)))
    assert "grad of input 1.w" in report.errors


def test_an_object_that_cannot_be_copied_is_refused_by_name():
    class Locked:
        def __init__(self):
            self.lock, self.memory = threading.Lock(), torch.zeros(2)

    class Handle:
        def __init__(self):
            self.lock = threading.Lock()

    with regional("aot_eager", expects_regions=False) as r:
        with pytest.raises(RegionalValueError, match=r"input 1, a .*Locked, holds tensors \(input 1.memory for one\)"):
            r.assert_parity(lambda x, state: x + state.memory, r.randn(2), Locked())
        # Without tensors there is nothing to share.
        assert r.assert_parity(lambda x, handle: x * 2, r.randn(2), Handle()).ok


class Remembers(torch.nn.Module):
    """Holds a cache itself, as an attribute that is no buffer."""

    def __init__(self, cache):
        super().__init__()
        self.decoder, self.cache, self.scratch = Decoder(1), cache, {"last": torch.zeros(2)}

    def forward(self, x):
        self.scratch["last"] = x[0, 0, :2] * 2
        return self.decoder(x, self.cache)


@pytest.mark.parametrize("start", ["empty", "filled"])
@pytest.mark.parametrize("where", ["attribute", "closure", "partial"])
def test_a_cache_of_the_program_is_restored(where, start):
    import functools

    with regional("aot_eager", expects_regions=False) as r, torch.no_grad():
        cache = filled(r, 1) if start == "filled" else GrowingCache()
        before = {name: value.clone() for name, value in _tensors(cache)}
        decoder = Decoder(1)
        program = {
            "attribute": lambda: Remembers(cache),
            "closure": lambda: lambda x: decoder(x, cache),
            "partial": lambda: functools.partial(decoder, cache=cache),
        }[where]()
        first, again = (execute(program, (torch.ones(2, 3, 8),)) for _ in range(2))
        assert first.exception is None
        assert {name for name in first.mutated if "keys" in name} == {name for name in again.mutated if "keys" in name}
        assert any("layers[0].keys" in name for name in first.mutated)
        assert torch.equal(first.outputs[0][1].value, again.outputs[0][1].value)
        after = dict(_tensors(cache))
        assert before.keys() == after.keys()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        assert cache.seen == (4 if start == "filled" else 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_parity_of_a_module_that_holds_a_cache(seed):
    with regional("torch", seed=seed) as r, torch.no_grad():
        cache = FixedCache()
        report = r.assert_parity(Remembers(cache), r.randn(2, 3, 8))
        assert report.anchored
        assert torch.equal(cache.length, torch.tensor(2))


def test_a_list_in_which_a_test_takes_notes_is_left_alone():
    notes = []

    def program(x):
        if not torch.compiler.is_compiling():
            notes.append(x.clone())
        return x * 2

    with regional("aot_eager", expects_regions=False) as r:
        report = r.assert_parity(program, r.randn(2))
    assert report.not_compared == ("notes (a list of notes)",)
    # Eager and float64, on two sets of inputs.
    assert len(notes) == 4


def test_a_module_as_argument_is_state():
    def program(model, x):
        with in_region("model"):
            return model(x)

    with regional("torch") as r:
        model = torch.nn.Linear(4, 4)
        report = r.assert_parity(program, model, r.randn(2, 4))
    assert "grad of parameter input 0.weight" in report.errors
    assert model.weight.grad is None
    assert model.weight.dtype == torch.float32


class Output:
    """A class that is no pytree and no dataclass, with a cache in it, as some models return it."""

    def __init__(self, logits, cache):
        self.logits, self.cache = logits, cache


def test_outputs_in_objects_are_compared_by_name():
    def program(x, cache):
        return Output(cache.update(x, x)[0] * 2, cache)

    run = execute(program, (torch.randn(2, 1, 8), FixedCache()))
    assert [path for path, _ in run.outputs][:2] == ["output.logits", "output.cache.keys"]
    assert "input 1.keys" in run.aliases["output.cache.keys"].shares
    with regional("aot_eager", expects_regions=False) as r:
        # Four outputs, three mutated tensors; two calls.
        assert r.assert_parity(program, r.randn(2, 1, 8), FixedCache()).compared == 2 * 7


def test_attributes_of_tensors_are_kept():
    """Such as the marks by which Dynamo is told that a size is dynamic."""
    x = torch.randn(4)
    x.label = "x"
    torch._dynamo.mark_dynamic(x, 0)
    (copy,) = copy_inputs((x,)).arguments
    assert copy.label == "x"
    assert copy._dynamo_dynamic_indices == {0}
    torch._dynamo.mark_static_address(x)
    # Another tensor has another address.
    assert not hasattr(copy_inputs((x,)).arguments[0], "_dynamo_static_input_type")
