"""What of a request must be as the server has it: what interpreters, torch and other libraries read as they start."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Beginnings of variables that are read each time they are needed, or by nothing that a server imports. Any other may
#: be read while torch, or a library that it loads, is imported: TORCH_LOGS, TORCHINDUCTOR_*, OMP_NUM_THREADS, ...
READ_LATER = (
    "PYTEST_",
    "PYTHONPATH",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_REDIS_",
    "TRITON_CACHE_DIR",
    "TRITON_CACHE_MANAGER",
    "TMPDIR",
    "CUDA_VISIBLE_DEVICES",
    "GLOO_SOCKET_IFNAME",
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "PY_COLORS",
    "GITHUB_",
    "GITLAB_CI",
    "CI_PROJECT_DIR",
    # PyTorch's notes to code that it generated in this very process.
    "_TORCH",
)

#: Variables that have a library measure an interpreter from its start.
_MEASURES = ("COVERAGE_PROCESS_", "COV_CORE_")

#: Modules that an interpreter imports by itself as it starts, wherever it finds them.
_AT_START = {"sitecustomize", "usercustomize"}

_SUFFIXES = (".py", ".pyc", ".so")


def why_environment_differs(server: Mapping[str, str], process: Mapping[str, str], read_later: tuple[str, ...]) -> str:
    """Return why a process with an environment needs an interpreter of its own; empty where it does not.

    No value is named: it may be a secret.
    """
    for name in sorted(process):
        if name.startswith(_MEASURES):
            return f"{name} is set, which measures an interpreter from its start"
    names = sorted(
        name
        for name in {*server, *process}
        if server.get(name) != process.get(name) and not name.startswith(read_later)
    )
    if not names:
        return ""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its environment is not the server's: {', '.join(names[:3])}{more}"


def why_search_path_differs(folder: str, environment: Mapping[str, str], imported: Mapping[str, str]) -> str:
    """Return which module a process would find elsewhere than the server did; empty where there is none.

    Args:
        folder: the working folder, where it looks first.
        environment: of the process; ``PYTHONPATH`` names where it looks next.
        imported: of each module that the server has imported, the folder that it was found in.
    """
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    for place, names in [(folder, imported.keys()), *((path, imported.keys() | _AT_START) for path in added)]:
        absolute = os.path.join(folder, place)
        for name in sorted(names & _modules_in(absolute)):
            if imported.get(name) not in (absolute, os.path.realpath(absolute)):
                return f"{name} in {place} is another than the server's"
    return ""


def _modules_in(folder: str) -> set[str]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return set()
    files = {entry.name.partition(".")[0] for entry in entries if entry.name.endswith(_SUFFIXES)}
    return files | {entry.name for entry in entries if os.path.isfile(os.path.join(entry.path, "__init__.py"))}
