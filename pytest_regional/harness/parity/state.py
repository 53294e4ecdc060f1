"""The state a program carries besides its inputs: parameters, buffers, captured tensors, plain attributes.

Every execution of a program must start from the same state, and the module must not be copied for it, because compiled
callables hold the original. So values are saved, the program runs, and :func:`preserved` puts them back.
"""

from __future__ import annotations

import enum
import functools
import operator
import pickle
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from pytest_regional.harness.parity.objects import (
    LIMIT,
    PLAIN,
    attributes_of,
    dense_value,
    elements,
    is_machinery,
    is_machinery_name,
    is_object,
    is_opaque,
    leaves_in,
    size_of,
    slots_of,
)

LOW_PRECISION_TO_FP64 = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_CAPTURED = "captured tensor"
#: How many calls of other functions are followed from the program's own code.
_CALLS = 3
#: What ``torch.nn.Module`` keeps its own parameters, buffers and submodules in, and how reports name what is in them.
_REGISTERED = {"_parameters": "parameter", "_buffers": "buffer", "_modules": "module"}
#: What stands before the name of a tensor of the program's state.
KINDS_OF_STATE = (f"{_CAPTURED} ", "attribute ", "parameter ", "buffer ")
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module()))
#: What compilers and Python keep on objects of the program.
_NOT_STATE = ("_dynamo", "_torchdynamo", "_compiled_call_impl", "_abc_", "__")
#: A program that asks this may take notes of its eager runs in a list.
_TELLS_COMPILED = {"is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"}
#: Packages whose functions and classes keep no state of a program's.
_LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "torch"} - {"__main__"})
#: Classes whose attributes are no state: code that compilers run while they trace counts there, too.
_NO_STATE = (enum.Enum, torch.Tensor)


