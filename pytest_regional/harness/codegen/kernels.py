"""What a wrapper names: operators, and kernels with what they read and write; and lines of code, for editors."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from pytest_regional._torch.operators import schema_of
from pytest_regional.harness.codegen.events import CodeEvent, ExternCall, KernelLaunch, UnreadableCodeError

if TYPE_CHECKING:
    from pytest_regional.harness.record import GeneratedSource

# Inductor's names for library routines that are not operators of that name.
EXTERN_KERNELS = {
    "bias_addmm": "aten.addmm.default",
    "mm_dtype": "aten.mm.dtype",
    "bmm_dtype": "aten.bmm.dtype",
    "conv1x1_via_mm": "aten.convolution.default",
    "call_aten_dw": "aten.convolution_backward.default",
    "call_aten_dx": "aten.convolution_backward.default",
    "_mm_plus_mm": "inductor._mm_plus_mm.default",
}
# Names before a dot in a wrapper that are not buffers.
MODULES = frozenset(
    ["torch", "aten", "extern_kernels", "inductor_ops", "_quantized", "async_compile", "math", "self", "device", "inf"]
)
REDUCTIONS = frozenset(["sum", "prod", "amax", "amin", "any"])
COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor")


def dotted(node: ast.expr) -> str | None:
    """Return ``"a.b.c"`` for an attribute chain on a name, None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def operator_called(path: str) -> str | None:
    """Return the operator that the resolved call ``path`` runs, such as ``"aten.mm.default"``, or None."""
    if path.startswith("torch.ops."):
        return path.removeprefix("torch.ops.")
    if path.startswith("extern_kernels."):
        name = path.removeprefix("extern_kernels.")
        return EXTERN_KERNELS.get(name, f"aten.{name}.default")
    return None


def reduction_finished(call: ast.Call) -> str | None:
    """Return ``"sum"`` for ``workspace[0:64].view(8, 8).sum(dim=0)``, else None.

    This is how Inductor sums the partial results in the workspace of a kernel that reduces both dimensions.
    """
    node: ast.expr = call
    methods = []
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods.append(node.func.attr)
        node = node.func.value
    found = [method for method in methods if method in REDUCTIONS]
    return found[0] if found and isinstance(node, ast.Subscript) else None


def is_collective(operator: str) -> bool:
    """Say whether ``operator`` belongs to a namespace of collectives."""
    return operator.partition(".")[0] in COLLECTIVES


def mentioned(*nodes: ast.AST) -> tuple[str, ...]:
    """Return the variables that ``nodes`` mention, once each, in order; names of functions and modules are left out."""
    found: dict[str, None] = {}
    pending = list(reversed(nodes))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and node.id not in MODULES:
            found[node.id] = None
        called = node.func if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        pending += reversed([child for child in ast.iter_child_nodes(node) if child is not called])
    return tuple(found)


def spelled(node: ast.expr) -> str:
    """Return ``buf0`` or ``buf0[1]`` for a variable or an element of one, else the variable in it."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return f"{spelled(node.value)}[{node.slice.value!r}]"
    return node.id if isinstance(node, ast.Name) else next(iter(mentioned(node)), "")


def elements_of(target: ast.expr) -> tuple[str, ...]:
    """Return the names that an assignment's ``target`` binds, element by element."""
    if isinstance(target, (ast.Tuple, ast.List)):
        return tuple(map(spelled, target.elts))
    return (spelled(target),)


COPIES = frozenset(["aten.copy_", "aten.copy", "aten.clone", "aten.lift_fresh_copy", "aten.contiguous"])


def packet_name(name: str) -> str:
    """Return ``"aten.add"`` for ``"aten.add.Tensor"`` and for ``"aten.add"``."""
    return ".".join(name.split(".")[:2])


