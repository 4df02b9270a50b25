"""The paper's numbers as data, every suite held to them, and ours beside them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.eval.reporting.published import beside, published, table_of
from atommem.eval.reporting.templates import markdown_tables
from atommem.eval.suites.cells import make_cells
from atommem.eval.suites.differences import differences
from atommem.eval.suites.suite_file import load_suite, parse_suite
from tests.eval.suites.test_config import suite
from tests.eval.toys import made, ones, results_of

ROOT = Path(__file__).resolve().parents[2]
TABLES = published()["tables"]
PAPER = ROOT.parent / "shared" / "papers" / "002-atommem.txt"


def test_every_suite_is_its_table_but_for_the_divergences_that_are_named() -> None:
    named, found = published()["divergences"].keys(), set[str]()
    for table in TABLES.values():
        ours = load_suite(table["suite"])
        ours = ours.with_policies({row.policy: row.policy for row in ours.rows})
        found |= set(differences(table, ours, make_cells(ours, ["--policy", "trained"], Path("."))))
    assert not found - named, "name these in configs/eval/paper_tables.yaml, or change the suite"
    assert not named - found, "these are no differences (any more)"


def test_every_divergence_stands_in_the_docs_with_its_reason() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    named = {**published()["divergences"], **published()["stated"]}
    assert [
        key for key, why in named.items() if f"| {key} | {' '.join(why.split())} |" not in text
    ] == []


SETTINGS = {
    "temperature": 1.0,
    "max_tokens": 1024,
    "embedder": "hashing",
    "capacity": 20,
    "samples_per_task": 4,
}
WITHOUT_UPDATE = {
    "method": "atommem",
    "label": "without update",
    "settings": {"disabled_actions": ["read"]},
}


def musique(documents: int = 200, n: int = 600, **more: Any) -> dict[str, Any]:
    return {"data": [{"benchmark": "musique", "documents": documents, "n": n, **more}]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        *(({"settings": {name: value}}, f"{name} is {value}") for name, value in SETTINGS.items()),
        ({"settings": {"disabled_actions": ["read"]}}, "disabled_actions is ['read']"),
        ({"rows": [WITHOUT_UPDATE]}, "disabled_actions of atommem, without update is ['read']"),
        (musique() | {"settings": {"limit": 5}}, "n is 5"),
        (musique(distractors="own"), "distractors is own"),
        ({"rows": [{"method": "atommem", "policy": "base"}]}, "policy of atommem is base"),
        ({"rows": [{"method": "rag"}]}, "row rag is ours"),
        ({"rows": [{"method": "rag"}]}, "no row atommem"),
        ({}, "no column hotpotqa-200"),
        (musique(n=5), "n is 5"),
        (musique(n=5), "questions is 1-1"),
        (musique(documents=400), "column musique-400 is ours"),
    ],
)
def test_what_differs_is_found(changes: dict[str, Any], expected: str) -> None:
    ours = parse_suite(suite(**changes)).with_policies({"base": "base"})
    cells = make_cells(ours, ["--policy", "x"], Path("."))
    assert f"table2_ablation: {expected}" in set(differences(TABLES["table2"], ours, cells))


@pytest.mark.parametrize("name", TABLES)
def test_numbers_are_those_of_the_paper(name: str) -> None:
    if not PAPER.is_file():
        pytest.skip("needs the paper's text in ../shared/papers")
    text = " ".join(PAPER.read_text(encoding="utf-8").split())
    for row in TABLES[name]["rows"]:
        numbers = row["values"] if "deltas" not in row else []
        for value, delta in zip(row["values"], row.get("deltas", ()), strict="deltas" in row):
            assert f"{value} ({delta:+.1f})".replace("(+", "(") in text, row["name"]
        printed = " ".join(map(str, [*numbers, *([row["average"]] if "average" in row else [])]))
        assert printed in text, row["name"]
        assert row["name"].split(" K ")[0].replace("C ", "") in text


def test_ours_stands_beside_the_papers_with_the_difference_and_its_interval() -> None:
    found = [
        made("atommem", ones(8, 10), dataset="hotpotqa", documents=200),
        made("atommem", ones(5, 10), dataset="musique", documents=200),
        made("atommem", ones(7, 10), dataset="hotpotqa", documents=200, setting="chunk 2048, k 3"),
    ]
    results = results_of(*found)
    ablation = beside(table_of("table2"), results)
    assert [row["name"] for row in ablation["rows"]] == ["AtomMem"]
    hotpot, wiki, musique = ablation["rows"][0]["values"]
    assert (hotpot["paper"], hotpot["ours"], wiki) == (77.8, 80.0, None)
    assert hotpot["difference"] == pytest.approx(2.2)
    assert hotpot["low"] < 0 < hotpot["high"]
    assert musique["difference"] == pytest.approx(50 - 55.1)
    results["published"] = beside(table_of("table3"), results)
    (row,) = results["published"]["rows"]
    assert row["values"][-1]["paper"] == 76.2, "the average over what we have, on both sides"
    text = markdown_tables(results)
    assert "## Published and ours: Table 3, chunk size C and retrieve number K" in text
    assert "| C 2048 K 3 | 76.2 | 70.0, n 10 | -6.2 [" in text
    costs = beside(table_of("table6"), results)
    assert costs["columns"] == ["seconds", "tokens/completion", "steps", "retrievals"]
    more = {"stop_reason": "context_overflow", "sums": {**found[0].records[0].sums, "steps": 99.0}}
    records = tuple(replace(record, **more) for record in found[0].records)
    too_long = replace(found[0], dataset="2wiki", records=records)
    again = beside(table_of("table6"), results_of(*found, too_long))
    assert again["rows"] == costs["rows"], "a prompt that did not fit is no cost either"


def test_deltas_and_averages_in_the_tables() -> None:
    found = [
        made(row, ones(right, 20), dataset=dataset)
        for dataset, better in (("one", 0), ("two", 4))
        for row, right in (("ours", 10 + better), ("other", 6))
    ]
    results = results_of(*found, reference="ours") | {"deltas": True}
    text = markdown_tables(results)
    assert re.search(
        r"\| other \| 30\.0 \[[^|]*, \(-20\.0\) \| 30\.0 \[[^|]*, \(-40\.0\) \| 30\.0 \[", text
    )
    assert re.search(r"\| ours \| [^|]* \| [^|]* \| 60\.0 \[", text)
