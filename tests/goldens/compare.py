"""Compare with the goldens of the tag `before-simplification`: see README.md."""

import gzip
import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DIFFERENCES = HERE / "differences.json"
Goldens = dict[str, Any]
MISSING = "missing"
TOLERANCE = 1e-9
LOSS_TOLERANCE = 1e-6  # of float32, whose last bits depend on the machine


def leaves(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in dictionaries and lists, each with its place."""
    if not isinstance(value, dict | list) or not value:
        yield where, value
    else:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, f"{where}.{key}")


def changed_leaves(golden: Any, value: Any) -> Any:
    """Return what `differences.json` holds: changed leaves by place; a value of another kind."""
    if not (golden and isinstance(golden, dict | list) and isinstance(value, type(golden))):
        return {"": value} if isinstance(value, dict) else value
    old, new = dict(leaves(golden)), dict(leaves(value))
    found = {where: new.get(where, MISSING) for where in {**old, **new}}
    return {where: leaf for where, leaf in found.items() if leaf != old.get(where, MISSING)}


def expected_leaves(golden: Any, changed: Any) -> dict[str, Any]:
    """Return the golden's leaves with those that were changed on purpose."""
    if not isinstance(changed, dict) or "" in changed:
        return dict(leaves(changed[""] if isinstance(changed, dict) else changed))
    found = {**dict(leaves(golden)), **changed}
    return {where: leaf for where, leaf in found.items() if leaf != MISSING}


def different(wanted: dict[str, Any], seen: dict[str, Any], tolerance: float = TOLERANCE) -> str:
    """Return the first difference of leaves in words; an empty string without one."""
    for where in sorted({*wanted, *seen}):
        one, other = wanted.get(where, MISSING), seen.get(where, MISSING)
        both = isinstance(one, float) and isinstance(other, int | float)
        same = both and math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
        if not same and one != other:
            return f"{where} is {other!r}, not {one!r}"
    return ""


def read() -> tuple[Goldens, dict[str, Goldens]]:
    """Return the goldens, and differences on purpose: reason -> name -> `changed_leaves`."""
    with gzip.open(HERE / "goldens.json.gz", "rt", encoding="utf-8") as file:
        goldens = json.load(file)
    return goldens, json.loads(DIFFERENCES.read_text(encoding="utf-8"))


def write(differences: dict[str, Goldens]) -> None:
    dumps, parts = partial(json.dumps, ensure_ascii=False, sort_keys=True), []
    for reason, names in sorted(differences.items()):
        lines = [f" {dumps(name)}: {dumps(changed)}" for name, changed in sorted(names.items())]
        parts.append(f"{dumps(reason)}: {{\n" + ",\n".join(lines) + "\n}")
    DIFFERENCES.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def compare(found: Goldens, rooms: tuple[str, ...]) -> dict[str, str]:
    goldens, differences = read()
    expected = {name: dict(leaves(value)) for name, value in goldens.items()}
    for names in differences.values():
        for name, changed in names.items():
            expected[name] = expected_leaves(goldens.get(name), changed)
    expected = {name: value for name, value in expected.items() if name.startswith(rooms)}
    found = json.loads(json.dumps(found))
    texts = {}
    for name in sorted({*expected, *found}):
        tolerance = LOSS_TOLERANCE if name.startswith("loss/") else TOLERANCE
        wanted = expected.get(name, {"": None})
        if text := different(wanted, dict(leaves(found.get(name))), tolerance):
            texts[name] = text
    return texts
