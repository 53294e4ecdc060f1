"""Jitted functions as Python functions, and the table of what is replaced in Triton while a kernel runs.

Assignments make tensors of numbers, ``and``, ``or``, ``not`` and chained comparisons work element by element, and a
``range`` yields integers of the width its bounds have.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton.language as tl

from pytest_regional._torch.patching import Patch, applied
from pytest_regional._torch.triton import (
    builtin_owners,
    cuda_library,
    inductor_helpers,
    is_builtin,
    jit_first_line,
    jit_function_class,
    jit_source,
    library_stub,
    loop_condition_class,
    require_attribute,
    unwrapping,
)
from pytest_regional.emulation.device import EmulationError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.builder import builder, interpretation, semantic
from pytest_regional.emulation.interpreter.values import block_type_init, quick_unwrapping, scalar_value, tensor_init

_TENSOR, _BOTH, _EITHER, _NEGATED, _RANGE = "__to_tensor", "__both", "__either", "__negated", "__range"
_TRUTH = "__truth"


class Meaning(ast.NodeTransformer):
    """Rewrites what Python and Triton's compiler understand differently, into calls of ``helpers``."""

    @property
    def helpers(self) -> Mapping[str, Callable[..., Any]]:
        """Return functions by the name that rewritten text calls."""
        return _HELPERS

    def visit_Assign(self, node: ast.Assign | ast.NamedExpr) -> ast.AST:
        """Make a tensor of a number."""
        self.generic_visit(node)
        node.value = _call(_TENSOR, node.value)
        return node

    visit_NamedExpr = visit_Assign

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Combine element by element."""
        self.generic_visit(node)
        name = _BOTH if isinstance(node.op, ast.And) else _EITHER
        result = node.values[-1]
        for value in reversed(node.values[:-1]):
            result = _call(name, value, _later(result))
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """Negate element by element."""
        self.generic_visit(node)
        return _call(_NEGATED, node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Combine the pairs of a chain element by element."""
        self.generic_visit(node)
        if len(node.ops) == 1:
            return node
        sides = [node.left, *node.comparators]
        pairs = [
            ast.Compare(left=left, ops=[op], comparators=[right])
            for left, op, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        result: ast.expr = pairs[-1]
        for pair in reversed(pairs[:-1]):
            result = _call(_BOTH, pair, _later(result))
        return result

    def _visit_test(self, node: ast.If | ast.While | ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = _call(_TRUTH, node.test)
        return node

    visit_If = visit_While = visit_IfExp = _visit_test

    def visit_For(self, node: ast.For) -> ast.AST:
        """Give a range's integers their width."""
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) and node.iter.func.id == "range":
            node.iter.func.id = _RANGE
        return node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(arguments), keywords=[])


def _later(value: ast.expr) -> ast.Lambda:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(args=nothing, body=value)


def _is_block(value: Any) -> bool:
    return isinstance(value, tl.core.tensor) and value.handle.data.size != 1


def both(left: Any, right: Callable[[], Any]) -> Any:
    """Return ``left and right()``, element by element if one is a block."""
    if isinstance(left, tl.core.tensor):
        return left.logical_and(right()) if _is_block(left) or left else left
    return right() if left else left


def either(left: Any, right: Callable[[], Any]) -> Any:
    """Return ``left or right()``, element by element if one is a block."""
    if _is_block(left):
        return left.logical_or(right())
    return left or right()


def negated(value: Any) -> Any:
    """Return ``not value``, element by element if it is a tensor."""
    return value.__not__() if isinstance(value, tl.core.tensor) else not value


def truth(value: Any) -> bool:
    """Return whether a branch or a loop is taken.

    Raises:
        EmulationError: for a block, which a compiler refuses there.
    """
    if _is_block(value):
        raise EmulationError(f"a block of shape {value.handle.data.shape} stands where a kernel needs one truth value")
    return bool(value)


def limits_of(bounds: Sequence[Any], step: Any) -> tuple[int, int, int]:
    """Return start, stop and step of a ``range`` whose step may be named."""
    numbers = [int(bound.value if isinstance(bound, tl.constexpr) else bound) for bound in bounds]
    if len(numbers) == 1:
        numbers.insert(0, 0)
    if len(numbers) == 2:
        numbers.append(1 if step is None else int(step))
    start, stop, by = numbers
    return start, stop, by


