"""The parts of a wrapper: its functions, its kernels, and what its short names stand for."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from pytest_regional.harness.codegen.errors import UnreadableCodeError
from pytest_regional.harness.codegen.kernels import KernelDefinition, kernels_of
from pytest_regional.harness.codegen.names import module_aliases


@dataclass(frozen=True)
class Wrapper:
    """A parsed wrapper.

    Attributes:
        lines: its text by line.
        functions: ``call`` and the functions of subgraphs and partitions, by name.
        kernels: the kernels it compiles, by name.
        aliases: its module-level short names.
    """

    lines: list[str]
    functions: dict[str, ast.FunctionDef]
    kernels: dict[str, KernelDefinition]
    aliases: dict[str, str]

    @staticmethod
    def of(text: str) -> Wrapper:
        """Parse ``text``.

        Raises:
            UnreadableCodeError: it is C++ (``cpp_wrapper``), or has no function ``call``.
        """
        try:
            module = ast.parse(text)
        except SyntaxError as error:
            raise UnreadableCodeError(
                f"the generated code is not Python (line {error.lineno}: {error.msg}); the reader knows Inductor's "
                f"Python wrappers, not what AOTInductor or cpp_wrapper generate"
            ) from error
        functions = _functions(module)
        if "call" not in functions:
            raise UnreadableCodeError(_why_no_call(module))
        return Wrapper(text.split("\n"), functions, kernels_of(module), module_aliases(module))


def _functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    found = {part.name: part for part in module.body if isinstance(part, ast.FunctionDef)}
    for part in module.body:
        if isinstance(part, ast.ClassDef):
            found |= {inner.name: inner for inner in part.body if isinstance(inner, ast.FunctionDef)}
    return found


def _why_no_call(module: ast.Module) -> str:
    assigned = {
        target.id
        for part in ast.walk(module)
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    if "cpp_wrapper_src" in assigned:
        return (
            "the generated code is a C++ wrapper, which the reader does not know; compile with "
            "torch._inductor.config.cpp_wrapper = False"
        )
    return "the generated code has no function 'call', so it is none of Inductor's Python wrappers"
