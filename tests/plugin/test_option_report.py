"""``--regional-report``: names that cannot be; what is written, test_xdist reads."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("name", "said"),
    [("report.txt", "expected a name that ends in .json"), ("test_it.py/a.json", "*is no folder for that")],
)
def test_a_file_that_cannot_be_written_is_a_usage_error(downstream, name, said):
    result = downstream("def test_it(): pass", "--regional-backend=aot_eager", f"--regional-report={name}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--regional-report*{said}*"])
