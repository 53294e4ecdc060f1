"""The flow: who compiles when, what is left alone, trainings that prove nothing."""

from __future__ import annotations

import functools
import types

import pytest
import torch
from torch import nn

from pytest_regional import BackendSpec, TrainingParityError
from pytest_regional.harness.training import BadTrainingError, assert_training_parity, train
from pytest_regional.testing import regional

from .programs import CLASSES, ROWS, SIZE, Small, batches, eager, judged

LOSS = nn.functional.cross_entropy


def test_the_backend_under_test_compiles_once():
    with eager() as harness:
        with harness.expect(graphs=2, recompiles=0):
            assert_training_parity(harness, Small(), batches(harness), loss=LOSS, level="bitwise")


def test_random_numbers_are_those_of_eager():
    """Inductor draws others, unless a setting says otherwise."""
    seen = []

    def looks(gm, inputs):
        seen.append(torch._inductor.config.fallback_random)
        return gm.forward

    with regional(BackendSpec("looks", lambda: looks), expects_regions=False) as harness:
        assert_training_parity(harness, Small(), batches(harness, 1), loss=LOSS)
    assert seen == [True]


@pytest.mark.slow("compiles a model and trains it", fast="test_random_numbers_are_those_of_eager")
def test_inductor_with_dropout():
    with regional("inductor", expects_regions=False) as harness:
        report = assert_training_parity(harness, Small(), batches(harness, 3), loss=LOSS)
    assert report.anchored
    assert 0 < report.worst_ratio <= 1


def test_model_and_batches_are_left_alone():
    with eager() as harness:
        model, steps = Small(), batches(harness, 2)
        before = [tensor.clone() for tensor in (*model.state_dict().values(), *steps[0])]
        assert_training_parity(harness, model, steps, loss=LOSS)
    after = [*model.state_dict().values(), *steps[0]]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())


def two_shapes(harness):
    return [(harness.randn(rows, SIZE), harness.randint(0, CLASSES, (rows,))) for rows in (ROWS, ROWS // 2)]


def test_a_compile_in_the_second_step_is_a_failure():
    with eager() as harness:
        with pytest.raises(TrainingParityError, match=r"step 2: .*inside no_compile"):
            assert_training_parity(harness, Small(), two_shapes(harness), loss=LOSS)


def test_unless_it_is_allowed():
    with eager() as harness:
        assert assert_training_parity(harness, Small(), two_shapes(harness), loss=LOSS, compiling_steps=2).ok


def test_eager_code_that_compiles_is_not_counted():
    class CompilesItself(Small):
        def forward(self, x):
            return super().forward(torch.compile(torch.sin, backend="eager")(x) if self.compiles else x.sin())

        compiles = True

    def compiled(model):
        model.compiles = False
        return model

    with eager() as harness, harness.expect(graphs=0):
        assert_training_parity(harness, CompilesItself(), batches(harness, 2), loss=LOSS, compiled=compiled)


def test_the_model_may_return_the_loss():
    class WithLoss(Small):
        def forward(self, x, target):
            return LOSS(super().forward(x), target)

    assert judged(lambda model: model, model=WithLoss(), loss=None).ok


def test_low_precision_is_anchored():
    model = Small().to(torch.bfloat16)
    with eager() as harness:
        report = assert_training_parity(harness, model, batches(harness, dtype=torch.bfloat16), loss=LOSS)
    assert report.anchored
    assert report.steps[0].gradient_error_eager > 1e-4


def test_a_double_model_has_no_float64_reference():
    model = Small().double()
    with eager() as harness:
        report = assert_training_parity(harness, model, batches(harness, dtype=torch.float64), loss=LOSS)
    assert "nothing that trains has a precision below float64" in str(report)


@pytest.mark.parametrize(
    "optimizer",
    [
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        functools.partial(torch.optim.AdamW, lr=1e-2, weight_decay=0.1),
    ],
    ids=["SGD", "AdamW"],
)
def test_another_optimizer(optimizer):
    assert judged(lambda model: model, optimizer=optimizer).ok


def test_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x).relu())

    report = judged(lambda model: model, model=Tied())
    assert report.ok
    assert report.anchored


class Unusual(nn.Module):
    """One parameter; what the model makes of it is for the test to say."""

    def __init__(self, forward):
        super().__init__()
        self.weight, self._forward = nn.Parameter(torch.randn(SIZE)), forward

    def forward(self, x):
        return self._forward(self.weight, x)


