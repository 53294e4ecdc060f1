"""Steps of a compile that can be left out one by one: decompositions, passes, rewrites, lowerings, fusions.

PyTorch has a bisector (``torch._inductor.compiler_bisector``) that each decomposition, graph pass and lowering asks
whether it is disabled. Its answers are given here, without its files and environment variables. It knows nothing of
rewrites by a pattern and of fusions, so those are asked about at the functions that do them. Read in torch 2.11, 2.13
and 2.15; what a torch lacks is named in :attr:`Applied.missing`.
"""

from __future__ import annotations

import contextlib
import functools
import re
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from pytest_regional._torch.config import FUNCTORCH, INDUCTOR, config_names, patched_config
from pytest_regional._torch.inductor import fallbacks_made, has_lowering, import_compilers
from pytest_regional._torch.patching import PatchPoint, Wrapper, missing, wrapped

KINDS = ("decomposition", "pre_grad_pass", "joint_graph_pass", "post_grad_pass", "rewrite", "lowering", "fusion")
"""What can be vetoed, in the order in which a compile does it."""

#: Names of the bisector's subsystems, and what they are called here.
_SUBSYSTEMS = {
    "decomposition": "decomposition",
    "pre_grad_passes": "pre_grad_pass",
    "joint_graph_passes": "joint_graph_pass",
    "post_grad_passes": "post_grad_pass",
    "lowerings": "lowering",
}

_POINTS: dict[str, PatchPoint] = {
    # ``disable_subsystem(backend, subsystem, debug_info)``, a class method: whether to leave one step out.
    # Decompositions, passes and lowerings ask it.
    "subsystem": PatchPoint("torch._inductor.compiler_bisector:CompilerBisector", "disable_subsystem", static=True),
    # ``apply_gm_pass(self, pass_fn)`` and ``apply_graph_pass(self, pass_fn)``: one pass, which may change nothing.
    "module_pass": PatchPoint("torch.fx.passes.graph_transform_observer:GraphTransformObserver", "apply_gm_pass"),
    "graph_pass": PatchPoint("torch.fx.passes.graph_transform_observer:GraphTransformObserver", "apply_graph_pass"),
    # ``apply(self, match, graph, node)``: one rewrite of what a pattern found.
    "lowering_pattern": PatchPoint("torch._inductor.pattern_matcher:LoweringPatternEntry", "apply"),
    "graph_pattern": PatchPoint("torch._inductor.pattern_matcher:GraphPatternEntry", "apply"),
    "replacement_pattern": PatchPoint("torch._inductor.pattern_matcher:ReplacementPatternEntry", "apply"),
    # ``can_fuse(self, node1, node2, ...)``: whether two nodes may become one kernel.
    "fusion": PatchPoint("torch._inductor.scheduler:Scheduler", "can_fuse"),
}


@dataclass(frozen=True)
class Application:
    """One step of a compile.

    Attributes:
        kind: one of :data:`KINDS`.
        what: the name of the pass, the operator, the pattern and its node, or the two nodes that are fused.
        occurrence: how many of the same kind and name came before; always 0 for a fusion, which is asked about again.
        where: the line of the program, ``"model.py:41"``, that the node came from, or the patterns that a pass
            matched; empty where none is known.
        required: whether a compile fails without it: what these passes and decompositions replace has no lowering.
        acted: whether it did something, as far as is known: most passes leave most graphs as they are.
    """

    kind: str
    what: str
    occurrence: int = 0
    where: str = field(default="", compare=False)
    required: bool = field(default=False, compare=False)
    acted: bool = field(default=True, compare=False)

    @property
    def family(self) -> tuple[str, str]:
        """What is left out with it where all of its name are: its kind, and its name without node.

        A pass that runs in several stages is one family, and so are passes and patterns that are numbered.
        """
        name = self.what.partition(" at ")[0]
        if self.kind.endswith("_pass") or self.kind == "rewrite":
            return "pass" if self.kind.endswith("_pass") else self.kind, re.sub(r"\d+", "N", name)
        return self.kind, name


@dataclass
class Applied:
    """What :func:`vetoing` saw, in the order of the compile, what was vetoed included.

    Attributes:
        applications: the steps.
        missing: functions that this torch lacks: steps of theirs were not seen.
    """

    applications: list[Application] = field(default_factory=list)
    missing: tuple[str, ...] = ()

    def of_kind(self, kind: str) -> list[Application]:
        """Return the steps of one kind."""
        return [one for one in self.applications if one.kind == kind]