def device_range(*bounds: Any, step: Any = None, **_: Any) -> Iterator[Any]:
    """Yield what ``range`` yields in a kernel: 32-bit integers, or 64-bit ones if a bound is."""
    wide = any(isinstance(bound, tl.core.tensor) and bound.dtype.primitive_bitwidth == 64 for bound in bounds)
    scalar = tl.int64 if wide else tl.int32
    dtype = np.int64 if wide else np.int32
    for number in range(*limits_of(bounds, step)):
        yield scalar_value(np.array([number], dtype=dtype), scalar)


_HELPERS: dict[str, Callable[..., Any]] = {
    _TENSOR: lambda value: semantic().to_tensor(value, False),
    _BOTH: both,
    _EITHER: either,
    _NEGATED: negated,
    _RANGE: device_range,
    _TRUTH: truth,
}
_PLACES: set[tuple[str, str]] = set()
_PYTHON: WeakKeyDictionary[Any, dict[type[Meaning], tuple[str, Callable[..., Any]]]] = WeakKeyDictionary()


def python_function(function: Any) -> Callable[..., Any]:
    """Return the jitted ``function`` as a Python function; it is rewritten once for each text it has."""
    source = jit_source(function)
    meaning: type[Meaning] = interpretation().meaning or Meaning
    # Not keyed by the jitted function: its hash is that of its text and of all it calls.
    known = _PYTHON.setdefault(function.fn, {})
    found = known.get(meaning)
    if found is None or found[0] != source:
        found = known[meaning] = (source, _rewritten(function, source, meaning()))
    return found[1]


def _rewritten(function: Any, source: str, meaning: Meaning) -> Callable[..., Any]:
    """Compile the rewritten text inside a factory, so that the module of the kernel gets no new names."""
    tree = meaning.visit(ast.parse(source))
    definition = tree.body[0]
    definition.decorator_list = []
    enclosed = {**meaning.helpers, **inspect.getclosurevars(function.fn).nonlocals}
    factory = ast.parse(f"def __factory({', '.join(enclosed)}): return {definition.name}")
    ast.increment_lineno(definition, jit_first_line(function) - 1)
    factory.body[0].body.insert(0, definition)  # type: ignore[attr-defined]
    ast.fix_missing_locations(factory)
    names: dict[str, Any] = {}
    exec(compile(factory, inspect.getsourcefile(function.fn) or "<kernel>", "exec"), function.fn.__globals__, names)
    made: Callable[..., Any] = names["__factory"](**enclosed)
    _PLACES.add((made.__code__.co_filename, made.__name__))
    return made


def is_rewritten(filename: str, name: str) -> bool:
    """Say whether a frame of a traceback is that of a kernel, or of a jitted function that it calls."""
    return (filename, name) in _PLACES


def call_device_function(function: Any, *arguments: Any, **named: Any) -> Any:
    """Call one jitted function from another: ``JITFunction.__call__`` while a kernel runs."""
    return python_function(function)(*arguments, **named)


def method_of(function: Any) -> Callable[..., Any]:
    """Return a jitted function as a method, which ``x.sum(0)`` in a kernel is."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return call_device_function(function, self, *arguments, **named)

    return method


def is_jitted(member: Any) -> bool:
    """Say whether ``@triton.jit`` made ``member``."""
    return isinstance(member, jit_function_class())


_LOCK = threading.RLock()


def _bound(builtin: Any) -> Callable[..., Any]:
    """Return a builtin of Triton's language that has its semantic: the one in force when it is called."""

    @functools.wraps(builtin)
    def call(*arguments: Any, **named: Any) -> Any:
        named["_semantic"] = semantic()
        return builtin(*arguments, **named)

    return call


def _truth(value: Any) -> bool:
    """Return a tensor's truth; Triton's own code takes that of a block for the question whether there is one."""
    data = value.handle.data
    return bool(data.item()) if data.size == 1 else True


def _static_assert(condition: Any, message: Any = "") -> None:
    if not condition:
        raise EmulationError(f"tl.static_assert failed: {message}")


def _same(value: Any, *_: Any, **__: Any) -> Any:
    """Return what is only a promise to the compiler about it."""
    return value


