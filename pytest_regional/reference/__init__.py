"""The reference backend: regional compilation as it should be.

Read in this order: ``regions`` (annotations and region keys, names of nodes), ``effects`` (order that must be kept),
``partition`` (the plan, computed on numbers), ``gradients`` (regions of gradients), ``extract`` (partitions as
submodules, their symbols), ``compile_regions`` (submodules as compiled callables, equal ones once, strides, failures),
``regional_inductor`` (all of it as one graph pass), ``dynamo_backend`` (the pass as ``torch.compile`` backend). Then
``ordering`` (order edges: in a graph, through Inductor's own trace, of whole regions), ``overlap`` (collectives next to
compute), ``pass_protocol`` (graph passes, and those on Dynamo's graph), ``caching`` (results of whole graphs, on disk
and across machines), ``artifacts`` (results as the user's files), ``explanation`` (the plan as text), ``options`` (the
user's options). Whole models are in ``pipeline`` (capture, passes, compile), ``passes`` and ``full_inductor``. May
import: ``_torch``, ``_base``; never pytest or the harness.
"""

from pytest_regional.reference.artifacts import (
    CompiledProgram,
    CompiledRegion,
    compile_program,
    compile_region,
    load,
    load_or_compile,
)
from pytest_regional.reference.caching.container import ArtifactError, CacheWarning
from pytest_regional.reference.compile_regions import RegionCompileError, RegionFallbackWarning
from pytest_regional.reference.dynamo_backend import cache_key, regional
from pytest_regional.reference.explanation import Explanation, explain, explain_program
from pytest_regional.reference.full_inductor import FullInductor, NumericsWarning, full_inductor
from pytest_regional.reference.ordering import (
    AddedOrder,
    OrderingCycleError,
    OrderingError,
    RegionOrderWarning,
    add_control_deps,
    remove_control_deps,
)
from pytest_regional.reference.overlap import OverlapPlan, PlannedCollective, overlap_collectives
from pytest_regional.reference.partition import Partition, PartitionPlan, plan_partitions
from pytest_regional.reference.passes import RegionalInductor, annotate_ops
from pytest_regional.reference.regional_inductor import regional_inductor, split_regions
from pytest_regional.reference.regions import RegionAnnotationError, RegionConfigError, RegionKey

__all__ = [
    "AddedOrder",
    "ArtifactError",
    "CacheWarning",
    "CompiledProgram",
    "CompiledRegion",
    "Explanation",
    "FullInductor",
    "NumericsWarning",
    "OrderingCycleError",
    "OrderingError",
    "OverlapPlan",
    "Partition",
    "PartitionPlan",
    "PlannedCollective",
    "RegionAnnotationError",
    "RegionCompileError",
    "RegionConfigError",
    "RegionFallbackWarning",
    "RegionKey",
    "RegionOrderWarning",
    "RegionalInductor",
    "add_control_deps",
    "annotate_ops",
    "cache_key",
    "compile_program",
    "compile_region",
    "explain",
    "explain_program",
    "full_inductor",
    "load",
    "load_or_compile",
    "overlap_collectives",
    "plan_partitions",
    "regional",
    "regional_inductor",
    "remove_control_deps",
    "split_regions",
]
