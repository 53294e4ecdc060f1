"""Region annotations read off a graph; which backend a compile belongs to; and settings that a compile left changed."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any

from torch.fx import GraphModule, Node

from pytest_regional._torch import fx_graphs, inductor
from pytest_regional._torch.dynamo import backend_behind, compilers_of, registered_backend
from pytest_regional._torch.fx_graphs import REGION_AFTER
from pytest_regional._torch.process_state import COMPILING
from pytest_regional.backends.spec import BackendSpec
from pytest_regional.harness.isolation.snapshot import Snapshot
from pytest_regional.harness.isolation.watched import Leak
from pytest_regional.harness.record import DEFAULT_REGION

ANNOTATION = "compile_with_inductor"
RegionId = tuple[str, str]
"""Region name and a printable form of its configs: enough to tell two regions of one graph apart."""


def nodes_of(gm: GraphModule) -> Iterator[Node]:
    """Yield the nodes of ``gm`` and of every graph module below it, each graph module once."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def annotation_of(node: Node) -> Any:
    """Return the node's ``compile_with_inductor`` value, or ``None`` for a node outside all regions."""
    custom = node.meta.get("custom")
    if node.op in ("placeholder", "output") or not isinstance(custom, dict):
        return None
    value = custom.get(ANNOTATION)
    # A bare annotate({"compile_with_inductor": None}) still marks the node.
    return DEFAULT_REGION if value is None and ANNOTATION in custom else value


def region_of(node: Node) -> RegionId | None:
    """Return the region that ``node`` belongs to, or ``None``."""
    value = annotation_of(node)
    if value is None:
        return None
    if not isinstance(value, dict):
        return DEFAULT_REGION, "{}"
    configs = configs_of(node)
    name = str(value["inductor_region"]) if "inductor_region" in value else DEFAULT_REGION
    return name, repr(sorted(configs.items(), key=lambda item: str(item[0])))


def configs_of(node: Node) -> dict[str, Any]:
    """Return the Inductor configuration that the node's annotation asks for."""
    value = annotation_of(node)
    configs = value.get("inductor_configs") if isinstance(value, dict) else None
    return dict(configs) if isinstance(configs, dict) else {}


def regions_before(node: Node) -> list[Any]:
    """Return the ids of regions that the node's annotation wants to have run before."""
    value = annotation_of(node)
    before = value.get(REGION_AFTER) if isinstance(value, dict) else None
    return list(before) if isinstance(before, (list, tuple)) else []


def other_annotations_of(node: Node) -> dict[Any, Any]:
    """Return what the node is annotated with for others than regional compilation."""
    custom = node.meta.get("custom")
    if node.op in ("placeholder", "output") or not isinstance(custom, dict):
        return {}
    return {key: value for key, value in custom.items() if key != ANNOTATION}


def operator_of(node: Node) -> str | None:
    """Return the node's operator such as ``aten.mul.Tensor``, or ``None`` for plumbing (getitem, get_attr, ...)."""
    if node.op == "call_module":
        return str(node.target)
    if node.op == "call_method":
        return f"Tensor.{node.target}"
    if node.op != "call_function":
        return None
    if getattr(node.target, "__module__", "") == "_operator":
        name = str(getattr(node.target, "__name__", ""))
        return None if name == "getitem" else name
    text = str(node.target)
    return text if " " not in text else str(getattr(node.target, "__name__", text))


def regions_in(gm: GraphModule) -> dict[RegionId, list[Node]]:
    """Return the nodes of each region of ``gm`` and its sub-graphs, in order of first appearance."""
    found: dict[RegionId, list[Node]] = {}
    for node in nodes_of(gm):
        region = region_of(node)
        if region is not None:
            found.setdefault(region, []).append(node)
    return found


def compiled_calls_in(result: Any) -> list[RegionId]:
    """Return the regions of the compiled calls in what a backend's compiler returned, as far as it shows them.

    A backend that shares one compile between equal partitions hands only the first to Inductor. The calls of the others
    can still be seen when the result is a graph module (or PyTorch's ``RegionalOutputCode`` around one) whose calls of
    compiled functions keep their region's annotation.
    """
    gm = fx_graphs.graph_module_in(result)
    if not isinstance(gm, GraphModule):
        return []
    calls = (node for node in nodes_of(gm) if node.op == "call_function" and isinstance(node.target, FunctionType))
    return [region for region in map(region_of, calls) if region is not None]


