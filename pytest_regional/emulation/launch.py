"""Launching kernels: their arguments, the order of their programs, and programs that wait for each other."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton.language as tl

from pytest_regional._base.errors import OutOfTimeError
from pytest_regional._torch.triton import (
    grid_of_inductor_kernel,
    jit_parameters,
    jit_source,
    kernel_type,
    tensor_descriptor_class,
    type_of_argument,
)
from pytest_regional.emulation.device import EmulationError, MemoryFaultError, UnsupportedByEmulationError
from pytest_regional.emulation.interpreter.accesses import LaunchMemory, pointer_to, region_of
from pytest_regional.emulation.interpreter.builder import builder, semantic
from pytest_regional.emulation.interpreter.functions import interpreting, is_jitted, is_rewritten, python_function
from pytest_regional.emulation.interpreter.values import from_numbers, numpy_type, scalar_value
from pytest_regional.emulation.memory import Memory

GRID_LIMITS = (2**31 - 1, 65535, 65535)
_LARGEST_BLOCKS = {"XBLOCK": 4096, "YBLOCK": 1024, "ZBLOCK": 1024}
_LARGEST_TILE = 1 << 16


@dataclass(frozen=True)
class LaunchPlan:
    """How Inductor's kernels are launched.

    ``config`` is the index among a kernel's configurations. ``programs`` is how many programs blocks are enlarged for
    (0: blocks as generated); an operation on a block costs much the same whatever its size, up to thousands of
    elements. ``reverse`` runs programs last to first, ``races`` looks for programs that touch what others write.
    """

    config: int = 0
    programs: int = 4
    reverse: bool = False
    races: bool = False


@dataclass(frozen=True)
class Launch:
    """One launch that happened."""

    kernel: str
    grid: tuple[int, int, int]
    config: Mapping[str, Any] = field(default_factory=dict)
    programs: int = 0
    seconds: float = 0.0


def launch_inductor_kernel(
    tuner: Any,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    *,
    memory: Memory,
    plan: LaunchPlan,
    programs: Sequence[Program] | None = None,
) -> Launch:
    """Run the kernel of one of Inductor's ``CachingAutotuner`` objects as its launcher would.

    ``programs`` are those of the grid to run; all by default.

    Raises:
        MemoryFaultError: if an argument contradicts the kernel's signature, or the kernel faults.
    """
    function, meta = tuner.fn, tuner.inductor_meta
    config = _config(tuner, plan)
    values = named_arguments(tuner, arguments)
    grid = grid_of_inductor_kernel(meta, config, values)
    bound = constants_of(tuner, config)
    bound.update({name: value for name, value in values.items() if name in function.arg_names})
    bound.update({name: value for name, value in keywords.items() if name in function.arg_names})
    _check_promises(tuner, bound)
    return _launch(
        function,
        grid,
        bound,
        types=tuner.triton_meta["signature"],
        memory=memory,
        together=may_wait(function),
        reverse=plan.reverse,
        races=plan.races,
        config=dict(config.kwargs),
        programs=programs,
    )


def launch_kernel(
    function: Any,
    grid: Any,
    arguments: Mapping[str, Any],
    *,
    memory: Memory,
    together: bool | None = None,
    reverse: bool = False,
    races: bool = False,
) -> Launch:
    """Run a jitted function, which may be wrapped by ``triton.autotune`` and ``triton.heuristics``, on a grid.

    The first configuration is taken. ``together`` lets programs take turns at atomic operations, which those that
    wait for each other need; None asks the kernel's text.
    """
    bound = dict(arguments)
    while not hasattr(function, "params"):
        if hasattr(function, "configs"):
            bound = {**function.configs[0].kwargs, **bound}
        elif hasattr(function, "values"):
            for name, heuristic in function.values.items():
                bound[name] = heuristic(bound)
        else:
            raise UnsupportedByEmulationError(f"a kernel wrapped in {type(function).__name__}")
        function = function.fn
    sizes = grid(bound) if callable(grid) else grid
    waiting = may_wait(function) if together is None else together
    return _launch(function, sizes, bound, types={}, memory=memory, together=waiting, reverse=reverse, races=races)


def named_arguments(tuner: Any, arguments: Sequence[Any]) -> dict[str, Any]:
    """Name the positional arguments of a launcher: constants are not among them, a few more may follow."""
    constexprs = {p.name for p in jit_parameters(tuner.fn) if p.is_constexpr}
    extra = tuple(tuner.inductor_meta.get("extra_launcher_args") or ())
    names = [name for name in tuner.fn.arg_names if name not in constexprs]
    if len(arguments) == len(tuner.fn.arg_names) + len(extra):
        names = list(tuner.fn.arg_names)
    if len(arguments) != len(names) + len(extra):
        raise EmulationError(
            f"{_name(tuner.fn)} was launched with {len(arguments)} arguments and takes {[*names, *extra]}"
        )
    return dict(zip([*names, *extra], arguments, strict=True))


def constants_of(tuner: Any, config: Any) -> dict[str, Any]:
    """Return constexpr parameters: those of ``triton_meta``, then those of the configuration."""
    names = tuner.fn.arg_names
    found: dict[str, Any] = {}
    for key, value in (tuner.triton_meta.get("constants") or {}).items():
        name = names[key] if isinstance(key, int) else names[key[0]] if isinstance(key, tuple) else key
        found[name] = value
    for name in ("num_warps", "num_stages"):
        if name in names:
            found[name] = getattr(config, name)
    found.update({name: value for name, value in config.kwargs.items() if name in names})
    return found


def _config(tuner: Any, plan: LaunchPlan) -> Any:
    """Return the planned configuration with blocks enlarged until about ``plan.programs`` programs are left."""
    config = tuner.configs[plan.config % len(tuner.configs)]
    hints = tuner.size_hints
    if not plan.programs or not hints or tuner.inductor_meta.get("grid_type") not in ("Grid1D", "Grid2D", "Grid3D"):
        return config
    config = copy.deepcopy(config)
    for name, largest in _LARGEST_BLOCKS.items():
        size = hints.get(name[0].lower())
        while size and name in config.kwargs and _may_grow(config.kwargs, hints, name, size, plan.programs, largest):
            config.kwargs[name] *= 2
    return config


def _may_grow(
    blocks: Mapping[str, Any], hints: Mapping[str, int], name: str, size: int, programs: int, largest: int
) -> bool:
    tile = int(np.prod([value for key, value in blocks.items() if key.endswith("BLOCK")]))
    if "R0_BLOCK" not in blocks:
        tile *= hints.get("r0_", 1) * hints.get("r1_", 1)
    return blocks[name] * programs < size and blocks[name] * 2 <= largest and tile < _LARGEST_TILE


def _check_promises(tuner: Any, bound: Mapping[str, Any]) -> None:
    """Check what the compiled kernel would rely on: argument types and divisibility by 16."""
    for name, kind in tuner.triton_meta["signature"].items():
        value = bound.get(name)
        if isinstance(value, torch.Tensor) and str(kind).startswith("*"):
            # Triton itself says u1 for bool.
            is_bool = value.dtype == torch.bool
            if str(kind) != ("*i1" if is_bool else type_of_argument(value).replace("*k", "*")):
                raise MemoryFaultError(f"argument {name} of {_name(tuner.fn)} is {value.dtype}, its signature {kind}")
    names = tuner.fn.arg_names
    for promises in tuner.triton_meta.get("configs") or ():
        for key, facts in promises.items() if isinstance(promises, dict) else ():
            name = names[key[0]] if isinstance(key, tuple) else key
            value = bound.get(name)
            number = value.data_ptr() if isinstance(value, torch.Tensor) else value
            if isinstance(number, int) and number % 16 and ["tt.divisibility", 16] in [list(fact) for fact in facts]:
                raise MemoryFaultError(
                    f"argument {name} of {_name(tuner.fn)} is {number}, which the kernel takes for a multiple of 16"
                )


def _launch(
    function: Any,
    grid: Sequence[Any],
    bound: Mapping[str, Any],
    *,
    types: Mapping[str, Any],
    memory: Memory,
    together: bool,
    reverse: bool,
    races: bool,
    config: Mapping[str, Any] | None = None,
    programs: Sequence[Program] | None = None,
) -> Launch:
    started = time.perf_counter()
    name, sizes = _name(function), _checked_grid(_name(function), grid)
    with interpreting():
        touched = LaunchMemory(name, [], memory.deadline)
        values = _Arguments(function, types, memory, touched, races).of(bound)
        body = _guarded(name, python_function(function), values, touched)
        made = builder()
        made.memory = touched
        made.grid_dim = sizes
        chosen = programs_of(sizes, reverse) if programs is None else programs
        (run_together if together else run_in_order)(body, chosen, touched)
    for region in touched.regions:
        if region.allocation is not None and not region.allocation.guards_intact():
            raise MemoryFaultError(f"{name} wrote beside the buffer of its argument {region.argument}")
    return Launch(name, sizes, config or {}, math.prod(sizes), time.perf_counter() - started)


def _checked_grid(name: str, grid: Sequence[Any]) -> tuple[int, int, int]:
    x, y, z = (*(int(size) for size in grid), 1, 1)[:3]
    for size, limit in zip((x, y, z), GRID_LIMITS, strict=True):
        if not 0 <= size <= limit:
            raise EmulationError(f"grid {(x, y, z)} of {name} exceeds what CUDA launches, {GRID_LIMITS}")
    return x, y, z


def _guarded(
    name: str, function: Callable[..., Any], values: Mapping[str, Any], touched: LaunchMemory
) -> Callable[[], None]:
    """Return a call of the kernel whose failures name kernel, program and line."""

    def body() -> None:
        try:
            function(**values)
        except (EmulationError, OutOfTimeError) as error:
            raise type(error)(f"{error}\n{_line_of(error)}") from error.__cause__
        except Exception as error:
            refused = error.__cause__
            if isinstance(refused, EmulationError | OutOfTimeError):
                raise type(refused)(f"{refused}\n{_line_of(error)}") from error
            # What the installed triton itself does not do any more would not compile for a GPU either.
            kind = UnsupportedByEmulationError if _is_refused_by_triton(error) else EmulationError
            raise kind(
                f"{name}, program {touched.program}, failed with {type(error).__name__}: {error}\n{_line_of(error)}"
            ) from error

    return body


def _is_refused_by_triton(error: BaseException) -> bool:
    """Say whether Triton's own code raised that it does not do something; in ours it would be a defect, no refusal."""
    frames = list(traceback.walk_tb(error.__traceback__))
    module = str(frames[-1][0].f_globals.get("__name__", "")) if frames else ""
    return isinstance(error, NotImplementedError) and module.partition(".")[0] == "triton"


