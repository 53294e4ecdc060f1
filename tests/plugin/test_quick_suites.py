"""The quick conformance tests: small, but with something of every suite, every capability and most planted faults."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_regional import Capabilities
from tests.warm_process import run_module

ROOT = Path(__file__).parents[2]
#: No test asks for them: they say how programs are checked.
OF_NO_TEST = {"compiles_regions", "pytorch_outer_cache", "strides"}
FEWEST_KILLS = 80

LISTED = """
import json

def pytest_collection_finish(session):
    found = {}
    for item in session.items:
        needs = [mark.kwargs.get("requires", ()) for mark in item.iter_markers("regional_compile")]
        found[item.nodeid] = [name for names in needs for name in ([names] if isinstance(names, str) else names)]
    with open("quick.json", "w") as file:
        json.dump(found, file)
"""


def test_the_quick_set_has_every_suite_and_capability_and_kills_most_faults(tmp_path, monkeypatch):
    (tmp_path / "listed.py").write_text(LISTED)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    options = [
        "-p",
        "listed",
        "--regional-backend=reference",
        "-m",
        "quick",
        "--collect-only",
        "-q",
        f"--rootdir={ROOT}",
    ]
    run_module("pytest", [*options, "-p", "no:cacheprovider", str(ROOT / "suites")], tmp_path, os.environ)
    tests = json.loads((tmp_path / "quick.json").read_text())

    functions = {name.partition("[")[0] for name in tests}
    suites = {path.name for path in (ROOT / "suites").iterdir() if (path / "__init__.py").exists()}
    # Where transformers is not installed, none of its tests is collected.
    quick = {name.split("/")[1] for name in functions} | {"transformers"}
    assert quick == suites
    assert set(Capabilities.names()) - {need for needs in tests.values() for need in needs} == OF_NO_TEST
    kills = json.loads((ROOT / "tests/faults/kills.json").read_text())
    assert sum(test in functions for test in kills.values()) >= FEWEST_KILLS


def test_transformers_have_a_quick_test():
    texts = [path.read_text() for path in (ROOT / "suites/transformers").glob("test_*.py")]
    assert any("@pytest.mark.quick\n" in text for text in texts)
