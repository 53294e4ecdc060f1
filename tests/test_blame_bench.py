"""``bench.blame``: what its tables count."""

from __future__ import annotations

from bench import blame
from bench.blame import table
from suites.history import known_bugs
from tests.faults.blame import __main__ as blame_of_planted
from tests.faults.blame import of_backends as blame_faults
from tests.faults.blame import planted as blame_planted
from tests.faults.of_backends import FAULTS

ROWS = [
    {
        "bug": "a",
        "listed": "inductor",
        "layer": "rewrite",
        "sentence": "rewrite x",
        "experiments": [{"changed": "", "compiled": True}] * 3
        + [{"changed": "nothing compiled", "compiled": False}] * 6,
        "wall": 4.0,
    },
    {
        "bug": "b",
        "listed": "inductor",
        "layer": "backend",
        "sentence": "the backend",
        "experiments": [{"changed": "", "compiled": True}],
        "wall": 2.0,
    },
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


def test_compiles_are_counted_the_first_one_included():
    assert [blame.compiles(row) for row in ROWS[:2]] == [4, 2]
    assert list(table(ROWS))[-1].startswith("median 2.0 s, 5 experiments and 3 compiles, 3 for bugs of Inductor")
    assert "2 compiles, 0 for bugs of Inductor" in list(table([{**ROWS[1], "listed": "dynamo"}]))[-1]


def test_every_layer_of_the_suite_has_layers_of_a_culprit():
    assert set(blame.LAYERS) == set(known_bugs.LAYERS)


def found(fault, layer, **more):
    return {"fault": fault, "layer": layer, "sentence": f"{layer} it is", **more}


def test_places_of_planted_faults_are_counted():
    made = [{"changed": "", "outcome": "the same", "seconds": 0.5, "compiled": True}] * 3
    rows = [
        found("every_op_alone", "partitioning", experiments=made),
        found("lone_op_eager", "call", experiments=made[:1]),
        found("sharing_dropped", "backend", setting="equal regions compiled one by one"),
        found("nan_lost", "lowering"),
    ]
    lines = list(blame_faults.table(rows))
    assert "| plans | 2 | 2 | 1 |" in lines
    assert "| sharing | 1 | 1 | 1 |" in lines
    assert "| values | 1 | 0 | 0 |" in lines
    assert "| all | 4 | 3 | 2 |" in lines
    assert f"| `lone_op_eager` | {FAULTS['lone_op_eager'].sentence} | call it is |" in lines
    assert any(line.startswith("median 1.0 s, 2 experiments and 3 compiles") for line in lines)


def test_every_fault_has_a_place():
    for name in FAULTS:
        assert blame_faults.theme_of(name) in blame_faults.PLACES
    assert set(blame_faults.ELSEWHERE) <= set(FAULTS)
    layers = {
        layer for places in (blame_faults.PLACES, blame_faults.ELSEWHERE) for one in places.values() for layer in one
    }
    assert layers <= set(blame_faults.OF_BACKEND)


def test_planted_faults_are_judged():
    """Of several culprits that are named one has to be right; a confirmed one that is not is counted."""
    fault = next(fault for fault in blame_planted.FAULTS if fault.name == "lowering_of_sin")
    right = {"layer": "lowering", "steps": ["lowering aten.sin.default at sin"], "setting": "", "also": []}
    wrong = {"layer": "decomposition", "steps": ["decomposition aten.cat.default"], "setting": ""}
    for culprit, judged in (
        ({**right, "confidence": "confirmed"}, (True, True, False)),
        ({**wrong, "also": [right], "confidence": "necessary"}, (True, True, False)),
        ({**wrong, "also": [], "confidence": "confirmed"}, (False, False, True)),
        ({**right, "steps": ["lowering aten.cos.default at cos"], "confidence": "confirmed"}, (True, False, True)),
        ({**right, "steps": [], "confidence": "necessary"}, (True, False, False)),
    ):
        assert tuple(blame_of_planted.judged(fault, culprit).values()) == judged
    names = [fault.name for fault in blame_planted.FAULTS]
    assert len(names) == len(set(names)) > 20