def _line_of(error: BaseException) -> str:
    """Return the line of a kernel, or of a function that it calls, which raised ``error``."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_rewritten(frame.filename, frame.name):
            return f"  {frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
    return ""


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


@dataclass(frozen=True)
class _Arguments:
    """Arguments of a launch as a kernel sees them: pointers, typed scalars, constants."""

    function: Any
    types: Mapping[str, Any]
    memory: Memory
    touched: LaunchMemory
    races: bool

    def of(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return a value for every parameter of the kernel."""
        result: dict[str, Any] = {}
        for parameter in jit_parameters(self.function):
            if parameter.name in bound:
                value = bound[parameter.name]
                result[parameter.name] = value if parameter.is_constexpr else self._value(parameter.name, value)
            elif not parameter.has_default:
                raise EmulationError(f"no value for argument {parameter.name} of {_name(self.function)}")
        return result

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._pointer(name, value)
        if isinstance(value, (bool, int, float)):
            return self._number(name, value)
        if isinstance(value, tuple):
            return tl.core.tuple([self._value(f"{name}[{i}]", item) for i, item in enumerate(value)])
        if isinstance(value, tensor_descriptor_class()):
            return self._descriptor(name, value)
        return value

    def _pointer(self, name: str, tensor: torch.Tensor) -> Any:
        region = region_of(name, tensor, self.memory, self.races)
        for known in self.touched.regions:
            if known.start == region.start:
                region.footprints = known.footprints
        self.touched.regions.append(region)
        return pointer_to(region, tensor.data_ptr(), kernel_type(type_of_argument(tensor)))

    def _number(self, name: str, value: Any) -> Any:
        """Return a scalar in the type of the signature, or in the one Triton would choose for the value."""
        kind = self.types.get(name)
        if kind == "constexpr":
            return value
        scalar = kernel_type(str(kind) if kind else type_of_argument(value))
        if scalar.is_int() and not scalar.get_int_min_value() <= value <= scalar.get_int_max_value():
            raise MemoryFaultError(
                f"argument {name} of {_name(self.function)} is {value}, too large for its type {scalar}"
            )
        if scalar.is_floating():
            return scalar_value(from_numbers(np.array([value], dtype=np.float64), scalar), scalar)
        return scalar_value(np.array([value]).astype(numpy_type(scalar)), scalar)

    def _descriptor(self, name: str, value: Any) -> Any:
        meaning = semantic()
        strides = [self._number("", step) for step in value.strides[:-1]]
        return meaning.make_tensor_descriptor(
            base=self._pointer(name, value.base),
            shape=[self._number("", size) for size in value.shape],
            strides=[*strides, tl.constexpr(1)],
            block_shape=[tl.constexpr(size) for size in value.block_shape],
            padding_option=value.padding,
        )


