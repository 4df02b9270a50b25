"""Compare with the goldens of the tag `before-simplification`: see README.md."""

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Goldens = dict[str, Any]
TOLERANCE = 1e-9
LOSS_TOLERANCE = 1e-6
"""Of float32, whose last bits depend on the machine."""


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in dictionaries and lists, each with its place."""
    if not isinstance(value, dict | list) or not value:
        yield where, value
    else:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, f"{where}.{key}")


def different(expected: Any, found: Any, tolerance: float = TOLERANCE) -> str:
    """Return the first difference in words; an empty string without one."""
    wanted, seen = dict(leaves(expected)), dict(leaves(found))
    for where in sorted({*wanted, *seen}):
        one, other = wanted.get(where, "missing"), seen.get(where, "missing")
        both = isinstance(one, float) and isinstance(other, int | float)
        same = both and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
        if not same and one != other:
            return f"{where} is {other!r}, not {one!r}"
    return ""


def read() -> tuple[Goldens, Goldens]:
    """Return the goldens, and their replacements on purpose: name -> reason, value."""
    with gzip.open(HERE / "goldens.json.gz", "rt", encoding="utf-8") as file:
        goldens = json.load(file)
    return goldens, json.loads((HERE / "differences.json").read_text(encoding="utf-8"))


def compare(found: Goldens, rooms: tuple[str, ...]) -> dict[str, str]:
    """Return differences by name, from goldens whose names begin with one of `rooms`."""
    goldens, differences = read()
    goldens |= {name: item["value"] for name, item in differences.items()}
    expected = {name: value for name, value in goldens.items() if name.startswith(rooms)}
    found = json.loads(json.dumps(found))
    texts = {}
    for name in sorted({*expected, *found}):
        tolerance = LOSS_TOLERANCE if name.startswith("loss/") else TOLERANCE
        if text := different(expected.get(name), found.get(name), tolerance):
            texts[name] = text
    return texts
