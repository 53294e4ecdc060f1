"""What pytest-regional is told of the backend; nothing in the backend itself knows of tests."""

from pytest_regional import BackendSpec, declared, unsupported

from .backend import clocked
from .clock import forget

_NO_CACHE = unsupported("the result of a whole graph is not kept")
_NO_PASSES = unsupported("passes are not run on the whole graph")

capabilities = declared(
    annotation_checks=unsupported("what an annotation holds is not checked"),
    nested_region_options=unsupported("compilers of nested regions are not asked"),
    outer_cache=_NO_CACHE,
    outer_cache_of_training=_NO_CACHE,
    pre_grad_pass_lists=_NO_PASSES,
    pre_grad_passes=_NO_PASSES,
    pre_grad_timing=_NO_PASSES,
    region_order=unsupported("an edge inside a region does not compile, and an annotation's `after` is not read"),
    share_identical=unsupported("every partition is compiled on its own"),
)

# Timings of one test must not be seen by the next: `forget` is called between them.
specification = BackendSpec("clocked", factory=lambda: clocked, capabilities=capabilities(), forget=forget)