def _static_range(*bounds: Any, step: Any = None, **_: Any) -> range:
    return range(*limits_of(bounds, step))


def _language_patches() -> Iterator[Patch]:
    for owner in builtin_owners():
        for name, member in inspect.getmembers(owner, is_builtin):
            yield Patch(owner, name, _bound(member))
    for module in (tl, tl.core):
        yield Patch(module, "range", device_range)
        yield Patch(module, "static_range", _static_range)
        yield Patch(module, "static_assert", _static_assert)
        yield Patch(module, "static_print", lambda *_, **__: None)
        yield Patch(module, "reduce", lambda *arguments, **named: builder().reduce(*arguments, **named))
        yield Patch(module, "associative_scan", lambda *arguments, **named: builder().scan(*arguments, **named))
        for promise in ("multiple_of", "max_contiguous", "max_constancy"):
            yield Patch(module, promise, _same)


def _class_patches() -> Iterator[Patch]:
    tensor = tl.core.tensor
    yield Patch(tensor, "__init__", tensor_init)
    yield Patch(tl.block_type, "__init__", block_type_init)
    owner, name, unwrap = unwrapping()
    yield Patch(owner, name, quick_unwrapping(unwrap))
    yield Patch(tensor, "__index__", lambda self: int(self.handle.data.item()), added=True)
    yield Patch(tensor, "__int__", lambda self: int(self.handle.data.item()), added=True)
    yield Patch(tensor, "__bool__", _truth, added=True)
    yield Patch(tensor, "__repr__", lambda self: f"{self.type}: {self.handle.data}")
    yield Patch(tensor, "T", property(lambda self: tl.trans(self)))
    for name, member in vars(tensor).items():
        if is_jitted(member):
            yield Patch(tensor, name, method_of(member))
    yield Patch(tl.core.dtype, "to_ir", lambda dtype, builder: dtype)  # as the interpreter's operations take it
    yield Patch(loop_condition_class(), "__bool__", lambda self: bool(self.condition), added=True)
    yield Patch(jit_function_class(), "__call__", call_device_function)


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise UnsupportedByEmulationError(f"libdevice.{name}, which CUDA's library does not have")

    return call


def _library_patches() -> Iterator[Patch]:
    stub, library = library_stub(), cuda_library()
    for name, member in list(vars(library).items()):
        if is_builtin(member):
            yield Patch(library, name, _bound(member))
    for name, member in list(vars(stub).items()):
        if callable(member) and not name.startswith("_"):
            real = getattr(library, name, None)
            yield Patch(stub, name, _refused(name) if real is None else _bound(real))


def _if_mask(mask: Any, value: Any, **_: Any) -> Any:
    """Replace Inductor's ``if_mask``: the value, or None where there is no mask."""
    return None if mask is None else value


def _next_power_of_2(number: Any, **_: Any) -> int:
    """Replace Inductor's ``constexpr_next_power_of_2``."""
    value = int(number.value if isinstance(number, tl.constexpr) else number)
    return 1 << (value - 1).bit_length()


@functools.cache
def _triton_patches() -> tuple[Patch, ...]:
    return _checked((*_language_patches(), *_class_patches(), *_library_patches()))


@functools.cache
def _inductor_patches(helpers: Any) -> tuple[Patch, ...]:
    names = {"if_mask": _if_mask, "constexpr_next_power_of_2": _next_power_of_2}
    return _checked(tuple(Patch(helpers, name, function) for name, function in names.items()))


def _checked(table: tuple[Patch, ...]) -> tuple[Patch, ...]:
    """Return ``table`` if everything in it is there to be replaced."""
    for patch in table:
        if not patch.added:
            require_attribute(patch.owner, patch.name)
    return table


def patch_table() -> tuple[Patch, ...]:
    """Return everything that is replaced, in order; it is made once, of an unpatched Triton."""
    helpers = inductor_helpers()
    return _triton_patches() + (() if helpers is None else _inductor_patches(helpers))


@contextlib.contextmanager
def interpreting() -> Iterator[None]:
    """Have Triton's language compute instead of build, in this thread alone, until the block ends."""
    with _LOCK, applied(patch_table()), np.errstate(all="ignore"), torch.no_grad():
        yield