# Operations in a row, all programs together, that may leave memory as it is before waiting counts as forever.
_PATIENCE = 20_000

_MOST_TOGETHER = 4096

Program: TypeAlias = tuple[int, int, int]


def programs_of(grid: Sequence[int], reverse: bool = False) -> Iterator[Program]:
    """Yield the programs of a grid in the order in which they run: x fastest, as a GPU starts them."""
    x, y, z = (range(size)[::-1] if reverse else range(size) for size in (*grid, 1, 1)[:3])
    return ((i, j, k) for k in z for j in y for i in x)


def run_in_order(body: Callable[[], Any], programs: Iterable[Program], memory: LaunchMemory) -> None:
    """Run every program to its end before the next."""
    made = builder()
    made.patience = _PATIENCE
    for program in programs:
        made.grid_idx = memory.program = program
        made.progressed()
        body()


class _Turns:
    """Programs on threads of which one runs at a time; it hands over at every atomic operation.

    Programs that wait for another one spin on an atomic operation, so each such wait is one turn.
    """

    def __init__(self, body: Callable[[], Any], programs: Sequence[Program], memory: LaunchMemory) -> None:
        self.body = body
        self.memory = memory
        self.waiting = list(programs)
        self.doors = {program: threading.Semaphore(0) for program in programs}
        self.running: Program | None = None
        self.finished = threading.Semaphore(0)
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Run all programs."""
        threads = [threading.Thread(target=self._thread, args=(program,), daemon=True) for program in self.waiting]
        for thread in threads:
            thread.start()
        self._next()
        self.finished.acquire()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _thread(self, program: Program) -> None:
        self.doors[program].acquire()
        try:
            if self.failure is None:
                with np.errstate(all="ignore"), torch.no_grad():
                    self.body()
        except BaseException as failure:  # noqa: BLE001  raised again by the thread that launched
            self.failure = self.failure or failure
        builder().progressed()
        self._next()

    def _next(self) -> None:
        """Let the next program run, or end the launch."""
        if not self.waiting:
            self.finished.release()
            return
        self.running = self.waiting.pop(0)
        builder().grid_idx = self.memory.program = self.running
        self.doors[self.running].release()

    def pause(self) -> None:
        """Let every other program run up to its next atomic operation."""
        if self.failure is not None:
            raise EmulationError("another program of this launch failed")
        program = self.running
        assert program is not None
        self.waiting.append(program)
        self._next()
        self.doors[program].acquire()


def run_together(body: Callable[[], Any], programs: Iterable[Program], memory: LaunchMemory) -> None:
    """Run programs that wait for each other, as those of a cooperative reduction do at its barrier.

    Raises:
        UnsupportedByEmulationError: they are too many, since each one has a thread.
    """
    order = list(itertools.islice(programs, _MOST_TOGETHER + 1))
    if len(order) > _MOST_TOGETHER:
        raise UnsupportedByEmulationError(
            f"{memory.kernel}: more than {_MOST_TOGETHER} programs that wait for each other"
        )
    turns = _Turns(body, order, memory)
    made = builder()
    made.pause = turns.pause
    made.patience = _PATIENCE + 100 * len(order)
    try:
        turns.run()
    finally:
        del made.pause


_ANSWERS: WeakKeyDictionary[Any, tuple[str, bool]] = WeakKeyDictionary()


def may_wait(function: Any) -> bool:
    """Say whether programs of the jitted ``function`` may wait for other programs."""
    source = jit_source(function)
    known = _ANSWERS.get(function.fn)
    if known is None or known[0] != source:
        known = _ANSWERS[function.fn] = (source, any(_waits(reached) for reached in _reached(function, {})))
    return known[1]


def _waits(function: Any) -> bool:
    if "while" not in jit_source(function):
        return False
    loops = (node for node in ast.walk(_tree(function)) if isinstance(node, ast.While))
    return any(_touches_memory(function, loop) for loop in loops)


def _touches_memory(function: Any, tree: ast.AST) -> bool:
    """Say whether ``tree``, a part of ``function``, has an atomic operation or a volatile load, or calls what has."""
    if any(_is_atomic(node) for node in ast.walk(tree)):
        return True
    seen: dict[int, Any] = {}
    reached = [inner for called in _called(function, tree) for inner in _reached(called, seen)]
    return any(_is_atomic(node) for inner in reached for node in ast.walk(_tree(inner)))


def _is_atomic(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg == "volatile"
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.startswith("atomic_")


def _reached(function: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield a jitted function and those that it calls, each once."""
    if id(function.fn) in seen:
        return
    seen[id(function.fn)] = function
    yield function
    for called in _called(function, _tree(function)):
        yield from _reached(called, seen)


def _called(function: Any, tree: ast.AST) -> Iterator[Any]:
    """Yield the jitted functions that a part of ``function`` names."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and is_jitted(found := _global(function, node)):
            yield found


def _global(function: Any, node: ast.expr) -> Any:
    """Return the object that a dotted name in a kernel names in its module, or None."""
    if isinstance(node, ast.Name):
        return function.fn.__globals__.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _global(function, node.value)
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def _tree(function: Any) -> ast.AST:
    return _parsed(jit_source(function))


@functools.lru_cache(maxsize=256)
def _parsed(source: str) -> ast.AST:
    """Parse a function once: kernels share most of those they call."""
    return ast.parse(source)
