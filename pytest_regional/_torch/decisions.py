"""What the compilers decide for a program: counters, lowerings, fusions, reductions, aliasing, what is saved.

Each patch point is a function that all compiles pass through; numbers come from PyTorch's own counters. What one torch
lacks is left out and named. Checked on torch 2.11, 2.13 and 2.15.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_regional._torch import MissingTorchSymbolError, private_module
from pytest_regional._torch.dynamo import counters
from pytest_regional._torch.inductor import import_compilers
from pytest_regional._torch.patching import COMPILE_STAGES, PatchPoint, Wrapper, missing, wrapped

DECISIONS: dict[str, PatchPoint] = {
    # One node of a graph becomes Inductor's own representation: ``call_function(self, target, args, kwargs)``.
    "lowering": PatchPoint("torch._inductor.graph:GraphLowering", "call_function"),
    # Two nodes of the scheduler become one kernel: ``fuse_two_nodes(self, node1, node2, fused_nodes)``.
    "fusion": PatchPoint("torch._inductor.scheduler:Scheduler", "fuse_two_nodes"),
    # Two nodes do not, for a reason in words: ``WhyNoFuse.__call__(self, reason, *args)``.
    "no_fusion": PatchPoint("torch._inductor.scheduler:WhyNoFuse", "__call__"),
    # Into how many parts a reduction is split; returns ``(hint, split)``.
    "split": PatchPoint("torch._inductor.ir:Reduction", "num_splits", static=True),
    # Both partitioners cut the joint graph here: ``(joint_module, saved_values, saved_sym_nodes, ...)``.
    "partition": PatchPoint("torch._functorch.partitioners", "_extract_fwd_bwd_modules"),
}
"""Functions that take one decision."""

#: Groups of Dynamo's counters that say what became of a graph; those of caches say what was there before.
_GROUPS = ("inductor", "graph_break", "unimplemented", "aot_autograd", "regional")

#: Longer reasons are cut: what follows are values.
_LONGEST = 80


@dataclass
class RecordedDecisions:
    """What was decided while :func:`recording_decisions` lasted.

    Attributes:
        kinds: decisions by name, ``fusion:pointwise+reduction``, each as often as it was taken.
        magnitudes: numbers by name, the largest of one compile.
        missing: patch points and tables that this torch lacks.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    magnitudes: dict[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def see(self, *parts: object) -> None:
        """Note a decision, whose name is made of ``parts``."""
        self.kinds[":".join(map(str, parts))] += 1

    def measure(self, name: str, value: int) -> None:
        """Note a number, if it is the largest so far."""
        if value > self.magnitudes.get(name, 0):
            self.magnitudes[name] = value


@contextlib.contextmanager
def recording_decisions() -> Iterator[RecordedDecisions]:
    """Record what the compilers decide while the context lasts; every function is then what it was."""
    import_compilers()
    found = RecordedDecisions(missing=(*missing(DECISIONS), *_missing_numbers()))
    points = {name: point for name, point in DECISIONS.items() if not missing({name: point})}
    recorder = _Recorder(found)
    wrappers = {name: wrapper for name, wrapper in recorder.wrappers.items() if name in points}
    stages = {name: COMPILE_STAGES[name] for name in recorder.stages}
    with wrapped({**points, **stages}, {**wrappers, **recorder.stages}):
        yield found


class _Recorder:
    """Wrappers of the patch points, which call the original and note what came of it."""

    def __init__(self, found: RecordedDecisions) -> None:
        self._found = found
        self._depth = threading.local()
        self.wrappers: dict[str, Wrapper] = {
            "lowering": self._lowering,
            "fusion": self._fusion,
            "no_fusion": self._no_fusion,
            "split": self._split,
            "partition": self._partition,
        }
        self.stages: dict[str, Wrapper] = {
            "frame": self._counted,
            "aot_compile": self._aot_compile,
            "standalone_compile": self._counted,
            "codegen": self._codegen,
        }

    # Numbers

    def _counted(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Note what counters move by in the outermost compile: the harness clears them between compiles."""
        if getattr(self._depth, "inside", False):
            return original(*args, **kwargs)
        before = _counts()
        self._depth.inside = True
        try:
            return original(*args, **kwargs)
        finally:
            self._depth.inside = False
            for name, value in _counts().items():
                self._found.measure(name, value - before.get(name, 0))

    def _codegen(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = _metrics()
        try:
            return self._counted(original, *args, **kwargs)
        finally:
            for name, value in _metrics().items():
                self._found.measure(name, value - before.get(name, 0))

    # AOTAutograd

    def _aot_compile(self, original: Callable[..., Any], state: Any, capture: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = getattr(state, "fw_metadata", None)
        for one in getattr(metadata, "input_info", ()):
            self._found.see("input", *_input_kind(one))
        for one in getattr(metadata, "output_info", ()):
            self._found.see("output", one.output_type.name, *(["gradient"] if one.requires_grad else []))
        self._found.measure("aot:intermediate bases", getattr(metadata, "num_intermediate_bases", 0) or 0)
        self._found.measure("aot:tokens", len(getattr(metadata, "tokens", None) or ()))
        graph = getattr(getattr(capture, "graph_module", None), "graph", None)
        if graph is not None:
            self._found.measure("aot:nodes", len(graph.nodes))
            for node in graph.nodes:
                if node.op == "call_function":
                    self._found.see("aten", node.target)
        return self._counted(original, state, capture, *args, **kwargs)

    def _partition(self, original: Callable[..., Any], joint: Any, saved: Any, *args: Any, **kwargs: Any) -> Any:
        modules = original(joint, saved, *args, **kwargs)
        self._found.measure("partition:saved", len(saved))
        for node in saved:
            self._found.see("partition:saved", "input" if node.op == "placeholder" else "computed")
        computed = [_computations(module) for module in modules]
        again = sum(computed) - _computations(joint)
        if again > 0:
            self._found.measure("partition:recomputed", again)
        return modules

    # Inductor

    def _lowering(self, original: Callable[..., Any], graph: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(graph, target, *args, **kwargs)
        made = sorted({_kind_of(one) for one in (result if isinstance(result, (list, tuple)) else [result])})
        self._found.see("lowering", target, "+".join(made))
        for kind in made:
            self._found.see("lowered", kind)
        return result

    def _fusion(self, original: Callable[..., Any], scheduler: Any, one: Any, other: Any, *args: Any) -> Any:
        feeds = bool(set(one.get_operation_names()) & set(other.ancestors))
        kinds = "+".join("reduction" if node.is_reduction() else "pointwise" for node in (one, other))
        made = original(scheduler, one, other, *args)
        self._found.see("fusion", type(made).__name__, "vertical" if feeds else "horizontal", kinds)
        return made

    def _no_fusion(self, original: Callable[..., Any], why: Any, reason: str, *args: Any) -> Any:
        self._found.see("no fusion", _words(reason))
        return original(why, reason, *args)

    def _split(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        hint, split = original(*args, **kwargs)
        many = isinstance(split, int) and split > 1
        self._found.see("reduction", getattr(hint, "name", hint), "split" if many else "whole")
        return hint, split


def _counts() -> dict[str, int]:
    """Return Dynamo's counters by name; what only says whether a cache had something is left out."""
    found: Counter[str] = Counter()
    for group in _GROUPS:
        for name, count in dict(counters().get(group, {})).items():
            if "cache" not in str(name):
                found[f"{group}:{_words(str(name))}"] += count
    return found


def _metrics() -> dict[str, int]:
    """Return the numbers of ``torch._inductor.metrics`` that count, and how many loops were fused (2.11 to 2.15)."""
    try:
        numbers: Mapping[str, Any] = vars(private_module("torch._inductor.metrics"))
    except MissingTorchSymbolError:
        return {}
    fused = numbers.get("cpp_outer_loop_fused_inner_counts", ())
    counted = {f"metric:{name}": value for name, value in numbers.items() if type(value) is int and "bytes" not in name}
    return {**counted, "metric:cpp_outer_loop_fused_inner_counts": len(fused)}


def _missing_numbers() -> list[str]:
    return [] if _metrics() else ["torch._inductor.metrics"]


def _input_kind(info: Any) -> list[str]:
    """Return what AOTAutograd knows of an input: how it is written to, in which way, whether it is a leaf."""
    kind = getattr(getattr(info, "mutation_type", None), "name", "unknown")
    flags = ("mutates_data", "mutates_metadata", "mutations_hidden_from_autograd", "requires_grad")
    # Of what is not written to, all writes are hidden.
    told = flags[-1:] if kind == "NOT_MUTATED" else flags
    return [kind, *(name for name in told if getattr(info, name, False))]


def _computations(module: Any) -> int:
    return sum(1 for node in module.graph.nodes if node.op == "call_function")


def _kind_of(value: Any) -> str:
    """Return the kind of what a lowering made, behind boxes and views: ``Pointwise``, ``FallbackKernel``, ..."""
    for _ in range(6):
        inner = getattr(value, "data", None)
        if inner is None or callable(inner):
            break
        value = inner
    return type(value).__name__


def _words(reason: str) -> str:
    """Return ``reason`` without what differs from program to program: numbers, names of values, all behind a line."""
    line = reason.strip().partition("\n")[0]
    return re.sub(r"\d+", "N", line)[:_LONGEST]


__all__ = ["DECISIONS", "RecordedDecisions", "recording_decisions"]
