"""``CompiledModule``: a model compiled by a pipeline, with the model's own parameters."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_regional._torch.fx_graphs import children_of_module, tensors_of_module
from pytest_regional._torch.joint_graph import CompiledJoint, load_compiled
from pytest_regional._torch.pytree import quietly, unflatten
from pytest_regional.reference.artifacts import PathLike, loadable, savable
from pytest_regional.reference.caching.container import ArtifactError
from pytest_regional.reference.caching.files import read_artifact, write_artifact
from pytest_regional.reference.caching.program import materialized
from pytest_regional.reference.pipeline.call import CallChecks
from pytest_regional.reference.pipeline.report import PipelineReport

_REGISTRIES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class CompiledModule(torch.nn.Module):  # type: ignore[misc]
    """A model whose forward and backward are compiled.

    It shares parameters, buffers and submodules with the original model: names, ``state_dict``, optimizers and
    ``.grad`` are the model's. A call that does not match the capture is an error, never a wrong result.

    Attributes:
        report: Effect and time of each pass.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compiled: CompiledJoint,
        checks: CallChecks,
        report: PipelineReport | None = None,
    ) -> None:
        super().__init__()
        self.__dict__.update({name: model.__dict__[name] for name in _REGISTRIES})
        self._original = (model,)  # in a tuple, or it would be a submodule
        self.report = report
        self._compiled = compiled
        self._checks = checks
        self._slots = tuple(_slots(model, [name for name, _ in checks.state]))
        self._parts = tuple(_parts(model))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled forward; autograd runs the compiled backward.

        Raises:
            ArtifactError: shapes, constants, modes or other properties differ from the capture.
        """
        checks = self._checks
        checks.check_modes()
        _check_parts(self._parts)
        checks.check_module(self)
        inputs = checks.flat(args, kwargs)
        state = [registry[name] for registry, name in self._slots]
        checks.check_state(state)
        checks.check_aliases(state, inputs)
        values = [*state, *inputs]
        if checks.gradients and not torch.is_grad_enabled():
            # AOTAutograd's wrapper enables gradients: it relies on guards that reject such calls.
            values = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
        return unflatten(self._compiled(values), checks.returns)

    @property
    def training(self) -> bool:
        """The mode of the model; the compiled code is valid for the mode of its capture."""
        return bool(self._original[0].training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "_original" in self.__dict__:
            self._original[0].training = mode

    def save(self, path: PathLike) -> None:
        """Write forward, backward and all that a call needs, without parameters, to ``path``, atomically.

        Raises:
            UnsavableArtifactError: it refers to something that cannot be stored in a file.
            ArtifactError: ``path`` is a directory, or others can write to its directory.
        """
        save(path, self._compiled, self._checks, self.report)


def _slots(model: torch.nn.Module, names: Iterable[str]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield where each parameter and buffer is stored, to detect replaced ones."""
    for path in names:
        owner, _, name = path.rpartition(".")
        module = model.get_submodule(owner)
        yield tensors_of_module(module, name), name


def _parts(model: torch.nn.Module) -> Iterator[tuple[str, Mapping[str, Any], tuple[Any, ...]]]:
    """Yield the children of every module, which are part of the capture."""
    for path, module in model.named_modules():
        children = children_of_module(module)
        yield path, children, tuple(children.values())


def _check_parts(parts: Iterable[tuple[str, Mapping[str, Any], tuple[Any, ...]]]) -> None:
    for path, registry, children in parts:
        now = tuple(registry.values())
        if len(now) != len(children) or any(one is not other for one, other in zip(now, children, strict=True)):
            raise ArtifactError(
                f"submodules of {path or 'the model'!r} were replaced, added or removed since it was captured. Capture "
                f"and compile the model as it is."
            )


def dump_joint(compiled: CompiledJoint) -> bytes:
    """Serialize ``compiled`` with its files of generated code."""
    return pickle.dumps((compiled.dump(), compiled.code_files()))


def load_joint(data: bytes) -> CompiledJoint:
    """Load the bytes of ``dump_joint``; neither Inductor nor the C++ compiler runs."""
    function, files = pickle.loads(data)
    with materialized(files):
        return load_compiled(function, files)


KIND = "compiled module"


def save(path: PathLike, compiled: CompiledJoint, checks: CallChecks, report: PipelineReport | None) -> None:
    """Write a compiled module; see ``CompiledModule.save``."""
    with savable():
        payload = pickle.dumps((dump_joint(compiled), checks, report))
    write_artifact(Path(path), payload, KIND)


def load(path: PathLike, model: torch.nn.Module) -> CompiledModule:
    """Return the compiled module in ``path``, with ``model``'s parameters; nothing is compiled.

    Raises:
        ArtifactError: no such artifact, or it is damaged, of another kind, torch or machine, or refers to something
            that this process lacks; or ``model`` lacks a parameter or buffer of the compiled code.
    """
    payload = read_artifact(Path(path), KIND)
    with loadable(Path(path)), quietly():
        function, checks, report = pickle.loads(payload)
        compiled = load_joint(function)
    _check_names(Path(path), model, checks)
    return CompiledModule(model, compiled, checks, report)


def _check_names(path: Path, model: torch.nn.Module, checks: CallChecks) -> None:
    there = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    missing = [name for name, _ in checks.state if name not in there]
    if missing:
        raise ArtifactError(
            f"{path} was compiled from a model with {', '.join(map(repr, missing[:5]))}, which "
            f"{type(model).__name__} does not have. Load it for the model that it was compiled from."
        )
    for name, check in checks.state:
        value = there[name]
        if tuple(value.shape) != check.shape or value.dtype != check.dtype:
            raise ArtifactError(
                f"{path} was compiled from a model whose {name!r} has shape {check.shape} and dtype {check.dtype}; "
                f"here it has {tuple(value.shape)} and {value.dtype}. Load it for the model that it was compiled from."
            )
