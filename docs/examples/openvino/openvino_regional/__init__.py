"""OpenVINO's backend for ``torch.compile``, as pytest-regional tests it."""

from .conformance import specification

__all__ = ["specification"]
