"""The loops of Inductor's C++ kernels, as its code generator has them before they become text."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

from pytest_regional._torch import symbol
from pytest_regional._torch.inductor import virtualized
from pytest_regional._torch.patching import PatchPoint, wrapped

SAME, IN_A_ROW, EACH, TRANSPOSED = "same", "in a row", "each", "transposed"
"""What the parts of a vector access: one element, neighbours, any, or neighbours along the other axis of a tile."""


@dataclass(frozen=True)
class RawLoop:
    """``for (variable = offset; variable < size; variable += step)``."""

    variable: Any
    offset: Any
    size: Any
    step: Any


@dataclass(frozen=True)
class RawAccess:
    """A load or a store in the body of a loop.

    Attributes:
        kind: ``load``, ``store``, or ``store_reduction``.
        buffer: its name.
        index: the element, as a function of the loops' variables, for a body that does one element.
        after: whether it happens after the loops that reduce.
        lanes: one of SAME, IN_A_ROW, EACH, TRANSPOSED.
        at: the element of the vector's first part, as it is written down.
        stride: of TRANSPOSED, between two parts.
        loaded: names in ``at`` that stand for loaded integers.
        varying: those of them that differ between parts.
        beyond: whether a whole vector is loaded under a mask, by a body that does fewer elements.
    """

    kind: str
    buffer: str
    index: Any
    after: bool = False
    lanes: str = SAME
    at: Any = None
    stride: Any = None
    loaded: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    beyond: bool = False


@dataclass(frozen=True)
class RawBody:
    """One of the bodies of a nest, which do different parts of it.

    Attributes:
        kind: the name of the class that wrote it.
        lanes: for each variable along which one run does several elements, how many; that of the vector comes first.
        active: for each variable that decides whether it runs: from where, and up to where.
        inner: for each variable that has its own loop inside: from where, and up to where.
        within: the variable that counts the elements along the second of ``lanes``.
        accesses: in the order in which they were written.
    """

    kind: str
    lanes: tuple[tuple[Any, Any], ...] = ()
    active: tuple[tuple[Any, Any, Any], ...] = ()
    inner: tuple[tuple[Any, Any, Any], ...] = ()
    within: Any = None
    accesses: tuple[RawAccess, ...] = ()


@dataclass(frozen=True)
class RawNest:
    """Loops with one or more bodies.

    Attributes:
        sizes: of the scheduled nodes, one for each loop.
        kept: how many loops reduce nothing; they come first.
        loops: from the outermost on.
        bodies: each with what it does where no other does.
        after: bodies of what happens after the loops that reduce.
        plain: what a body without vectors accesses.
    """

    sizes: tuple[Any, ...]
    kept: int
    loops: tuple[RawLoop, ...]
    bodies: tuple[RawBody, ...]
    after: tuple[RawBody, ...] = ()
    plain: tuple[RawAccess, ...] = ()


@dataclass(frozen=True)
class RawKernel:
    """One C++ function, with what guards say of the sizes when it was generated.

    Attributes:
        guards: sympy's truth values.
        ranges: a symbol, its smallest and its largest value.
    """

    name: str
    nests: tuple[RawNest, ...]
    guards: tuple[Any, ...] = ()
    ranges: tuple[tuple[Any, Any, Any], ...] = ()


_CPP = "torch._inductor.codegen.cpp"

# Of these, all that is looked up at each call, by the same names and with the same arguments in 2.11 to 2.15.
_BODIES = {
    # Called once for each group of nodes with the same loops. It writes a body with one element at a time, then those
    # with vectors.
    "nodes": PatchPoint(f"{_CPP}:CppKernelProxy", "codegen_functions"),
    # Decides which bodies end a reduction.
    "ends": PatchPoint(f"{_CPP}:CppKernelProxy", "aggregate_reduction_buffers"),
    # Writes the loops, with all bodies inside.
    "loops": PatchPoint(f"{_CPP}:CppKernelProxy", "codegen_loops"),
    # Writes the function around loops, and gives it its name.
    "named": PatchPoint(f"{_CPP}:CppScheduling", "define_kernel"),
    # What is written inside comes after the loops that reduce.
    "after": PatchPoint(f"{_CPP}:CppKernel", "write_to_suffix"),
}
_ACCESSES = {
    "scalar load": PatchPoint(f"{_CPP}:CppKernel", "load"),
    "scalar store": PatchPoint(f"{_CPP}:CppKernel", "store"),
    "scalar store_reduction": PatchPoint(f"{_CPP}:CppKernel", "store_reduction"),
    "vector load": PatchPoint(f"{_CPP}:CppVecKernel", "load"),
    "vector store": PatchPoint(f"{_CPP}:CppVecKernel", "store"),
    "vector store_reduction": PatchPoint(f"{_CPP}:CppVecKernel", "store_reduction"),
    "tile load": PatchPoint(f"{_CPP}:CppTile2DKernel", "load"),
    "tile store": PatchPoint(f"{_CPP}:CppTile2DKernel", "store"),
}
_LANES = {
    "load in a row": PatchPoint(f"{_CPP}:CppVecKernel", "_get_vec_load_line"),
    "store in a row": PatchPoint(f"{_CPP}:CppVecKernel", "_get_store_line"),
    "each": PatchPoint(f"{_CPP}:CppVecKernel", "_load_or_store_non_contiguous"),
    "transposed": PatchPoint(f"{_CPP}:CppTile2DKernel", "gen_transposed_tile_load_store"),
}


@dataclass
class _Access:
    kind: str
    buffer: str
    index: Any
    after: bool
    lanes: str = ""
    at: Any = None
    stride: Any = None
    loaded: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()
    beyond: bool = False


@dataclass
class _Body:
    """What was seen of one of Inductor's kernels, each of which writes one body."""

    kernel: Any
    accesses: list[_Access] = field(default_factory=list)
    current: _Access | None = None
    after: int = 0


