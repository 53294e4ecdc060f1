"""What the oracles of fuzzing need: settings as a compile sees them, compiled regions, regions that are interpreted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_regional._torch import private_module, symbol


def inductor_settings_now(names: Sequence[str]) -> dict[str, Any]:
    """Return Inductor's settings ``names``, dotted where nested, of those that exist (2.11 to 2.15)."""
    config = private_module("torch._inductor.config")
    return {name: getattr(config, name) for name in names if name in config._config}


def artifact_behind(target: Any) -> Any:
    """Return the ``AOTCompiledArtifact`` that ``target``, of a node, calls; None for others (2.11 to 2.15)."""
    artifact = symbol("torch._inductor.standalone_compile", "AOTCompiledArtifact")
    while target is not None and not isinstance(target, artifact):
        target = getattr(target, "__wrapped__", None)
    return target


def run_checked(gm: Any, inputs: Sequence[Any], check: Callable[[Any, tuple[Any, ...], Any], None]) -> Any:
    """Run ``gm`` node by node; ``check(node, arguments, result)`` sees every call (``torch.fx.Interpreter``)."""
    from torch.fx import Interpreter

    class Checking(Interpreter):  # type: ignore[misc]  # a class of torch's
        """Shows ``check`` what every node gets and makes."""

        def run_node(self, node: Any) -> Any:
            # Before the node runs: a region may be given the only reference to what it consumes.
            given = tuple(self.env[argument] for argument in node.all_input_nodes)
            result = super().run_node(node)
            check(node, given, result)
            return result

    return Checking(gm).run(*inputs)


def replace_forward(gm: Any, forward: Callable[[Callable[..., Any], Any], Any]) -> None:
    """Have calls of ``gm`` go through ``forward(original, inputs)``.

    The class that FX makes for each graph module is changed, not the module: what pickles the module does not see it.
    """
    cls = type(gm)
    original = cls.forward

    def replaced(self: Any, *inputs: Any) -> Any:
        return forward(lambda *given: original(self, *given), inputs)

    cls.forward = replaced


def takes_one_list(gm: Any) -> bool:
    """Return whether ``gm`` takes one list of inputs (``torch.fx.graph._BoxedCodeGen``, 2.11 to 2.15)."""
    return isinstance(gm.graph._codegen, symbol("torch.fx.graph", "_BoxedCodeGen"))


def forced_autograd_cache() -> contextlib.AbstractContextManager[Any]:
    """Have AOTAutograd's cache store whole results of any backend that makes storable ones (2.11 to 2.15)."""
    manager: contextlib.AbstractContextManager[Any] = private_module("torch._functorch.config").patch(
        force_autograd_cache=True, bundled_autograd_cache=True
    )
    return manager


@contextlib.contextmanager
def guards_not_timed() -> Iterator[None]:
    """Spare what Dynamo spends on timing its guards, for a log that nobody reads: a flush of the processor's caches.

    ``torch._dynamo.guards.profile_guard_manager``, looked up at each call (2.11 to 2.15).
    """
    module: Any = private_module("torch._dynamo.guards")
    original = symbol("torch._dynamo.guards", "profile_guard_manager")
    module.profile_guard_manager = lambda *given: 0.0
    try:
        yield
    finally:
        module.profile_guard_manager = original


def recompiles_allowed(number: int) -> contextlib.AbstractContextManager[Any]:
    """Have Dynamo compile one function ``number`` times before it gives up (``recompile_limit``, 2.11 to 2.15)."""
    manager: contextlib.AbstractContextManager[Any] = private_module("torch._dynamo.config").patch(
        recompile_limit=number
    )
    return manager


