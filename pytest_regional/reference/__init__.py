"""The reference backend: regional compilation as it should be.

Read in this order: ``regions`` (what an annotation asks for), ``effects`` (what must keep its order), ``partition``
(the plan), ``extract`` (the plan as submodules), ``compile_regions`` (submodules as compiled callables),
``regional_inductor`` (all of it as one graph pass), ``dynamo_backend`` (the pass as ``torch.compile`` backend).
Nothing here knows of pytest or of the harness.
"""

from pytest_regional.reference.dynamo_backend import regional
from pytest_regional.reference.partition import Partition, PartitionPlan, plan_partitions
from pytest_regional.reference.regional_inductor import regional_inductor
from pytest_regional.reference.regions import RegionAnnotationError, RegionConfigError, RegionKey

__all__ = [
    "Partition",
    "PartitionPlan",
    "RegionAnnotationError",
    "RegionConfigError",
    "RegionKey",
    "plan_partitions",
    "regional",
    "regional_inductor",
]
