"""``compare_rooflines`` measures and judges: no number is asserted, but that it sees what is slow or wrong."""

import math
import time

import pytest
import torch

from pytest_regional._region import region
from pytest_regional.reference.full_inductor import Roofline, Rooflines, compare_rooflines
from pytest_regional.reference.pipeline import graph_pass


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)

    def forward(self, x):
        with region("activation"):
            h = torch.nn.functional.gelu(self.linear(x))
        return self.norm(h)


@pytest.fixture(autouse=True)
def _one_thread():
    """A busy machine makes threads that wait for each other slower than any pass."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@graph_pass(graphs="forward", terminal=True)
def slow(gm, example_inputs):
    def run(*inputs):
        time.sleep(0.05)
        return gm.forward(*inputs)

    return run


@graph_pass(graphs="backward")
def wrong(gm):
    (node, *_) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.gelu_backward.default)
    node.target = torch.ops.aten.mul.Tensor


def test_side_by_side():
    model, x = Model(), torch.randn(16, 8, requires_grad=True)
    x.grad = torch.ones_like(x)
    found = compare_rooflines(model, (x,), repeats=3, warmup=1)
    assert list(found) == ["eager", "graph", "regional_inductor", "full_inductor"]
    assert {len(row.seconds) for row in found.values()} == {3}
    assert all(second > 0 for row in found.values() for second in row.seconds)
    assert [row.compiles for row in found.values()] == [0, 0, 2, 2]
    assert found["graph"].launches == 0
    assert found["full_inductor"].launches > 0 < found["regional_inductor"].launches
    assert found["graph"].worst_error == 0
    assert 0 < found["full_inductor"].worst_error < 1e-5
    assert found.speed("eager") == 1
    # and the model is as it was
    assert model.linear.weight.grad is None
    assert torch.equal(x.grad, torch.ones_like(x))
    assert model.norm.num_batches_tracked == 0
    header, columns, *rows = str(found).splitlines()
    assert header == "forward and backward on cpu, 3 steps"
    assert [row.split()[0] for row in rows] == list(found)
    assert columns.index("worst error") == rows[1].index(f"{found['graph'].worst_error:.1e}")


def test_a_slow_pipeline_and_a_wrong_one_are_seen():
    pipelines = {"slow": [slow], "wrong": [wrong], "regional_inductor": [], "full_inductor": []}
    found = compare_rooflines(Model(), (torch.randn(16, 8),), pipelines=pipelines, repeats=3, warmup=0)
    assert found["slow"].median > 0.05
    assert found.speed("slow") < 0.5
    assert found["slow"].worst_error == 0
    assert found["wrong"].worst_error > 1e-2
    assert found["wrong"].worst_result.startswith("gradient of linear")


def test_without_gradients_the_forward_is_measured():
    nothing = {"regional_inductor": [], "full_inductor": []}
    found = compare_rooflines(lambda x, *, factor: x * factor, (torch.randn(4),), {"factor": torch.ones(4)},
                              pipelines=nothing, repeats=1, warmup=0)  # fmt: skip
    assert found["graph"].worst_error == 0
    assert found["graph"].spread == 0


class Dropping(torch.nn.Module):
    """Draws where Inductor compiles, in the whole graph alone."""

    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5).sin()


def test_where_a_pipeline_draws_other_numbers_there_is_no_error_to_tell():
    found = compare_rooflines(Dropping(), (torch.ones(64, requires_grad=True),), repeats=1, warmup=0)
    assert [row.has_own_draws for row in found.values()] == [False, False, False, True]
    assert found["graph"].worst_error == found["regional_inductor"].worst_error == 0
    assert math.isnan(found["full_inductor"].worst_error)
    *_, row, note = str(found).splitlines()
    assert row.split()[-1] == "draws"
    assert "fallback_random" in note


def test_where_it_draws_eagers_numbers_the_error_counts():
    with torch._inductor.config.patch(fallback_random=True):
        found = compare_rooflines(Dropping(), (torch.ones(64, requires_grad=True),), repeats=1, warmup=0)
    assert not found["full_inductor"].has_own_draws
    assert found["full_inductor"].worst_error < 1e-5
    assert "draws" not in str(found)


def test_a_wrong_pipeline_of_a_model_that_draws_is_seen():
    def without_sine(gm):
        (node, *_) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
        node.target = torch.ops.aten.neg.default

    pipelines = {"wrong": [graph_pass(graphs="forward")(without_sine)], "regional_inductor": [], "full_inductor": []}
    found = compare_rooflines(
        Dropping(), (torch.ones(64, requires_grad=True),), pipelines=pipelines, repeats=1, warmup=0
    )
    assert found["wrong"].worst_error > 1e-2


def test_numbers_in_the_table():
    rows = Roofline("eager", (2.0, 2.0)), Roofline("mine", (1.0, 1.0, 3.0), 4.0, 1, 7, 2**20, 1e-7, "output")
    table = str(Rooflines(rows, "cpu")).splitlines()
    assert table[-1].split() == ["mine", "1000.000", "50%", "2.00x", "4.0", "1", "7", "1.0", "1.0e-07", "output"]


def test_mistakes():
    with pytest.raises(ValueError, match="repeats=0"):
        compare_rooflines(torch.sin, (torch.randn(2),), repeats=0)
    with pytest.raises(KeyError, match="'eager'"):
        Rooflines((Roofline("eager", (1.0,)),), "cpu")["eagre"]
