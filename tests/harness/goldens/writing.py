"""Goldens in tests of goldens: written from one program, compared with another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_regional import GoldenError, Regional
from pytest_regional.harness.goldens.checking import FACTS
from pytest_regional.harness.goldens.file import GoldenFile, GoldensOfTest


def goldens_at(path: Path, *, update: bool = False) -> GoldensOfTest:
    return GoldensOfTest(path, path.name, "test_it", update)


def write(regional: Regional, path: Path, *given: Any, **options: Any) -> Any:
    """Write the golden of a program, as the end of a run does; all facts where ``options`` names none."""
    regional.goldens = goldens_at(path, update=True)
    record = regional.assert_golden(*given, **{"facts": FACTS, **options})
    file = GoldenFile.read(path)
    for used in regional.goldens.used.values():
        if used.text is not None:
            file.put(used.key, used.device, used.version, used.text)
    path.write_text(str(file))
    return record


def compare(regional: Regional, path: Path, *given: Any, **options: Any) -> None:
    regional.goldens = goldens_at(path)
    regional.assert_golden(*given, **{"facts": FACTS, **options})


def difference(regional: Regional, path: Path, *given: Any, **options: Any) -> list[str]:
    """Return the sentences of the failure; the whole has at most ten lines."""
    with pytest.raises(GoldenError) as failure:
        compare(regional, path, *given, **options)
    lines = str(failure.value).splitlines()
    assert len(lines) <= 10
    assert lines[0].startswith(f"compiled otherwise than the golden ({path.name}:")
    assert lines[-1] == "If that is intended: pytest --regional-update"
    print(failure.value)
    return [line.strip() for line in lines[1:-1]]