def holds_compiled_region(result: Any) -> bool:
    """Return whether what a backend's compiler returned calls a region that Inductor compiled, now or earlier."""
    gm = fx_graphs.graph_module_in(result)
    return isinstance(gm, GraphModule) and any(inductor.is_region_artifact(node.target) for node in nodes_of(gm))


def strip_region(gm: GraphModule, region_name: str) -> None:
    """Make every node of the region named ``region_name`` unannotated.

    The annotation dictionary is replaced, not edited: nodes share it.
    """
    for node in nodes_of(gm):
        region = region_of(node)
        if region is not None and region[0] == region_name:
            node.meta["custom"] = {k: v for k, v in node.meta["custom"].items() if k != ANNOTATION}


class Ownership:
    """Tells the backend under test from others."""

    def __init__(self, spec: BackendSpec) -> None:
        self.spec = spec
        self._ours: set[int] = set()

    def add(self, backend: Any, name: str) -> None:
        """Note a Dynamo backend that the harness made of the specification, and has to hold; ``name`` is for others."""
        self._ours.add(id(backend))
        backend.backend_name = name

    def other(self, given: Any) -> str:
        """Return the name of the Dynamo backend ``given`` to ``torch.compile``; empty for the one under test."""
        backend = backend_behind(given)
        inner = getattr(backend, "compiler_fn", backend)
        name = getattr(backend, "compiler_name", None)
        ours = id(inner) in self._ours or (isinstance(self._made, str) and name == self._made)
        return "" if ours or any(code in self._codes for code in codes_of(inner)) else _name_of(backend)

    def is_running(self) -> bool:
        """Say whether this thread is in the code of the backend under test."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code in self._codes:
                return True
            frame = frame.f_back
        return False

    @functools.cached_property
    def _made(self) -> Any:
        return self.spec.factory()

    @functools.cached_property
    def _codes(self) -> frozenset[CodeType]:
        parts = [registered_backend(self._made) if isinstance(self._made, str) else self._made]
        if self.spec.graph_pass:
            parts.append(self.spec.graph_pass())
        parts += self.spec.compilers()
        return frozenset(code for part in parts for code in codes_of(part))


def codes_of(backend: Any) -> Iterator[CodeType]:
    """Yield the code that runs when ``backend`` is called; of ``aot_autograd(...)``, that of its compilers."""
    if isinstance(backend, functools.partial):
        yield from codes_of(backend.func)
        return
    inside = compilers_of(backend)
    if inside:
        for one in inside:
            yield from codes_of(one)
        return
    function = getattr(backend, "__func__", backend)
    if not hasattr(function, "__code__"):  # an object: its class says what a call of it does
        function = vars(type(backend)).get("__call__")
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        yield code


def _name_of(backend: Any) -> str:
    inner = getattr(backend, "compiler_fn", backend)
    name = getattr(inner, "backend_name", None) or getattr(backend, "compiler_name", None)
    if getattr(inner, "__module__", None) == COMPILING[0].rstrip(":"):
        return DYNAMOS_CAPTURE
    if compilers_of(inner) and name == getattr(inner, "__name__", None):
        return "aot_autograd(...)"
    if isinstance(name, str) and not name.startswith("<"):
        return name
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)


#: The name of the backend that Dynamo uses to capture a graph, which no test named.
DYNAMOS_CAPTURE = "a capture by Dynamo"


class CompileLeaks:
    """What compiles of the backend under test left changed; of nested ones the outer one is looked at."""

    def __init__(self) -> None:
        #: Each setting, with what it was before the compile and after it.
        self.found: list[Leak] = []
        self._inside = False
        #: Compiles in other threads: how many run, and how many have begun.
        self._running = self._begun = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def around(self, other: str = "") -> Iterator[None]:
        """Look at the settings (0.3 ms) around a compile, which is not looked at if it is that of an ``other`` backend.

        A compile that raises has its own failure. Most settings are the process's, and what differs while another
        thread compiles may be that thread's doing: only the main thread's compiles count, and those that ran alone.
        """
        if threading.current_thread() is not threading.main_thread():
            with self._lock:
                self._running += 1
                self._begun += 1
            try:
                yield
            finally:
                with self._lock:
                    self._running -= 1
            return
        if other or self._inside:
            yield
            return
        self._inside = True
        try:
            with self._lock:
                running, begun = self._running, self._begun
            before = Snapshot.take(while_compiling=True)
            with before.without_imports():
                yield
            with self._lock:
                alone = not running and not self._running and self._begun == begun
            if alone:
                self.found += before.leaks()
        finally:
            self._inside = False
