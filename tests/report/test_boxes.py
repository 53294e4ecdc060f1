"""A large graph as boxes: each partition one, each stretch of eager ops one, every node in exactly one, no cycle."""

import random

from pytest_regional.report.page import boxes_of
from tests.report.test_page import node


def layers(count):
    """A model of ``count`` layers: eager ops around a partition of three nodes each."""
    nodes = [node("x", "input")]

    def add(name, region=None, partition=None, more=()):
        nodes.append(node(name, "aten.sin.default", [len(nodes) - 1, *more], region=region, partition=partition))

    for layer in range(count):
        add(f"norm{layer}")
        residual = len(nodes) - 1
        for part in range(3):
            add(f"mlp{layer}_{part}", "mlp", layer)
        add(f"add{layer}", more=[residual])
    nodes.append(node("output", "output", [len(nodes) - 1]))
    return nodes


def test_a_box_for_each_partition_and_each_stretch_between():
    boxes = boxes_of(layers(30))
    assert [box["kind"] for box in boxes] == ["inputs", *["eager", "compiled"] * 30, "eager", "output"]
    assert [len(box["nodes"]) for box in boxes[:5]] == [1, 1, 3, 2, 3]
    assert [box["partition"] for box in boxes if box["kind"] == "compiled"] == list(range(30))
    assert boxes[4]["inputs"] == [3]


def test_an_opened_box_shows_its_neighbours_and_no_edge_between_them():
    nodes = layers(2)
    (box,) = [box for box in boxes_of(nodes) if box["partition"] == 0]
    shown = [nodes[index]["name"] for index in box["shown"]["nodes"]]
    assert shown == ["norm0", "mlp0_0", "mlp0_1", "mlp0_2", "add0"]
    assert [edges["inputs"] for edges in box["shown"]["edges"]] == [[], [0], [1], [2], [3]]  # not norm0 -> add0
    assert len(set(map(tuple, box["shown"]["places"]))) == 5


def random_nodes(rng):
    nodes = [node("x", "input")]
    for index in range(1, rng.randint(2, 60)):
        region, partition = rng.choice([(None, None), ("a", 0), ("a", 1), ("b", None), (None, 2)])
        inputs = sorted({rng.randrange(index) for _ in range(rng.randint(1, 2))})
        after = [rng.randrange(index)] if rng.random() < 0.1 else []
        nodes.append(node(f"n{index}", "aten.sin.default", inputs, region=region, partition=partition, after=after))
    return nodes


def test_every_node_is_in_one_box_and_every_partition_in_one():
    """Also where a partition could not run as one, as two of them wait for each other: a report has to be drawn."""
    rng = random.Random(0)
    for _ in range(300):
        nodes = random_nodes(rng)
        boxes = boxes_of(nodes)
        assert sorted(index for box in boxes for index in box["nodes"]) == list(range(len(nodes)))
        partitions = [box["partition"] for box in boxes if box["partition"] is not None]
        assert len(partitions) == len(set(partitions))
        assert len({tuple(box["place"]) for box in boxes}) == len(boxes)


def test_boxes_of_a_plan_that_can_run_have_no_cycle():
    for count in (1, 5, 40):
        boxes = boxes_of(layers(count))
        assert all(one < number for number, box in enumerate(boxes) for one in box["inputs"])
