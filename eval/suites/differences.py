"""In what a suite differs from the published table that it repeats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atommem.eval.reporting.published import published
from atommem.eval.suites.cells import Cell
from atommem.eval.suites.suite import TRAINED, BenchmarkData, Suite


def differences(table: Mapping[str, Any], suite: Suite, cells: Sequence[Cell]) -> Iterator[str]:
    """Each way in which a suite is not the table, as ``divergences`` of the file names it.

    Args:
        table: Of `atommem.eval.reporting.published`.
        suite: Ours.
        cells: All of its cells, with their settings.
    """
    paper = published()
    name = table["suite"]
    rows = {row["row"]: row for row in table["rows"]}
    columns = table.get("columns", [])
    yield from (
        f"{name}: no row {row}" for row in rows if row not in {own.name for own in suite.rows}
    )
    yield from (f"{name}: row {row.name} is ours" for row in suite.rows if row.name not in rows)
    yield from (
        f"{name}: no column {column}"
        for column in columns
        if column not in {c.key for c in suite.columns}
    )
    yield from (
        f"{name}: column {column.key} is ours"
        for column in suite.columns
        if column.key not in columns
    )
    for row in suite.rows:
        if row.name in rows and (row.policy or TRAINED) != rows[row.name]["policy"]:
            yield f"{name}: policy of {row.name} is {row.policy or TRAINED}"
    found = set()
    for column in suite.columns:
        if isinstance(column.data, BenchmarkData):
            build = column.data.build
            n = min(build.n, cells[0].evaluation.config.limit or build.n)
            given = {
                "n": n,
                "questions": f"{build.questions[0]}-{build.questions[1]}",
                "split": column.data.split,
            }
            expected = {**paper["code"], "questions": paper["questions"], "split": "dev"}
            given["distractors"], expected["distractors"] = build.distractors, paper["distractors"]
            found |= {f"{key} is {value}" for key, value in given.items() if value != expected[key]}
    for cell in cells:
        if cell.row.name in rows:
            own = rows[cell.row.name].get("settings", {})
            values = cell.evaluation.to_flat()
            for key, value in {
                **paper["settings"],
                "max_tokens": paper["code"]["max_tokens"],
                **own,
            }.items():
                if key in values and values[key] != value:
                    found.add(
                        f"{key} of {cell.row.name} is {values[key]}"
                        if key in own
                        else f"{key} is {values[key]}"
                    )
    yield from (f"{name}: {difference}" for difference in sorted(found))