@contextlib.contextmanager
def vetoing(
    vetoed: Collection[Application] = (), kinds: Collection[str] = (), families: Collection[tuple[str, str]] = ()
) -> Iterator[Applied]:
    """Leave steps out of every compile while the context lasts.

    Args:
        vetoed: single steps, as an earlier context saw them.
        kinds: all steps of these kinds that are not required.
        families: all steps of these families. What is left out may give another step of its family its turn,
            as patterns that match the same nodes do.

    Raises:
        ValueError: an unknown kind.
    """
    if unknown := set(kinds) - set(KINDS):
        raise ValueError(f"unknown kinds of steps {sorted(unknown)}; known: {', '.join(KINDS)}")
    import_compilers()
    points = {name: point for name, point in _POINTS.items() if not missing({name: point})}
    applied = Applied(missing=tuple(missing(_POINTS)))
    with fallbacks_made() as make_fallback:
        vetoes = _Vetoes(applied, frozenset(vetoed), frozenset(kinds), frozenset(families), make_fallback)
        wrappers: dict[str, Wrapper] = {
            "subsystem": vetoes.subsystem,
            "module_pass": vetoes.run_pass,
            "graph_pass": vetoes.run_pass,
            "lowering_pattern": vetoes.rewrite,
            "graph_pattern": vetoes.rewrite,
            "replacement_pattern": vetoes.rewrite,
            "fusion": vetoes.fusion,
        }
        with wrapped(points, {name: wrappers[name] for name in points}):
            yield applied


@dataclass
class _Vetoes:
    """Notes every step, and says which are left out."""

    applied: Applied
    vetoed: Collection[Application]
    kinds: Collection[str]
    families: Collection[tuple[str, str]]
    make_fallback: Callable[[Any], None]
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _fusions: set[str] = field(default_factory=set)
    #: What the pass that is about to run calls, and the name of PyTorch's that it runs under.
    _passed: tuple[str, str] = ("", "")

    def _is_vetoed(self, kind: str, what: str, where: str = "", *, required: bool = False) -> bool:
        if kind == "fusion":
            occurrence, is_new = 0, what not in self._fusions
            self._fusions.add(what)
        else:
            occurrence, is_new = self._counts[kind, what], True
            self._counts[kind, what] += 1
        step = Application(kind, what, occurrence, where, required)
        if is_new:
            self.applied.applications.append(step)
        if step in self.vetoed or step.family in self.families:
            return True
        return kind in self.kinds and not required

    def subsystem(
        self, original: Callable[..., bool], backend: str, subsystem: str, debug_info: Callable[[], str] | None = None
    ) -> bool:
        kind = _SUBSYSTEMS.get(subsystem)
        if kind is None or debug_info is None:
            return False
        about, what, where = _described(debug_info)
        name, function = self._passed
        what = function if function and what == name else what
        if kind == "decomposition":
            required = about is not None and not has_lowering(about)
        else:
            required = kind.endswith("_pass") and what.startswith("decompose_")
        is_vetoed = self._is_vetoed(kind, what, where, required=required)
        if is_vetoed and required and kind == "decomposition":
            self.make_fallback(about)
        return is_vetoed

    def run_pass(self, original: Callable[..., Any], observer: Any, run: Callable[[Any], Any]) -> Any:
        """Note a pass that left the graph as it was; one that raises did not."""
        steps, place = self.applied.applications, len(self.applied.applications)
        before, function = _text_of(observer.gm), _function_of(observer.passname, run)
        where = ", ".join(_matched_by(run, observer.gm))
        outer, self._passed = self._passed, (observer.passname, function)
        done = False
        try:
            result = original(observer, run)
            done = True
            return result
        finally:
            self._passed = outer
            # The pass itself is asked about first, if at all; what is asked about behind it are steps of it.
            if place < len(steps) and steps[place].kind.endswith("_pass") and steps[place].what == function:
                acted = not done or _text_of(observer.gm) != before
                steps[place] = replace(steps[place], acted=acted, where=where)

    def rewrite(self, original: Callable[..., None], entry: Any, match: Any, graph: Any, node: Any) -> None:
        if not self._is_vetoed("rewrite", f"{_pattern_name(entry)} at {node.name}", line_of(node)):
            original(entry, match, graph, node)

    def fusion(
        self, original: Callable[..., bool], scheduler: Any, first: Any, second: Any, *others: Any, **options: Any
    ) -> bool:
        allowed = original(scheduler, first, second, *others, **options)
        return allowed and not self._is_vetoed("fusion", f"{_fused(first)} with {_fused(second)}")


def _described(debug_info: Callable[[], str]) -> tuple[Any, str, str]:
    """Return the node or operator that a step is about, what to call it, and the line of the program.

    The bisector is given a function that returns a text; the node or operator is in that function's closure (read in
    torch 2.11, 2.13 and 2.15). Where none is there the text has to do.
    """
    held = [cell.cell_contents for cell in debug_info.__closure__ or ()]
    for one in held:
        if isinstance(one, torch.fx.Node):
            return one, f"{one.target} at {one.name}", line_of(one)
        if isinstance(one, torch._ops.OpOverload):
            return one, str(one), ""
    return None, debug_info(), ""


def _text_of(gm: torch.fx.GraphModule) -> str:
    """Return the nodes of a module's graph and of those in it, in order, as text."""
    return "\n".join(str(one.graph) for one in gm.modules() if isinstance(one, torch.fx.GraphModule))


