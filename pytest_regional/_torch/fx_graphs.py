"""FX graphs: metadata, annotations, code, bodies and copies, tracing to ATen; and nested containers (pytree)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pytest_regional._torch import calling, fetching, symbol
from pytest_regional._torch.tracing import fake_execution, is_symbolic, without_writes

#: The context in which new nodes inherit the current metadata (2.11 to 2.15).
preserve_node_meta = calling("torch.fx.traceback", "preserve_node_meta")
#: Generates code that takes one list of inputs and clears it (2.11 to 2.15).
_boxed_codegen = fetching("torch.fx.graph", "_BoxedCodeGen")
_make_fx = fetching("torch.fx.experimental.proxy_tensor", "make_fx")
_new_graph = calling("torch.fx", "Graph")
_graph_module = functools.cache(fetching("torch.fx", "GraphModule"))
#: Builds a GraphModule of a module, or attributes by name, a graph and the name of its class (2.11 to 2.15). Its Python
#: code is generated when first needed: most partitions go to Inductor and are never called as Python, and code for ten
#: thousand of them takes ten seconds.
lazy_graph_module = calling("torch.fx._lazy_graph_module", "_LazyGraphModule")
#: Moves nodes behind their inputs, as Inductor does after its pre-grad passes (2.11 to 2.15); refuses cycles.
sort_topologically = calling("torch._inductor.pattern_matcher", "stable_topological_sort")
#: What tracers keep of a tensor as ``tensor_meta`` (2.11 to 2.15).
tensor_metadata = calling("torch.fx.passes.shape_prop", "_extract_tensor_metadata")
#: A copy of a fake value, as tracers keep in ``val``; later size changes do not affect it (2.11 to 2.15).
snapshot = calling("torch.fx.experimental.proxy_tensor", "extract_val")
#: Returns ``([(key path, leaf), ...], spec)`` (2.11 to 2.15).
flatten_with_path = calling("torch.utils._pytree", "tree_flatten_with_path")
#: Returns a structure with every leaf replaced, given a function and the structure (2.11 to 2.15).
map_leaves = calling("torch.utils._pytree", "tree_map")
#: Returns the leaves and the structure (2.11 to 2.15).
flatten: Callable[[Any], tuple[list[Any], Any]] = calling("torch.utils._pytree", "tree_flatten")
#: Puts leaves back into a structure (2.11 to 2.15).
unflatten = calling("torch.utils._pytree", "tree_unflatten")
#: Returns only the leaves (2.11 to 2.15).
leaves_of = calling("torch.utils._pytree", "tree_leaves")


def graph_module_in(result: Any) -> Any:
    """Return a compiler's result without the wrappers of Dynamo and of output code around it (2.11 to 2.15)."""
    for attribute in ("_orig_mod", "_graph_module"):
        result = getattr(result, attribute, result)
    return result


ANNOTATION = "compile_with_inductor"
REGION_ID = "inductor_region"
REGION_CONFIGS = "inductor_configs"
REGION_AFTER = "inductor_after"


def region_mark(node: Any) -> tuple[bool, Any]:
    """Return whether ``node.meta["custom"]`` marks it for Inductor, and the value of the mark.

    ``torch.fx.traceback.annotate`` writes this layout and PyTorch's regional_inductor reads it. Checked on torch 2.11,
    2.13 and 2.15. Placeholders may carry the annotation of their first user, so they never count.
    """
    if node.op in ("placeholder", "output"):
        return False, None
    custom = node.meta.get("custom")
    if not isinstance(custom, dict) or ANNOTATION not in custom:
        return False, None
    return True, custom[ANNOTATION]


def misspelt_marks(node: Any) -> list[str]:
    """Return the annotation's keys that are likely misspellings of :data:`ANNOTATION`; the layout is as above."""
    custom = node.meta.get("custom")
    if node.op in ("placeholder", "output") or not isinstance(custom, dict):
        return []
    return [key for key in custom if isinstance(key, str) and is_misspelt(key)]


@functools.cache
def is_misspelt(key: str) -> bool:
    """Say whether ``key`` is :data:`ANNOTATION` up to case, separators, or two letters.

    A key that contains the whole word and more (``no_compile_with_inductor``) is not a misspelling.
    """
    if key == ANNOTATION:
        return False
    letters, meant = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (key, ANNOTATION))
    if meant in letters:
        return len(letters) - len(meant) <= 1
    return abs(len(letters) - len(meant)) <= 2 and _edits(letters, meant) <= 2


