"""The user's code that a compiled result depends on, although Dynamo's graph has only its name.

AOTAutograd runs it while it traces the graph: derivatives and fake functions of operators, decompositions, methods of
tensor subclasses, and what torch's own Python functions call. Code is described by what it does, together with all that
it reads; torch and the standard library are described by names, because the key has their versions.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import hashlib
import secrets
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

import torch
import torch.fx

from pytest_regional._torch import process_state
from pytest_regional._torch.autograd_cache import tensor_text
from pytest_regional._torch.fx_graphs import is_graph_module
from pytest_regional._torch.operators import is_higher_order_op, is_op_overload, is_op_packet, schema_of
from pytest_regional._torch.tracing import inner_tensors, is_fake_tensor
from pytest_regional.reference.caching.container import UnstorableError

_ATOMS = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_BUILT_IN = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)

#: Attributes of a class that say nothing of what it does.
_NO_FACTS = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "_abc_impl", "__firstlineno__")
)

#: More values than this are refused, so that a lookup stays cheap; also more elements of a tensor.
_MOST_VALUES, _MOST_ELEMENTS = 20_000, 1 << 16


def user_code(graph: torch.fx.GraphModule, inputs: Iterable[Any] = ()) -> Iterator[str]:
    """Yield a line for everything by which the user's code decides over the result for ``graph``; none for most.

    Raises:
        UnstorableError: code that PyTorch does not show, or that reads a value without a text; saying which.
    """
    for name, kernel in process_state.replaced_kernels():
        raise UnstorableError(_hidden(name, kernel))
    yield from _traced_code(graph, inputs)


def region_tag(graph: torch.fx.GraphModule) -> str:
    """Return a tag for PyTorch's keys of a region: what they lack of the user's code, empty for most regions.

    Code without a text has a tag that never comes again.
    """
    try:
        lines = [*_traced_code(graph, ())]
    except UnstorableError:
        lines = [secrets.token_hex()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def _traced_code(graph: torch.fx.GraphModule, inputs: Iterable[Any]) -> Iterator[str]:
    for op, function in sorted(process_state.foreign_decompositions().items()):
        yield f"decomposition of {op}: {_described(function)}"
    kinds = {type(value) for each in inputs for value in (each, *inner_tensors(each))}
    for kind in sorted(
        (kind for kind in kinds if _origin_of(kind) != "torch" and kind.__module__ != "builtins"), key=class_name
    ):
        yield f"class {class_name(kind)}: {_described(kind)}"
    called: dict[Any, None] = {}
    for module in graph.modules():
        for node in module.graph.nodes if is_graph_module(module) else ():
            if node.op in ("call_function", "call_method"):
                called[node.target if node.op == "call_function" else getattr(torch.Tensor, node.target, None)] = None
    for target in called:
        if isinstance(target, types.FunctionType):
            yield from (f"torch function {name}: {_described(value)}" for name, value in _replaced_in(target))
            continue
        operators = [target] if is_higher_order_op(target) else process_state.overloads_of(target)
        for op in operators:
            if not _is_torchs(op):
                yield f"operator {op}: {_described(op)}"


def _described(value: Any) -> str:
    try:
        return hashlib.sha256(_Description().text(value).encode()).hexdigest()
    except RecursionError as error:
        raise UnstorableError("the code that an operator runs is nested too deeply to be described") from error


def _is_torchs(op: Any) -> bool:
    if is_higher_order_op(op):
        return type(op).__module__.partition(".")[0] == "torch"
    return process_state.is_torchs_operator(op.name())


def _hidden(name: str, kernel: process_state.Kernel) -> str:
    return (
        f"operator {name}: PyTorch does not show the Python function that is registered for {kernel.key}; "
        f"torch.library.custom_op and torch.library.register_autograd register functions that the key can hold"
    )


class _Description:
    """Describes a value and all that it refers to, each object once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no other object gets the address of one that was seen

    def text(self, value: Any) -> str:
        """Return the text of any value.

        Raises:
            UnstorableError: what it is in another process cannot be said.
        """
        if type(value) in _ATOMS or isinstance(value, _TORCH_VALUES):
            return f"{type(value).__name__}:{value!r}"
        if isinstance(value, enum.Enum):
            return f"{class_name(type(value))}.{value.name}={self.text(value.value)}"
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, _BUILT_IN):
            return f"built-in {getattr(value, '__module__', None)}.{value.__qualname__}"
        if isinstance(value, _DESCRIPTORS):
            return f"descriptor {value.__qualname__}"
        if id(value) in self._seen:
            return f"again {self._seen[id(value)]}"
        if len(self._seen) > _MOST_VALUES:
            raise UnstorableError("the code that an operator runs refers to too many values to be described")
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        return f"{type(value).__name__}({self._of(value)})"

    def all(self, values: Iterable[Any]) -> str:
        """Return the texts of ``values``."""
        return ", ".join(map(self.text, values))

    def _of(self, value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{self.text(name)}: {self.text(one)}" for name, one in value.items())
        if isinstance(value, Set):
            return ", ".join(sorted(_Description().text(one) for one in value))
        if isinstance(value, (list, tuple)):
            return self.all(value)
        if isinstance(value, (slice, range)):
            return self.all((value.start, value.stop, value.step))
        if isinstance(value, (staticmethod, classmethod)):
            return self.text(value.__func__)
        if isinstance(value, types.MethodType):
            return self.all((value.__func__, value.__self__))
        if isinstance(value, functools.partial):
            return self.all((value.func, value.args, value.keywords))
        if isinstance(value, property):
            return self.all((value.fget, value.fset, value.fdel))
        if isinstance(value, types.CodeType):
            return code_digest(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if process_state.is_custom_operator(value):
            return self.text(process_state.overload_of(value))
        if is_op_packet(value):
            return self.all(process_state.overloads_of(value))
        if is_op_overload(value) or is_higher_order_op(value):
            return self._op(value)
        return self._object(value)

    def _function(self, function: types.FunctionType) -> str:
        """Describe a function by its code, what it holds, and, unless its package has a version, what it reads."""
        origin = _origin(function.__code__.co_filename)
        held = [*(function.__defaults__ or ()), function.__kwdefaults__ or {}]
        for cell in function.__closure__ or ():
            try:
                held.append(cell.cell_contents)
            except ValueError:
                held.append("an empty cell")
        name = f"{function.__module__}.{function.__qualname__}"
        if origin in ("torch", "stdlib"):
            return f"{name} {self.all(held)}"
        if origin == "package":
            return f"{name} {_version(function.__module__)} {code_digest(function.__code__)} {self.all(held)}"
        read = [(chain, _value_at(function.__globals__, chain)) for chain in _chains_in(function.__code__)]
        found = ", ".join(f"{'.'.join(chain)}={self.text(value)}" for chain, value in read if value is not _ABSENT)
        return f"{code_digest(function.__code__)} {self.all(held)} {found}"

    def _class(self, owner: type) -> str:
        lines = []
        for base in owner.__mro__:
            origin = _origin_of(base)
            if origin in ("torch", "stdlib"):
                lines.append(class_name(base))
            elif origin == "package":
                lines.append(f"{class_name(base)} {_version(base.__module__)}")
            else:
                facts = sorted((name, value) for name, value in vars(base).items() if name not in _NO_FACTS)
                lines.append(", ".join(f"{name}={self.text(value)}" for name, value in facts))
        return " < ".join(lines)

    def _tensor(self, value: torch.Tensor) -> str:
        if is_fake_tensor(value) or value.is_meta:
            return f"{value.dtype} {list(value.shape)}"
        if value.numel() > _MOST_ELEMENTS or type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UnstorableError(f"the code of an operator reads a tensor of {value.numel()} elements")
        return tensor_text(value)

    def _op(self, op: Any) -> str:
        if _is_torchs(op):
            return str(op)
        if is_higher_order_op(op):
            return f"{op} {self.text(dict(process_state.python_kernels(op)))}"
        name = op.name()
        parts: dict[str, Any] = {"schema": str(schema_of(op)), "tags": process_state.tags_of(op)}
        parts["py_impl"] = {str(key): kernel for key, kernel in process_state.python_kernels(op).items()}
        parts |= process_state.registered_beside(name)
        custom = process_state.custom_operator(name)
        if custom is None:
            parts["derivative"] = derivative = process_state.derivative_of(op)
        else:
            parts |= {"fake": None, **process_state.traced_parts(custom)}
            derivative = None
        for kernel in process_state.kernels_of(name):
            if not kernel.is_python:
                parts["libraries"] = process_state.loaded_libraries()
                continue
            # Does ``parts`` hold the Python function of the kernel, or does nothing depend on it?
            if custom is not None and kernel.file.endswith("/torch/_library/custom_ops.py"):
                is_shown = True
            elif kernel.key == "Autograd" and not kernel.replaced:
                is_shown = derivative is not None
            elif kernel.key in ("Meta", "CompositeExplicitAutograd"):  # gives the shapes without a fake function
                is_shown = parts.get("fake") is not None or custom is not None
            else:
                is_shown = not process_state.runs_while_traced(kernel.key)
            if not is_shown:
                raise UnstorableError(_hidden(name, kernel))
        return f"{name} {self.text(parts)}"

    def _object(self, value: Any) -> str:
        if _origin_of(type(value)) == "stdlib" and type(value).__module__ != "builtins":
            return class_name(type(value))
        state = getattr(value, "__dict__", None)
        slots = []
        for base in type(value).__mro__:
            names = vars(base).get("__slots__", ())
            names = (names,) if isinstance(names, str) else [name for name in names if not name.startswith("__")]
            slots += [name for name in names if hasattr(value, name)]
        if state is None and not slots:
            raise UnstorableError(
                f"the code of an operator, or of a tensor subclass, reads an object of type {class_name(type(value))}, "
                f"which has no text that is the same in every process"
            )
        return self.all((type(value), state, {name: getattr(value, name) for name in slots}))


_ABSENT: Any = object()


def _value_at(namespace: Mapping[str, Any], chain: tuple[str, ...]) -> Any:
    """Return the value that ``a.b.c`` has where ``a`` is a global variable, or ``a.b`` where that is no module."""
    value = namespace.get(chain[0], _ABSENT)
    for name in chain[1:]:
        if not isinstance(value, types.ModuleType):
            break
        value = getattr(value, name, _ABSENT)
    return value


@functools.lru_cache(maxsize=4096)
def _chains_in(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Return the global variables that ``code`` and the functions in it read, each with the attributes read from it."""
    found: dict[tuple[str, ...], None] = {}
    chain: tuple[str, ...] = ()
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            found[chain] = None
            chain = (str(each.argval),)
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, str(each.argval))
        elif each.opname not in ("CACHE", "PUSH_NULL", "PRECALL"):
            found[chain] = None
            chain = ()
    found[chain] = None
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= dict.fromkeys(_chains_in(const))
    found.pop((), None)
    return tuple(found)


_STDLIB = sysconfig.get_paths()["stdlib"] + "/"


@functools.lru_cache(maxsize=4096)
def _origin(file: str) -> str:
    """Say where code comes from: ``torch``, ``stdlib``, an installed ``package``, or the ``user``."""
    if file.startswith(process_state.torch_folder()):
        return "torch"
    if "/site-packages/" in file or "/dist-packages/" in file:
        return "package"
    return "stdlib" if file.startswith((_STDLIB, "<frozen ")) else "user"


def _origin_of(owner: type) -> str:
    top = owner.__module__.partition(".")[0]
    if top == "torch":
        return "torch"
    if top in sys.stdlib_module_names:
        return "stdlib" if top != "__main__" else "user"
    return _origin(str(getattr(sys.modules.get(owner.__module__), "__file__", None) or ""))


def _version(module: str) -> str:
    return str(getattr(sys.modules.get(module.partition(".")[0]), "__version__", ""))


def _replaced_in(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return what is not torch's among all that a function of torch's calls in torch's modules, by its name there."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    todo: list[Any] = [("itself", function)]
    while todo:
        name, value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, types.FunctionType) and _origin(value.__code__.co_filename) == "torch":
            for chain in _chains_in(value.__code__):
                read = _value_at(value.__globals__, chain)
                if read is not _ABSENT:
                    todo.append((f"{value.__module__}: {'.'.join(chain)}", read))
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    todo.append((f"{value.__module__}.{value.__qualname__}", cell.cell_contents))
        elif not isinstance(value, _NEVER_FOREIGN) and _origin_of(type(value)) != "torch" and not _is_stdlib(value):
            found[name] = value
    return sorted(found.items())


def _is_stdlib(value: Any) -> bool:
    code = getattr(value, "__code__", None)
    return _origin(code.co_filename) == "stdlib" if code else _origin_of(type(value)) == "stdlib"


_NEVER_FOREIGN = (*_ATOMS, *_BUILT_IN, *_TORCH_VALUES, types.ModuleType, type, list, dict, tuple, set, frozenset)


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


def class_name(owner: type) -> str:
    """Return module and qualified name of a class."""
    return f"{owner.__module__}.{owner.__qualname__}"
