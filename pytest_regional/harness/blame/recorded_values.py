"""Values of a program that one process wrote to a file and another one compares with its own."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_regional._errors import RegionalError
from pytest_regional.harness.parity.captured import dense_value
from pytest_regional.harness.parity.state import raw_bytes

_FORMAT = 1

#: What ``torch.load`` raises for a file that is damaged or none of its own, and reading for one of another content.
_UNREADABLE = (OSError, EOFError, pickle.UnpicklingError, RuntimeError, LookupError, TypeError, ValueError)


class OtherValuesError(RegionalError, ValueError):
    """A file of values cannot be compared with: it is of another program or of other inputs, or damaged."""


@dataclass(frozen=True)
class RecordedValue:
    """One value of a program: its name in Dynamo's graph, and the operator that computes it."""

    name: str
    operator: str


@dataclass(frozen=True, eq=False)
class RecordedValues:
    """The intermediate values of one run of a program.

    Attributes:
        program: the values that the program has, in order.
        digests: the SHA-256 of each input and parameter of the run, by name.
        values: what was computed, by name.
        gradients: the gradients of those values that have one.
    """

    program: tuple[RecordedValue, ...]
    digests: Mapping[str, str]
    values: Mapping[str, torch.Tensor]
    gradients: Mapping[str, torch.Tensor]

    def write(self, path: Path) -> None:
        """Write a file, which holds tensors and text alone, and no code (``torch.load`` with ``weights_only``)."""
        data = {
            "format": _FORMAT,
            "torch": str(torch.__version__),
            "program": [(one.name, one.operator) for one in self.program],
            "digests": dict(self.digests),
            "values": {name: value.cpu() for name, value in self.values.items()},
            "gradients": {name: value.cpu() for name, value in self.gradients.items()},
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(data, path)

    @classmethod
    def read(cls, path: Path) -> RecordedValues:
        """Return what a file holds.

        Raises:
            OtherValuesError: there is none, or it is not what :meth:`write` makes.
        """
        try:
            data = torch.load(path, weights_only=True, map_location="cpu")
            written_in = data["format"]
            program = tuple(RecordedValue(str(name), str(operator)) for name, operator in data["program"])
            read = cls(program, dict(data["digests"]), dict(data["values"]), dict(data["gradients"]))
        except _UNREADABLE as error:
            raise OtherValuesError(
                f"{path} is no file of recorded values: {type(error).__name__}. Write one with "
                f"regional.record_values(path, fn, *inputs)"
            ) from error
        if written_in != _FORMAT:
            raise OtherValuesError(f"{path}: format {written_in!r}, where this version reads {_FORMAT}")
        return read

    def require_same(self, program: Sequence[RecordedValue], digests: Mapping[str, str]) -> None:
        """Check that these values are of this program and of these inputs.

        Raises:
            OtherValuesError: they are not; the message names the first difference.
        """
        for mine, here in zip(self.program, program, strict=False):
            if mine != here:
                raise OtherValuesError(
                    f"the recorded values are of another program: {mine.name} ({mine.operator}) there, "
                    f"{here.name} ({here.operator}) here"
                )
        if len(self.program) != len(program):
            raise OtherValuesError(
                f"the recorded values are of another program: {len(self.program)} values there, {len(program)} here"
            )
        differ = [name for name, digest in digests.items() if self.digests.get(name) != digest]
        if differ or len(digests) != len(self.digests):
            raise OtherValuesError(
                f"the recorded values are of other inputs or parameters: {', '.join(differ) or 'fewer here'}. Make "
                f"them from one seed in both processes, or load them from one file"
            )


def digests_of(inputs: Sequence[Any], gm: torch.fx.GraphModule) -> dict[str, str]:
    """Return the SHA-256 of each tensor that a graph computes with, by name; of other inputs, their text."""
    found = {f"input {place}": _digest(value) for place, value in enumerate(inputs)}
    found.update((name, _digest(value)) for name, value in gm.state_dict(keep_vars=True).items())
    return found


def _digest(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    data = raw_bytes(dense_value(value).cpu()).numpy().tobytes()
    described = f"{value.dtype} {list(value.shape)} {value.requires_grad}".encode()
    return hashlib.sha256(described + data).hexdigest()
