"""Where a finding was met: on which backend and device, in which lane, with which versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Where a finding was met.

    Attributes:
        backend: the backend, as ``--regional-backend`` takes it.
        device: the device by name.
        lane: the lane that it was found in.
        versions: of torch, and of triton where it is installed.
    """

    backend: str = "reference"
    device: str = "cpu"
    lane: str = "full"
    versions: Mapping[str, str] = field(default_factory=dict)

    def circumstances(self) -> dict[str, Any]:
        """Return them as plain data, which are arguments again."""
        return {
            "backend": self.backend,
            "device": self.device,
            "lane": self.lane,
            "versions": dict(self.versions),
        }


def circumstances_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what plain data says of circumstances.

    Raises:
        KeyError: it does not say all of them.
    """
    return {name: data[name] for name in ("backend", "device", "lane", "versions")}
