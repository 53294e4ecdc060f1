"""Guards of Dynamo: taken apart into plain data with the text of what each guards, and made again in another process.

PyTorch's own serialization of guards (``CompilePackage``) is not used. It drops guards on identity, and it takes the
expected values of what modules, functions and classes hold from the process that loads, so that such a guard always
holds. Here every guard is made from the values of this process, after they were compared with those of the trace. Read
in 2.13 and 2.15.
"""

from __future__ import annotations

import builtins
import collections
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._errors import RegionalError
from pytest_regional._torch import private_module, symbol
from pytest_regional._torch.config import state_guard
from pytest_regional._torch.thread_state import forward_level
from pytest_regional._torch.tracing import storage_key

_GUARDS = "torch._dynamo.guards"


#: What the source of a guard raises where its value does not exist.
_NO_VALUE = (AttributeError, LookupError, TypeError, ValueError, NameError, RuntimeError)


class UnstorableTraceError(RegionalError):
    """A trace depends on something that has no meaning in another process; the message says on what."""


class OtherValueError(RegionalError):
    """Something that a trace depends on is not in this process what it was in the trace."""


@dataclass(frozen=True)
class Texts:
    """How values are described; each function raises where a value has no text that other processes can compare.

    Attributes:
        identity: of what is compared by identity.
        value: of what is compared by value.
        owner: of a class.
        error: what they raise.
    """

    identity: Callable[[Any], str]
    value: Callable[[Any], str]
    owner: Callable[[type], str]
    error: type[Exception]


@dataclass(frozen=True)
class FrameScope:
    """Where a frame's guards find values.

    Attributes:
        code: the frame's code.
        f_globals: the globals of its module.
        f_locals: its variables, also those of enclosing functions.
    """

    code: types.CodeType
    f_globals: dict[str, Any]
    f_locals: dict[str, Any]


PlainGuard = tuple[str, tuple[Any, ...], dict[str, Any], Any]
"""Kind of a guard, positional and keyword arguments of its kind, and the source of its value."""


@dataclass(frozen=True)
class StoredGuards:
    """The guards of a trace.

    Attributes:
        guards: for each, its kind, the arguments of its kind, and the source of its value.
        sizes: static sizes and strides of the tensors by source; symbolic ones are None.
        ordered: sources of dictionaries whose order is guarded.
        shapes: the conditions on symbolic sizes, as code.
        aliases: AOTAutograd's conditions on inputs that share memory.
        builtins_name: the name under which guards find built-in functions among the globals.
    """

    guards: tuple[PlainGuard, ...]
    sizes: dict[Any, Any]
    ordered: frozenset[Any]
    shapes: Any
    aliases: tuple[Any, ...]
    builtins_name: str | None


def taken_apart(
    manager: Any, builder: Any, guards: Sequence[Any], graph: Any, texts: Texts
) -> tuple[StoredGuards, tuple[str, ...]]:
    """Return a trace's guards as data, and the text of each guard's value."""
    state = graph.dump_guards_state()
    concrete = symbol(_GUARDS, "convert_int_to_concrete_values")
    pytree = private_module("torch.utils._pytree")
    sizes = {source: pytree.tree_map(concrete, value) for source, value in state.input_source_to_sizes_strides.items()}
    plain = tuple(_plain(guard) for guard in guards)
    stored = StoredGuards(
        plain,
        sizes,
        frozenset(state.guard_on_key_order),
        manager.shape_code_parts,
        tuple(state._aotautograd_guards),
        state.name_of_builtins_dict_key_in_fglobals,
    )
    return stored, tuple(_Facts(stored, builder.get, texts))


def _plain(guard: Any) -> PlainGuard:
    made = guard.create_fn
    args, keywords = (made.args, dict(made.keywords)) if isinstance(made, functools.partial) else ((), {})
    kind = guard.create_fn_name()
    if kind == "TENSOR_MATCH":
        args, keywords = (), {}  # a weak reference to the tensor, which the source finds too
    return kind, args, keywords, guard.originating_source


#: Guards on what :func:`trace_state` and the global state in the key say, or that are checked as a whole.
_PROCESS_GUARDS = frozenset(
    (
        "AUTOGRAD_SAVED_TENSORS_HOOKS",
        "DEFAULT_DEVICE",
        "DETERMINISTIC_ALGORITHMS",
        "DUAL_LEVEL",
        "FSDP_TRAINING_STATE",
        "FUNCTORCH_STACK_MATCH",
        "GLOBAL_STATE",
        "GRAD_MODE",
        "SHAPE_ENV",
        "TORCH_FUNCTION_STATE",
    )
)
_IDENTITY_GUARDS = frozenset(
    ("BUILTIN_MATCH", "CLASS_MATCH", "CLOSURE_MATCH", "FUNCTION_MATCH", "ID_MATCH", "MODULE_MATCH")
)
_VALUE_GUARDS = frozenset(("BOOL_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH", "NONE_MATCH"))


