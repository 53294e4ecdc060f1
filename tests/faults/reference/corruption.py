"""Damage one file of a filled cache folder, run the program in a process of its own, and say how that went.

``python -m tests.faults.reference.corruption`` damages every file in every way. A process is forked for each trial from
one that has imported torch and run nothing, so that generated code is loaded from disk as in a new process.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_regional._base.cache_keys import KEYS


def flip_a_bit(data: bytes) -> bytes:
    """Flip one bit in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :] if data else b"x"


def truncate(data: bytes) -> bytes:
    """Lose the second half."""
    return data[: len(data) // 2]


def empty(data: bytes) -> bytes:
    """Lose everything."""
    return b""


def garbage(data: bytes) -> bytes:
    """Get other bytes of the same number."""
    return bytes((index * 37 + 11) % 256 for index in range(len(data)))


DAMAGES: tuple[Callable[[bytes], bytes], ...] = (flip_a_bit, truncate, empty, garbage)


@dataclass(frozen=True)
class Trial:
    """What one run in a damaged folder gave.

    Attributes:
        file: the damaged file, relative to the folder.
        damage: what was done to it.
        right: whether the results were those of the undamaged run, bit for bit; False after a crash.
        hit: whether the outer cache answered.
        warnings: how many ``CacheWarning`` were given.
        failure: how the process ended, if not well.
    """

    file: str
    damage: str
    right: bool
    hit: bool
    warnings: int
    failure: str = ""


def trials(
    choose: Callable[[list[Path]], list[Path]], damages: tuple[Callable[[bytes], bytes], ...]
) -> Iterator[Trial]:
    """Fill a folder, then damage each of the files that ``choose`` picks, each in a copy of the folder."""
    with tempfile.TemporaryDirectory() as scratch:
        filled = Path(scratch, "filled")
        filled.mkdir(mode=0o700)
        expected = _run(filled)
        if expected["failure"]:
            raise RuntimeError(expected["failure"])
        for file in choose(sorted(path for path in filled.rglob("*") if path.is_file() and path.parent.name != KEYS)):
            for damage in damages:
                folder = Path(scratch, "damaged")
                shutil.copytree(filled, folder)
                target = folder / file.relative_to(filled)
                target.write_bytes(damage(target.read_bytes()))
                seen = _run(folder)
                yield Trial(
                    str(file.relative_to(filled)),
                    damage.__name__,
                    seen["values"] == expected["values"] and not seen["failure"],
                    seen["hit"],
                    seen["warnings"],
                    seen["failure"],
                )
                shutil.rmtree(folder)


def one_of_each_kind(files: list[Path]) -> list[Path]:
    """Pick a file for each place and ending there is: caches of PyTorch's own, sources, libraries, our entries."""
    kinds = {}
    for path in files:
        place = next((name for name in ("fxgraph", "aotautograd", "regional") if name in path.parts), "code")
        kinds.setdefault((place, "" if place != "code" else "".join(path.suffixes)), path)
    return [path for (_, ending), path in kinds.items() if ending != ".lock"]


def _run(folder: Path) -> dict[str, object]:
    """Run the program in a forked process whose caches are in ``folder``."""
    answer = folder.parent / "answer"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            answer.write_text(json.dumps(_child(folder)))
            code = 0
        except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
            answer.write_text(json.dumps({**_NOTHING, "failure": traceback.format_exc()}))
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if not answer.exists():
        return {**_NOTHING, "failure": f"the process ended with status {status}"}
    told: dict[str, object] = json.loads(answer.read_text())
    return told


_NOTHING: dict[str, object] = {"values": [], "hit": False, "warnings": 0, "failure": ""}


def _child(folder: Path) -> dict[str, object]:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    import torch
    from torch._dynamo.utils import counters

    from pytest_regional.harness.kernel_store import kernels_kept
    from pytest_regional.reference import CacheWarning
    from tests.reference.artifact_programs import block, inputs, results

    with warnings.catch_warnings(record=True) as seen, kernels_kept():
        warnings.simplefilter("always")
        values = results(torch.compile(block, backend="regional", fullgraph=True), *inputs())
    return {
        "values": [value.double().flatten().tolist() for value in values],
        "hit": counters["aot_autograd"]["autograd_cache_hit"] == 1,
        "warnings": sum(issubclass(warning.category, CacheWarning) for warning in seen),
        "failure": "",
    }


def main() -> None:
    """Damage every file in every way, print a line for each kind of outcome, and what went wrong."""
    prepare()
    done = []
    chosen = (one_of_each_kind, DAMAGES[:1]) if "--kinds" in sys.argv else (list, DAMAGES)
    for trial in trials(*chosen):
        done.append(trial)
        if "--json" in sys.argv:
            print(json.dumps(asdict(trial)), flush=True)
        elif not trial.right or trial.warnings > 1:
            print(trial, flush=True)
    if "--json" not in sys.argv:
        outcomes = Counter((trial.right, trial.hit, trial.warnings) for trial in done)
        print(f"{len({trial.file for trial in done})} files, {len(done)} trials")
        for (right, hit, said), count in sorted(outcomes.items()):
            print(f"  {count:4}  {'right' if right else 'WRONG'}, {'loaded' if hit else 'compiled'}, {said} warnings")


def prepare() -> None:
    """Import what a run needs, and let this process start no threads that a fork would lose."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for name in ("torch._inductor.compile_fx", "pytest_regional.reference", "tests.reference.artifact_programs"):
        importlib.import_module(name)


if __name__ == "__main__":
    main()
