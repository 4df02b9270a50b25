"""``tables.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atommem.eval.reporting.breakdown_tables import breakdown_tables
from atommem.eval.reporting.tables import Table, Value, incomplete_note, make_tables


def markdown_tables(results: Mapping[str, Any]) -> str:
    """All tables of a report as Markdown."""
    parts = [f"# {_plain(results['title'])}", ""]
    note = incomplete_note(results)
    if note:
        parts += [f"**{note}**", ""]
    last = ""
    for table in [*make_tables(results), *breakdown_tables(results)]:
        if last not in ("", table.note):
            parts += [last, ""]
        parts += [f"## {_plain(table.title)}", "", *_lines(table), ""]
        last = table.note
    if last:
        parts += [last, ""]
    return "\n".join(parts)


def _lines(table: Table) -> list[str]:
    headings = [f"{group}, {name}" if group else name for group, name in table.headings]
    return [
        _line(["", *map(_plain, headings)]),
        _line(["---", *["---:"] * len(headings)]),
        *(_line([_plain(row), *map(_value, values)]) for row, values in table.rows),
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _value(value: Value) -> str:
    text = f"**{value.text}**" if value.bold else value.text
    if value.interval:
        text += f" {value.interval}"
    if value.note:
        text += f", {value.note}"
    return _plain(text + (f" **{value.warning}**" if value.warning else ""))


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
