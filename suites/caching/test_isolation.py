"""A cache belongs to one test: nothing is written elsewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .lookups import NEEDS, cold_and_warm
from .programs import mlp, pair

pytestmark = pytest.mark.regional_compile(requires=NEEDS, dynamic=False)

_EVENTS = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1, "os.truncate": 0}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC


class Writes:
    """Notes where this process writes; audit hooks stay for good, so there is one, switched on and off."""

    def __init__(self):
        self.paths = None

    def hook(self, event, args):
        """Note the path of an event that changes the file system."""
        if self.paths is None:
            return
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITING:
            self.note(args[0])
        elif event in _EVENTS:
            self.note(args[_EVENTS[event]])

    def note(self, path):
        """Keep ``path``, unless it is a descriptor, a device or the bytecode of an import."""
        if isinstance(path, (str, bytes, os.PathLike)):
            text = os.path.abspath(os.fsdecode(path))
            if not text.startswith("/dev/") and "__pycache__" not in text:
                self.paths.append(Path(text))


_writes = Writes()
sys.addaudithook(_writes.hook)


@pytest.fixture
def written():
    """Return the paths that the test writes to, as it goes on."""
    _writes.paths = []
    yield _writes.paths
    _writes.paths = None


def test_nothing_is_written_outside_the_tests_directory(regional, regional_cache_dir, written):
    written.clear()  # the plugin notes that the test's call begins
    cold_and_warm(regional, mlp, pair(regional))

    inside = [path for path in written if path.is_relative_to(regional_cache_dir)]
    assert inside
    assert sorted(set(written) - set(inside)) == []


def test_files_written_elsewhere_would_be_detected(regional, written, tmp_path):
    cold_and_warm(regional, mlp, pair(regional))
    before = len(written)
    (tmp_path / "elsewhere").write_text("seen")
    os.rename(tmp_path / "elsewhere", tmp_path / "moved")
    assert [path.name for path in written[before:]] == ["elsewhere", "moved"]


@pytest.mark.parametrize("which", ["one test", "another test"])
def test_entries_are_not_seen_by_other_tests(regional, which):
    """The same program in two tests: whichever is second misses all the same."""
    cold_and_warm(regional, mlp, pair(regional))


@settings(max_examples=2, deadline=None)
@given(another=st.booleans())
def test_entries_are_not_seen_by_other_examples(regional, another):
    cold_and_warm(regional, mlp, pair(regional))
