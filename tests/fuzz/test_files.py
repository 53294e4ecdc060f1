import json

import pytest

from pytest_regional._base.documents import DocumentError
from pytest_regional.fuzz.findings import files
from pytest_regional.fuzz.model.arguments import TensorInput
from pytest_regional.fuzz.model.program import Context, Program, Region, Step

PROGRAM = Program(
    arguments=(TensorInput((2, 3), "bfloat16", "transposed", requires_grad=True), TensorInput((2, 3), "bfloat16")),
    steps=(
        Step("add", (0, 1), (), (2,), (Region("a", (("max_fusion_size", 8),), ("b",)), Context("tag"))),
        Step("mul_number", (2,), (("value", 0.5),), (3,), (Region(None),)),
        Step("sum", (3,), (("dim", 1), ("keepdim", True)), (4,)),
    ),
    outputs=(4, 0),
    training=False,
    dynamic=True,
)


def test_a_program_survives_a_file(tmp_path):
    files.save(PROGRAM, tmp_path / "program.json")

    assert files.load(tmp_path / "program.json") == PROGRAM


def test_the_file_is_to_be_read_by_people(tmp_path):
    data = files.to_data(PROGRAM)

    assert data["version"] == 1
    assert data["steps"][1] == {
        "operator": "mul_number",
        "operands": [2],
        "parameters": {"value": 0.5},
        "results": [3],
        "scope": [{"region": None, "configs": {}, "after": []}],
    }
    assert data["arguments"][1] == {"shape": [2, 3], "dtype": "bfloat16"}


def changed(**changes):
    return {**files.to_data(PROGRAM), **changes}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "version None"),
        (changed(version=2), "version 2, this pytest-regional reads version 1"),
        ({key: value for key, value in changed().items() if key != "outputs"}, "`outputs`"),
        (changed(steps=[{"operator": "no_such_operator"}]), "no_such_operator"),
        (changed(arguments=[{"shape": [2], "size": 3}]), "size"),
        (changed(outputs=[99]), "value 99"),
        (changed(steps=[{"operator": "add", "operands": [0, 7], "results": [2]}], outputs=[2]), r"step 0 \(add\)"),
    ],
    ids=[
        "a list",
        "another version",
        "incomplete",
        "unknown operator",
        "unknown field",
        "no such output",
        "no operand",
    ],
)
def test_invalid_programs_are_refused(data, problem):
    with pytest.raises(DocumentError, match=problem):
        files.from_data(data)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    broken, foreign = tmp_path / "broken.json", tmp_path / "foreign.json"
    broken.write_text("{")
    foreign.write_text(json.dumps({"version": 7}))

    with pytest.raises(DocumentError, match=r"broken\.json is not JSON"):
        files.load(broken)
    with pytest.raises(DocumentError, match=r"foreign\.json: the document: the program has version 7"):
        files.load(foreign)