@cache
def overload_of(name: str) -> Any:
    """Return the overload called ``name``, or the first one of its packet if ``name`` is a packet, or None."""
    namespace, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    packet: Any = getattr(getattr(torch.ops, namespace), operator, None) if operator.isidentifier() else None
    overloads: list[str] = packet.overloads() if hasattr(packet, "overloads") else []
    chosen = overload or next(iter(overloads), "")
    return getattr(packet, chosen) if chosen in overloads else None


def mutated_positions(name: str) -> tuple[int, ...]:
    """Return the positions of the arguments that the operator writes."""
    overload = overload_of(name)
    arguments = schema_of(overload).arguments if overload else ()
    return tuple(i for i, argument in enumerate(arguments) if argument.alias_info and argument.alias_info.is_write)


def only_moves(name: str) -> bool:
    """Say whether the operator only copies or makes a view."""
    if packet_name(name) in COPIES:
        return True
    overload = overload_of(name)
    return bool(overload and overload.is_view)


_LOADS = frozenset({"load", "descriptor_load"})
_STORES = frozenset({"store", "descriptor_store"})

Functions = Mapping[str, ast.FunctionDef]


@dataclass
class Accesses:
    """Names of the parameters whose memory a function loads from and stores to."""

    loaded: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)


def accesses_of(function: ast.FunctionDef, functions: Functions, around: tuple[str, ...] = ()) -> Accesses:
    """Return how ``function`` and its callees access the memory of its parameters.

    Args:
        function: a ``@triton.jit`` function.
        functions: the functions of its module, by name.
        around: the functions that called it.
    """
    behind = _pointers(function)
    found = Accesses()
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        name = dotted(call.func) or ""
        if name in functions and name not in (*around, function.name):
            inner = accesses_of(functions[name], functions, (*around, function.name))
            for parameter, argument in _bound(functions[name], call):
                found.loaded |= _behind(argument, behind) if parameter in inner.loaded else set()
                found.stored |= _behind(argument, behind) if parameter in inner.stored else set()
            continue
        # tl.load(pointer), tl.load(pointer=...) or descriptor.load(...)
        given = {keyword.arg: keyword.value for keyword in call.keywords}
        pointer = call.args[0] if call.args else given.get("pointer", call.func)
        if isinstance(call.func, ast.Attribute) and not name.startswith(("tl.", "tl_", "triton.", "triton_helpers.")):
            pointer = call.func.value
        method = name.rpartition(".")[2]
        touched = _behind(pointer, behind)
        found.loaded |= touched if method in _LOADS or method.startswith("atomic_") else set()
        found.stored |= touched if method in _STORES or method.startswith("atomic_") else set()
    return found


def _pointers(function: ast.FunctionDef) -> dict[str, set[str]]:
    """Return, for each variable, the parameters that its value may point into."""
    behind = {argument.arg: {argument.arg} for argument in function.args.args}
    assignments = [node for node in ast.walk(function) if isinstance(node, (ast.Assign, ast.AugAssign))]
    changed = True
    while changed:
        changed = False
        for assignment in assignments:
            found = _behind(assignment.value, behind)
            targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
            for target in (target for target in targets if isinstance(target, ast.Name)):
                known = behind.setdefault(target.id, set())
                changed |= not found <= known
                known |= found
    return behind


def _behind(node: ast.expr, behind: Mapping[str, set[str]]) -> set[str]:
    """Return the parameters that the value of ``node`` may point into; a loaded value is no pointer."""
    found: set[str] = set()
    pending: list[ast.AST] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Name):
            found |= behind.get(part.id, set())
        elif not (isinstance(part, ast.Call) and (dotted(part.func) or "").rpartition(".")[2] in _LOADS):
            pending += list(ast.iter_child_nodes(part))
    return found


