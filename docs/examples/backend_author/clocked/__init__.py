"""A regional backend that says how long each compiled graph runs."""

from .backend import clocked
from .clock import Timing, forget, timings

__all__ = ["Timing", "clocked", "forget", "timings"]
