"""Patch points: private functions that are replaced temporarily, and how.

A patch point is a private attribute that PyTorch looks up by name at each call, so that replacing it reaches every
caller. Each has a compatible signature in torch 2.11, 2.13 and 2.15. One can be removed when PyTorch has a public hook
instead.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_regional._base.errors import RegionalError
from pytest_regional._torch import MissingTorchSymbolError, private_module, symbol

Maker = Callable[[Any], Any]
"""Makes the replacement from the original."""

Wrapper = Callable[..., Any]
"""``wrapper(original, *args, **kwargs)`` is called in place of ``original`` and may call it."""


@dataclass(frozen=True)
class PatchPoint:
    """One replaceable attribute.

    Attributes:
        holder: module, optionally followed by ``:Class`` (dotted where nested).
        attribute: its name there.
        static: whether it is a static method.
    """

    holder: str
    attribute: str
    static: bool = False

    @property
    def module(self) -> str:
        """The module that holds it, or its class."""
        return self.holder.partition(":")[0]

    @property
    def path(self) -> str:
        """The attribute's path in the module."""
        _, _, class_name = self.holder.partition(":")
        return f"{class_name}.{self.attribute}" if class_name else self.attribute

    def container(self) -> Any:
        """Return the module or class that holds the attribute."""
        # The imported module, not a walk over attributes: torch._inductor.standalone_compile names a function as well.
        module = private_module(self.module)
        _, _, class_name = self.holder.partition(":")
        return symbol(self.module, class_name) if class_name else module

    def current(self) -> Any:
        """Return the current value, looked up at each call so that a test's patch is seen."""
        found = getattr(self.container(), self.attribute, _ABSENT)
        return symbol(self.module, self.path) if found is _ABSENT else found


class Patch(NamedTuple):
    """One attribute of a module or class and its replacement; ``added`` if only some versions have it."""

    owner: Any
    name: str
    value: Any
    added: bool = False


_ABSENT: Any = object()


@contextlib.contextmanager
def applied(patches: Sequence[Patch]) -> Iterator[None]:
    """Apply ``patches`` in order, and restore everything afterwards, even inherited or absent attributes."""
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


class AnsweredError(RegionalError):
    """Raised by a replacement, ends a call of PyTorch's whose answer is known."""


@contextlib.contextmanager
def patched(points: Mapping[str, PatchPoint], makers: Mapping[str, Maker]) -> Iterator[None]:
    """Replace the points named by ``makers`` while the context lasts.

    Raises:
        MissingTorchSymbolError: the installed torch lacks a point; then nothing is replaced.
        KeyError: a maker for a point that is not in ``points``.
    """
    # All originals first: a module imported while another is patched would see the replacement as the original.
    patches = []
    for name, maker in makers.items():
        point = points[name]
        value = maker(point.current())
        patches.append(Patch(point.container(), point.attribute, staticmethod(value) if point.static else value))
    with applied(patches):
        yield


def _wrapping(wrapper: Wrapper, original: Any) -> Callable[..., Any]:
    """Make ``wrapper`` the replacement of a function, with the attributes of the original."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    # A key computed by functools.wraps users or by a nested wrapper must still find the original's attributes.
    call.__dict__.update(getattr(original, "__dict__", {}))
    call.__name__ = getattr(original, "__name__", call.__name__)
    return call


def wrapped(
    points: Mapping[str, PatchPoint], wrappers: Mapping[str, Wrapper]
) -> contextlib.AbstractContextManager[None]:
    """Call ``wrappers`` in place of the functions at ``points``; raises what :func:`patched` does."""
    return patched(points, {name: functools.partial(_wrapping, wrapper) for name, wrapper in wrappers.items()})


def missing(points: Mapping[str, PatchPoint]) -> list[str]:
    """Return the points that the installed torch should have but lacks, as ``holder.attribute``."""
    found = []
    for point in points.values():
        try:
            point.current()
        except MissingTorchSymbolError:
            found.append(f"{point.module}.{point.path}")
    return found


COMPILE_STAGES: dict[str, PatchPoint] = {
    # A compiled function is called: returns what converts its frames, which torch.compiler.set_stance decides.
    "stance": PatchPoint("torch._dynamo.eval_frame", "_callback_from_stance"),
    # One Dynamo frame compilation; keyword compile_id tells whether it is a recompile.
    "frame": PatchPoint("torch._dynamo.convert_frame", "_compile"),
    # One trace of a frame; not called where PyTorch loads a frame's code from a package.
    "trace": PatchPoint("torch._dynamo.convert_frame", "compile_frame"),
    # Returns the reasons why the guards of an earlier compilation failed.
    "recompile_reasons": PatchPoint("torch._dynamo.convert_frame", "get_and_maybe_log_recompilation_reasons"),
    # Returns (exceeded, name of the limit): if exceeded, Dynamo falls back to eager for the frame.
    "recompile_limit": PatchPoint("torch._dynamo.convert_frame", "exceeds_recompile_limit"),
    # Dynamo calls the user's backend with one graph.
    "backend_call": PatchPoint("torch._dynamo.output_graph:OutputGraph", "call_user_compiler"),
    # torch.compile(..., backend="name") looks up the backend.
    "backend_name": PatchPoint("torch._dynamo.backends.registry", "lookup_backend"),
    # AOTAutograd has traced a graph and calls the backend's forward, backward and inference compilers.
    "aot_compile": PatchPoint("torch._functorch.aot_autograd", "aot_stage2_compile"),
    # One AOTAutograd cache lookup, its key computation and one save.
    "aot_lookup": PatchPoint("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "try_load", static=True),
    "aot_key": PatchPoint("torch._functorch._aot_autograd.autograd_cache", "autograd_cache_key"),
    "aot_save": PatchPoint("torch._functorch._aot_autograd.autograd_cache:AOTAutogradCache", "save", static=True),
    # Inductor gets a subgraph on its own.
    "standalone_compile": PatchPoint("torch._inductor.standalone_compile", "standalone_compile"),
    # One Inductor code generation (not called on a cache hit).
    "codegen": PatchPoint("torch._inductor.compile_fx", "fx_codegen_and_compile"),
    # One FX graph cache lookup; if no key can be made, it is a bypass.
    "fx_key": PatchPoint("torch._inductor.codecache:FxGraphCache", "prepare_key", static=True),
    "fx_lookup": PatchPoint("torch._inductor.codecache:FxGraphCache", "load_with_key", static=True),
    # Generated code is loaded from a cache or an artifact.
    "code_loaded": PatchPoint("torch._inductor.output_code:CompiledFxGraph", "after_deserialization"),
    # Inductor's pre-grad stage for one graph.
    "pre_grad": PatchPoint("torch._inductor.compile_fx", "run_pre_grad_passes"),
}
"""The functions through which every compile in PyTorch passes, whatever the backend."""


def patched_stages(wrappers: Mapping[str, Wrapper]) -> contextlib.AbstractContextManager[None]:
    """Call ``wrappers`` in place of the named :data:`COMPILE_STAGES`, while the context lasts."""
    return wrapped(COMPILE_STAGES, wrappers)
