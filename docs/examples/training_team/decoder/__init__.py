"""A small decoder whose attention and feed-forward layers are compiled, the rest eager."""

from .model import Decoder, Layer

__all__ = ["Decoder", "Layer"]
