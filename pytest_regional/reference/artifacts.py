"""Compiled programs and regions as files: compile in one process, run in another.

An artifact is a pickle in a checked container: loading one runs code in it. It is only read from directories that no
one else can write to; never load one from another source.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx

from pytest_regional._torch import MissingTorchSymbolError
from pytest_regional._torch.aot_autograd import without_donation
from pytest_regional._torch.config import region_compile_settings, training_artifacts
from pytest_regional._torch.dynamo import aot_compile, call_unguarded, dump_function, guard_failure, load_function
from pytest_regional._torch.inductor import donation_arguments, standalone_compile
from pytest_regional.reference.caching.container import (
    ArtifactError,
    ArtifactNotFoundError,
    CacheWarning,
    UnstorableError,
    read_artifact,
    write_artifact,
)
from pytest_regional.reference.caching.outer import UNUSABLE
from pytest_regional.reference.caching.program import RegionCode
from pytest_regional.reference.compile_regions import as_graph_target
from pytest_regional.reference.dynamo_backend import compile_dynamo_graph
from pytest_regional.reference.options import BackendOptions
from pytest_regional.reference.regions import checked_settings

PROGRAM = "compiled program"
REGION = "compiled region"

PathLike = str | os.PathLike[str]


class UnsavableArtifactError(ArtifactError):
    """The compiled result cannot be stored; the message says which part."""


@dataclass(frozen=True)
class CompiledProgram:
    """A function or module, compiled as one graph with its backward; made by ``compile_program`` and ``load``."""

    _function: Any
    _module: torch.nn.Module | None = None
    _of_module: bool = False

    def __call__(self, *inputs: Any) -> Any:
        """Run it.

        Raises:
            ArtifactError: shapes, dtypes or other properties it was compiled for do not hold.
        """
        arguments = (self._module, *inputs) if self._of_module else inputs
        reason = guard_failure(self._function, arguments)
        if reason:
            raise ArtifactError(
                f"the compiled program does not hold for these inputs: {reason}. Compile it for them, with "
                f"dynamic=True for several sizes."
            )
        return call_unguarded(self._function, arguments)

    def save(self, path: PathLike) -> None:
        """Write it to ``path``, atomically.

        Raises:
            UnsavableArtifactError: it refers to something that cannot be stored in a file.
            ArtifactError: ``path`` is a directory, or others can write to its directory.
        """
        with savable():
            payload = pickle.dumps((self._of_module, dump_function(self._function)))
        write_artifact(Path(path), payload, PROGRAM)


@dataclass(frozen=True)
class CompiledRegion:
    """One graph, compiled by Inductor as a whole; made by ``compile_region`` and ``load``."""

    _call: Callable[..., Sequence[Any]]

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run it; returns the tuple of its outputs."""
        return self._call(*inputs)

    def save(self, path: PathLike) -> None:
        """Write it to ``path``, atomically.

        Raises:
            UnsavableArtifactError: it refers to something that cannot be stored in a file.
            ArtifactError: ``path`` is a directory, or others can write to its directory.
        """
        with savable():
            payload = pickle.dumps(RegionCode.of(self._call))
        write_artifact(Path(path), payload, REGION)


