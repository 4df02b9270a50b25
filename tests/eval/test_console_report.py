"""The table of an evaluation in a terminal of 80 columns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from atommem.eval.console_report import breakdown_table, report_tables

SCORE = {"mean": 0.953, "low": 0.92, "high": 0.98, "n": 300, "clusters": 300}
ITEM: dict[str, Any] = {
    "metric": "em",
    "metrics": {"em": SCORE, "f1": SCORE},
    "means": {"actions/scratchpad": 0.4, "malformed": 0.01, "steps": 8.0, "stop/prompt_overflow": 0.5},
    "episodes": 300,
    "failed": 1,
    "overflow": 0,
}
SOURCES = ("hotpotqa", "2wikimultihopqa", "musique", "squad", "locomo")


@pytest.mark.parametrize(("sources", "overflow"), [(0, 0), (1, 0), (5, 0), (3, 2)])
def test_no_line_is_broken_at_80_columns(sources: int, overflow: int) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None, soft_wrap=True)
    item = {**ITEM, "overflow": overflow}
    for table in report_tables({**item, "by_source": dict.fromkeys(SOURCES[:sources], item)}, console):
        console.print(table)
    console.print(breakdown_table([{"by": "type", "value": "bridge", **SCORE, "metric": m} for m in ("em", "f1")]))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("\u2026" in line for line in lines)
    assert all(sum(name in line.split() for line in lines) == 1 for name in SOURCES[:sources])
    scores = [line for line in lines if "EM [95%" in line]
    wanted = "no score, 0.953 in those that fit" if overflow else "0.953 [0.920, 0.980]"
    assert sum(line.count(wanted) for line in scores) == sources + 1