def _bound(function: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    names = [argument.arg for argument in function.args.args]
    yield from zip(names, call.args, strict=False)
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: its name, and what the kernel may do with it."""

    name: str
    reads: bool
    writes: bool


@dataclass(frozen=True)
class KernelDefinition:
    """A kernel that the wrapper compiles before its first call."""

    name: str  # the wrapper's name for it
    language: str  # the method of ``async_compile`` that compiles it, such as ``"cpp_pybinding"`` or ``"triton"``
    parameters: tuple[Parameter, ...]
    function: str  # name of the function inside, which differs from ``name`` for a kernel that the user wrote
    source: str = field(default="", repr=False)  # the text that is compiled: a Python module for Triton
    attribute: str = ""  # its name in that module
    line: int = 0  # where the wrapper defines it, from 1


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
    """Read ``['const float*', 'float*']``; the C++ signature shows which of the written ones are also read."""
    if not isinstance(types, ast.List):
        return ()
    spellings = [_text(element) or "" for element in types.elts]
    signature = source.partition('extern "C"')[2].partition("(")[2].partition(")")[0]
    names = [part.split()[-1].lstrip("*") for part in signature.split(",") if part.strip()]
    if len(names) != len(spellings):
        names = [f"parameter{number}" for number in range(len(spellings))]
    found = []
    for name, spelling in zip(names, spellings, strict=True):
        pointer, const = spelling.endswith("*"), spelling.startswith("const ")
        reads = pointer and (const or name.startswith("in_out"))
        found.append(Parameter(name, reads=reads, writes=pointer and not const))
    return tuple(found)


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
    accesses = accesses_of(function, functions) if function.name.startswith("triton_tem_") else Accesses()
    names = [argument.arg for argument in function.args.args]
    parameters = [_triton_parameter(argument, mutated, written_by_user, accesses) for argument in names]
    return KernelDefinition(name, "triton", tuple(parameters), function.name)


def _triton_parameter(name: str, mutated: frozenset[str], written_by_user: bool, accesses: Accesses) -> Parameter:
    if name in mutated or name.startswith(("in_out_ptr", "ws_ptr", "sem_ptr")):
        return Parameter(name, reads=True, writes=True)
    if name.startswith("out_ptr"):
        return Parameter(name, reads=False, writes=True)
    if name.startswith(("in_ptr", "arg_")):
        # A template such as flex_attention's has more results than its output: arguments that it stores to.
        written = name in accesses.stored
        return Parameter(name, reads=not written or name in accesses.loaded, writes=written)
    # Inductor lists a user kernel's written parameters only if its analysis succeeded.
    return Parameter(name, reads=written_by_user, writes=written_by_user and not mutated)


def _mutated(function: ast.FunctionDef) -> frozenset[str]:
    """Return ``mutated_arg_names`` of the ``inductor_meta`` in the decorators."""
    keywords = [one for call in function.decorator_list if isinstance(call, ast.Call) for one in call.keywords]
    tables = [one.value for one in keywords if one.arg == "inductor_meta" and isinstance(one.value, ast.Dict)]
    for name, value in (item for table in tables for item in zip(table.keys, table.values, strict=True)):
        if name is not None and _text(name) == "mutated_arg_names":
            return frozenset(filter(None, (_text(part) for part in ast.walk(value) if isinstance(part, ast.expr))))
    return frozenset()


@dataclass(frozen=True)
class Wrapper:
    """A parsed wrapper."""

    lines: list[str]
    functions: dict[str, ast.FunctionDef]  # ``call`` and the functions of subgraphs and partitions, by name
    kernels: dict[str, KernelDefinition]  # those that it defines with ``async_compile``, by name
    aliases: dict[str, str]  # the meaning of its short names, such as ``torch.ops.aten`` for ``aten``

    @staticmethod
    def of(text: str) -> Wrapper:
        """Parse ``text``."""
        try:
            module = ast.parse(text)
        except SyntaxError as error:
            raise UnreadableCodeError(
                f"the generated code is not Python (line {error.lineno}: {error.msg}); the reader supports Inductor's "
                f"Python wrappers, not the code of AOTInductor or cpp_wrapper"
            ) from error
        functions = {part.name: part for part in module.body if isinstance(part, ast.FunctionDef)}
        for part in module.body:
            if isinstance(part, ast.ClassDef):
                functions |= {inner.name: inner for inner in part.body if isinstance(inner, ast.FunctionDef)}
        if "call" in functions:
            kernels, aliases = {}, {}
            for part in module.body:
                if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
                    name, path = part.targets[0].id, dotted(part.value)
                    if definition := _definition(name, part.value):
                        kernels[name] = replace(definition, line=part.lineno)
                    elif path and "." in path:
                        aliases[name] = path
            return Wrapper(text.split("\n"), functions, kernels, aliases)
        assigned = [target for part in ast.walk(module) if isinstance(part, ast.Assign) for target in part.targets]
        if any(isinstance(target, ast.Name) and target.id == "cpp_wrapper_src" for target in assigned):
            raise UnreadableCodeError(
                "the generated code is a C++ wrapper, which is not supported; compile with "
                "torch._inductor.config.cpp_wrapper = False"
            )
        raise UnreadableCodeError(
            "the generated code has no function 'call', so it is not one of Inductor's Python wrappers"
        )


#: Of one failure; the first are the most likely ones.
MOST = 8


@dataclass(frozen=True)
class CodePlace:
    """A line of generated code, from 1, and what is on it, for a person."""

    source: GeneratedSource
    line: int
    what: str


def places_of(source: GeneratedSource, events: Iterable[CodeEvent]) -> list[CodePlace]:
    """Return the lines of ``events``, each followed by the kernel that it launches, each line once."""
    kernels = Wrapper.of(source.text).kernels
    places: dict[int, CodePlace] = {}
    for event in events:
        ops = ", ".join(dict.fromkeys(op.name for op in event.ops or ()))
        kernel = event.kernel if isinstance(event, KernelLaunch) else ""
        what = f"{event.kind} {kernel or event.text}" + (f" computes {ops}" if ops else "")
        places[event.line] = CodePlace(source, event.line, what)
        if kernel in kernels:
            line, language = kernels[kernel].line, kernels[kernel].language.partition("_")[0]
            places[line] = CodePlace(source, line, f"{language} code of {kernel}")
    return list(places.values())


def places_of_results(
    sources: Sequence[GeneratedSource],
    *,
    backward: bool,
    regions: Collection[str],
    wrong: Collection[int],
    outputs: int,
) -> tuple[CodePlace, ...]:
    """Return the launches and calls that make what the code of a program returns, or ``backward``, its gradients.

    If it is known which ``regions`` are to blame, only those count. ``wrong`` are numbers of the wrong ones among the
    ``outputs`` tensors that the program returns. They are looked at where the code returns these and nothing else; a
    forward graph also returns what its backward needs.
    """
    kinds = ("backward",) if backward else ("forward", "inference")
    mine = [source for source in sources if source.graph in kinds] or list(sources)
    mine = [source for source in mine if not regions or set(regions) & set(source.regions)] or mine
    found: list[CodePlace] = []
    for source in mine:
        try:
            events = source.events
            returned = [name for event in events if event.kind == "return" for name in event.reads]
            if len(mine) == 1 and source.graph == "inference" and len(returned) == outputs:
                returned = [returned[number] for number in sorted(wrong)] or returned
            found += places_of(source, _makers(events, returned))
        except UnreadableCodeError:
            continue  # a C++ wrapper: its launches cannot be told
    return tuple(found[:MOST])


def _makers(events: Sequence[CodeEvent], names: Iterable[str]) -> list[CodeEvent]:
    """Return the last launch or call that writes each of ``names``, through aliases, in order."""
    makers: dict[int, CodeEvent] = {}
    for wanted in names:
        name = wanted
        for event in reversed(events):
            if name in event.writes and isinstance(event, KernelLaunch | ExternCall):
                makers[id(event)] = event
                break
            if name in event.writes and event.kind == "alias" and event.reads:
                name = event.reads[0]
    return sorted(makers.values(), key=lambda event: event.line)
