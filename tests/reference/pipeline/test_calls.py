"""Calls that do not fit what was captured are errors that say why: never a wrong result, never a missing gradient."""

import re

import pytest
import torch

from pytest_regional.reference import ArtifactError, pipeline
from tests.reference.pipeline.models import Tied, model_and_inputs


def compiled_block(**keywords):
    model, inputs = model_and_inputs("Block")
    return model, inputs, pipeline.compile(model, inputs, keywords)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: (x[:3],), "input 0 has shape (3, 4), and was captured with (6, 4)"),
        (lambda x: (x.double(),), "input 0 has dtype torch.float64, and was captured with torch.float32"),
        (lambda x: (x.to("meta"),), "input 0 is on meta, and was captured on cpu"),
        (lambda x: (2.0,), "input 0 is a float, and was captured as a tensor"),
        (lambda x: (x, x), "arguments of another structure"),
        (lambda x: ([x],), "arguments of another structure"),
    ],
)
def test_other_positional_arguments(change, message):
    _, (x,), compiled = compiled_block(scale=2.0)
    with pytest.raises(ArtifactError, match=re.escape(message)):
        compiled(*change(x), scale=2.0)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"scale": 3.0}, "input 1 is 3.0, and was captured as the constant 2.0"),
        ({"scale": True}, "input 1 is True, and was captured as the constant 2.0"),
        ({}, "captured with keyword arguments ['scale'] and is called with []"),
        ({"scale": 2.0, "more": 1}, "is called with ['scale', 'more']"),
    ],
)
def test_other_keyword_arguments(keywords, message):
    _, inputs, compiled = compiled_block(scale=2.0)
    with pytest.raises(ArtifactError, match=re.escape(message)):
        compiled(*inputs, **keywords)


def test_a_module_in_another_mode():
    model, inputs, compiled = compiled_block()
    compiled(*inputs)
    model.norm.eval()
    with pytest.raises(ArtifactError, match="module 'norm' is in evaluation mode, and was captured in training"):
        compiled(*inputs)
    compiled.train()
    compiled(*inputs)
    compiled.eval()
    assert not model.training
    with pytest.raises(ArtifactError, match="is in evaluation mode"):
        compiled(*inputs)


def test_a_gradient_that_would_be_missing():
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(2, 4)
    model.requires_grad_(False)
    compiled = pipeline.compile(model, (x,))
    compiled(x)
    model.requires_grad_(True)
    with pytest.raises(ArtifactError, match=r"'first\.weight' of the model requires gradients, and gets none"):
        compiled(x)
    with torch.no_grad():
        compiled(x)
    model.requires_grad_(False)
    with pytest.raises(ArtifactError, match="input 0 requires gradients, and gets none"):
        compiled(x.requires_grad_())


def test_a_gradient_that_no_grad_left_out():
    model, inputs = model_and_inputs("Tied")
    with torch.no_grad():
        compiled = pipeline.compile(model, inputs)
        compiled(*inputs)
    with pytest.raises(ArtifactError, match="gets none"):
        compiled(*inputs)


def test_a_parameter_that_moved():
    model, inputs, compiled = compiled_block()
    model.weight = torch.nn.Parameter(torch.randn(4, 5))
    with pytest.raises(ArtifactError, match=re.escape("'weight' of the model has shape (4, 5)")):
        compiled(*inputs)


def test_autocast_that_was_not_there():
    _, inputs, compiled = compiled_block()
    message = re.escape("autocast on cpu is torch.bfloat16, and was None when the model was captured")
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ArtifactError, match=message):
        compiled(*inputs)


def test_sizes_that_were_the_same():
    compiled = pipeline.compile(lambda x, y: x + y, (torch.randn(5), torch.randn(5)), dynamic=True)
    assert compiled(torch.ones(7), torch.ones(7)).shape == (7,)
    with pytest.raises(ArtifactError, match="captured as the same size"):
        compiled(torch.ones(7), torch.ones(8))


def test_sizes_that_the_trace_assumed_something_of():
    compiled = pipeline.compile(lambda x: x.sin() if x.shape[0] > 4 else x.cos(), (torch.randn(6),), dynamic=True)
    assert compiled(torch.ones(9)).shape == (9,)
    with pytest.raises(ArtifactError, match=r"does not hold for sizes .*: 3"):
        compiled(torch.ones(3))


