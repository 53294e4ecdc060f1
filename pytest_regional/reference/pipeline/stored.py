"""What is stored of a compiled forward and backward, in an artifact and in the outer cache alike."""

from __future__ import annotations

import pickle

from pytest_regional._torch.joint_graph import CompiledJoint, load_compiled
from pytest_regional.reference.caching.code_in_place import code_in_place


def dump_joint(compiled: CompiledJoint) -> bytes:
    """Return ``compiled`` as bytes, with the files of generated code that it is loaded from."""
    return pickle.dumps((compiled.dump(), compiled.code_files()))


def load_joint(data: bytes) -> CompiledJoint:
    """Return what ``dump_joint`` made bytes of; neither Inductor nor the C++ compiler runs."""
    function, files = pickle.loads(data)
    with code_in_place(files):
        return load_compiled(function, files)