def _edits(one: str, other: str) -> int:
    """Return the Levenshtein distance of two words."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, row = row, [i]
        for j, another in enumerate(other, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != another)))
    return row[-1]


def use_boxed_codegen(gm: Any) -> None:
    """Make ``gm`` take one list of inputs and clear it, with ``torch.fx.graph._BoxedCodeGen`` (2.11 to 2.15)."""
    gm.graph.set_codegen(_boxed_codegen()())
    gm.recompile()


def replace_graph(gm: Any, graph: Any) -> None:
    """Replace the graph of ``gm``; its Python code needs a later ``recompile()`` (``_graph``, 2.11 to 2.15).

    The public setter generates the code at once, which is expensive if the graph is changed again.
    """
    gm._graph = graph
    graph.owning_module = gm


def is_graph_module(value: Any) -> bool:
    """Return whether ``value`` is a ``torch.fx.GraphModule``."""
    return isinstance(value, _graph_module())


def is_backward_node(node: Any) -> bool:
    """Return whether AOTAutograd marked a node of a joint graph as part of the backward (2.11 to 2.15)."""
    return bool(node.meta.get("partitioner_tag") == "is_backward")


def is_gradient_sum(node: Any) -> bool:
    """Return whether ``node`` adds up gradients of several users, and so belongs to no one forward op."""
    return bool(node.meta.get("is_gradient_acc", False))


def node_for_number(graph: Any, value: Any, symbols: Mapping[str, Any]) -> Any:
    """Write the computation of ``value`` into ``graph`` at its insertion point; return a plain number unchanged.

    ``torch.utils._sympy.interp.sympy_interp`` with ``PythonReferenceAnalysis`` (2.11 to 2.15), as for PyTorch's own
    run-time assertions.

    Args:
        graph: An FX graph.
        value: A number, possibly symbolic.
        symbols: The node of each symbol, by name.

    Raises:
        KeyError: ``value`` contains a symbol that is not in ``symbols``.
    """
    if not is_symbolic(value):
        return value
    tracer = symbol("torch.fx.proxy", "GraphAppendingTracer")(graph)
    proxies = {
        one: symbol("torch.fx", "Proxy")(symbols[str(one)], tracer=tracer) for one in value.node.expr.free_symbols
    }
    analysis = symbol("torch.utils._sympy.reference", "PythonReferenceAnalysis")
    result = symbol("torch.utils._sympy.interp", "sympy_interp")(analysis, proxies, value.node.expr)
    return getattr(result, "node", result)


def trace_to_aten(function: Callable[..., Any], inputs: tuple[Any, ...], *, dynamic: bool) -> Any:
    """Trace with ``torch.fx.experimental.proxy_tensor.make_fx`` on fake tensors (2.11 to 2.15).

    Nothing is functionalized or decomposed. Parameters and other captured tensors become attributes of the result.
    """
    mode = "symbolic" if dynamic else "fake"
    return _make_fx()(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)


def trace_functional(function: Callable[..., Any], fakes: tuple[Any, ...]) -> Any:
    """Trace in the mode of ``fakes``, without writes but those to inputs, as AOTAutograd does; with annotations."""
    with preserve_node_meta():
        gm = _make_fx()(without_writes(function))(*fakes)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def forget_sources(kept: int) -> None:
    """Forget the Python code of all but the newest graph modules; they run on, and tracebacks lack their lines.

    ``torch.fx.graph_module._loader`` keeps the code of each, and ``linecache`` what each refers to (2.11 to 2.15).
    """
    sources = symbol("torch.fx.graph_module", "_loader").eval_cache
    for key in list(itertools.islice(sources, max(len(sources) - kept, 0))):
        del sources[key]
        linecache.cache.pop(key, None)


def codegen_of(graph: Any) -> Any:
    """Return the code generator of a ``torch.fx.Graph``: ``Graph._codegen`` (2.11 to 2.15)."""
    return graph._codegen


def empty_like(gm: Any) -> Any:
    """Return an empty ``torch.fx.Graph`` with the code generator and tracer of ``gm`` (2.11 to 2.15)."""
    old = gm.graph
    graph = _new_graph(gm, getattr(old, "_tracer_cls", None), getattr(old, "_tracer_extras", None))
    graph.set_codegen(codegen_of(old))
    return graph


def tensors_of_module(module: Any, name: str) -> Any:
    """Return the dictionary of a module that holds its parameter or buffer ``name`` (2.11 to 2.15)."""
    return module._parameters if name in module._parameters else module._buffers


def children_of_module(module: Any) -> Any:
    """Return the dictionary of a module's children: ``Module._modules`` (2.11 to 2.15)."""
    return module._modules


def attribute(owner: Any, path: Any) -> Any:
    """Return the target of a ``get_attr`` or ``call_module`` node; ``path`` may be dotted."""
    return operator.attrgetter(str(path))(owner)


def called_attributes(gm: Any) -> Mapping[str, Any]:
    """Return the graph modules that ``gm`` refers to by ``get_attr``, by path."""
    found = {str(node.target): attribute(gm, node.target) for node in gm.graph.find_nodes(op="get_attr")}
    return {path: value for path, value in found.items() if is_graph_module(value)}