def line_of(node: torch.fx.Node) -> str:
    """Return file and line of the program's own that made a node; the innermost one of its stack."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    return f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else ""


def _fused(node: Any) -> str:
    """Return the name of a node of the scheduler, and the operators that it computes."""
    origins = (one for inner in node.get_nodes() for one in getattr(inner.node, "origins", ()) or ())
    names = sorted({str(getattr(one.target, "overloadpacket", one.target)) for one in origins if one.op != "output"})
    shown = ", ".join([*names[:3], "..."] if len(names) > 3 else names)
    return f"{node.get_name()} ({shown})" if names else str(node.get_name())


def _pattern_name(entry: Any) -> str:
    """Return the name of a pattern: its handler's, the one of its maker (``pattern_name``), or what it searches for."""
    named = getattr(getattr(entry, "handler", None), "__name__", None) or getattr(entry, "pattern_name", None)
    check = getattr(entry, "extra_check", None)
    # The check of a replacement is a closure of the function that was traced to be searched for.
    searched = None
    if isinstance(check, types.FunctionType):
        held = dict(zip(check.__code__.co_freevars, check.__closure__ or (), strict=True))
        searched = held["search_fn"].cell_contents if "search_fn" in held else None
    return named or getattr(searched, "__name__", None) or type(entry).__name__


def _function_of(passname: str, run: Any) -> str:
    """Return the name of a pass; of one that runs where users' passes do, the name of its function.

    PyTorch runs its passes there too (torch 2.11 to 2.15).
    """
    function = run.func if isinstance(run, functools.partial) else run
    return getattr(function, "__name__", type(function).__name__) if "_custom_" in passname else passname


def _matched_by(run: Any, gm: torch.fx.GraphModule) -> list[str]:
    """Return the names of the patterns that match a node of the graph, where a pass applies patterns."""
    entries = getattr(getattr(run, "__self__", None), "patterns", None)
    if not isinstance(entries, dict):
        return []
    tried = ((entry, node) for node in gm.graph.nodes for entry in entries.get((node.op, node.target), ()))
    return list(dict.fromkeys(_pattern_name(entry) for entry, node in tried if entry.pattern.match(node)))


SettingLayer = Literal["lowering", "fusion", "codegen", "memory", "scheduling", "layout", "cache"]


@dataclass(frozen=True)
class Setting:
    """Settings of Inductor's that take one thing out of scheduling or code generation.

    Attributes:
        sentence: what is then not done, or done as in eager.
        layer: where it would have been done.
        context: makes the context in which the settings hold.
    """

    sentence: str
    layer: SettingLayer
    context: Callable[[], contextlib.AbstractContextManager[Any]]


_SETTINGS: tuple[tuple[str, SettingLayer, Mapping[str, Any]], ...] = (
    ("no vectorized code", "codegen", {"cpp.simdlen": 1}),
    ("no results written into inputs of a kernel", "memory", {"inplace_buffers": False}),
    ("no reuse of buffers", "memory", {"allow_buffer_reuse": False}),
    ("no other order of kernels", "scheduling", {"reorder_for_locality": False, "reorder_for_peak_memory": False}),
    ("no other memory layouts", "layout", {"layout_optimization": False, "comprehensive_padding": False}),
    ("low precision rounded as in eager", "codegen", {"emulate_precision_casts": True}),
    ("no unrolled reductions", "lowering", {"unroll_reductions_threshold": 1}),
)

#: More, where the code is Triton's.
_GPU_SETTINGS: tuple[tuple[str, SettingLayer, Mapping[str, Any]], ...] = (
    ("no persistent reductions", "codegen", {"triton.persistent_reductions": False}),
    ("no reductions in several kernels", "lowering", {"split_reductions": False}),
    ("no tiles of several dimensions", "codegen", {"triton.max_tiles": 1}),
    ("no sums of rows and columns in one kernel", "fusion", {"triton.mix_order_reduction": False}),
)

_NO_CACHE = "no cache of compiled graphs"

#: The sentences of all settings that :func:`settings_to_try` may return, whatever this torch has.
SETTING_SENTENCES = (_NO_CACHE, *(sentence for sentence, _, _ in _SETTINGS + _GPU_SETTINGS))


def settings_to_try(*, gpu: bool = False) -> tuple[Setting, ...]:
    """Return what can be taken out by settings, of code for a GPU or not; without those that this torch lacks."""
    names = config_names(INDUCTOR)
    known = (
        (sentence, layer, {key: value for key, value in values.items() if key in names})
        for sentence, layer, values in (_SETTINGS + _GPU_SETTINGS if gpu else _SETTINGS)
    )
    return (
        Setting(_NO_CACHE, "cache", _without_caches),
        *(
            Setting(sentence, layer, functools.partial(patched_config, INDUCTOR, values))
            for sentence, layer, values in known
            if values
        ),
    )


@contextlib.contextmanager
def _without_caches() -> Iterator[None]:
    # Not force_disable_caches, which warns.
    with (
        patched_config(INDUCTOR, {"fx_graph_cache": False}),
        patched_config(FUNCTORCH, {"enable_autograd_cache": False}),
    ):
        yield