@dataclass
class _Facts:
    """Texts of what the guards of one trace guard, found through their sources.

    Attributes:
        stored: the guards.
        get: finds the value of a source.
        texts: describes values.
        owners: texts of classes that were computed already; a class may change before the next look.
        memory: the memory of parameters.
    """

    stored: StoredGuards
    get: Callable[[Any], Any]
    texts: Texts
    owners: dict[type, str] = field(default_factory=dict)
    memory: set[int | None] = field(default_factory=set)

    def __iter__(self) -> Iterator[str]:
        """Yield the text of each guard.

        Raises:
            UnstorableTraceError: it has none.
        """
        for guard in self.stored.guards:
            if guard[0] in _PROCESS_GUARDS:
                yield guard[0]
                continue
            try:
                yield f"{guard[0]} {self._of(*guard)}"
            except self.texts.error as error:
                raise UnstorableTraceError(f"guard {guard[0]} on {name_of(guard[-1])}: {error}") from error
            except _NO_VALUE as error:
                said = f"{type(error).__name__}: {error}"
                raise UnstorableTraceError(f"{name_of(guard[-1])} has no value to guard: {said}") from error

    def _of(self, kind: str, args: tuple[Any, ...], keywords: Mapping[str, Any], source: Any) -> str:
        value = self.get(source)
        if kind in _IDENTITY_GUARDS:
            return self._owner(value) if isinstance(value, type) else self.texts.identity(value)
        if kind in _VALUE_GUARDS:
            return self.texts.value(value)
        if kind == "TENSOR_MATCH":
            return self._tensor(source, value)
        if kind == "DUPLICATE_INPUT":
            return str(value is self.get(args[0] if args else keywords["source_b"]))
        if kind == "EMPTY_NN_MODULE_HOOKS_DICT":
            # Dynamo leaves this guard out, since a process that adds hooks later should not pay for it.
            return str(len(value))
        if kind in _MEMBER_GUARDS:
            asked = keywords["attr" if "attr" in keywords else "key"]
            return f"{self.texts.value(asked)} {_MEMBER_GUARDS[kind](value, asked)}"
        if kind == "SEQUENCE_LENGTH":
            return f"{self._owner(type(value))} {len(value)}"
        if kind == "TYPE_MATCH":
            if type(value).__module__ == "inspect":
                raise UnstorableTraceError(f"Dynamo guards nothing of what {name_of(source)} says, a signature")
            return f"{self._owner(type(value))} {self._emptiness(source, value)}"
        if kind in ("DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK"):
            return f"{self._owner(type(value))} {[self.texts.value(key) for key in value]}"
        raise UnstorableTraceError(f"guard {kind} on {name_of(source)} says nothing that another process could compare")

    def _emptiness(self, source: Any, value: Any) -> str:
        """Describe what Dynamo may have asked of a container without a guard: which hooks there are, or whether any."""
        if not isinstance(value, (dict, list, set, collections.deque)):
            return ""
        if name_of(source).endswith("_hooks") and isinstance(value, dict):
            return str([self.texts.identity(hook) for hook in value.values()])
        return str(bool(value))

    def _owner(self, owner: type) -> str:
        if owner not in self.owners:
            self.owners[owner] = self.texts.owner(owner)
        return self.owners[owner]

    def _tensor(self, source: Any, value: Any) -> str:
        import torch

        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            raise UnstorableTraceError(f"{name_of(source)} is a {type(value).__qualname__}, a subclass of tensors")
        if type(value) is torch.nn.Parameter and value.numel():
            # Dynamo does not guard that two parameters share no memory.
            memory = storage_key(value)
            if memory is not None and memory in self.memory:
                raise UnstorableTraceError(f"parameter {name_of(source)} shares its memory with another")
            self.memory.add(memory)
        static = self.stored.sizes.get(source, {})
        marks = {mark: str(getattr(value, mark)) for mark in _MARKS if hasattr(value, mark)}
        keys = symbol("torch._C", "_dispatch_keys")(value).raw_repr()
        facts = (type(value).__name__, keys, value.dtype, value.device, value.layout, value.requires_grad, value.dim())
        sizes = [_static(static.get(name), actual) for name, actual in _shape(value)]
        return f"{facts} {sizes} {marks} {value.is_leaf}"