def fakes_checked() -> contextlib.AbstractContextManager[Any]:
    """Have every operator that runs raise where its fake twin makes other sizes or strides.

    ``torch._subclasses.fake_utils.CrossRefFakeMode`` (2.11 to 2.15); it raises ``AssertionError``, and for strides
    ``MetadataMismatchError``, a ``RuntimeError``, and says which operator.
    """

    class Checking(symbol("torch._subclasses.fake_utils", "CrossRefFakeMode")):  # type: ignore[misc]  # torch's class
        """Lets Dynamo trace eager loops and conditions, whose frames it would refuse for ever under other modes."""

        supports_higher_order_operators = True

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if isinstance(func, symbol("torch._ops", "HigherOrderOperator")):
                return func(*args, **(kwargs or {}))
            return super().__torch_dispatch__(func, types, args, kwargs)

    mode: contextlib.AbstractContextManager[Any] = Checking(check_aliasing=False, only_check_ops_with_meta=False)
    return mode


def is_fake_disagreement(error: BaseException | None) -> bool:
    """Return whether :func:`fakes_checked` raised ``error`` (``MetadataMismatchError``, 2.11 to 2.15)."""
    return isinstance(error, symbol("torch._subclasses.fake_tensor", "MetadataMismatchError"))


def without_writes(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with operators that make new values in place of those that write, as AOTAutograd traces it."""
    import torch

    functional: Callable[..., Any] = torch.func.functionalize(fn)
    return functional


# Regions that are interpreted


class InterpretedRegion:
    """Stands for what ``compile_fx`` makes of a region: runs its graph, and can be stored as the real one can.

    ``serialize`` and the class below are all that ``AOTCompiledArtifact`` and its loader ask for (2.11 to 2.15).
    """

    def __init__(self, gm: Any) -> None:
        self._gm = gm

    def __call__(self, *inputs: Any) -> Any:
        """Return the region's outputs, as a tuple."""
        import torch

        with torch.no_grad():
            return self._gm(*inputs)

    def serialize(self) -> Any:
        """Return what AOTAutograd's cache would keep."""
        return StoredRegion(self._gm)


_stored: dict[int, Any] = {}
"""Graphs that caches keep, by number, while :func:`interpreting_regions` lasts."""


class StoredRegion:
    """A number that stands for a graph of this process, with what the loader of bundled results reads (2.11 to 2.15).

    FX pickles a graph by its Python code and traces that again, which runs what has no inputs, random draws for one.
    """

    compiled_fw = compiled_bw = sanitized_aot_config = guards_expr = None

    def __init__(self, gm: Any) -> None:
        self._number = id(gm)
        _stored[self._number] = gm

    def wrap_post_compile(self, inputs: Any, aot_config: Any, settings: Any) -> Callable[[list[Any]], Any]:
        """Return the region as a function of one list.

        Raises:
            LookupError: it was stored by another process, or in another mode.
        """
        region = InterpretedRegion(_stored[self._number])
        return lambda given: region(*given)


@contextlib.contextmanager
def interpreting_regions() -> Iterator[None]:
    """Have Inductor interpret what is handed to it through ``standalone_compile``; whole graphs are compiled.

    ``torch._inductor.standalone_compile.standalone_compile`` looks ``compile_fx`` up at each call (2.11 to 2.15). All
    around it is real: settings, contexts, the artifact that the backend gets.
    """
    module: Any = private_module("torch._inductor.compile_fx")
    symbol("torch._inductor.compile_fx", "compile_fx")
    original = module.compile_fx
    inside = threading.local()

    def compile_region(gm: Any, inputs: Any, *args: Any, ignore_shape_env: bool = False, **kwargs: Any) -> Any:
        if not getattr(inside, "standalone", False):
            return original(gm, inputs, *args, ignore_shape_env=ignore_shape_env, **kwargs)
        return InterpretedRegion(gm)

    def standalone(compile_standalone: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inside.standalone = True
        try:
            return compile_standalone(*args, **kwargs)
        finally:
            inside.standalone = False

    from pytest_regional._torch.seams import listening

    with listening({"standalone_compile": standalone}):
        module.compile_fx = compile_region
        try:
            yield
        finally:
            module.compile_fx = original
            _stored.clear()
