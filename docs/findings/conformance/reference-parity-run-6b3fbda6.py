"""parity (run): alias of output, alias of output (second call) (sin, head, region 'a': with it left eager the program agrees with eager).

Found by fuzzing, reduced. Needs the package pytest-regional, which observes what torch does.
"""

import os
import sys
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()


def cannot_be_checked(kind, error, trace):
    """Exit with 2, neither 0 (fixed) nor 1 (still fails): the error says nothing about the defect."""
    sys.__excepthook__(kind, error, trace)
    print(f"cannot be checked here: {kind.__name__}", flush=True)
    os._exit(2)


if __name__ == "__main__":
    sys.excepthook = cannot_be_checked

import torch

# To blame:
# region 'a': joint-graph pass remove_noop_ops and post-grad pass remove_noop_ops and lowering of aten.slice.Tensor at slice_1 (<program 1457>:4): right where these are left out together (necessary)
# the same          0.5 s  nothing changed
# fixed             0.1 s  nothing compiled
# fixed             0.1 s  Dynamo's graph run eagerly
# fixed             0.2 s  AOTAutograd's graphs run eagerly
# the same          0.4 s  without graph pass CountingPass
# the same          0.4 s  equal regions compiled one by one
# the same          0.4 s  no result stored or loaded
# fixed             0.2 s  region 'a' left eager
# fixed             0.2 s  graphs of regions interpreted, not compiled by Inductor
# the same          0.4 s  without any pass or rewrite
# the same          0.3 s  with all settings below
# the same          0.4 s  without any lowering
# fixed             0.3 s  without any step that can be left out
# the same          0.4 s  without any pass group_batch_fusion_passes, ..., pass remove_profiler_ops (8)
# the same          0.4 s  without any pass post_grad_custom_pre_pass, ..., lowering of aten.slice.Tensor (9)
# the same          0.4 s  without any pass remove_assert_ops, ..., lowering of aten.slice.Tensor (8)
# the same          0.4 s  without any pass group_batch_fusion_passes, ..., pass post_grad_custom_pre_pass (9)
# the same          0.5 s  without any pass pass_pattern_N, ..., lowering of aten.slice.Tensor (12)
# fixed             0.3 s  without any pass group_batch_fusion_passes, ..., lowering of aten.slice.Tensor (12)
# the same          0.4 s  without any pass constant_fold_uniform_value, ..., lowering of aten.slice.Tensor (8)
# fixed             0.3 s  without any pass group_batch_fusion_passes, ..., lowering of aten.slice.Tensor (8)
# the same          0.4 s  without any pass reinplace_inplaceable_ops, ..., lowering of aten.slice.Tensor (4)
# the same          0.4 s  without any pass group_batch_fusion_passes, ..., pass remove_noop_ops (4)
# fixed             0.2 s  without any pass apply_gumbel_max_trick_pass, ..., lowering of aten.slice.Tensor (6)
# fixed             0.2 s  without any pass apply_gumbel_max_trick_pass, ..., lowering of aten.slice.Tensor (4)
# the same          0.3 s  without any lowering of aten.sin.default, lowering of aten.slice.Tensor
# the same          0.4 s  without any pass apply_gumbel_max_trick_pass, pass remove_noop_ops
# fixed             0.4 s  without any pass remove_noop_ops, lowering of aten.sin.default, lowering of aten.slice.Tensor
# fixed             0.4 s  without any pass remove_noop_ops, lowering of aten.slice.Tensor
# the same          0.4 s  without any lowering of aten.slice.Tensor
# the same          0.5 s  without any pass remove_noop_ops
# the same          0.5 s  without joint-graph pass remove_noop_ops
# the same          0.5 s  without post-grad pass remove_noop_ops, lowering of aten.slice.Tensor at slice_1
# the same          0.5 s  without lowering of aten.slice.Tensor at slice_1
# the same          0.5 s  without joint-graph pass remove_noop_ops, post-grad pass remove_noop_ops
# the same          0.5 s  without joint-graph pass remove_noop_ops, lowering of aten.slice.Tensor at slice_1
# the same          0.5 s  nothing changed
# the same          0.5 s  nothing changed
# fixed             0.3 s  without joint-graph pass remove_noop_ops, post-grad pass remove_noop_ops, lowering of aten.slice.Tensor at slice_1
# fixed             0.2 s  without joint-graph pass remove_noop_ops, post-grad pass remove_noop_ops, lowering of aten.slice.Tensor at slice_1
# fixed             0.2 s  without joint-graph pass remove_noop_ops, post-grad pass remove_noop_ops, lowering of aten.slice.Tensor at slice_1
# fixed             0.3 s  without joint-graph pass remove_noop_ops, post-grad pass remove_noop_ops, lowering of aten.slice.Tensor at slice_1
#
# import torch
# from torch.fx.traceback import annotate
#
# def program(x0):
#     with annotate({"compile_with_inductor": {"inductor_region": "a"}}):
#         v1 = torch.sin(x0)
#         v2 = v1[:5]
#     return v1, v2
#
# def inputs(device="cpu", seed=0):
#     g = torch.Generator().manual_seed(seed)
#
#     def signed(*shape):
#         return (torch.rand(shape, generator=g) * 1.75 + 0.25) * (torch.randint(0, 2, shape, generator=g) * 2 - 1)
#
#     x0 = signed(0).to(device, torch.float32)
#     return (x0,)

from pytest_regional.fuzz.oracles import OracleViolationError
from pytest_regional.fuzz.findings.replaying import finding_beside
from pytest_regional.testing import regional

with regional('reference', 'cuda-emulated', expects_regions=False) as harness:
    try:
        finding_beside(__file__).check(harness)
    except OracleViolationError as violation:
        print(f"torch {torch.__version__}: still fails: {violation}")
        sys.exit(1)
print(f"torch {torch.__version__}: fixed")
