"""Private symbols of Triton: its language's builtins, its interpreter's pieces and its compiled functions' sources.

Checked with triton 3.6 (torch 2.11) and 3.9 (torch 2.13 and 2.15).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from pytest_regional._torch import MissingTorchSymbolError, private_module, symbol

_INTERPRETER = "triton.runtime.interpreter"
_LANGUAGE = "triton.language"


def interpreter_builder_class() -> type:
    """Return ``InterpreterBuilder``, whose ``create_*`` methods compute with numpy (3.6 to 3.9)."""
    found: type = symbol(_INTERPRETER, "InterpreterBuilder")
    return found


def interpreter_options(**changes: Any) -> Any:
    """Return ``InterpreterOptions``, a frozen dataclass, with ``changes`` (3.6 to 3.9)."""
    return symbol(_INTERPRETER, "InterpreterOptions")(**changes)


def semantic_class() -> type:
    """Return ``TritonSemantic``, which checks and promotes types before it calls its builder (3.6 to 3.9)."""
    found: type = symbol("triton.language.semantic", "TritonSemantic")
    return found


def is_builtin(member: Any) -> bool:
    """Say whether ``member`` is a builtin of the language: a function that needs a ``_semantic`` (3.6 to 3.9)."""
    return bool(symbol(_LANGUAGE, "core.is_builtin")(member))


def builtin_owners() -> tuple[Any, ...]:
    """Return the modules and classes whose builtins kernels call (3.6 to 3.9).

    ``triton.language.core`` and ``triton.language`` hold the same functions, and both are looked into: kernels use
    one, Triton's own library of kernels' functions the other.
    """
    core = symbol(_LANGUAGE, "core")
    descriptor = symbol(_LANGUAGE, "core.tensor_descriptor_base")
    return private_module(_LANGUAGE), core, private_module("triton.language.math"), core.tensor, descriptor


def builtins_of(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and function of the builtins of a module or class."""
    for name, member in inspect.getmembers(owner):
        if is_builtin(member):
            yield name, member


def unwrapping() -> tuple[Any, str, Any]:
    """Return where Triton takes the value out of a ``constexpr``, for every argument: ``core._unwrap_if_constexpr``.

    Owner, name and function; lists and tuples are unwrapped item by item (3.6 to 3.9).
    """
    core = symbol(_LANGUAGE, "core")
    return core, "_unwrap_if_constexpr", symbol(_LANGUAGE, "core._unwrap_if_constexpr")


def loop_condition_class() -> type:
    """Return ``tl.condition``, what may stand in a kernel's ``while`` (3.6 to 3.9)."""
    found: type = symbol(_LANGUAGE, "condition")
    return found


def require_attribute(owner: Any, name: str) -> None:
    """Check that something of Triton's that is to be replaced is there.

    Raises:
        MissingTorchSymbolError: naming it, when it is not: Triton has moved, and replacing it would do nothing.
    """
    bases = owner.__mro__ if isinstance(owner, type) else (owner,)
    if not any(name in vars(base) for base in bases):
        place = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        raise MissingTorchSymbolError(
            f"{place}.{name} does not exist in triton {private_module('triton').__version__}; kernels are interpreted "
            f"with triton 3.6 to 3.9. Install one of them, or a pytest-regional that knows this one."
        )


def jit_function_class() -> type:
    """Return ``JITFunction``, what ``@triton.jit`` makes; calling one outside a kernel raises (3.6 to 3.9)."""
    found: type = symbol("triton.runtime.jit", "JITFunction")
    return found


def jit_source(function: Any) -> str:
    """Return a jitted function's text from ``def`` on: ``JITFunction.src`` (3.6 to 3.9)."""
    return str(function.src)


def jit_first_line(function: Any) -> int:
    """Return the line of its file on which a jitted function's ``def`` stands (3.6 to 3.9).

    ``raw_src`` holds the lines from ``starting_line_number`` on, decorators first.
    """
    before = next((i for i, line in enumerate(function.raw_src) if line.strip().startswith("def ")), 0)
    return int(function.starting_line_number) + before


def jit_parameters(function: Any) -> list[Any]:
    """Return a jitted function's parameters: ``JITFunction.params``, with name, is_constexpr, default (3.6 to 3.9)."""
    return list(function.params)


def library_stub() -> Any:
    """Return ``triton.language.extra.libdevice``: names only, which a compiler exchanges for a backend's functions."""
    return private_module("triton.language.extra.libdevice")


def cuda_library() -> Any:
    """Return ``triton.language.extra.cuda.libdevice``: overloads by type, each naming a ``__nv_*`` function."""
    return private_module("triton.language.extra.cuda.libdevice")


def inductor_helpers() -> Any:
    """Return ``torch._inductor.runtime.triton_helpers``: functions that Inductor's kernels call (torch 2.11 to 2.15).

    It is looked up, not imported: a kernel that uses it has imported it.
    """
    return sys.modules.get("torch._inductor.runtime.triton_helpers")


def kernel_type(mangled: str) -> Any:
    """Return the ``tl.dtype`` or pointer type that a signature names, such as ``*fp32`` or ``i64`` (3.6 to 3.9)."""
    return symbol(_LANGUAGE, "str_to_ty")(mangled, None)


def type_of_argument(value: Any) -> str:
    """Return the signature's name of a launch argument's type: ``triton.runtime.jit.mangle_type`` (3.6 to 3.9)."""
    return str(symbol("triton.runtime.jit", "mangle_type")(value))


def tensor_descriptor_class() -> type:
    """Return ``TensorDescriptor``, a host's description of a tensor for block loads (3.6 to 3.9)."""
    found: type = symbol("triton.tools.tensor_descriptor", "TensorDescriptor")
    return found


def grid_of_inductor_kernel(inductor_meta: Any, config: Any, values: dict[str, Any]) -> tuple[int, int, int]:
    """Return the grid Inductor's launcher would compute: ``GridExpr.from_meta(...).eval_slow`` (torch 2.11 to 2.15)."""
    expression = symbol("torch._inductor.runtime.triton_heuristics", "GridExpr").from_meta(inductor_meta, config)
    x, y, z = expression.eval_slow(values)
    return int(x), int(y), int(z)
