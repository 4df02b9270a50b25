"""Case banks of Memento (Agent-on-the-Fly, arXiv 2508.16153): ``{"case", "plan", "case_label"}`` a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from atommem.errors import DataError
from atommem.experience.evaluators import Experience

_LABELS = {"positive": 1.0, "negative": 0.0}


def read_memento(path: str | Path) -> Iterator[Experience]:
    """The cases of a ``memory.jsonl``, in its order: case, plan and label are query, execution and outcome.

    Raises:
        DataError: A line is no case; the message names it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")  # splitlines() cuts texts too
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            query, plan, label = row["case"], row["plan"], _LABELS[row["case_label"]]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}, line {number} is no case ({type(error).__name__} {error}): it needs case, plan and "
                "case_label (positive or negative)."
            ) from error
        yield Experience(str(query), plan if isinstance(plan, str) else json.dumps(plan), label)
