"""Where a test stands, and where it failed: a file of the repository and a line, for annotations and alerts."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

#: What names the root of the checkout: to jobs of GitHub and of GitLab.
WORKSPACES = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


@cache
def repository_of(folder: Path) -> Path:
    """Return the root of the repository that ``folder`` is in, else ``folder``.

    That is what paths on the pages of GitHub and GitLab are relative to, wherever pytest's own root is.
    """
    workspaces = {Path(os.environ[name]).resolve() for name in WORKSPACES if os.environ.get(name)}
    for one in (folder, *folder.parents):
        if (one / ".git").exists() or one.resolve() in workspaces:
            return one
    return folder


def within_repository(path: Path, root: Path) -> str:
    """Return ``path`` relative to the repository that ``root`` is in; empty where it is not in it, or installed."""
    try:
        inside = path.resolve().relative_to(repository_of(root).resolve())
    except ValueError:
        return ""
    return "" if "site-packages" in inside.parts else inside.as_posix()


def place_of(item: pytest.Item, error: pytest.ExceptionInfo[BaseException] | None = None) -> dict[str, str | int]:
    """Return ``file`` and ``line`` of a test: of the line that failed, else of its definition.

    What fails is most often a line of the harness or of the compiler. People look for it in the test: it is the
    innermost line of the test's own file. A test that is not in the repository has an empty ``file``.
    """
    file = within_repository(item.path, item.config.rootpath)
    failed = [frame.lineno + 1 for frame in error.traceback if Path(frame.path) == item.path] if error else []
    return {"file": file, "line": failed[-1] if failed else (item.location[1] or 0) + 1}
