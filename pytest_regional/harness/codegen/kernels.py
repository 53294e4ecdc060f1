"""Kernels in a wrapper: which parameters they read and write; and the lines of code that make a result, for editors."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_regional.harness.codegen.events import (
    Alias,
    CodeEvent,
    Events,
    ExternCall,
    KernelLaunch,
    Return,
    UnreadableCodeError,
)
from pytest_regional.harness.codegen.operators import dotted, module_aliases

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
        method = name.rpartition(".")[2]
        touched = _behind(_pointer_of(call, name), behind)
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


def _pointer_of(call: ast.Call, name: str) -> ast.expr:
    """Return the pointer of ``tl.load(pointer)``, ``tl.load(pointer=...)`` or ``descriptor.load(...)``."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if isinstance(call.func, ast.Attribute) and not name.startswith(("tl.", "tl_", "triton.", "triton_helpers.")):
        return call.func.value
    return call.args[0] if call.args else given.get("pointer", call.func)


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
        parameters: in order, if they could be read.
        function: name of the function inside, which differs from ``name`` for a kernel that the user wrote.
        source: the text that is compiled: a Python module for Triton.
        attribute: its name in that module.
        line: where the wrapper defines it, from 1.
    """

    name: str
    language: str
    parameters: tuple[Parameter, ...]
    function: str
    source: str = field(default="", repr=False)
    attribute: str = ""
    line: int = 0

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
                found[definition.name] = replace(definition, line=statement.lineno)
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
    """Read ``['const float*', 'float*']``; the C++ signature shows which of the written ones are also read."""
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
        # A template such as flex_attention's has more results than its output: arguments that it stores to.
        written = name in accesses.stored
        return Parameter(name, reads=not written or name in accesses.loaded, writes=written)
    # Inductor lists a user kernel's written parameters only if its analysis succeeded.
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
                f"the generated code is not Python (line {error.lineno}: {error.msg}); the reader supports Inductor's "
                f"Python wrappers, not the code of AOTInductor or cpp_wrapper"
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
            "the generated code is a C++ wrapper, which is not supported; compile with "
            "torch._inductor.config.cpp_wrapper = False"
        )
    return "the generated code has no function 'call', so it is not one of Inductor's Python wrappers"


#: Of one failure; the first are the most likely ones.
MOST = 8


class Source(Protocol):
    """The part of :class:`~pytest_regional.harness.record.GeneratedSource` that is used here."""

    @property
    def graph(self) -> str:
        """Its graph."""

    @property
    def regions(self) -> tuple[str, ...]:
        """Names of its regions."""

    @property
    def text(self) -> str:
        """The code."""

    @property
    def events(self) -> Events:
        """What it does."""


@dataclass(frozen=True)
class CodePlace:
    """A line of generated code.

    Attributes:
        source: the code.
        line: from 1.
        what: what is on that line, for a person.
    """

    source: Source
    line: int
    what: str


def places_of(source: Source, events: Iterable[CodeEvent]) -> list[CodePlace]:
    """Return the lines of ``events``, each followed by the kernel that it launches, each line once."""
    kernels = Wrapper.of(source.text).kernels
    return list({place.line: place for event in events for place in _of_event(source, event, kernels)}.values())


def _of_event(source: Source, event: CodeEvent, kernels: Mapping[str, KernelDefinition]) -> Iterator[CodePlace]:
    ops = ", ".join(dict.fromkeys(op.name for op in event.ops or ()))
    kernel = event.kernel if isinstance(event, KernelLaunch) else ""
    yield CodePlace(source, event.line, f"{event.kind} {kernel or event.text}" + (f" computes {ops}" if ops else ""))
    if kernel in kernels:
        yield CodePlace(source, kernels[kernel].line, f"{kernels[kernel].language.partition('_')[0]} code of {kernel}")


def places_of_results(
    sources: Sequence[Source], *, backward: bool, regions: Collection[str], wrong: Collection[int], outputs: int
) -> tuple[CodePlace, ...]:
    """Return the launches and calls that make what the code returns.

    Args:
        sources: the code of one program.
        backward: whether gradients are wrong, and no output.
        regions: those to blame; empty if none is known.
        wrong: numbers of the wrong ones among the tensors that the program returns. Looked at where the code returns
            these and nothing else; a forward graph also returns what its backward needs.
        outputs: how many tensors the program returns.
    """
    kinds = ("backward",) if backward else ("forward", "inference")
    mine = [source for source in sources if source.graph in kinds] or list(sources)
    mine = [source for source in mine if not regions or set(regions) & set(source.regions)] or mine
    found: list[CodePlace] = []
    for source in mine:
        try:
            events = source.events
            returned = [name for event in events if isinstance(event, Return) for name in event.reads]
            if len(mine) == 1 and source.graph == "inference" and len(returned) == outputs:
                returned = [returned[number] for number in sorted(wrong)] or returned
            found += places_of(source, _makers(events, returned))
        except UnreadableCodeError:
            continue  # a C++ wrapper: its launches cannot be told
    return tuple(found[:MOST])


def _makers(events: Sequence[CodeEvent], names: Iterable[str]) -> list[CodeEvent]:
    """Return the last launch or call that writes each of ``names``, through aliases, in order."""
    makers = {id(event): event for name in names for event in _maker(events, name)}
    return sorted(makers.values(), key=lambda event: event.line)


def _maker(events: Sequence[CodeEvent], name: str) -> Iterator[CodeEvent]:
    for event in reversed(events):
        if name in event.writes and isinstance(event, KernelLaunch | ExternCall):
            yield event
            return
        if name in event.writes and isinstance(event, Alias) and event.reads:
            name = event.reads[0]