def fails(weight, x):
    raise ValueError("wrong sizes")


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (fails, "fails in eager, in step 1: ValueError: wrong sizes"),
        (lambda weight, x: (weight * 0 * x).sum(), "every gradient of every step is zero"),
        (lambda weight, x: weight * x, "a loss is a tensor of one element"),
        (lambda weight, x: None, "a loss is a tensor of one element"),
    ],
    ids=["raises", "no gradient", "no scalar", "nothing"],
)
def test_a_training_that_proves_nothing(forward, message):
    with eager() as harness, pytest.raises(BadTrainingError, match=message):
        assert_training_parity(harness, Unusual(forward), [harness.randn(2, SIZE)], compiled=lambda model: model)


def test_float64_that_fails_is_no_float64_reference():
    def forward(weight, x):
        if weight.dtype == torch.float64:
            raise NotImplementedError("float32 only")
        return (weight * x).square().sum()

    with eager() as harness:
        steps = [harness.randn(2, SIZE)] * 2
        report = assert_training_parity(harness, Unusual(forward), steps, compiled=lambda model: model)
    assert "the float64 run raised NotImplementedError: float32 only" in str(report)
    assert report.steps[1].drift is None


def test_no_batches():
    with pytest.raises(BadTrainingError, match="no batches"), eager() as harness:
        assert_training_parity(harness, Small(), [])


def test_nothing_that_trains():
    with pytest.raises(BadTrainingError, match="no parameter that requires a gradient"), eager() as harness:
        assert_training_parity(harness, Small().requires_grad_(False), batches(harness), loss=LOSS)


@pytest.mark.parametrize(
    ("compiled", "message"),
    [(lambda model: None, "cannot be called"), (lambda model: nn.Linear(3, 3), "other parameters than the model")],
    ids=["nothing", "another module"],
)
def test_what_compiled_may_return(compiled, message):
    with pytest.raises(BadTrainingError, match=message), eager() as harness:
        assert_training_parity(harness, Small(), batches(harness), loss=LOSS, compiled=compiled)


def test_an_unknown_level():
    with pytest.raises(ValueError, match="Did you mean 'bitwise'"), eager() as harness:
        assert_training_parity(harness, Small(), batches(harness), loss=LOSS, level="bitwse")


def test_train_alone():
    with eager() as harness:
        model, steps = Small(), batches(harness)
        run = train(model, model, steps, loss=LOSS)
    assert len(run.losses) == 5
    assert [step.number for step in run.steps] == [1, 2, 3, 4, 5]
    for name, parameter in model.named_parameters():
        assert torch.equal(run.steps[-1].parameters[name], parameter)
        assert not torch.equal(run.steps[0].parameters[name], parameter)
    assert run.steps[1].gradients["up.weight"].shape == model.up.weight.shape
    assert int(run.steps[2].buffers["norm.num_batches_tracked"]) == 3


def test_train_does_what_a_loop_by_hand_does():
    model, steps = Small(), [(torch.randn(ROWS, SIZE), torch.randint(0, CLASSES, (ROWS,))) for _ in range(3)]
    mine = Small()
    mine.load_state_dict(model.state_dict())
    run = train(model, model, steps, loss=LOSS, seed=5)
    optimizer, losses = torch.optim.Adam(mine.parameters(), lr=1e-3), []
    for number, (x, target) in enumerate(steps, start=1):
        torch.manual_seed(5 + number)
        optimizer.zero_grad()
        loss = LOSS(mine(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert run.losses == tuple(losses)
    assert all(torch.equal(run.steps[-1].parameters[name], p) for name, p in mine.named_parameters())


# Models that are called by keyword


class ByKeyword(Small):
    """Takes nothing but keywords and returns an object that holds the loss, as many a model does."""

    def forward(self, *, values, scale=1.0, labels=None):
        logits = super().forward(values) * scale
        if labels is None:
            return logits
        return types.SimpleNamespace(loss=LOSS(logits, labels), logits=logits)


def by_keyword(harness):
    return [{"values": x, "labels": y} for x, y in batches(harness, 3)]


def test_a_batch_of_keyword_arguments():
    with eager() as harness:
        steps = by_keyword(harness)
        report = assert_training_parity(harness, ByKeyword(), steps, compiled=lambda model: model)
        run = train(model := ByKeyword(), model, steps)
    assert report.anchored
    assert len(run.losses) == 3


def test_the_last_keyword_is_the_target_of_a_loss():
    with eager() as harness:
        report = assert_training_parity(
            harness, ByKeyword(), by_keyword(harness), loss=LOSS, compiled=lambda model: model
        )
    assert report.ok


def test_keyword_arguments_of_every_step():
    with eager() as harness:
        steps, options = by_keyword(harness), {"compiled": lambda model: model}
        model = ByKeyword()
        one = assert_training_parity(harness, model, steps, **options)
        other = assert_training_parity(harness, model, steps, kwargs={"scale": 2.0}, **options)
    assert one.steps[0].loss != other.steps[0].loss
