"""Finding files of version 1, which earlier releases wrote, are read as files of version 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_regional._documents import DocumentError
from pytest_regional.fuzz.findings.folder import FindingsFolder, from_data, to_data

OLD = FindingsFolder(Path(__file__).parent / "version_1")
NEW = FindingsFolder(Path(__file__).parents[2] / "docs" / "findings" / "campaigns" / "torch-2.13.0")


def data_of(path, **changes):
    return json.loads(path.read_text()) | changes


def test_there_are_files_of_a_program_and_of_a_sequence():
    assert [data_of(path)["version"] for path in OLD.paths()] == [1, 1]
    assert ["history" in data_of(path) for path in OLD.paths()] == [True, False]


@pytest.mark.parametrize("path", OLD.paths(), ids=lambda path: path.stem)
def test_a_file_is_read_as_what_it_became(path):
    finding = OLD.read(path)

    assert finding.name == path.stem
    assert to_data(finding) == data_of(NEW.path / path.name)


@pytest.mark.parametrize(("lane", "mode"), [("structure", "interpret"), ("fast", "emulated"), ("full", "native")])
def test_a_lane_is_a_mode(lane, mode):
    assert from_data(data_of(OLD.paths()[1], lane=lane)).mode == mode


def test_an_oracle_and_a_feature_have_other_names():
    finding = from_data(data_of(OLD.paths()[1], law="borders", features=["op:cond", "region:twins"]))

    assert finding.signature.oracle == "region_boundary"
    assert finding.signature.features == {"op:cond", "region:near duplicates"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"oracle": "parity"}, "there is no field 'oracle' in version 1"),
        ({"mode": "native"}, "there is no field 'mode' in version 1"),
        ({"colour": 1}, "unknown field `colour`"),
        ({"lane": "slow"}, "mode: Invalid enum value 'slow'"),
        ({"lane": ["full"]}, "mode: Expected `str`, got `array`"),
        ({"features": 3}, "features: Expected `array`, got `int`"),
    ],
)
@pytest.mark.parametrize("path", OLD.paths(), ids=lambda path: path.stem)
def test_content_unknown_to_version_1_is_refused(path, changes, problem):
    with pytest.raises(DocumentError, match=problem):
        from_data(data_of(path, **changes))


@pytest.mark.parametrize("name", ["law", "lane", "found", "detail"])
def test_a_missing_field_is_named(name):
    data = data_of(OLD.paths()[1])
    del data[name]

    with pytest.raises(DocumentError, match="missing required field"):
        from_data(data)