class _Mark:
    """Stands for a value that cannot be shown."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


ABSENT, A_TENSOR = _Mark("nothing"), _Mark("a tensor")


class StateTensor(NamedTuple):
    """One tensor the program can read or change without being given it; ``label`` is how reports name it."""

    label: str
    tensor: torch.Tensor


class Holder:
    """Something that a program can put other values into, and what was in it: items, attributes, variables.

    Only what is held is exchanged, never the holder: Dynamo's guards look at its identity.
    """

    def __init__(self, thing: Any, path: str, kind: str = "attribute") -> None:
        self.thing, self.path, self.kind = thing, path, kind
        self.before = self.read()
        self.may_grow = False

    def read(self) -> dict[Any, Any]:
        """Return what is held now, by key."""
        raise NotImplementedError

    def write(self) -> None:
        """Put back what was held before."""
        raise NotImplementedError

    def label(self, key: Any) -> str:
        """Return how reports name what is held under ``key``."""
        return f"{self.path}.{key}" if self.path else str(key)

    def restore(self) -> None:
        """Put back what was held before, if anything else is held now."""
        if not _same(self.before, self.read()) and not self.grew():
            self.write()

    def grew(self) -> bool:
        """Say whether this is a list in which a test takes notes, and has been added to."""
        now = self.read() if self.may_grow else {}
        return len(now) > len(self.before) and all(now[key] is value for key, value in self.before.items())


class _Items(Holder):
    """A list, dictionary, set or deque."""

    def read(self) -> dict[Any, Any]:
        if isinstance(self.thing, dict):
            kind = OrderedDict if isinstance(self.thing, OrderedDict) else dict
            return dict(kind.items(self.thing))
        items = elements(self.thing)
        return {item: item for item in items} if isinstance(self.thing, set) else dict(enumerate(items))

    def write(self) -> None:
        items = self.before if isinstance(self.thing, dict) else self.before.values()
        self.thing.clear()
        (self.thing.extend if isinstance(self.thing, list | deque) else self.thing.update)(items)

    def label(self, key: Any) -> str:
        return f"{self.path}[{key!r}]"


class _Registered(_Items):
    """The parameters, buffers or submodules of a module."""

    label = Holder.label


class _Attributes(Holder):
    """The attributes of an object, module or function."""

    def read(self) -> dict[Any, Any]:
        return {name: value for name, value in attributes_of(self.thing).items() if not name.startswith(_NOT_STATE)}

    def write(self) -> None:
        now, slots = self.read(), slots_of(type(self.thing))
        for name in now.keys() - self.before.keys():
            object.__delattr__(self.thing, name) if name in slots else vars(self.thing).pop(name)
        for name, value in self.before.items():
            if now.get(name, ABSENT) is not value:
                object.__setattr__(self.thing, name, value) if name in slots else vars(self.thing).update({name: value})


class _ClassAttributes(Holder):
    """The data among the attributes of a class."""

    def read(self) -> dict[Any, Any]:
        found = {name: value for name, value in vars(self.thing).items() if not name.startswith(_NOT_STATE)}
        return {
            name: value
            for name, value in found.items()
            if isinstance(value, (*PLAIN, types.NoneType)) or (is_object(value) and not hasattr(type(value), "__get__"))
        }

    def write(self) -> None:
        for name in self.read().keys() - self.before.keys():
            delattr(self.thing, name)
        for name, value in self.before.items():
            if vars(self.thing).get(name, ABSENT) is not value:
                setattr(self.thing, name, value)


class _Variables(Holder):
    """Those global variables of a function, or of a Python module, that code names."""

    def __init__(self, variables: dict[str, Any], names: Iterable[str]) -> None:
        self.names = names
        super().__init__(variables, "", _CAPTURED)

    def read(self) -> dict[Any, Any]:
        return {name: self.thing[name] for name in self.names if name in self.thing}

    def write(self) -> None:
        for name in self.read().keys() - self.before.keys():
            del self.thing[name]
        self.thing.update(self.before)


class _Closure(Holder):
    """The variables that a function closes over."""

    def read(self) -> dict[Any, Any]:
        cells = zip(self.thing.__code__.co_freevars, self.thing.__closure__ or (), strict=True)
        return {name: value for name, cell in cells for value in contents(cell)}

    def write(self) -> None:
        for name, cell in zip(self.thing.__code__.co_freevars, self.thing.__closure__ or (), strict=True):
            if name in self.before:
                cell.cell_contents = self.before[name]
            elif contents(cell):
                del cell.cell_contents


class _Generator(Holder):
    """The state of a random generator: one of torch's, or a ``random.Random``, which Python keeps in C."""

    def read(self) -> dict[Any, Any]:
        if isinstance(self.thing, torch.Generator):
            now = bytes(self.thing.get_state().numpy())
        else:
            now = pickle.dumps(self.thing.getstate())
        before = getattr(self, "before", {}).get("state")
        return {"state": before if now == before else now}

    def write(self) -> None:
        if isinstance(self.thing, torch.Generator):
            self.thing.set_state(torch.frombuffer(bytearray(self.before["state"]), dtype=torch.uint8))
        else:
            self.thing.setstate(pickle.loads(self.before["state"]))


@dataclass(frozen=True, eq=False)
class Change:
    """What a program did to one value that is no tensor: ``before`` and ``after``, :data:`ABSENT` where none is."""

    before: Any
    after: Any


