"""JSON as the standard has it, whatever numbers are in the data: every browser and every language can read it."""

from __future__ import annotations

import json
import math
from typing import Any

#: What stands for infinity.
LARGEST = 1e300


def dumps(data: Any, **options: Any) -> str:
    """Return ``data`` as JSON; NaN is written as null, infinity as 1e300, with its sign.

    Args:
        data: plain data.
        options: of :func:`json.dumps`.

    Raises:
        TypeError: something else than plain data is in it.
    """
    try:
        return json.dumps(data, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(data), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else max(-LARGEST, min(value, LARGEST)) if math.isinf(value) else value
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return value


__all__ = ["LARGEST", "dumps"]