def compile_program(
    fn: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompiledProgram:
    """Compile the annotated regions of ``fn`` for ``inputs``, forward and backward, without running it.

    Args:
        fn: a function, or a module, that Dynamo captures as one graph.
        inputs: its arguments; not changed.
        dynamic: as ``torch.compile``'s.
        options: as ``torch.compile``'s with ``backend="regional"``.
    """
    chosen = BackendOptions.merged(options)
    module = fn if isinstance(fn, torch.nn.Module) else None

    def backend(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        return compile_dynamo_graph(gm, example_inputs, chosen)

    with _without_gradients([*inputs, *(module.parameters() if module else ())]):
        if module:
            function = aot_compile(_call_module, [module, *inputs], backend, dynamic)
        else:
            function = aot_compile(fn, inputs, backend, dynamic)
    return CompiledProgram(function, module, module is not None)


def compile_region(
    gm: torch.fx.GraphModule, *inputs: Any, configs: Mapping[str, Any] | None = None, name: str = "region"
) -> CompiledRegion:
    """Compile ``gm`` with Inductor, forward and, if inputs require gradients, backward.

    Args:
        gm: a graph that returns a tuple: of ATen ops, or from Dynamo. It is not changed.
        inputs: one for each placeholder; their sizes are fixed.
        configs: Inductor settings for this compile, as in an annotation.
        name: its name in logs and errors.

    Raises:
        RegionConfigError: a setting that Inductor does not have.
    """
    settings = checked_settings(configs or {}, name)
    compile_function = standalone_compile()
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copied = torch.fx.GraphModule(gm, graph)
    with training_artifacts(), without_donation(), region_compile_settings(settings, name):
        artifact = compile_function(
            copied, list(inputs), dynamic_shapes="from_example_inputs", aot=True, **donation_arguments(compile_function)
        )
    return CompiledRegion(as_graph_target(artifact, name, plain=False))


def load(path: PathLike, module: torch.nn.Module | None = None) -> CompiledProgram | CompiledRegion:
    """Load what ``save`` wrote; nothing is compiled.

    Args:
        path: the file.
        module: the module with the parameters, for a program compiled from a module.

    Raises:
        ArtifactError: its subclass tells what is wrong with the file, the message also what to do.
    """
    try:
        kind, payload = PROGRAM, read_artifact(Path(path), PROGRAM)
    except ArtifactError:
        kind, payload = REGION, read_artifact(Path(path), REGION)
    with loadable(Path(path)):
        if kind == REGION:
            return CompiledRegion(pickle.loads(payload).load())
        of_module, data = pickle.loads(payload)
        function = load_function(data)
    if of_module and module is None:
        raise ArtifactError(f"{path} was compiled from a module. Pass it: load(path, module).")
    return CompiledProgram(function, module, of_module)


def load_or_compile(
    path: PathLike,
    fn: Callable[..., Any],
    *inputs: Any,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> CompiledProgram:
    """Load the program from ``path``, or compile it and save it there.

    An unusable file, or a result that cannot be saved, is one ``CacheWarning``. Arguments are those of
    ``compile_program``. The code of ``fn`` is not compared with the file.
    """
    try:
        loaded = load(path, fn if isinstance(fn, torch.nn.Module) else None)
    except ArtifactNotFoundError:
        pass
    except ArtifactError as error:
        warnings.warn(f"compiled again: {error}", CacheWarning, stacklevel=2)
    else:
        if isinstance(loaded, CompiledProgram):
            return loaded
        message = f"compiled again: {path} holds a {REGION}, not a {PROGRAM}. Name another file."
        warnings.warn(message, CacheWarning, stacklevel=2)
    compiled = compile_program(fn, *inputs, dynamic=dynamic, options=options)
    try:
        compiled.save(path)
    except (ArtifactError, OSError) as error:
        warnings.warn(f"compiled, but not saved: {error}", CacheWarning, stacklevel=2)
    return compiled


def _call_module(module: torch.nn.Module, *inputs: Any) -> Any:
    """Call ``module``, an argument here: a compiled method may hold its module in a closure."""
    return module(*inputs)


@contextlib.contextmanager
def savable() -> Iterator[None]:
    """Turn errors of pickling into an UnsavableArtifactError."""
    try:
        yield
    except MissingTorchSymbolError:
        raise
    except UnstorableError as error:
        raise UnsavableArtifactError(f"this cannot be saved: {error}") from error
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError, AssertionError) as error:
        raise UnsavableArtifactError(f"this cannot be saved: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def loadable(path: Path) -> Iterator[None]:
    """Explain why an intact artifact of this torch and machine cannot be loaded: this process lacks a name."""
    try:
        yield
    except MissingTorchSymbolError:
        raise
    except UNUSABLE as error:
        raise ArtifactError(
            f"{path} is intact, but cannot be loaded here: {type(error).__name__}: {error}. Import the modules that "
            f"define its operators and functions first, or compile it again."
        ) from error


@contextlib.contextmanager
def _without_gradients(values: Sequence[Any]) -> Iterator[None]:
    """Remove ``.grad`` temporarily: 2.13 cannot load the guards it stores for a tensor with one."""
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_leaf]
    gradients = [tensor.grad for tensor in tensors]
    for tensor in tensors:
        tensor.grad = None
    try:
        yield
    finally:
        for tensor, gradient in zip(tensors, gradients, strict=True):
            tensor.grad = gradient