@dataclass
class _Group:
    """Nodes with the same loops."""

    proxy: Any
    sizes: tuple[tuple[Any, ...], tuple[Any, ...]]
    bodies: dict[int, _Body] = field(default_factory=dict)
    ends: Any = None

    def body(self, kernel: Any) -> _Body:
        return self.bodies.setdefault(id(kernel), _Body(kernel))


class _Watch:
    """What has been seen of the kernels whose code is being generated."""

    def __init__(self, found: Callable[[RawKernel], object]) -> None:
        self._found = found
        self._groups: dict[int, _Group] = {}
        self._open: list[_Group] = []
        self._nests: list[tuple[Any, RawNest]] = []

    def body_of(self, kernel: Any) -> _Body | None:
        return self._open[-1].body(kernel) if self._open else None

    def nodes(self, original: Callable[..., Any], proxy: Any, functions: Any, sizes: Any) -> Any:
        kept, reduced = max(sizes, key=lambda pair: len(pair[1]))
        group = self._groups[id(proxy)] = _Group(proxy, (tuple(kept), tuple(reduced)))
        self._open.append(group)
        try:
            return original(proxy, functions, sizes)
        finally:
            self._open.pop()

    def ends(self, original: Callable[..., Any], proxy: Any, by_part: Any, loop: Any) -> Any:
        if self._open:
            self._open[-1].ends = loop if by_part else None
        return original(proxy, by_part, loop)

    def loops(self, original: Callable[..., Any], proxy: Any, *args: Any) -> Any:
        result = original(proxy, *args)
        nest = proxy.loop_nest
        inner = getattr(nest.kernel, "inner", None)
        for loops in [nest] if inner is None else inner:
            outer = [] if inner is None else list(nest.loops or ())
            group = self._groups.get(id(loops.kernel))
            if group is not None:
                self._nests.append((virtualized().graph, _nest(group, [*outer, *(loops.loops or ())])))
        return result

    def named(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        name = original(*args, **kwargs)
        graph = virtualized().graph
        # An error may have ended another graph before its loops had a name.
        nests = tuple(nest for of, nest in self._nests if of is graph)
        self._nests.clear()
        self._groups.clear()
        environment = graph.sizevars.shape_env
        guards = tuple(guard.expr for guard in environment.guards)
        ranges = tuple((s, range.lower, range.upper) for s, range in environment.var_to_range.items())
        if nests:
            self._found(RawKernel(str(name), nests, guards, ranges))
        return name

    @contextlib.contextmanager
    def after(self, original: Callable[..., Any], kernel: Any) -> Iterator[None]:
        body = self.body_of(kernel) or _Body(kernel)
        body.after += 1
        try:
            with original(kernel):
                yield
        finally:
            body.after -= 1

    def access(self, level: str, kind: str) -> Callable[..., Any]:
        """Return what stands for a method of ``level`` that loads or stores; its own calls of others are no more."""

        def call(original: Callable[..., Any], kernel: Any, name: str, index: Any, *args: Any, **kwargs: Any) -> Any:
            body = self.body_of(kernel)
            if body is None:
                return original(kernel, name, index, *args, **kwargs)
            outermost = body.current is None
            if outermost:
                after = body.after > 0 or kind == "store_reduction"
                body.current = _Access(kind, name, index, after)
                body.accesses.append(body.current)
            access = body.current
            assert access is not None
            try:
                result = original(kernel, name, index, *args, **kwargs)
            finally:
                if outermost:
                    body.current = None
            if not access.lanes and (level == "scalar" or outermost):
                # What a vector adds atomically goes to any elements.
                one = level == "scalar" or kind != "store"
                access.lanes, access.at = SAME if one else EACH, index
                access.loaded, access.varying = _loaded(kernel, access.at)
            return result

        return call

    def lanes(self, lanes: str, position: int) -> Callable[..., Any]:
        """Return what stands for a method that writes what a vector accesses; ``position``: that of the index."""

        def call(original: Callable[..., Any], kernel: Any, *args: Any, **kwargs: Any) -> Any:
            body = self.body_of(kernel)
            access = None if body is None else body.current
            # A method that is called without a buffer computes an index, or fills a vector from an array.
            inside = access is not None and isinstance(args[position], sympy.Expr) and args[position - 1] is not None
            if access is not None and inside and (not access.lanes or lanes == EACH):
                access.lanes, access.at = lanes, args[position]
                if lanes == TRANSPOSED:
                    stride_of = symbol(_CPP, "stride_at_vec_range")
                    access.stride = stride_of(access.at, kernel.itervars[kernel.tiling_idx], kernel.tiling_factor)
                access.loaded, access.varying = _loaded(kernel, access.at)
                # A load under a mask is given no number of elements, unlike all others: (buffer, index, dtype, mask).
                masked = position == 1 and lanes == IN_A_ROW and args[3:] not in ((), (None,))
                access.beyond = masked and bool(kernel.tail_size) and str(args[2]) != "torch.bool"
            return original(kernel, *args, **kwargs)

        return call


def _loaded(kernel: Any, index: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names in an index that stand for loaded integers, and those that differ along a vector."""
    variables = [kernel.cse.varname_map.get(s.name) for s in index.free_symbols]
    found = [v for v in variables if v is not None and hasattr(v, "dependent_itervars")]
    found.sort(key=lambda variable: int("".join(filter(str.isdigit, variable.name)) or 0))
    position = getattr(kernel, "tiling_idx", None)
    along = None if position is None else kernel.itervars[position]
    varying = [v.name for v in found if v.is_vec or (along is not None and along in v.dependent_itervars)]
    return tuple(v.name for v in found), tuple(varying)


def _nest(group: _Group, loops: list[Any]) -> RawNest:
    clean = _cleaner(group)
    kept, reduced = group.sizes
    kernels = list(group.proxy.kernels)
    bodies = tuple(_body(group, kernel, clean) for kernel in kernels)
    plain = next(iter(group.bodies.values()), None)
    return RawNest(
        tuple(clean(size) for size in (*kept, *reduced)),
        len(kept),
        tuple(RawLoop(clean(x.var), clean(x.offset), clean(x.size), clean(x.steps)) for x in loops),
        bodies,
        _ends(group, kernels, bodies, clean),
        () if plain is None else _accesses(plain, clean),
    )


def _ends(group: _Group, kernels: list[Any], bodies: tuple[RawBody, ...], clean: Any) -> tuple[RawBody, ...]:
    """Return the bodies of what comes after reductions: of the first kernel, or of the first and the last one.

    So does ``CppKernelProxy.aggregate_reduction_buffers``, which is given the loop by whose parts they differ (2.11 to
    2.15). A last one without vectors is put into a loop from ``tiled_size`` to the end.
    """
    first, loop = bodies[0], group.ends
    if loop is None:
        return (RawBody(first.kind, first.lanes, (), (), first.within, first.accesses),)
    found = []
    for kernel, body in ((kernels[0], first), (kernels[-1], bodies[-1])):
        active = tuple(part for part in body.active if part[0] == loop.var)
        plain = type(kernel) is group.proxy.kernel_cls
        inner = ((clean(loop.var), clean(loop.tiled_size), clean(loop.size)),) if plain else ()
        found.append(RawBody(body.kind, body.lanes, active, inner, body.within, body.accesses))
    return tuple(found)


def _body(group: _Group, kernel: Any, clean: Any) -> RawBody:
    lanes: list[tuple[Any, Any]] = []
    within = None
    if hasattr(kernel, "tiling_idx"):
        lanes.append((kernel.itervars[kernel.tiling_idx], clean(kernel.num_elems)))
    if hasattr(kernel, "outer_idx"):
        count = kernel.outer_num_elems if kernel.inner_is_tiling_idx else kernel.inner_num_elems
        lanes.append((kernel.itervars[kernel.outer_idx], clean(count)))
        within = kernel.inner_itervar()
    active = []
    for variable, (start, end) in kernel.active_ranges.items():
        inside = variable in kernel.inner_itervars
        place = kernel.itervars.index(variable)
        # ``codegen_conditions``: a body with its own loop over all of a variable runs at its first value alone.
        once = inside and place > 0 and start == 0 and end == kernel.ranges[place]
        active.append((variable, clean(start), sympy.S.One if once else clean(end)))
    inner = tuple((v, *map(clean, kernel.active_ranges[v])) for v in kernel.inner_itervars)
    accesses = _accesses(group.body(kernel), clean)
    return RawBody(type(kernel).__name__, tuple(lanes), tuple(active), inner, within, accesses)


def _accesses(body: _Body, clean: Any) -> tuple[RawAccess, ...]:
    graph = virtualized().graph
    gone = {*graph.removed_buffers, *graph.inplaced_to_remove, *body.kernel.removed_buffers}
    return tuple(
        RawAccess(
            access.kind,
            access.buffer,
            clean(access.index),
            access.after,
            access.lanes,
            clean(access.at),
            None if access.stride is None else clean(access.stride),
            access.loaded,
            access.varying,
            access.beyond,
        )
        for access in body.accesses
        # What is stored there is not written down in the end.
        if access.kind == "load" or access.buffer not in gone
    )


def _cleaner(group: _Group) -> Callable[[Any], Any]:
    """Return what undoes the names that sizes have in a kernel, and in the code that calls it."""
    sizes: Mapping[Any, str] = group.proxy.args.sizevars
    given = {name: size for size, name in sizes.items()}
    undo = virtualized().graph.sizevars.remove_precomputed_replacements

    def clean(value: Any) -> Any:
        expression = sympy.sympify(value)
        named = {s: given[s.name] for s in expression.free_symbols if s.name in given}
        return undo(expression.xreplace(named) if named else expression)

    return clean


@contextlib.contextmanager
def observing_loops(found: Callable[[RawKernel], object]) -> Iterator[None]:
    """Call ``found`` with each C++ kernel whose code is generated inside; one from a cache is not.

    ``torch._inductor.codegen.cpp`` runs the nodes of a kernel once for each body: ``CppKernelProxy.kernels``, of which
    ``active_ranges`` and ``inner_itervars`` say when they run, ``num_elems`` and ``outer_num_elems`` how many elements
    they do, and ``LoopNest.loops`` what is around them (2.11, 2.13, 2.15).
    """
    watch = _Watch(found)
    wrappers: dict[str, Callable[..., Any]] = {
        "nodes": watch.nodes,
        "ends": watch.ends,
        "loops": watch.loops,
        "named": watch.named,
        "after": watch.after,
        "load in a row": watch.lanes(IN_A_ROW, 1),
        "store in a row": watch.lanes(IN_A_ROW, 2),
        "each": watch.lanes(EACH, 1),
        "transposed": watch.lanes(TRANSPOSED, 2),
    }
    wrappers |= {name: watch.access(*name.split()) for name in _ACCESSES}
    with wrapped({**_BODIES, **_ACCESSES, **_LANES}, wrappers):
        yield
