"""What the pass returns can be saved by AOTAutograd, and runs in a new process that compiles nothing."""

import contextlib
import os

import pytest
import torch
from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable
from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors

from pytest_regional.reference import full_inductor
from tests.reference.full_inductor.artifact_program import Model, step
from tests.warm_process import run_module

LOADER = """
import sys, torch
from unittest import mock
from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable
from torch._inductor.graph import GraphLowering
from pytest_regional.harness.kernel_store import kernels_kept
from tests.reference.full_inductor.artifact_program import Model, step

def refuse(*args, **kwargs):
    raise AssertionError("compiled again")

no_codegen = mock.patch.object(GraphLowering, "codegen", refuse)
with kernels_kept(), no_codegen, mock.patch("torch._inductor.compile_fx.compile_fx", refuse):
    data = open(sys.argv[1], "rb").read()
    loaded = BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(data)
    torch.save(step(loaded, Model()), sys.argv[2])
"""


@pytest.mark.slow(
    "starts processes that import torch",
    fast="tests/reference/full_inductor/test_pipeline.py::test_a_list_of_passes_ends_with_it",
)
def test_saved_and_run_in_another_process(tmp_path):
    model = Model()
    x = torch.randn(4, 8, requires_grad=True)
    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, model, (x,))
        compiled = aot_compile_joint_with_descriptors(
            joint, fw_compiler=full_inductor, bw_compiler=full_inductor, serializable=True
        )
    artifact, results = tmp_path / "artifact", tmp_path / "results"
    whole = compiled.__wrapped__
    artifact.write_bytes(BundledAOTAutogradSerializableCallable.serialize_compile_artifacts(whole))
    here = step(compiled, model)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.getcwd()}
    (tmp_path / "loader.py").write_text(LOADER)
    done = run_module("loader", [str(artifact), str(results)], tmp_path, environment, timeout=120)
    assert done.returncode == 0, done.stderr
    there = torch.load(results)
    for found, expected in zip(there, here, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    plain = Model()
    eager = step(lambda *arguments: plain(arguments[-1]), plain)
    torch.testing.assert_close(there, eager)
