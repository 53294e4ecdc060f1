"""``report_region``: a compiler other than Inductor's tells of the regions that it compiles."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from pytest_regional import BackendSpec, CompileForbiddenError, region, report_region
from pytest_regional._torch import symbol
from pytest_regional.testing import regional


def reporting(*outcomes):
    """Return a backend whose regions run as they are; the outcomes are reported for them in turn."""
    left = list(outcomes)

    def compile_graph(gm, example_inputs):
        split = symbol("torch.fx.passes.regional_inductor", "_RegionScooper")()(gm)
        for node in split.graph.find_nodes(op="call_module"):
            report_region(getattr(split, node.target), left.pop(0))
        return split

    def backend(gm, example_inputs):
        with torch.fx.traceback.preserve_node_meta():
            return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph)(gm, example_inputs)

    return BackendSpec("reporting", factory=lambda: backend, inductor=False)


def two(x, w):
    with region("one"):
        h = (x @ w).sin()
    h = h + 1
    with region("two"):
        return h.cos() @ w


def test_what_is_reported_is_counted_and_is_not_vacuous():
    with regional(reporting(*["compiled"] * 3, "loaded")) as r:
        x, w = r.randn(4, 4, requires_grad=True), r.randn(4, 4)
        with r.expect(region_compiles=3, region_cache_hits=1):
            record = r.run(two, x, w)
    assert sorted((one.name, one.graph, one.partitions) for one in record.regions) == [
        ("one", "backward", 1),
        ("one", "forward", 1),
        ("two", "backward", 1),
        ("two", "forward", 1),
    ]


def test_one_that_is_shared_is_a_partition_and_no_compile():
    with regional(reporting("compiled", "shared")) as r, r.expect(region_compiles=1, region_cache_hits=0):
        record = r.run(two, r.randn(4, 4), r.randn(4, 4))
    assert [one.partitions for one in record.regions] == [1, 1]


def test_a_compile_is_refused_where_none_is_expected_and_a_load_is_not():
    subgraph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with regional(reporting(), expects_regions=False) as r, r.no_compile():
        report_region(subgraph, "loaded")
        with pytest.raises(CompileForbiddenError, match="the backend compiled a region"):
            report_region(subgraph)


def test_what_cannot_be_reported_is_refused_and_nobody_need_listen():
    report_region(torch.fx.symbolic_trace(torch.nn.ReLU()))
    with pytest.raises(TypeError, match=r"needs the torch.fx.GraphModule of a region, not <built-in method sin"):
        report_region(torch.sin)
    with pytest.raises(ValueError, match=r"unknown outcome 'compield'. Did you mean 'compiled'"):
        report_region(torch.fx.symbolic_trace(torch.nn.ReLU()), "compield")
