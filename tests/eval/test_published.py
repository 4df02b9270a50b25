"""The paper's numbers as data, shipped suites against them, and ours beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from atommem.eval.reporting.report_cli import load_published, paper_tables, set_beside
from atommem.eval.reporting.results import make_results
from atommem.eval.reporting.tables import make_tables
from atommem.eval.suite import TRAINED, Suite, SuiteRun, expand, load_suite
from tests.eval.toys import made, ones

ROOT = Path(__file__).resolve().parents[2]
TABLES = paper_tables()["tables"]


def differences(table: Mapping[str, Any], suite: Suite, runs: Sequence[SuiteRun]) -> Iterator[str]:
    """Yield each way in which a suite differs from the published table."""
    paper, name = paper_tables(), table["suite"]
    rows = {row["row"]: row for row in table["rows"]}
    columns, keys = table.get("columns", []), [column.key for column in suite.columns]
    yield from (f"{name}: no row {row}" for row in rows if row not in {r.name for r in suite.rows})
    yield from (f"{name}: row {row.name} is ours" for row in suite.rows if row.name not in rows)
    yield from (f"{name}: no column {column}" for column in columns if column not in keys)
    yield from (f"{name}: column {key} is ours" for key in keys if key not in columns)
    for row in suite.rows:
        if row.name in rows and (row.policy or TRAINED) != rows[row.name]["policy"]:
            yield f"{name}: policy of {row.name} is {row.policy or TRAINED}"
    found = set()
    for column in suite.columns:
        if column.benchmark:
            given = {"distractors": "pool", **column.build, "split": column.split}
            expected = {"n": paper["code"]["n"], "questions": paper["questions"], "split": "dev"}
            expected["distractors"] = paper["distractors"]
            found |= {f"{key} is {value}" for key, value in given.items() if value != expected[key]}
    for run in runs:
        if run.row.name in rows:
            own = rows[run.row.name].get("settings", {})
            values = run.evaluation.to_flat()
            wanted = {**paper["settings"], "max_tokens": paper["code"]["max_tokens"], **own}
            for key, value in wanted.items():
                if key in values and values[key] != value:
                    of = f" of {run.row.name}" if key in own else ""
                    found.add(f"{key}{of} is {values[key]}")
    yield from (f"{name}: {difference}" for difference in sorted(found))


@pytest.mark.slow
def test_suites_equal_their_tables_but_for_named_divergences() -> None:
    named, found = paper_tables()["divergences"].keys(), set[str]()
    for table in TABLES.values():
        ours = load_suite(table["suite"])
        ours = ours.with_policies({row.policy: row.policy for row in ours.rows})
        found |= set(differences(table, ours, expand(ours, ["--policy", "trained"], Path())))
    assert found == named


def test_divergences_are_explained_in_the_docs() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    named = {**paper_tables()["divergences"], **paper_tables()["stated"]}
    assert [
        key for key, why in named.items() if f"| {key} | {' '.join(why.split())} |" not in text
    ] == []


def test_set_beside_pairs_numbers_with_differences() -> None:
    hotpot: dict[str, Any] = {"dataset": "hotpotqa", "documents": 200}
    evaluations = [
        made("atommem", ones(8, 10), **hotpot),
        made("atommem", ones(5, 10), dataset="musique", documents=200),
        made("atommem", ones(7, 10), **hotpot, setting="chunk 2048, k 3"),
    ]
    results = make_results(evaluations)
    first, second = set_beside(load_published("table2"), results)["values"]
    assert (first["paper"], first["ours"], first["column"]) == (77.8, 80.0, "hotpotqa-200")
    assert first["low"] < 0 < first["high"]
    assert second["difference"] == pytest.approx(50 - 55.1)
    results["published"] = set_beside(load_published("table3"), results)
    text = "\n".join(table.markdown() for table in make_tables(results))
    assert "| C 2048 K 3 | 76.2 | 70.0, n 10 | -6.2 [" in text