_MEMBER_GUARDS: Mapping[str, Callable[[Any, Any], bool]] = {
    "DICT_CONTAINS": dict.__contains__,
    "DICT_NOT_CONTAINS": dict.__contains__,
    "SET_CONTAINS": lambda value, key: key in value,
    "SET_NOT_CONTAINS": lambda value, key: key in value,
    "NOT_PRESENT_IN_GENERIC_DICT": lambda value, name: name in value.__dict__,
    "HASATTR": hasattr,
}


#: What ``mark_dynamic`` and its kin leave on a tensor.
_MARKS = (
    "_dynamo_dynamic_indices",
    "_dynamo_weak_dynamic_indices",
    "_dynamo_unbacked_indices",
    "_dynamo_strict_unbacked_indices",
    "_dynamo_static_indices",
)


def _shape(value: Any) -> Iterator[tuple[str, Sequence[int]]]:
    import torch

    yield "size", tuple(value.shape)
    if value.layout is torch.strided:
        yield "stride", value.stride()


def _static(expected: Any, actual: Sequence[int]) -> list[Any]:
    """Return ``actual`` where the trace has a number, None where it has a symbol."""
    if expected is None:
        return list(actual)
    return [None if size is None else actual[place] for place, size in enumerate(expected)]


def name_of(source: Any) -> str:
    """Return where a value comes from, as Python."""
    return str(source.name)


def check_facts(stored: StoredGuards, facts: Sequence[str], scope: FrameScope, texts: Texts) -> None:
    """Compare what the guards guard with what it was in the trace.

    Raises:
        OtherValueError: the first guard whose value is another, or is missing.
    """
    get = _getter(scope)
    found = iter(_Facts(stored, get, texts))
    for (kind, _, _, source), expected in zip(stored.guards, facts, strict=True):
        try:
            actual = next(found)
        except UnstorableTraceError as error:
            raise OtherValueError(str(error)) from error
        if actual != expected:
            raise OtherValueError(f"{name_of(source)} is another ({kind})")


def _getter(scope: FrameScope) -> Callable[[Any], Any]:
    values = {"L": scope.f_locals, "G": scope.f_globals, "__builtins__": builtins.__dict__}
    names = symbol(_GUARDS, "_get_closure_vars")()
    cache: dict[Any, Any] = {}
    return lambda source: source.get_value(values, names, cache)


def guard_manager(stored: StoredGuards, scope: FrameScope) -> Any:
    """Make the guards from the values of this process, whose facts have been checked.

    Raises:
        OtherValueError: the guards do not hold for the frame: its symbolic sizes are out of range.
    """
    output_graph, guards = private_module("torch._dynamo.output_graph"), private_module("torch._guards")
    ordered_set = symbol("torch.utils._ordered_set", "OrderedSet")
    state = output_graph.OutputGraphGuardsState(
        local_scope=scope.f_locals,
        global_scope=scope.f_globals,
        torch_function_mode_stack=[],
        guard_on_key_order=set(stored.ordered),
        input_source_to_sizes_strides=stored.sizes,
        dual_level=forward_level(),
        functorch_layers=[],
        current_device=default_device(),
        global_state_guard=state_guard(),
        _guards=guards.GuardsSet(ordered_set(map(_guard, stored.guards))),
        _aotautograd_guards=list(stored.aliases),
        skip_guards_check=True,
        name_of_builtins_dict_key_in_fglobals=stored.builtins_name,
    )
    manager = symbol(_GUARDS, "CheckFunctionManager")(
        scope.code,
        output_graph.OutputGraphCommon(state),
        shape_code_parts=stored.shapes,
        runtime_global_scope=scope.f_globals,
    ).guard_manager
    if not manager.check(scope.f_locals):
        raise OtherValueError("a condition on symbolic sizes or on shared memory does not hold")
    return manager


def default_device() -> Any:
    """Return the device on which new tensors are, if one is set: ``torch.utils._device.CURRENT_DEVICE``."""
    return symbol("torch.utils._device", "CURRENT_DEVICE")


def _guard(plain: PlainGuard) -> Any:
    kind, args, keywords, source = plain
    create = symbol(_GUARDS, f"GuardBuilder.{kind}")
    return symbol("torch._guards", "Guard")(
        source, functools.partial(create, *args, **keywords) if args or keywords else create
    )
