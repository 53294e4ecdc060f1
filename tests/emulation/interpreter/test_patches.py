"""While a kernel runs Triton's language computes; before and after it is as it was."""

import threading

import pytest
import torch
import triton
import triton.language as tl

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.triton import kernel_type, semantic_class
from pytest_regional.emulation import EmulationError
from pytest_regional.emulation.interpreter.functions import _triton_patches, interpreting, patch_table

from .launching import run


@triton.jit
def double(a, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(a + i, tl.load(a + i) * 2)


@triton.jit
def failing(a):
    tl.store(a + 1000, 1.0)


def state() -> list[object]:
    return [vars(patch.owner).get(patch.name, "absent") for patch in patch_table()]


def test_the_table_is_of_an_unpatched_triton():
    assert len(patch_table()) > 300
    with interpreting():
        assert patch_table() is not None
        inside = state()
    assert all(now is not then for now, then in zip(inside, state(), strict=True))


def test_everything_is_as_before_after_a_launch():
    before = state()
    run(double, a=torch.ones(8), N=8)
    assert state() == before
    with pytest.raises(EmulationError):
        run(failing, a=torch.ones(8))
    assert state() == before


def test_outside_a_launch_kernels_cannot_be_called():
    run(double, a=torch.ones(8), N=8)
    with pytest.raises(RuntimeError, match=r"Cannot call @triton\.jit"):
        double(torch.ones(8), 8)
    with pytest.raises(ValueError, match="_semantic"):
        tl.load(0)


def test_a_kernel_compiles_after_it_was_interpreted():
    """One process interprets and compiles; the type system and the AST are Triton's own again."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    run(double, a=torch.ones(8), N=8)
    source = ASTSource(fn=double, signature={"a": "*fp32", "N": "constexpr"}, constexprs={(1,): 8})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    assert "st.global" in compiled.asm["ptx"]
    run(double, a=torch.ones(8), N=8)


def test_threads_launch_one_after_the_other():
    tensors, failures = [torch.ones(8) for _ in range(4)], []

    def launched(tensor):
        try:
            for _ in range(5):
                run(double, a=tensor, N=8)
        except BaseException as failure:  # noqa: BLE001
            failures.append(failure)

    threads = [threading.Thread(target=launched, args=(tensor,)) for tensor in tensors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert all((tensor == 32).all() for tensor in tensors)


def test_a_missing_symbol_is_named(monkeypatch):
    monkeypatch.delattr("triton.language.semantic.TritonSemantic")
    with pytest.raises(MissingTorchSymbolError, match=r"triton.language.semantic.TritonSemantic"):
        semantic_class()


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("triton.language.core.dtype.to_ir", "triton.language.core.dtype.to_ir"),
        ("triton.language.core.associative_scan", "triton.language.core.associative_scan"),
        ("triton.language.condition", "triton.language.condition"),
        ("triton.runtime.jit.JITFunction.__call__", "triton.runtime.jit.JITFunction.__call__"),
    ],
)
def test_the_replaced_attribute_must_exist(monkeypatch, place, named):
    monkeypatch.delattr(place)
    with pytest.raises(MissingTorchSymbolError, match=named.replace(".", r"\.")):
        _triton_patches.__wrapped__()


@pytest.mark.parametrize(("name", "type_"), [("i64", tl.int64), ("fp32", tl.float32), ("bf16", tl.bfloat16)])
def test_types_of_signatures(name, type_):
    assert kernel_type(name) == type_
    assert kernel_type(f"*{name}").element_ty == type_
