"""``assert_golden``: a record compared with the golden of the test that runs."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._errors import RegionalError, RegionalRuntimeError, RegionalValueError
from pytest_regional._text import plural
from pytest_regional._torch import torch_version
from pytest_regional.harness import isolation
from pytest_regional.harness.compiling import refuse_no_program
from pytest_regional.harness.goldens.difference import MOST, in_full, sentences
from pytest_regional.harness.goldens.facts import DEFAULT_FACTS, checked, text_of
from pytest_regional.harness.goldens.file import Entry, GoldenFile, GoldenKey, Text, Version
from pytest_regional.harness.record import CompileRecord

if TYPE_CHECKING:
    from pytest_regional.harness.devices.device import DeviceUnderTest
    from pytest_regional.harness.regional import Regional

UPDATE = "pytest --regional-update"


class GoldenError(RegionalError, AssertionError):
    """A compile differs from its golden, or has none.

    Attributes:
        in_full: the golden and the facts of this run, compared line by line.
    """

    def __init__(self, message: str, in_full: str = "") -> None:
        super().__init__(message)
        self.in_full = in_full


@dataclass(frozen=True)
class UsedGolden:
    """A golden that a test compared with, or that it is to write.

    Attributes:
        key: which one.
        device: the class of the device.
        version: of torch.
        text: what is to be written; ``None`` where goldens are compared with, or the golden is as it should be.
        state: ``same``, ``changed`` or ``missing``: how it compares with what the file holds.
    """

    key: GoldenKey
    device: str
    version: Version
    text: Text | None = None
    state: str = "same"


@dataclass
class GoldensOfTest:
    """The goldens of one test: where they are, and which it used.

    Attributes:
        path: the file.
        shown: its path for messages.
        test: the test without backend and device.
        update: whether goldens are written and not compared with.
        used: by name, those that the test compared with or is to write.
    """

    path: Path
    shown: str
    test: str
    update: bool
    used: dict[str, UsedGolden] = field(default_factory=dict)


def assert_golden(
    regional: Regional,
    program: Any,
    inputs: tuple[Any, ...],
    *,
    facts: Iterable[str] | None = None,
    name: str = "",
    **options: Any,
) -> CompileRecord:
    """Do what :meth:`Regional.assert_golden` says; ``options`` are those of :meth:`Regional.run`."""
    goldens = regional.goldens
    if goldens is None:
        raise RegionalRuntimeError(
            "assert_golden needs a test with the marker regional_compile, run by pytest: the golden is in a file next "
            "to the test's"
        )
    _check_name(name)
    names = checked(DEFAULT_FACTS if facts is None else facts)
    if isinstance(program, CompileRecord):
        _refuse_inputs(inputs, options)
        record = program
    else:
        refuse_no_program("assert_golden", program)
        record = _run_afresh(regional, program, inputs, options)
    text = text_of(record, names)
    key = GoldenKey(goldens.test, regional.backend, name)
    used = UsedGolden(key, device_class(regional.device_under_test), torch_version())
    file = GoldenFile.read(goldens.path)
    if goldens.update:
        _note(goldens, file, used, text)
    else:
        _compare(goldens, file, used, text)
    return record


def _run_afresh(regional: Regional, program: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> CompileRecord:
    """Compile and run as in a new process with empty caches: what the test compiled before changes no fact."""
    regional.restart()
    regional.folder.mkdir(parents=True, exist_ok=True)
    with isolation.cache_folder(Path(tempfile.mkdtemp(prefix="golden-", dir=regional.folder))):
        return regional.run(program, *inputs, **options)


def _refuse_inputs(inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    if inputs or options:
        raise TypeError("assert_golden(record) takes no inputs and no keywords of a run: the record has its own")


def _check_name(name: str) -> None:
    if name and not re.fullmatch(r"[^\s|,]+( [^\s|,]+)*", name):
        raise RegionalValueError(f"name={name!r}: the name of a golden is one line, without '|' and ','")


def _note(goldens: GoldensOfTest, file: GoldenFile, used: UsedGolden, text: Text) -> None:
    """Note what the golden is from now on."""
    earlier = goldens.used.get(used.key.name)
    holding = file.holding(used.key, used.device, used.version)
    state = _state(holding, text)
    new = replace(used, text=None if state == "same" else text, state=state)
    if earlier is not None and earlier != new:
        raise RegionalValueError(
            f"two goldens of {used.key.test} differ and have one name, {used.key.name!r}: give each its own, name=..."
        )
    goldens.used[used.key.name] = new


def _compare(goldens: GoldensOfTest, file: GoldenFile, used: UsedGolden, text: Text) -> None:
    holding = file.holding(used.key, used.device, used.version)
    state = _state(holding, text)
    goldens.used[used.key.name] = replace(used, state=state)
    if holding is None:
        raise GoldenError(_missing(goldens, file, used))
    version, entry = holding
    if state == "changed":
        raise GoldenError(_otherwise(goldens, used, version, entry, text), in_full(entry.text, text))


def _state(holding: tuple[Version, Entry] | None, text: Text) -> str:
    if holding is None:
        return "missing"
    return "same" if holding[1].text == text else "changed"


def _missing(goldens: GoldensOfTest, file: GoldenFile, used: UsedGolden) -> str:
    entries = file.goldens.get(used.key, {})
    known = [f"from torch {_said(version)} on {device}" for device, found in entries.items() for version in found]
    there = f"It is there {', '.join(known)}. " if known else ""
    return (
        f"{goldens.shown} has no golden of {used.key} for torch {_said(used.version)} on {used.device}. {there}"
        f"'{UPDATE}' writes it; review and commit the file"
    )


def _otherwise(goldens: GoldensOfTest, used: UsedGolden, version: Version, entry: Entry, text: Text) -> str:
    found = sentences(entry.text, text) or ["the same facts in another order"]
    lines = found[:MOST]
    if len(found) > MOST:
        lines.append(f"and {plural(len(found) - MOST, 'more difference')}; -v shows all")
    since = f"from torch {_said(version)}" + f", now {_said(used.version)}" * (version != used.version)
    return "\n".join(
        [
            f"compiled otherwise than the golden ({goldens.shown}:{entry.line}, {since}, {used.device}):",
            *(f"  {line}" for line in lines),
            f"If that is intended: {UPDATE}",
        ]
    )


def _said(version: Version) -> str:
    return ".".join(map(str, version))


def device_class(device: DeviceUnderTest) -> str:
    """Return what goldens call a device: ``cpu``, ``cuda``, or ``cuda-emulated:h200``."""
    return f"{device.kind}:{device.profile}" if device.profile else device.kind
