"""Definitions of kernels in a wrapper: which of their parameters are read and which are written."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from pytest_regional.harness.codegen.pointers import Accesses, accesses_of

TEMPLATE = "triton_tem_"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: its name, and what the kernel may do with it."""

    name: str
    reads: bool
    writes: bool


@dataclass(frozen=True)
class KernelDefinition:
    """A kernel that the wrapper compiles before its first call.

    Attributes:
        name: the wrapper's name for it.
        language: the method of ``async_compile`` that compiles it, such as ``"cpp_pybinding"`` or ``"triton"``.
        parameters: in order, as far as they could be read.
        function: name of the function inside, which differs from ``name`` for a kernel that the user wrote.
        source: the text that is compiled: a Python module for Triton.
        attribute: the name under which that module defines it.
    """

    name: str
    language: str
    parameters: tuple[Parameter, ...]
    function: str
    source: str = field(default="", repr=False)
    attribute: str = ""

    @property
    def is_users(self) -> bool:
        """Say whether the user wrote this kernel, in Triton."""
        return self.language == "triton" and not self.function.startswith("triton_")


def kernels_of(module: ast.Module) -> dict[str, KernelDefinition]:
    """Return the kernels that ``module`` defines with ``async_compile``, by name."""
    found = {}
    for statement in module.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            definition = _definition(statement.targets[0].id, statement.value)
            if definition:
                found[definition.name] = definition
    return found


def _definition(name: str, value: ast.expr) -> KernelDefinition | None:
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    if not isinstance(value.func.value, ast.Name) or value.func.value.id != "async_compile":
        return None
    language = value.func.attr
    source = next((text for text in map(_text, reversed(value.args)) if text is not None), "")
    if language.startswith("cpp"):
        return KernelDefinition(name, language, _cpp_parameters(value.args[0], source), name)
    if language == "triton":
        return replace(_triton_definition(name, source), source=source, attribute=_text(value.args[0]) or name)
    return KernelDefinition(name, language, (), name)


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _cpp_parameters(types: ast.expr, source: str) -> tuple[Parameter, ...]:
    """Read ``['const float*', 'float*']``; the C++ signature tells which of the written ones are read as well."""
    if not isinstance(types, ast.List):
        return ()
    spelled = [_text(element) or "" for element in types.elts]
    names = _cpp_names(source)
    if len(names) != len(spelled):
        names = [f"parameter{number}" for number in range(len(spelled))]
    return tuple(_cpp_parameter(name, spelling) for name, spelling in zip(names, spelled, strict=True))


def _cpp_parameter(name: str, spelling: str) -> Parameter:
    pointer, const = spelling.endswith("*"), spelling.startswith("const ")
    return Parameter(name, reads=pointer and (const or name.startswith("in_out")), writes=pointer and not const)


def _cpp_names(source: str) -> list[str]:
    """Return the parameter names of the ``extern "C"`` function in C++ ``source``."""
    signature = source.partition('extern "C"')[2].partition("(")[2].partition(")")[0]
    return [part.split()[-1].lstrip("*") for part in signature.split(",") if part.strip()]


def _triton_definition(name: str, source: str) -> KernelDefinition:
    try:
        module = ast.parse(source)
    except SyntaxError:
        return KernelDefinition(name, "triton", (), name)
    functions = {part.name: part for part in module.body if isinstance(part, ast.FunctionDef) and part.decorator_list}
    if not functions:
        return KernelDefinition(name, "triton", (), name)
    function = functions.get(name) or list(functions.values())[-1]
    mutated = _mutated(function)
    written_by_user = not function.name.startswith("triton_")
    accesses = accesses_of(function, functions) if function.name.startswith(TEMPLATE) else Accesses()
    names = [argument.arg for argument in function.args.args]
    parameters = [_triton_parameter(argument, mutated, written_by_user, accesses) for argument in names]
    return KernelDefinition(name, "triton", tuple(parameters), function.name)


def _triton_parameter(name: str, mutated: frozenset[str], written_by_user: bool, accesses: Accesses) -> Parameter:
    if name in mutated or name.startswith(("in_out_ptr", "ws_ptr", "sem_ptr")):
        return Parameter(name, reads=True, writes=True)
    if name.startswith("out_ptr"):
        return Parameter(name, reads=False, writes=True)
    if name.startswith(("in_ptr", "arg_")):
        # A template such as flex_attention's returns more than its output, through arguments that it stores to.
        written = name in accesses.stored
        return Parameter(name, reads=not written or name in accesses.loaded, writes=written)
    # Inductor says which parameters of a user's kernel are written only where its analysis found out.
    return Parameter(name, reads=written_by_user, writes=written_by_user and not mutated)


def _mutated(function: ast.FunctionDef) -> frozenset[str]:
    """Return ``mutated_arg_names`` of the ``inductor_meta`` in the decorators."""
    for decorator in function.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "inductor_meta" and isinstance(keyword.value, ast.Dict):
                return _strings_under("mutated_arg_names", keyword.value)
    return frozenset()


def _strings_under(key: str, table: ast.Dict) -> frozenset[str]:
    for name, value in zip(table.keys, table.values, strict=True):
        if name is not None and _text(name) == key:
            return frozenset(filter(None, (_text(part) for part in ast.walk(value) if isinstance(part, ast.expr))))
    return frozenset()
