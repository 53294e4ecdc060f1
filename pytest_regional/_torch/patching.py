"""Patch points: the private functions that are replaced for a while, and the one way to do it.

A patch point is a private attribute that PyTorch looks up by name at each call, so that replacing it reaches every
caller. Each has a compatible signature in torch 2.11, 2.13 and 2.15 (read there). One can go when PyTorch has a public
hook in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_regional._torch import MissingTorchSymbolError, private_module, symbol, torch_version

Maker = Callable[[Any], Any]
"""Makes the replacement from what it replaces."""

Wrapper = Callable[..., Any]
"""``wrapper(original, *args, **kwargs)``: is called in place of ``original``, and decides when to call it."""


@dataclass(frozen=True)
class PatchPoint:
    """One replaceable attribute.

    Attributes:
        holder: module, optionally followed by ``:Class`` (dotted where nested).
        attribute: its name there.
        why: who looks it up, where a comment does not say so.
        static: whether it is a static method.
        since: first torch version whose absence of it is an error; before, there is nothing to replace.
    """

    holder: str
    attribute: str
    why: str = ""
    static: bool = False
    since: tuple[int, int] = (2, 11)

    @property
    def module(self) -> str:
        """The module that holds it or its class."""
        return self.holder.partition(":")[0]

    @property
    def path(self) -> str:
        """The attribute as seen from the module."""
        _, _, class_name = self.holder.partition(":")
        return f"{class_name}.{self.attribute}" if class_name else self.attribute

    def container(self) -> Any:
        """Return the module or class that holds the attribute.

        Raises:
            MissingTorchSymbolError: it is not there.
        """
        # The imported module, not a walk over attributes: torch._inductor.standalone_compile names a function as well.
        module = private_module(self.module)
        _, _, class_name = self.holder.partition(":")
        return symbol(self.module, class_name) if class_name else module

    def current(self) -> Any:
        """Return what stands there now, looked up at each call so that a test's patch is seen.

        Raises:
            MissingTorchSymbolError: it is not there.
        """
        found = getattr(self.container(), self.attribute, _ABSENT)
        return symbol(self.module, self.path) if found is _ABSENT else found


class Patch(NamedTuple):
    """One attribute of a module or class, and what replaces it; ``added`` where only some versions have it."""

    owner: Any
    name: str
    value: Any
    added: bool = False


_ABSENT: Any = object()


@contextlib.contextmanager
def applied(patches: Sequence[Patch]) -> Iterator[None]:
    """Apply ``patches`` in order; afterwards everything is as it was, what was inherited or absent too."""
    before = [vars(patch.owner).get(patch.name, _ABSENT) for patch in patches]
    try:
        for patch in patches:
            setattr(patch.owner, patch.name, patch.value)
        yield
    finally:
        for patch, value in zip(reversed(patches), reversed(before), strict=True):
            if value is not _ABSENT:
                setattr(patch.owner, patch.name, value)
            elif patch.name in vars(patch.owner):
                delattr(patch.owner, patch.name)


@contextlib.contextmanager
def patched(points: Mapping[str, PatchPoint], makers: Mapping[str, Maker]) -> Iterator[None]:
    """Replace what stands at the points of ``points`` that ``makers`` names, while the context lasts.

    Raises:
        MissingTorchSymbolError: a point that the installed torch does not have; then nothing is replaced.
        KeyError: a maker for a point that is not in ``points``.
    """
    # All of them first: a module imported while another is patched would take the replacement for the original.
    with applied([_patch(points[name], maker) for name, maker in makers.items()]):
        yield


def _patch(point: PatchPoint, maker: Maker) -> Patch:
    value = maker(point.current())
    return Patch(point.container(), point.attribute, staticmethod(value) if point.static else value)


def wrapping(wrapper: Wrapper) -> Maker:
    """Make ``wrapper`` the replacement of a function, with the attributes of the original."""

    def make(original: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        # A key computed by functools.wraps users or by a nested wrapper must still find the original's attributes.
        call.__dict__.update(getattr(original, "__dict__", {}))
        call.__name__ = getattr(original, "__name__", call.__name__)
        return call

    return make


def wrapped(
    points: Mapping[str, PatchPoint], wrappers: Mapping[str, Wrapper]
) -> contextlib.AbstractContextManager[None]:
    """Call ``wrappers`` in place of the functions at ``points``; raises what :func:`patched` does."""
    return patched(points, {name: wrapping(wrapper) for name, wrapper in wrappers.items()})


def missing(points: Mapping[str, PatchPoint]) -> list[str]:
    """Return the points that the installed torch should have and does not, as ``holder.attribute``."""
    return [
        f"{point.module}.{point.path}"
        for point in points.values()
        if torch_version() >= point.since and not _is_there(point)
    ]


def _is_there(point: PatchPoint) -> bool:
    try:
        point.current()
    except MissingTorchSymbolError:
        return False
    return True


COMPILE_STAGES: dict[str, PatchPoint] = {
    # One Dynamo frame compilation; keyword compile_id says whether it is a recompile.
    "frame": PatchPoint("torch._dynamo.convert_frame", "_compile"),
    # Returns the reasons why the guards of an earlier compilation failed.
    "recompile_reasons": PatchPoint("torch._dynamo.convert_frame", "get_and_maybe_log_recompilation_reasons"),
    # Returns (exceeded, name of the limit): Dynamo gives the frame up to eager when exceeded.
    "recompile_limit": PatchPoint("torch._dynamo.convert_frame", "exceeds_recompile_limit"),
    # Dynamo hands one graph to the user's backend.
    "backend_call": PatchPoint("torch._dynamo.output_graph:OutputGraph", "call_user_compiler"),
    # torch.compile(..., backend="name") asks for the backend of that name.
    "backend_name": PatchPoint("torch._dynamo.backends.registry", "lookup_backend"),
    # AOTAutograd has traced a graph and is about to call the backend's forward, backward and inference compilers.
    "aot_compile": PatchPoint("torch._functorch.aot_autograd", "aot_stage2_compile"),
    # One AOTAutograd cache lookup, its key computation and one save.
    "aot_lookup": PatchPoint("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "try_load", static=True),
    "aot_key": PatchPoint("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key"),
    "aot_save": PatchPoint("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "save", static=True),
    # A subgraph is handed to Inductor on its own.
    "standalone_compile": PatchPoint("torch._inductor.standalone_compile", "standalone_compile"),
    # One Inductor code generation (never called on a cache hit).
    "codegen": PatchPoint("torch._inductor.compile_fx", "fx_codegen_and_compile"),
    # One FX graph cache lookup; a key that cannot be made is a bypass.
    "fx_key": PatchPoint("torch._inductor.codecache:FxGraphCache", "prepare_key", static=True),
    "fx_lookup": PatchPoint("torch._inductor.codecache:FxGraphCache", "load_with_key", static=True),
    # Generated code is about to be loaded from what a cache or an artifact kept of it, whichever it was.
    "code_loaded": PatchPoint("torch._inductor.output_code:CompiledFxGraph", "after_deserialization"),
    # Inductor's pre-grad stage for one graph.
    "pre_grad": PatchPoint("torch._inductor.compile_fx", "run_pre_grad_passes"),
}
"""The functions through which every compile in PyTorch passes, whatever the backend."""


def patched_stages(wrappers: Mapping[str, Wrapper]) -> contextlib.AbstractContextManager[None]:
    """Call ``wrappers`` in place of the named :data:`COMPILE_STAGES`, while the context lasts.

    Raises:
        MissingTorchSymbolError: when a stage does not exist in the installed torch.
    """
    return wrapped(COMPILE_STAGES, wrappers)
