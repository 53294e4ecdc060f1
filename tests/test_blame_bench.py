"""``bench.blame``: what its tables count."""

from __future__ import annotations

from bench import blame
from bench.blame import table, table_of_bisector
from suites.history import known_bugs

ROWS = [
    {
        "bug": "a",
        "listed": "inductor",
        "layer": "rewrite",
        "sentence": "rewrite x",
        "experiments": [1] * 9,
        "wall": 4.0,
    },
    {"bug": "b", "listed": "inductor", "layer": "backend", "sentence": "the backend", "experiments": [1], "wall": 2.0},
    {
        "bug": "c",
        "listed": "dynamo",
        "layer": "aot_autograd",
        "sentence": "AOTAutograd",
        "experiments": [],
        "wall": 1.0,
    },
    {"bug": "d", "listed": "inductor", "layer": "none", "sentence": "the process died"},
    {"bug": "e", "listed": "aot_autograd", "layer": "partitioner", "sentence": "the partitioner", "wall": 2.0},
]


def test_layers_and_steps_are_counted():
    lines = list(table(ROWS))
    assert "| a | inductor | rewrite x | 9 | 4.0 |" in lines
    assert "| c | dynamo (**not** this layer) | AOTAutograd | 0 | 1.0 |" in lines
    assert "layer right: 3 of 5; a step is named for 1 of 3 of Inductor's" in lines
    assert any(line.startswith("median 2.0 s and 0 experiments") for line in lines)


def test_what_the_bisector_names_is_counted():
    rows = [{**ROWS[0], "named": True, "runs": 11}, {**ROWS[1], "named": False, "runs": 4}, ROWS[3]]
    lines = list(table_of_bisector(rows))
    assert "| a | inductor | rewrite x | 11 | 4.0 |" in lines
    assert "a step is named for 1 of 3" in lines


def test_every_layer_of_the_suite_has_layers_of_a_culprit():
    assert set(blame.LAYERS) == set(known_bugs.LAYERS)
