"""CHANGELOG.md names the version in progress."""

from __future__ import annotations

import re

from fenced import ROOT


def test_the_changelog_names_the_version_in_progress():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"## [Unreleased] ({version})" in (ROOT / "CHANGELOG.md").read_text()
