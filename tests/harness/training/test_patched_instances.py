"""Models whose instances were patched: every copy calls its own modules, or the model is refused by name."""

from __future__ import annotations

import functools
import types
import warnings

import pytest
import torch
from torch import nn

from pytest_regional import region
from pytest_regional.harness.training import (
    BadTrainingError,
    NoFp64ReferenceWarning,
    assert_training_parity,
    copy_model,
)

from .programs import CLASSES, ROWS, SIZE, eager, judged


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.head = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mlp(x).tanh())


def by_decorator(model):
    model.mlp.forward = region("mlp")(model.mlp.forward)


def by_closure_over_a_bound_method(model):
    original = model.mlp.forward
    model.mlp.forward = lambda x: original(x) * 1.0


def by_closure_over_a_module(model):
    layer = model.mlp
    model.mlp.forward = lambda x: nn.functional.linear(x, layer.weight, layer.bias)


def by_closure_over_a_parameter(model):
    weight, bias = model.mlp.weight, model.mlp.bias
    model.mlp.forward = lambda x: nn.functional.linear(x, weight, bias)


def by_default_argument(model):
    def forward(x, layer=model.mlp, *, again=(model.mlp,)):
        return nn.functional.linear(x, layer.weight, again[0].bias)

    model.mlp.forward = forward


def by_closure_over_containers(model):
    layers = {"all": [model.mlp]}
    model.mlp.forward = lambda x: nn.functional.linear(x, layers["all"][0].weight, layers["all"][0].bias)


def by_partial(model):
    model.mlp.forward = functools.partial(lambda layer, x: nn.Linear.forward(layer, x), model.mlp)


def by_partial_of_a_closure(model):
    original = model.mlp.forward
    model.mlp.forward = functools.partial(lambda scale, x: scale * original(x), 1.0)


def by_bound_method(model):
    model.mlp.forward = types.MethodType(lambda layer, x: nn.functional.linear(x, layer.weight, layer.bias), model.mlp)


def by_bound_method_of_a_closure(model):
    original = model.mlp.forward
    model.mlp.forward = types.MethodType(lambda layer, x: original(x), model.mlp)


def by_two_layers_of_closures(model):
    by_closure_over_a_bound_method(model)
    by_decorator(model)


def by_object(model):
    class Wrapper:
        def __init__(self, forward):
            self.forward = forward

        def __call__(self, x):
            return self.forward(x)

    inner = Wrapper(model.mlp.forward)
    model.mlp.forward = lambda x: inner(x)


def by_forward_hook(model):
    layer = model.mlp
    model.mlp.register_forward_hook(lambda module, inputs, output: nn.functional.linear(inputs[0], layer.weight))


def by_recursive_closure(model):
    original = model.mlp.forward

    def forward(x, depth=1):
        return original(x) if depth == 0 else forward(x, depth - 1)

    model.mlp.forward = forward


PATCHES = (
    by_decorator,
    by_closure_over_a_bound_method,
    by_closure_over_a_module,
    by_closure_over_a_parameter,
    by_default_argument,
    by_closure_over_containers,
    by_partial,
    by_partial_of_a_closure,
    by_bound_method,
    by_bound_method_of_a_closure,
    by_two_layers_of_closures,
    by_object,
    by_recursive_closure,
)


@pytest.mark.parametrize("patch", PATCHES)
def test_every_copy_calls_its_own_modules(patch):
    model = Block()
    patch(model)
    x = torch.randn(ROWS, SIZE)
    expected = model(x).detach()

    copied = copy_model(model)
    with torch.no_grad():
        assert torch.equal(copied(x), expected)
        model.mlp.weight.zero_()
        assert torch.equal(copied(x), expected)
        copied.mlp.weight.zero_()
        assert not torch.equal(copied(x), expected)


@pytest.mark.parametrize("patch", PATCHES)
def test_trained_with_all_gradients_and_float64(patch):
    model = Block()
    patch(model)
    report = judged(lambda copied: copied, model=model)
    assert report.ok
    assert report.anchored
    # Loss, four gradients, four parameters; five times.
    assert report.compared == 5 * 9


def test_a_hook_over_a_module_is_bound_to_the_copy():
    model = Block()
    by_forward_hook(model)
    report = judged(lambda copied: copied, model=model, allow_unused=("mlp.bias",))
    assert report.compared == 5 * 8
    assert report.anchored


def test_objects_shared_by_closures_stay_shared():
    model, calls = Block(), []
    original = model.mlp.forward

    def forward(x):
        calls.append(1)
        return original(x)

    model.mlp.forward = forward
    copy_model(model)(torch.randn(ROWS, SIZE))
    assert calls == [1]


def test_a_model_that_is_not_patched_is_copied_as_deepcopy_does():
    model = Block()
    model.activation = torch.tanh
    copied = copy_model(model)
    assert copied.activation is torch.tanh
    assert "forward" not in vars(copied.mlp)


GLOBAL_MODEL = Block()


def global_forward(x):
    return nn.functional.linear(x, GLOBAL_MODEL.mlp.weight, GLOBAL_MODEL.mlp.bias)


