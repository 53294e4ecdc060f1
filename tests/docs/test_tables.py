"""The tables of the documentation are the truth: names, defaults and sentences come from the code."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
from fenced import ROOT, table

from pytest_regional import BackendSpec, Capabilities, CompileRecord, plugin, torch_matches
from pytest_regional._torch.patching import COMPILE_STAGES
from pytest_regional.backends import registry
from pytest_regional.harness.counters import COUNTERS
from pytest_regional.harness.goldens.checking import DEFAULT_FACTS, FACTS
from pytest_regional.harness.parity.tolerance import LEVELS
from pytest_regional.harness.record import GraphRecord, RegionRecord
from pytest_regional.plugin.marks import CompileMark, KnownFailure
from pytest_regional.plugin.options import OPTIONS


def first_column(page, heading):
    return [row[0] for row in table(page, heading)]


def test_command_line_options():
    shown = {
        (row[0].partition("=")[0].partition("[")[0], row[1]) for row in table("docs/options.md", "Command line options")
    }
    expected = [option for option in OPTIONS if option.on_command_line]
    assert shown == {(option.flag, option.ini if option.in_ini_file else "") for option in expected}
    assert len(shown) <= 13


def test_only_what_a_person_has_to_ask_for_each_time_is_no_setting():
    assert [option.flag for option in OPTIONS if not option.in_ini_file] == ["--regional-update"]


def test_facts_of_goldens():
    rows = table("docs/goldens.md", "Facts")
    assert {row[0] for row in rows} == FACTS.keys()
    assert sorted(row[0] for row in rows if row[2] == "yes") == sorted(DEFAULT_FACTS)


def test_settings_of_the_ini_file_alone():
    shown = set(first_column("docs/options.md", "Settings of the ini file alone"))
    assert shown == {option.ini for option in OPTIONS if not option.on_command_line}


@pytest.mark.parametrize(
    ("heading", "mark"),
    [("The marker regional_compile", CompileMark), ("The marker regional_known_failure", KnownFailure)],
)
def test_marker_keywords_and_their_defaults(heading, mark):
    shown = {row[0]: row[1] for row in table("docs/options.md", heading)}
    assert shown == {field.name: _default(field) for field in dataclasses.fields(mark)}


def _default(field):
    if field.default_factory is not dataclasses.MISSING:
        return "None"
    return "required" if field.default is dataclasses.MISSING else repr(field.default)


def test_fixtures():
    kind = "FixtureFunctionDefinition"
    defined = [name for name, value in vars(plugin.fixtures).items() if type(value).__name__ == kind and name[0] != "_"]
    assert defined, "pytest names fixture definitions otherwise now: mend this test"
    assert first_column("docs/options.md", "Fixtures") == defined


def test_built_in_backends():
    assert first_column("docs/options.md", "Backends") == [
        name for name in registry.names() if registry.origin(name) == "built in"
    ]


def test_counters_and_their_definitions():
    assert dict(row[:2] for row in table("docs/counters.md", "All counters")) == COUNTERS


def test_capabilities_and_their_sentences():
    plain = {name: " ".join(Capabilities.sentence(name).replace("`", "").split()) for name in Capabilities.names()}
    assert {row[0]: row[1] for row in table("docs/backends.md", "All capabilities")} == plain


def test_capabilities_of_the_built_in_backends():
    shown = {row[0]: row[2:] for row in table("docs/backends.md", "All capabilities")}
    specs = [registry.resolve(name) for name in ("reference", "torch", "inductor", "aot_eager")]
    for name, cells in shown.items():
        assert [_claims(cell) for cell in cells] == [bool(spec.capabilities.get(name)) for spec in specs], name


def _claims(cell):
    """Read "yes", "no", or "yes (from 2.13)"."""
    since = re.fullmatch(r"yes \(from (.+)\)", cell)
    return torch_matches(f">={since[1]}") if since else {"yes": True, "no": False}[cell]


@pytest.mark.parametrize(
    ("heading", "record"),
    [("CompileRecord", CompileRecord), ("RegionRecord", RegionRecord), ("GraphRecord", GraphRecord)],
)
def test_record_fields(heading, record):
    fields = [field.name for field in dataclasses.fields(record)]
    properties = [name for name, value in vars(record).items() if isinstance(value, property)]
    assert sorted(first_column("docs/writing-tests.md", heading)) == sorted(fields + properties)


def test_fields_of_a_backend_specification():
    shown = first_column("docs/backends.md", "BackendSpec")
    # origin is the registry's own.
    assert shown == [name for name in inspect.signature(BackendSpec).parameters if name != "origin"]


def test_patch_points():
    functions = {name: f"{point.holder.replace(':', '.')}.{point.attribute}" for name, point in COMPILE_STAGES.items()}
    assert {row[0]: row[1] for row in table("docs/counters.md", "Patch points")} == functions


def test_counters_name_patch_points_that_exist():
    named = {
        name for row in table("docs/counters.md", "All counters") for name in re.findall(r"\w+_\w+|codegen", row[2])
    }
    assert named <= set(COMPILE_STAGES)


def test_levels_of_parity():
    assert first_column("docs/writing-tests.md", "Parity") == list(LEVELS)


def directories(page):
    """Return the paths of the tree in docs/design.md: two spaces before a top-level name, four before one below it."""
    tree = page.partition("```text\npytest_regional/\n")[2].partition("```")[0]
    paths, parent = [], ""
    for indent, name in re.findall(r"^(  |    )([a-z_]+(?:\.py|/)) ", tree, re.MULTILINE):
        parent = name if len(indent) == 2 else parent
        paths.append(name if len(indent) == 2 else parent + name)
    return paths


def walks(page):
    """Return the modules of each numbered list under "A newcomer's walk"."""
    text = page.partition("## A newcomer's walk")[2].partition("\n## ")[0]
    lists = [re.findall(r"^\d+\. `([\w/]+\.py)`", part, re.MULTILINE) for part in re.split(r"^\*\*", text, flags=re.M)]
    return [stops for stops in lists if stops]


def missing(paths):
    return [path for path in paths if not (ROOT / "pytest_regional" / path).exists()]


def test_directories_exist():
    paths = directories((ROOT / "docs/design.md").read_text())
    assert len(paths) > 30
    assert missing(paths) == []


def test_walks_have_few_stops_that_exist_and_none_twice():
    found = walks((ROOT / "docs/design.md").read_text())
    assert len(found) == 3
    for stops in found:
        assert 5 < len(stops) < 10
        assert len(set(stops)) == len(stops)
        assert missing(stops) == []


def test_a_module_that_is_gone_is_noticed():
    page = (ROOT / "docs/design.md").read_text()
    assert missing(directories(page.replace("    observe/ ", "    gone/ "))) == ["harness/gone/"]
    assert missing(walks(page.replace("`fuzz/campaign.py` loops", "`fuzz/gone.py` loops"))[1]) == ["fuzz/gone.py"]
