"""A second user of the machine: a process that gave root's rights away."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import pytest

ATTACKER = 54321

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="becoming another user takes root; run as root, as in a container",
)


def as_attacker(action, *arguments):
    """Call ``action`` as the other user; return whether it could do what it wanted."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(ATTACKER)
            os.setuid(ATTACKER)
            os.umask(0)
            action(*arguments)
            status = 0
        except OSError:
            pass
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


@contextlib.contextmanager
def common_folder():
    """A folder like the system's for temporary files: everybody makes files there, and owns them."""
    folder = Path(tempfile.mkdtemp(prefix="common-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def copy(content, path, mode=0o755):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
