"""Compiled modules as files: forward, backward and calling convention, for a model that is built in another process.

An artifact is a pickle in a checked envelope: loading one runs code that is in it. It is read only from folders that
nobody else can write to; never load one that came from somewhere else.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from pytest_regional._torch.joint_graph import CompiledJoint
from pytest_regional._torch.pytree import quietly
from pytest_regional.reference.artifacts import PathLike, loadable, savable
from pytest_regional.reference.caching.errors import ArtifactError
from pytest_regional.reference.caching.files import read_artifact, write_artifact
from pytest_regional.reference.pipeline.call import CallChecks
from pytest_regional.reference.pipeline.module import CompiledModule
from pytest_regional.reference.pipeline.report import PipelineReport
from pytest_regional.reference.pipeline.stored import dump_joint, load_joint

KIND = "compiled module"


class OtherModelError(ArtifactError):
    """The model that an artifact was loaded for is not the one that it was compiled from."""


def save(path: PathLike, compiled: CompiledJoint, checks: CallChecks, report: PipelineReport | None) -> None:
    """Write a compiled module; see ``CompiledModule.save``."""
    with savable():
        payload = pickle.dumps((dump_joint(compiled), checks, report))
    write_artifact(Path(path), payload, KIND)


def load(path: PathLike, model: torch.nn.Module) -> CompiledModule:
    """Return the compiled module that ``path`` holds, with ``model``'s parameters; nothing is compiled.

    Raises:
        ArtifactError: no such artifact, or one that is damaged, of another kind, torch or machine, or names something
            that this process has not.
        OtherModelError: ``model`` has no parameter or buffer of a name that the compiled code takes.
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
        raise OtherModelError(
            f"{path} was compiled from a model with {', '.join(map(repr, missing[:5]))}, which "
            f"{type(model).__name__} does not have. Load it for the model that it was compiled from."
        )
    for name, check in checks.state:
        value = there[name]
        if tuple(value.shape) != check.shape or value.dtype != check.dtype:
            raise OtherModelError(
                f"{path} was compiled from a model whose {name!r} has shape {check.shape} and dtype {check.dtype}; "
                f"here it has {tuple(value.shape)} and {value.dtype}. Load it for the model that it was compiled from."
            )
