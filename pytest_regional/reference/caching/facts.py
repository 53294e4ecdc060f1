"""What a trace depends on, as texts that are the same in every process.

Dynamo's guards compare objects by identity, which means nothing in another process. Here functions are compared by
their code, classes by the code and constants of all their bases, constants by value. Whatever has no such text is
refused.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from pytest_regional._errors import RegionalError
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload, is_op_packet

_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_BUILTIN_FUNCTIONS = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)

#: Attributes of a class that differ between processes, or decide over nothing.
_NO_FACTS = frozenset(("__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "_abc_impl"))


class UnstableValueError(RegionalError, ValueError):
    """A value in a cache key has no text that is the same in every process."""


def code_digest(code: types.CodeType) -> str:
    """Return a digest of what ``code`` does: its bytecode, constants and names, and those of nested functions."""
    return _code_digest(code, code.co_qualname if hasattr(code, "co_qualname") else code.co_name)


@functools.lru_cache(maxsize=8192)
def _code_digest(code: types.CodeType, name: str) -> str:
    consts = [code_digest(one) if isinstance(one, types.CodeType) else _const(one) for one in code.co_consts]
    parts = (
        name,
        code.co_code,
        consts,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        getattr(code, "co_exceptiontable", b""),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _const(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(_const, value))})"
    if isinstance(value, tuple):
        return f"({', '.join(map(_const, value))})"
    return f"{type(value).__name__}:{value!r}"


def value_text(value: Any) -> str:
    """Describe a constant by type and value.

    Raises:
        UnstableValueError: it is no constant.
    """
    if type(value) in _ATOMS:
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, enum.Enum):
        return f"{class_name(type(value))}.{value.name}={value_text(value.value)}"
    if isinstance(value, _TORCH_VALUES):
        return repr(value)
    if type(value) in (list, tuple, torch.Size, slice, range):
        items = (value.start, value.stop, value.step) if isinstance(value, (slice, range)) else value
        return f"{type(value).__name__}({', '.join(map(value_text, items))})"
    if type(value) in (set, frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(value_text, value)))})"
    if isinstance(value, types.CodeType):
        return f"code {code_digest(value)}"
    return identity_text(value)


def identity_text(value: Any) -> str:
    """Describe a function, class, module or operator, which guards compare by identity.

    Raises:
        UnstableValueError: what it is in another process cannot be said.
    """
    if value is None or value is Ellipsis or value is NotImplemented or isinstance(value, bool):
        return repr(value)
    if isinstance(value, types.ModuleType):
        return f"module {_imported_name(value)}"
    if isinstance(value, type):
        return f"class {class_text(value)}"
    if isinstance(value, types.FunctionType):
        return f"function {_function_text(value)}"
    if isinstance(value, types.MethodType):
        return f"method {identity_text(value.__func__)} of {identity_text(value.__self__)}"
    if isinstance(value, _BUILTIN_FUNCTIONS):
        return f"built-in {_builtin_text(value)}"
    if is_op_overload(value) or is_op_packet(value) or is_higher_order_op(value):
        return f"operator {type(value).__module__}.{type(value).__qualname__} {value}"
    if isinstance(value, (enum.Enum, *_TORCH_VALUES)):
        return value_text(value)
    raise UnstableValueError(f"an object of type {class_name(type(value))} is compared by its identity")


def _imported_name(module: types.ModuleType) -> str:
    name = module.__name__
    if sys.modules.get(name) is not module:
        raise UnstableValueError(f"module {name} is not the one that an import gives")
    return name


def _function_text(function: types.FunctionType) -> str:
    name, code = f"{function.__module__}.{function.__qualname__}", code_digest(function.__code__)
    return f"{name} {code} {_closed_over(function, 4)}"


def _builtin_text(value: Any) -> str:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    if isinstance(owner, types.ModuleType):
        return f"{owner.__name__}.{value.__qualname__}"
    if owner is None or isinstance(owner, type):
        return f"{'' if owner is None else class_name(owner)} {getattr(value, '__module__', None)}.{value.__qualname__}"
    # torch's own functions are methods of objects that exist once, such as those of torch._C._nn.
    return f"{class_name(type(owner))} {getattr(value, '__module__', None)}.{value.__qualname__}"


def class_name(owner: type) -> str:
    """Return module and qualified name of a class."""
    return f"{owner.__module__}.{owner.__qualname__}"


def class_text(owner: type) -> str:
    """Describe a class: its bases in their order, with the code and the constants of each.

    Raises:
        UnstableValueError: it is defined in a function, so that its name finds no class.
    """
    if "<locals>" in owner.__qualname__:
        raise UnstableValueError(f"class {class_name(owner)} is defined inside a function")
    return " < ".join(f"{class_name(base)} {_own_text(base)}" for base in owner.__mro__ if base is not object)


def _own_text(owner: type) -> str:
    if owner.__module__ == "builtins":
        return ""
    facts = [f"{name}={_attribute_text(value)}" for name, value in vars(owner).items() if name not in _NO_FACTS]
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()


def _attribute_text(value: Any) -> str:
    """Describe what a class holds; a container that may grow is guarded where it is read."""
    if isinstance(value, types.FunctionType):
        return _closed_over(value, 4)
    if isinstance(value, (staticmethod, classmethod)):
        return f"{type(value).__name__} {_attribute_text(value.__func__)}"
    if isinstance(value, (property, types.DynamicClassAttribute)):
        return "property " + " ".join(map(_attribute_text, (value.fget, value.fset, value.fdel)))
    if isinstance(value, functools.cached_property):
        return f"cached_property {_attribute_text(value.func)}"
    if type(value) in _ATOMS or isinstance(value, _TORCH_VALUES):
        return value_text(value)
    if type(value) in (tuple, frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(_attribute_text, value)))})"
    return class_name(type(value))


def _closed_over(function: types.FunctionType, depth: int) -> str:
    """Return the digest of a function's code, and of its defaults and of what it closes over."""
    texts = [code_digest(function.__code__)]
    texts += [_held_text(value, depth) for value in function.__defaults__ or ()]
    texts += [f"{name}={_held_text(value, depth)}" for name, value in (function.__kwdefaults__ or {}).items()]
    for cell in (function.__closure__ or ()) if depth else ():
        try:
            texts.append(_held_text(cell.cell_contents, depth))
        except ValueError:
            texts.append("empty")
    return hashlib.sha256(" ".join(texts).encode()).hexdigest() if len(texts) > 1 else texts[0]


def _held_text(value: Any, depth: int) -> str:
    """Describe what a function holds: a function, a constant, or by its class what is guarded where it is read."""
    if isinstance(value, types.FunctionType):
        return _closed_over(value, depth - 1) if depth else class_name(type(value))
    if type(value) in _ATOMS or isinstance(value, _TORCH_VALUES):
        return value_text(value)
    if type(value) in (tuple, frozenset):
        return f"{type(value).__name__}({', '.join(_held_text(one, depth) for one in value)})"
    return class_name(type(value))


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield ``code`` and the code of the functions nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes_in(const)


def file_digests(modules: Iterable[str]) -> dict[str, str]:
    """Return a digest of the source file of each module that has one, except for torch's own.

    What a module computes when it is imported decides over a trace as well as the functions in it. The version of torch
    stands for its files.
    """
    found = {}
    for name in sorted(set(modules)):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and not (name == "torch" or name.startswith("torch.")):
            found[name] = _file_digest(Path(file))
    return found


def _file_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UnstableValueError(f"the source file {path.name} cannot be read") from error