def test_a_size_of_one_is_no_symbol():
    compiled = pipeline.compile(lambda x: x + 1, (torch.randn(1, 4),), dynamic=True)
    with pytest.raises(ArtifactError, match="a size of 1 is never a symbol: capture with a larger example"):
        compiled(torch.randn(3, 4))


def test_weights_that_were_tied():
    model, inputs = model_and_inputs("Tied")
    compiled = pipeline.compile(model, inputs)
    model.second.weight = torch.nn.Parameter(torch.zeros(4, 4))
    message = "'first.weight' and 'second.weight' are two tensors, and were one and the same"
    with pytest.raises(ArtifactError, match=re.escape(message)):
        compiled(*inputs)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.insert(0, torch.nn.ReLU()),
        lambda model: model.append(torch.nn.ReLU()),
        lambda model: model.__setitem__(1, torch.nn.Tanh()),
        lambda model: model.__delitem__(1),
    ],
)
def test_submodules_that_were_replaced(change):
    model, x = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.randn(3, 2)
    compiled = pipeline.compile(model, (x,))
    model[0] = model[0]  # the same module again is no change
    compiled(x)
    change(model)
    with pytest.raises(ArtifactError, match="submodules of 'the model' were replaced, added or removed"):
        compiled(x)


def writes(x, y):
    x.add_(1)
    return x * y


def test_a_program_that_writes_gets_what_shares_memory():
    compiled = pipeline.compile(writes, (torch.ones(3), torch.ones(3)))
    assert torch.equal(compiled(torch.ones(3), torch.ones(3)), torch.full((3,), 2.0))
    one, many = torch.ones(3), torch.ones(4)
    for arguments in ((one, one), (many[:3], many[1:])):
        with pytest.raises(ArtifactError, match="input 0 and input 1 share memory differently"):
            compiled(*arguments)
    # Who only reads does not mind.
    assert pipeline.compile(lambda x, y: x * y, (torch.ones(3), torch.ones(3)))(one, one).sum() == 3


def test_one_tensor_given_twice():
    one = torch.ones(3)
    compiled = pipeline.compile(writes, (one, one))
    assert torch.equal(compiled(*[torch.ones(3)] * 2), torch.full((3,), 4.0))
    with pytest.raises(ArtifactError, match="input 0 and input 1 are two tensors, and were one and the same"):
        compiled(torch.ones(3), torch.ones(3))


def test_strides_that_were_others():
    compiled = pipeline.compile(lambda x: x.reshape(-1) * 2, (torch.randn(3, 4),))
    with pytest.raises(ArtifactError, match=re.escape("has strides (1, 3), and was captured with (4, 1)")):
        compiled(torch.randn(4, 3).T)
    rows = pipeline.compile(lambda x: x + 1, (torch.randn(1, 4),))
    assert rows(torch.randn(4, 1).T).shape == (1, 4)  # a dimension of one element has any stride


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_there_are_none(mode):
    model, inputs = model_and_inputs("Block")
    twin, _ = model_and_inputs("Block")
    compiled = pipeline.compile(model, inputs)
    with mode():
        found, expected = compiled(*inputs), twin(*inputs)
    assert not found["h"].requires_grad
    assert torch.equal(found["h"], expected["h"])
    assert torch.equal(model.calls, twin.calls)
    compiled(*inputs)["h"].sum().backward()


def test_a_constant_that_is_no_number():
    compiled = pipeline.compile(lambda x, fill: x.masked_fill(x > 0, fill), (torch.randn(3), float("nan")))
    assert compiled(torch.ones(3), float("nan")).isnan().all()


def test_structures_are_shown_as_they_are_written():
    compiled = pipeline.compile(lambda pair: pair["a"] + pair["b"], ({"a": torch.ones(2), "b": torch.ones(2)},))
    message = "(({'a': *, 'b': *},), {}) there, (([*],), {}) here"
    with pytest.raises(ArtifactError, match=re.escape(message)):
        compiled([torch.ones(2)])