@dataclass(frozen=True, eq=False)
class ProgramState:
    """All that is reachable from a callable, found by :func:`find_state`."""

    tensors: tuple[StateTensor, ...]  # parameters, buffers, tensors in attributes and captured ones
    holders: tuple[Holder, ...] = ()  # what the program can put other values into
    not_compared: tuple[str, ...] = ()  # what may change and can neither be restored nor compared, with its type

    def now(self) -> tuple[dict[str, torch.Tensor], dict[str, Change]]:
        """Return the tensors by label as they are by now, and what else has changed."""
        known = {id(entry.tensor) for entry in self.tensors}
        tensors = {entry.label: entry.tensor for entry in self.tensors}
        changes: dict[str, Change] = {}
        for holder in (one for one in self.holders if not isinstance(one.thing, torch.Generator)):
            before, now = holder.before, holder.read()
            keys = () if _same(before, now) or holder.grew() else {**before, **now}
            for key in (key for key in keys if before.get(key, ABSENT) is not now.get(key, ABSENT)):
                label = holder.label(key)
                leaves = [leaves_in(held[key], label) if key in held else {} for held in (before, now)]
                changes |= changes_between(*leaves)
                # A tensor that was there before keeps its one label, though several names may lead to it.
                new = [(where, leaf) for where, leaf in leaves[1].items() if isinstance(leaf, torch.Tensor)]
                tensors |= {f"{holder.kind} {where}": leaf for where, leaf in new if id(leaf) not in known}
        return tensors, changes

    def generators(self) -> dict[str, torch.Generator]:
        """Return the random generators that the program holds itself, by name."""
        return {holder.path: holder.thing for holder in self.holders if isinstance(holder.thing, torch.Generator)}

    def notes(self) -> tuple[str, ...]:
        """Return the lists that the program added to while it, or a test, told eager from compiled runs."""
        return tuple(f"{holder.path} (a list of notes)" for holder in self.holders if holder.grew())

    def is_state(self, tensor: torch.Tensor) -> bool:
        """Say whether ``tensor`` itself is one of the state's tensors (and so must not be copied)."""
        return any(entry.tensor is tensor for entry in self.tensors)


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Change]:
    """Return by name which of two sets of leaves differ; of two tensors only that both are there."""
    found = {}
    for name in {**before, **after}:
        leaves = before.get(name, ABSENT), after.get(name, ABSENT)
        old, new = (A_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        if old is not new:
            found[name] = Change(old, new)
    return found


def described(name: str, value: Any) -> str:
    """Return how reports name a value that can neither be restored nor compared."""
    return f"{name} ({type(value).__module__}.{type(value).__qualname__})"


def _same(first: dict[Any, Any], second: dict[Any, Any]) -> bool:
    """Say whether two holders' contents are the very same objects, under the same keys in one order."""
    return (
        len(first) == len(second)
        and all(map(operator.is_, first.values(), second.values()))
        and all(one is two or one == two for one, two in zip(first, second, strict=True))
    )


def contents(cell: types.CellType) -> list[Any]:
    """Return the value of a closure's variable in a list, which is empty where none is assigned yet."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


@functools.lru_cache(maxsize=4096)
def names_in(code: types.CodeType) -> frozenset[str]:
    """Return the names of global variables and attributes in code, that of functions inside it included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*map(names_in, inner))


def _is_users(module: object) -> bool:
    """Say whether what is defined in ``module`` may hold state of a program."""
    return isinstance(module, str) and module.partition(".")[0] not in _LIBRARIES and not is_machinery_name(module)


def find_state(fn: Any, held: Iterable[tuple[str, Any]] = ()) -> ProgramState:
    """Return the state of a function, module, bound method, partial or callable object.

    A module given itself (or as the owner of a bound method) names its parameters plainly; anything reached through a
    variable or an attribute carries that name as a prefix. What a module reaches through callables that were set on the
    instance, through its hooks, or keeps in a list or dictionary without registering it, is state as well, and so are
    global variables that the code names, and those of the functions that it calls. ``held`` are modules and callables
    that the program is given as arguments, with their names.
    """
    return _Search([("", fn), *held]).state()


def functions_of(fn: Any) -> list[types.FunctionType]:
    """Return the functions that a program calls, as far as its code names them, nearest first."""
    search = _Search([("", fn)])
    search.state()
    return [value for value in search.seen.values() if isinstance(value, types.FunctionType)]


