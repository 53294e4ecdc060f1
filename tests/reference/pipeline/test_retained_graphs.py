"""Backward twice, and gradients of gradients: what AOTAutograd gives, as the documentation says."""

import pytest
import torch

from pytest_regional.reference import RegionalInductor, full_inductor, pipeline
from pytest_regional.reference.full_inductor import compiling
from suites.regions.retained import WAYS, retained_then_again, two_outputs

PASSES = {"none": (), "regional": (RegionalInductor(),), "full": (full_inductor,)}


class Outputs(torch.nn.Module):
    """Calls the program: what is loaded needs a module."""

    def forward(self, x, w):
        return two_outputs(x, w)


def leaves():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(2)]


def check(program, ways=WAYS):
    for way in ways:
        torch.testing.assert_close(way(program, *leaves()), way(two_outputs, *leaves()), msg=way.__name__)


def let_go(program):
    """Run a backward that keeps nothing, which AOTAutograd takes for a promise."""
    sum(output.sum() for output in program(*leaves())).backward()


@pytest.mark.parametrize("passes", PASSES)
def test_graphs_are_kept(passes, tmp_path):
    compiled = pipeline.compile(Outputs(), tuple(leaves()), passes=PASSES[passes])
    check(compiled)
    let_go(compiled)
    check(compiled)
    compiled.save(tmp_path / "model")
    loaded = pipeline.load(tmp_path / "model", Outputs())
    let_go(loaded)
    check(loaded)


def test_graphs_are_kept_by_what_a_cache_had():
    for _ in range(2):
        check(pipeline.compile(Outputs(), tuple(leaves()), passes=[full_inductor], cache=True))


def test_buffers_are_donated(monkeypatch):
    """Without copies the backward overwrites what the second one needs."""
    compiled = pipeline.compile(Outputs(), tuple(leaves()), passes=[full_inductor])
    monkeypatch.setattr(compiling, "backward_keeps_graph", lambda: False)
    with pytest.raises(AssertionError):
        check(compiled, [retained_then_again])


def test_a_copy_keeps_gaps_and_overlaps():
    base = torch.arange(24.0)
    for value in (base.reshape(4, 6)[1:, ::2], base[:3].expand(4, 3), base.unfold(0, 4, 1)):
        copy = compiling._copy(value)
        assert torch.equal(copy, value)
        assert (copy.stride(), copy.storage_offset()) == (value.stride(), value.storage_offset())
        assert copy.data_ptr() != value.data_ptr()


def test_a_compiler_of_the_users_is_guarded_by_aotautograd():
    """Nobody knows whether it overwrites what was saved."""
    from torch._inductor.output_code import CompiledFxGraph

    def compile_as_users_do(gm, inputs):
        compiled = full_inductor(gm, inputs)
        compiled.__class__ = CompiledFxGraph
        return compiled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "donate_nothing", lambda: None)
        compiled = pipeline.compile(
            Outputs(), tuple(leaves()), passes=[pipeline.graph_pass(terminal=True)(compile_as_users_do)]
        )
    with pytest.raises(RuntimeError, match="donated"):
        check(compiled, [retained_then_again])


@pytest.mark.parametrize("passes", PASSES)
def test_there_are_no_gradients_of_gradients(passes):
    compiled = pipeline.compile(Outputs(), tuple(leaves()), passes=PASSES[passes])
    x, w = leaves()
    loss = sum(output.sum() for output in compiled(x, w))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    # 2.11 does not refuse, but gives a gradient that requires none.
    with pytest.raises(RuntimeError, match=r"double backward|does not require grad"):
        gradient.sum().backward()
