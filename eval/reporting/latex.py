"""``tables.tex``: tables for a paper."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from atommem.eval.reporting.tables import Table, Value, incomplete_note, make_tables

WIDE = 6
"""Most columns after the first before a table is scaled to the width of the text."""

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{character: "\\" + character for character in "&%$#_"},
}


def latex_tables(results: Mapping[str, Any]) -> str:
    """All tables of a report but the lists of comparisons, to be taken into a document with ``\\input``."""
    parts = ["% Made by atommem report. Needs \\usepackage{booktabs} and \\usepackage{graphicx}."]
    warning = incomplete_note(results)
    tables = (table for table in make_tables(results) if table.section != "comparisons")
    parts += [_table(table, results["title"], warning) for table in tables]
    return "\n".join(parts)


def _table(table: Table, title: str, warning: str) -> str:
    width = len(table.headings)
    key = re.sub(r"[^a-z0-9]+", "-", f"{table.section} {table.key}".lower()).strip("-")
    tabular = [
        f"\\begin{{tabular}}{{l{'r' * width}}}",
        "\\toprule",
        *_headings(table),
        "\\midrule",
        *_rows(table),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    if width > WIDE:
        tabular = ["\\resizebox{\\textwidth}{!}{%", *tabular, "}"]
    caption = f"{table.title} ({title}). {table.note}" + (f" {warning}" if warning else "")
    return "\n".join(
        [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{_escape(caption)}}}",
            f"\\label{{tab:{key}}}",
            "\\small",
            *tabular,
            "\\end{table}",
            "",
        ]
    )


def _headings(table: Table) -> list[str]:
    """One line, or two where columns have groups."""
    names = " & ".join(["", *(_escape(name) for _, name in table.headings)]) + " \\\\"
    if not any(group for group, _ in table.headings):
        return [names]
    cells, rules, place = [""], [], 2
    for group, members in groupby(group for group, _ in table.headings):
        size = len(list(members))
        cells.append(f"\\multicolumn{{{size}}}{{c}}{{{_escape(group)}}}")
        if group:
            rules.append(f"\\cmidrule(lr){{{place}-{place + size - 1}}}")
        place += size
    return [" & ".join(cells) + " \\\\", " ".join(rules), names]


def _rows(table: Table) -> list[str]:
    """Intervals stand under their numbers: side by side, three columns fill a page."""
    lines = []
    for place, (row, values) in enumerate(table.rows):
        under = [
            [value.interval for value in values],
            [value.note for value in values],
            [f"\\textbf{{{_escape(value.warning)}}}" if value.warning else "" for value in values],
        ]
        if place and any(map(any, under)):
            lines.append("\\addlinespace[2pt]")
        lines.append(_line([_escape(row), *map(_number, values)]))
        lines += [
            _line(["", *(f"{{\\tiny {text}}}" if text else "" for text in texts)]) for texts in under if any(texts)
        ]
    return lines


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _number(value: Value) -> str:
    return f"\\textbf{{{_escape(value.text)}}}" if value.bold else _escape(value.text)


def _escape(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)