class _Search:
    """One walk over what a program reaches, nearest first."""

    def __init__(self, roots: Sequence[tuple[str, Any]]) -> None:
        self.captured: dict[int, StateTensor] = {}
        self.named: dict[int, StateTensor] = {}
        self.holders: list[Holder] = []
        self.not_compared: list[str] = []
        #: Everything visited, by id: what is held here keeps its id.
        self.seen: dict[int, Any] = {}
        self.names: set[str] = {"forward", "__call__"}
        self.classes: dict[type, int] = {}
        self.known: set[type] = set()
        self.program = roots[0][1]
        self.pending = deque((_CAPTURED, path, value, _CALLS) for path, value in roots)

    def state(self) -> ProgramState:
        """Walk, and return what was found."""
        while self.pending or self._methods():
            kind, path, value, calls = self.pending.popleft()
            if id(value) in self.seen:
                continue
            if len(self.seen) >= LIMIT:
                self.not_compared.append(f"{path or 'the program'} and what is behind {LIMIT} other values")
                break
            self.seen[id(value)] = value
            self._visit(kind, path, value, calls)
        if self.names & _TELLS_COMPILED:
            for holder in self.holders:
                holder.may_grow = type(holder.thing) is list and holder.kind == _CAPTURED
        tensors = {**self.captured, **self.named}
        return ProgramState(tuple(tensors.values()), tuple(self.holders), tuple(self.not_compared))

    def _push(self, kind: str, path: str, value: Any, calls: int) -> None:
        if not isinstance(value, (*PLAIN, types.NoneType)) and id(value) not in self.seen:
            self.pending.append((kind, path, value, calls))

    def _hold(self, holder: Holder, calls: int) -> None:
        self.holders.append(holder)
        for key, value in holder.before.items():
            self._push(holder.kind, holder.label(key), value, calls)

    def _visit(self, kind: str, path: str, value: Any, calls: int) -> None:
        if isinstance(value, torch.Tensor):
            found = self.captured if kind == _CAPTURED else self.named
            found.setdefault(id(value), StateTensor(f"{kind} {path}", value))
        elif isinstance(value, torch.nn.Module):
            self._module(path, value, calls)
        elif isinstance(value, types.FunctionType):
            self._function(path, value, calls)
        elif isinstance(value, types.MethodType):
            self._push(_CAPTURED, path, value.__self__, calls)
            self._push(_CAPTURED, path, value.__func__, calls)
        elif isinstance(value, type):
            self._class(value, calls)
        elif isinstance(value, type(names_in)):  # functools.lru_cache
            self._push(_CAPTURED, path, value.__wrapped__, calls)
        elif isinstance(value, torch.Generator):
            self.holders.append(_Generator(value, path))
        elif isinstance(value, random.Random):
            self.holders.append(_Generator(value, path, kind))
        elif isinstance(value, functools.partial):
            for key, argument in (*enumerate(value.args), *value.keywords.items()):
                self._push(_CAPTURED, f"{path}.{key}".strip("."), argument, calls)
            self._push(_CAPTURED, path, value.func, calls)
        elif is_object(value) or value is self.program:
            self._object(kind, path, value, calls)
        elif is_opaque(value):
            self.not_compared.append(described(path, value))

    def _module(self, path: str, value: torch.nn.Module, calls: int) -> None:
        for prefix, module in value.named_modules(prefix=path):
            if module is not value and id(module) in self.seen:
                continue
            self.seen[id(module)] = module
            attributes = _Attributes(module, prefix)
            self.holders.append(attributes)
            for name, kind in _REGISTERED.items():
                registered = _Registered(getattr(module, name), prefix, kind)
                self.holders.append(registered)
                for key, tensor in registered.before.items():
                    if isinstance(tensor, torch.Tensor):
                        self.named.setdefault(id(tensor), StateTensor(f"{kind} {registered.label(key)}", tensor))
            for name, child in attributes.before.items():
                if name not in _MODULE_INTERNALS or (name not in _REGISTERED and child):
                    self._push("attribute", attributes.label(name), child, calls)
            self._class(type(module), calls)

    def _function(self, path: str, value: types.FunctionType, calls: int) -> None:
        closure = _Closure(value, path, _CAPTURED)
        if not _is_users(value.__globals__.get("__name__")):
            # A decorator of a library's: what it is around.
            for name, held in closure.before.items():
                if callable(held) and not is_machinery(held):
                    self._push(_CAPTURED, closure.label(name), held, calls)
            return
        self._hold(closure, calls)
        self._hold(_Attributes(value, path, _CAPTURED), calls)
        defaults = (*enumerate(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).items())
        for key, held in (*defaults, ("", getattr(value, "__wrapped__", None))):
            self._push(_CAPTURED, f"{path}.{key}".strip("."), held, calls)
        if calls < 0:
            return
        names = names_in(value.__code__)
        self.names |= names
        variables = _Variables(value.__globals__, names)
        self._hold(variables, calls - 1)
        for held in variables.before.values():
            if isinstance(held, types.ModuleType) and _is_users(held.__name__):
                self._hold(_Variables(vars(held), names), calls - 1)

    def _class(self, value: type, calls: int) -> None:
        if value in self.known:
            return
        self.known.add(value)
        for cls in value.__mro__:
            if cls not in self.classes and _is_users(cls.__module__) and not issubclass(cls, _NO_STATE):
                self.classes[cls] = calls
                self._hold(_ClassAttributes(cls, cls.__name__), calls)

    def _methods(self) -> bool:
        """Visit the methods whose names are in code; return whether there were any."""
        for cls, calls in self.classes.items():
            for name in self.names & vars(cls).keys():
                method = vars(cls)[name]
                method = getattr(method, "fget", getattr(method, "__func__", method))
                if isinstance(method, types.FunctionType):
                    self._push(_CAPTURED, "", method, calls - 1)
        return bool(self.pending)

    def _object(self, kind: str, path: str, value: Any, calls: int) -> None:
        if size_of(value) > LIMIT:
            self.not_compared.append(f"{path} ({type(value).__name__} of {size_of(value)} items)")
            return
        if isinstance(value, tuple | frozenset):
            for index, item in enumerate(elements(value)):
                self._push(kind, f"{path}[{index}]", item, calls)
        elif isinstance(value, list | dict | set | deque):
            self._hold(_Items(value, path, kind), calls)
        if hasattr(value, "__dict__") or slots_of(type(value)):
            self._hold(_Attributes(value, path, kind), calls)
        self._class(type(value), calls)