def bodies_of(node: Any, owner: Any = None, *, modules: bool = False) -> list[Any]:
    """Return the graph modules that ``node`` runs: the bodies of a higher-order operator.

    Args:
        node: of a graph.
        owner: the module of the graph, if the graph does not know it; without either there are no bodies.
        modules: include the module that a ``call_module`` calls.
    """
    owner = node.graph.owning_module if owner is None else owner
    if owner is None:
        return []
    references = [argument.target for argument in node.all_input_nodes if argument.op == "get_attr"]
    references += [node.target] if modules and node.op == "call_module" else []
    bodies = []
    for path in references:
        with contextlib.suppress(AttributeError):
            bodies.append(attribute(owner, path))
    return [body for body in bodies if is_graph_module(body)]


def clone_alone(gm: Any) -> Any:
    """Copy graph and metadata of ``gm``, as a compiler may change the graph it is given; attributes are shared."""
    graph = _new_graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta = dict(gm.graph.output_node().meta)
    new = lazy_graph_module(gm, graph, type(gm).__name__)
    new.meta = dict(gm.meta)
    return new


def clone_graph(gm: Any, done: dict[int, Any] | None = None) -> Any:
    """Copy graph and metadata of ``gm`` and of the bodies it calls, each once; tensors and constants are shared."""
    done = {} if done is None else done
    if id(gm) in done:
        return done[id(gm)]
    new = done[id(gm)] = clone_alone(gm)
    for path, body in called_attributes(gm).items():
        set_attribute(new, path, clone_graph(body, done))
    return new


def set_attribute(gm: Any, path: str, value: Any) -> None:
    """Set ``value`` as the target ``path`` of nodes; its owner exists."""
    owner, _, name = path.rpartition(".")
    setattr(gm.get_submodule(owner), name, value)


def rename_node(node: Any, name: str) -> None:
    """Rename ``node`` regardless of its graph's namespace: ``Node._rename`` (2.11 to 2.15)."""
    if node.name != name:
        node._rename(name)


def trace_op(call: Callable[..., Any], values: Sequence[Any], table: Mapping[Any, Any], fake_mode: Any) -> Any:
    """Trace ``call(*values)`` on fake values with decompositions ``table``, as AOTAutograd does (2.11 to 2.15)."""
    tracer = _make_fx()(call, decomposition_table=dict(table))
    with fake_execution(fake_mode):
        return tracer(*values)


def run_checked(gm: Any, inputs: Sequence[Any], check: Callable[[Any, tuple[Any, ...], Any], None]) -> Any:
    """Run ``gm`` node by node; calls ``check(node, arguments, result)`` for each (``torch.fx.Interpreter``)."""

    class Checking(symbol("torch.fx", "Interpreter")):  # type: ignore[misc]  # a class of torch's
        """Passes each node's arguments and result to ``check``."""

        def run_node(self, node: Any) -> Any:
            # Before the node runs: a region may hold the only reference to its inputs.
            given = tuple(self.env[argument] for argument in node.all_input_nodes)
            result = super().run_node(node)
            check(node, given, result)
            return result

    return Checking(gm).run(*inputs)


def replace_forward(gm: Any, forward: Callable[[Callable[..., Any], Any], Any]) -> None:
    """Make calls of ``gm`` go through ``forward(original, inputs)``.

    This changes the class that FX makes for each graph module, not the module, so pickling does not see it.
    """
    cls = type(gm)
    original = cls.forward

    def replaced(self: Any, *inputs: Any) -> Any:
        return forward(lambda *given: original(self, *given), inputs)

    cls.forward = replaced


def takes_one_list(gm: Any) -> bool:
    """Return whether ``gm`` takes one list of inputs (``torch.fx.graph._BoxedCodeGen``, 2.11 to 2.15)."""
    return isinstance(codegen_of(gm.graph), _boxed_codegen())


def qualified_name(function: Callable[..., Any]) -> str:
    """Return where a function is found, as generated code of graphs says it (``torch.fx.node``, 2.11 to 2.15).

    Of a built-in function of ``torch._C._nn`` that is public in ``torch.nn.functional``, that name.
    """
    name: str = symbol("torch.fx.node", "_get_qualified_name")(function)
    last = name.rpartition(".")[2]
    public = getattr(symbol("torch.nn", "functional"), last, None) is function
    return f"torch.nn.functional.{last}" if public else name


def key_string(path: Sequence[Any]) -> str:
    """Return a key path in Python's syntax, ``[0]['h']``: ``torch.utils._pytree.keystr`` (2.11 to 2.15)."""
    return str(symbol("torch.utils._pytree", "keystr")(tuple(path)))


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Copy or unpickle structures without the deprecation warning of ``LeafSpec`` that ``copyreg`` causes (2.13)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
        yield
