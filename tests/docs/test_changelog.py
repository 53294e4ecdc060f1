"""CHANGELOG.md and its fragments keep to the form that changelog.d/README.md describes."""

from __future__ import annotations

import re

import pytest
from fenced import ROOT

KINDS = ("feature", "bugfix", "breaking", "doc")
FRAGMENTS = sorted(path for path in (ROOT / "changelog.d").iterdir() if path.name != "README.md")


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_named_and_filled(fragment):
    assert re.fullmatch(rf"(\d+|\+[a-z0-9-]+)\.({'|'.join(KINDS)})\.md", fragment.name)
    text = fragment.read_text().strip()
    assert text.endswith(".")
    assert not text.startswith(("#", "-"))


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_stands_in_the_changelog(fragment):
    assert _joined(fragment.read_text()) in _entries()


def test_every_entry_has_a_fragment():
    assert _entries() <= {_joined(fragment.read_text()) for fragment in FRAGMENTS}


def _entries():
    unreleased = (ROOT / "CHANGELOG.md").read_text().partition("## [Unreleased]")[2].partition("\n## ")[0]
    return {_joined(entry.partition("\n\n")[0]) for entry in re.split(r"^- ", unreleased, flags=re.MULTILINE)[1:]}


def _joined(text):
    return " ".join(text.split())


def test_the_changelog_names_the_version_in_progress():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"## [Unreleased] ({version})" in (ROOT / "CHANGELOG.md").read_text()
