"""A GPU for each worker of pytest-xdist, of those that the caller lets the run see. Imports no torch.

Workers that all take the first GPU share its memory and its time while the others idle. CUDA reads
``CUDA_VISIBLE_DEVICES`` once, when it starts, so it is set before torch is imported.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
PLACE_VARIABLE = "PYTEST_REGIONAL_WORKER_PLACE"
CHOICES = ("one", "all")


def free_place(taken: Collection[int]) -> int:
    """Return the least place that no living worker has."""
    return next(place for place in range(len(taken) + 1) if place not in taken)


def there_is_a_choice(environ: Mapping[str, str], devices: Path = Path("/dev")) -> bool:
    """Tell whether the caller lets the run see several GPUs."""
    return len(_visible(environ.get(VARIABLE), devices)) > 1


def for_worker(environ: Mapping[str, str], devices: Path = Path("/dev")) -> str | None:
    """Return what ``CUDA_VISIBLE_DEVICES`` has to be in this worker, or ``None`` where it stays as it is.

    Numbers, UUIDs of GPUs and those of MIG instances are passed on as the caller wrote them. Workers that outnumber the
    GPUs take turns. One that replaces a dead worker has a new name and the dead one's place, and so its GPU.

    Args:
        environ: of the worker, with pytest-xdist's variables and ``PLACE_VARIABLE``, which the controller sets.
        devices: the folder of device files, which are counted where the caller chose nothing.
    """
    worker = re.fullmatch(r"gw(\d+)", environ.get("PYTEST_XDIST_WORKER", ""))
    visible = _visible(environ.get(VARIABLE), devices)
    if worker is None or len(visible) < 2:
        return None
    return visible[int(environ.get(PLACE_VARIABLE) or worker[1]) % len(visible)]


def _visible(chosen: str | None, devices: Path) -> list[str]:
    if chosen is None:
        count = sum(1 for path in devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
        return [str(number) for number in range(count)]
    names = [name.strip() for name in chosen.split(",")]
    # CUDA takes what stands before the first name that it does not know, and "-1" is how one writes none.
    stop = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:stop]


__all__ = ["CHOICES", "PLACE_VARIABLE", "VARIABLE", "for_worker", "free_place", "there_is_a_choice"]