class Unsized(tuple):
    """As the multiplicities of e3nn's irreducible representations."""

    __slots__ = ()

    def __len__(self):
        raise NotImplementedError

    __iter__ = __len__


def test_a_tuple_that_has_no_length_is_copied():
    model = Block()
    model.irreps = Unsized((1, model.mlp))
    model.mlp.register_forward_hook(lambda module, inputs, output: output)
    copied = copy_model(model)
    assert type(copied.irreps) is Unsized
    assert copied.irreps[1] is copied.mlp is not model.mlp


def test_a_global_variable_is_refused_by_name(monkeypatch):
    monkeypatch.setitem(vars(GLOBAL_MODEL.mlp), "forward", global_forward)
    with pytest.raises(BadTrainingError, match=r"mlp\.forward.*global_forward.*GLOBAL_MODEL.*[Pp]atch the class"):
        copy_model(GLOBAL_MODEL)


class Opaque:
    """A callable that no copy can look into."""

    __slots__ = ("forward",)

    def __init__(self, forward):
        self.forward = forward

    def __call__(self, x):
        return self.forward(x)

    def __deepcopy__(self, memo):
        return self


def test_opaque_objects_are_noticed_by_the_gradients_of_the_original():
    model = Block()
    layer = model.mlp
    model.mlp.forward = Opaque(lambda x: nn.functional.linear(x, layer.weight, layer.bias))
    with pytest.raises(BadTrainingError, match=r"mlp\.weight, mlp\.bias.*of the model itself.*[Pp]atch the class"):
        judged(lambda copied: copied, model=model)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_of_the_model_are_left_alone():
    model = Block()
    model.mlp.weight.grad = torch.ones_like(model.mlp.weight)
    judged(lambda copied: copied, model=model)
    assert torch.equal(model.mlp.weight.grad, torch.ones_like(model.mlp.weight))


# Parameters without a gradient


class Unused(Block):
    def __init__(self) -> None:
        super().__init__()
        self.spare, self.other = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)


def test_parameters_without_a_gradient_are_named_and_fail():
    with pytest.raises(BadTrainingError, match=r"spare\.weight, spare\.bias, other\.weight.*allow_unused"):
        judged(lambda copied: copied, model=Unused())


@pytest.mark.parametrize("allowed", [True, ("spare.*", "other.weight")])
def test_unless_they_are_allowed(allowed):
    report = judged(lambda copied: copied, model=Unused(), allow_unused=allowed)
    assert report.unused == ("spare.weight", "spare.bias", "other.weight")
    assert "no gradient in eager, nothing compared: spare.weight, spare.bias, other.weight" in report.describe()


def test_unused_parameters_that_are_not_allowed_still_fail():
    with pytest.raises(BadTrainingError, match=r"1 trainable parameter .*: other\.weight;"):
        judged(lambda copied: copied, model=Unused(), allow_unused=("spare.*",))


def test_a_pattern_that_names_no_parameter_is_an_error():
    with pytest.raises(ValueError, match=r"'spar\.\*'.*spare\.weight"):
        judged(lambda copied: copied, model=Unused(), allow_unused=("spar.*",))


def test_a_frozen_parameter_needs_no_gradient():
    model = Unused()
    model.spare.requires_grad_(False)
    model.other.requires_grad_(False)
    assert judged(lambda copied: copied, model=model).unused == ()


def test_a_parameter_used_in_one_step_is_used():
    class Now(Block):
        def forward(self, x):
            return super().forward(x) if x.shape[0] > 4 else self.head(x)

    with eager() as harness:
        batches = [(harness.randn(rows, SIZE), harness.randint(0, CLASSES, (rows,))) for rows in (8, 4)]
        report = assert_training_parity(
            harness, Now(), batches, loss=nn.functional.cross_entropy, compiled=lambda copied: copied
        )
    assert report.unused == ()


# A missing float64 reference


class NoFloat64(Block):
    def forward(self, x):
        if x.dtype == torch.float64:
            raise RuntimeError("float32 only")
        return super().forward(x)


def test_a_missing_float64_reference_is_a_warning_and_stands_in_the_summary():
    with pytest.warns(NoFp64ReferenceWarning, match="float32 only"):
        report = judged(lambda copied: copied, model=NoFloat64())
    assert not report.anchored
    assert "no float64 reference in steps 1 to 5" in report.summary()


@pytest.mark.parametrize("options", [{"level": "bitwise"}, {"level": "dtype"}, {"rtol": 1e-4}])
def test_without_a_float64_reference_none_is_lost(options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", NoFp64ReferenceWarning)
        judged(lambda copied: copied, model=NoFloat64(), **options)


def test_a_model_in_float64_needs_none():
    with warnings.catch_warnings(), eager() as harness:
        warnings.simplefilter("error", NoFp64ReferenceWarning)
        batches = [(harness.randn(ROWS, SIZE, dtype=torch.float64), harness.randint(0, CLASSES, (ROWS,)))]
        assert_training_parity(
            harness, Block().double(), batches, loss=nn.functional.cross_entropy, compiled=lambda copied: copied
        )
