"""Where two values of a golden differ."""

from __future__ import annotations

import math
from typing import Any

TOLERANCE = 1e-9
LOSS_TOLERANCE = 1e-6
"""Of float32, whose last bits depend on the machine."""


def different(expected: Any, found: Any, tolerance: float = TOLERANCE, where: str = "") -> str:
    """The first difference in words; an empty string where there is none."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            if key not in found or key not in expected:
                return f"{where}.{key} is {'missing' if key in expected else 'new'}"
            if text := different(expected[key], found[key], tolerance, f"{where}.{key}"):
                return text
        return ""
    if isinstance(expected, list) and isinstance(found, list):
        for index, pair in enumerate(zip(expected, found, strict=False)):
            if text := different(*pair, tolerance, f"{where}[{index}]"):
                return text
        return (
            ""
            if len(expected) == len(found)
            else f"{where} has {len(found)} items, not {len(expected)}"
        )
    if isinstance(expected, float) and isinstance(found, int | float):
        if math.isclose(expected, found, rel_tol=tolerance, abs_tol=tolerance):
            return ""
    elif expected == found:
        return ""
    return f"{where} is {found!r}, not {expected!r}"