@dataclass(eq=False)
class _SavedTensor:
    tensor: torch.Tensor
    alias: torch.Tensor
    value: torch.Tensor
    grad: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SavedTensor:
        # ``.data`` and not ``.detach()``: it has its own version counter, so putting values back is invisible.
        alias = tensor.data
        return cls(tensor, alias, alias.clone(), tensor.grad if tensor.is_leaf else None)

    def restore(self) -> None:
        if self.tensor.is_leaf:
            self.tensor.grad = None
        if self.alias.is_nested or self.alias.layout != torch.strided:
            self.tensor.data = self.value
        else:
            now, then = ((one.dtype, one.data_ptr(), one.shape, one.stride()) for one in (self.tensor.data, self.alias))
            if now != then:
                self.tensor.data = self.alias
        if not same_bytes(self.tensor.data, self.value):
            self.alias.copy_(self.value)
        if self.tensor.is_leaf:
            self.tensor.grad = self.grad


@contextmanager
def preserved(state: ProgramState) -> Iterator[None]:
    """Run the body with all gradients None, then put back values, gradients and all that the program's state holds."""
    saved = [_SavedTensor.of(entry.tensor) for entry in state.tensors]
    for entry in saved:
        if entry.tensor.is_leaf:
            entry.tensor.grad = None
    try:
        yield
    finally:
        for holder in state.holders:
            holder.restore()
        for entry in saved:
            entry.restore()


def promote(tensors: Iterable[torch.Tensor]) -> None:
    """Hold every low-precision one of ``tensors`` in float64; :func:`preserved` around it undoes that.

    The tensors keep their identity (only ``.data`` is exchanged), so tied weights and captured tensors follow along.
    """
    for tensor in tensors:
        wide = LOW_PRECISION_TO_FP64.get(tensor.dtype)
        if wide is not None:
            tensor.data = tensor.data.to(wide)


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a dense tensor as a ``(numel, itemsize)`` matrix of bytes, NaN payloads included."""
    if tensor.is_quantized:
        tensor = dense_value(tensor)  # a view of it as bytes ends the process
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # A single element is contiguous whatever its stride says, and a view as bytes wants 1.
    flat = flat.as_strided((flat.numel(),), (1,))
    if flat.is_complex():
        flat = torch.view_as_real(flat)
    return flat.view(torch.uint8).reshape(tensor.numel(), -1) if tensor.numel() else flat.new_empty(0, 0)


def same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether two tensors have one dtype, one shape and the same bytes."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.layout != torch.strided:
        first, second = dense_value(first), dense_value(second)
    return bool(torch.equal(raw_bytes(first), raw_bytes(second)))
