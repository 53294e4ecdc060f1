"""What an annotation asks for, and what is refused."""

import enum

import pytest
import torch

from pytest_regional.reference import RegionAnnotationError, RegionConfigError
from pytest_regional.reference.regions import DEFAULT_KEY, read_region_keys, region_key
from tests.reference.graphs import annotate_node, chain


class Stage(enum.Enum):
    FIRST = 1


def key_of(mark, stack_trace=None):
    (node,) = chain("T").graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    node.meta["stack_trace"] = stack_trace
    return region_key(annotate_node(node, mark))


@pytest.mark.parametrize("mark", [0, 1, "flex", True, False, None, {}, {"inductor_configs": {}}])
def test_plain_values_mean_the_default_region(mark):
    assert key_of(mark) == DEFAULT_KEY


@pytest.mark.parametrize("identifier", ["mlp", 3, ("layer", 0), Stage.FIRST])
def test_ids(identifier):
    assert key_of({"inductor_region": identifier}) == key_of({"inductor_region": identifier}) != DEFAULT_KEY


@pytest.mark.parametrize("identifier", [[1], {"a": 1}, None, True, 1.5, ("a", [1]), torch.ones(1)])
def test_ill_typed_ids_are_refused(identifier):
    with pytest.raises(RegionAnnotationError, match="is not a region id"):
        key_of({"inductor_region": identifier})


@pytest.mark.parametrize("mark", [[1], ("a",), object()])
def test_annotations_that_are_not_understood(mark):
    with pytest.raises(RegionAnnotationError, match="is not understood"):
        key_of(mark)


def test_misspelt_entry_names_the_nearest():
    with pytest.raises(RegionAnnotationError, match=r"unknown entry 'inductor_regoin' \(nearest: inductor_region"):
        key_of({"inductor_regoin": "mlp"})


def test_configs_are_part_of_the_key_whatever_their_order():
    one = key_of({"inductor_configs": {"max_autotune": True, "triton.cudagraphs": False}})
    same = key_of({"inductor_configs": {"triton.cudagraphs": False, "max_autotune": True}})
    other = key_of({"inductor_configs": {"max_autotune": False, "triton.cudagraphs": False}})
    assert one == same != other
    assert one.settings == {"max_autotune": True, "triton.cudagraphs": False}


def test_unknown_config_name():
    with pytest.raises(
        RegionConfigError, match=r"Invalid inductor config key 'max_autotun'.*region 'mlp'.*max_autotune"
    ):
        key_of({"inductor_region": "mlp", "inductor_configs": {"max_autotun": True}})


@pytest.mark.parametrize(
    "configs",
    [{"max_autotune": "yes"}, {"max_autotune": 1}, {"max_fusion_size": True}, {"triton.cudagraphs": None}, [1]],
)
def test_wrong_config_types(configs):
    with pytest.raises(RegionConfigError):
        key_of({"inductor_configs": configs})


@pytest.mark.parametrize("configs", [None, {"worker_log_path": "x"}, {"fx_graph_remote_cache": None}])
def test_right_config_types(configs):
    assert key_of({"inductor_configs": configs}).settings == (configs or {})


def test_error_names_the_users_line():
    trace = '  File "model.py", line 12, in forward\n    y = x.sin()\n'
    with pytest.raises(RegionAnnotationError, match=r"model.py:12: y = x.sin\(\)"):
        key_of({"inductor_region": []}, trace)


def test_labels_become_identifiers():
    assert key_of({"inductor_region": "layer.0/mlp"}).identifier == "layer_0_mlp"


def test_placeholders_and_outputs_have_no_region():
    gm = chain("T")
    for node in gm.graph.nodes:
        annotate_node(node, 0)
    assert [node.op for node in read_region_keys(gm.graph)] == ["call_function"]
