"""The paper's numbers as data, every suite held to them, and ours beside them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.errors import ConfigError
from atommem.eval.reporting.results import make_cells as group
from atommem.eval.reporting.results import make_results
from atommem.eval.reporting.templates import markdown_tables
from atommem.eval.reproduce.published import beside, divergence_lines, published, table_of
from atommem.eval.suites.cells import make_cells
from atommem.eval.suites.differences import differences
from atommem.eval.suites.suite_file import load_suite, parse_suite
from tests.eval.suites.test_config import suite
from tests.eval.test_report_files import complete_sums, made

ROOT = Path(__file__).resolve().parents[3]
TABLES = published()["tables"]
PAPER = ROOT.parent / "shared" / "papers" / "002-atommem.txt"


def all_differences() -> set[str]:
    found: set[str] = set()
    for table in TABLES.values():
        ours = load_suite(table["suite"])
        ours = ours.with_policies({row.policy: row.policy for row in ours.rows})
        found |= set(differences(table, ours, make_cells(ours, ["--policy", "trained"], Path("."))))
    return found


def test_every_suite_is_its_table_but_for_the_divergences_that_are_named() -> None:
    named = published()["divergences"].keys()
    found = all_differences()
    assert not found - named, "name these in configs/eval/paper_tables.yaml, or change the suite"
    assert not named - found, "these are no differences (any more)"


def test_every_divergence_stands_in_the_docs_with_its_reason() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert [line for line in divergence_lines() if line not in text] == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"settings": {"temperature": 1.0}}, "table2_ablation: temperature is 1.0"),
        ({"settings": {"max_tokens": 1024}}, "table2_ablation: max_tokens is 1024"),
        ({"settings": {"embedder": "hashing"}}, "table2_ablation: embedder is hashing"),
        ({"settings": {"capacity": 20}}, "table2_ablation: capacity is 20"),
        ({"settings": {"samples_per_task": 4}}, "table2_ablation: samples_per_task is 4"),
        ({"settings": {"disabled_actions": ["read"]}}, "table2_ablation: disabled_actions is ['read']"),
        (
            {"rows": [{"method": "atommem", "label": "without update", "settings": {"disabled_actions": ["read"]}}]},
            "table2_ablation: disabled_actions of atommem, without update is ['read']",
        ),
        (
            {"data": [{"benchmark": "musique", "documents": 200, "n": 600}], "settings": {"limit": 5}},
            "table2_ablation: n is 5",
        ),
        (
            {"data": [{"benchmark": "musique", "documents": 200, "n": 600, "distractors": "own"}]},
            "table2_ablation: distractors is own",
        ),
        ({"rows": [{"method": "atommem", "policy": "base"}]}, "table2_ablation: policy of atommem is base"),
        ({"rows": [{"method": "rag"}]}, "table2_ablation: row rag is ours"),
        ({"rows": [{"method": "rag"}]}, "table2_ablation: no row atommem"),
        ({}, "table2_ablation: no column hotpotqa-200"),
        ({"data": [{"benchmark": "musique", "documents": 200, "n": 5}]}, "table2_ablation: n is 5"),
        ({"data": [{"benchmark": "musique", "documents": 200, "n": 5}]}, "table2_ablation: questions is 1-1"),
        ({"data": [{"benchmark": "musique", "documents": 400, "n": 5}]}, "table2_ablation: column musique-400 is ours"),
    ],
)
def test_what_differs_is_found(changes: dict[str, Any], expected: str) -> None:
    ours = parse_suite(suite(**changes)).with_policies({"base": "base"})
    cells = make_cells(ours, ["--policy", "x"], Path("."))
    assert expected in set(differences(TABLES["table2"], ours, cells))


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
    def cell(row: str, dataset: str, right: int) -> Any:
        label = {"setting": row.partition(", ")[2]} if ", " in row else {}
        scores = [{"em": float(n < right)} for n in range(10)]
        evaluation = made(row.partition(", ")[0], scores, dataset=dataset, documents=200, **label)
        return complete_sums(evaluation)

    found = [
        cell("atommem", "hotpotqa", 8),
        cell("atommem", "musique", 5),
        cell("atommem, chunk 2048, k 3", "hotpotqa", 7),
    ]
    results = make_results(group(found))
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
    records = (
        replace(record, stop_reason="context_overflow", sums={**record.sums, "steps": 99.0})
        for record in found[0].records
    )
    too_long = replace(found[0], dataset="2wiki", records=tuple(records))
    again = beside(table_of("table6"), make_results(group([*found, too_long])))
    assert again["rows"] == costs["rows"], "a prompt that did not fit is no cost either"
    with pytest.raises(ConfigError, match="paper is 'table9'"):
        table_of("table9")


def test_a_row_names_its_policy() -> None:
    rows = [
        {"method": "rag", "policy": "base"},
        {"method": "atommem", "policy": "trained"},
        {"method": "memagent", "policy": "other"},
    ]
    ours = parse_suite(suite(rows=rows, policies={"base": "Qwen/Qwen3-8B"}))
    with pytest.raises(ConfigError, match=r"row 'memagent' is answered by the policy 'other': .*--policies other="):
        ours.with_policies({})
    ours = ours.with_policies({"other": "runs/other"})
    cells = make_cells(ours, ["--policy", "runs/trained"], Path("."))
    assert [cell.configs[0].policy for cell in cells] == [["Qwen/Qwen3-8B"], ["runs/trained"], ["runs/other"]]
    with pytest.raises(ConfigError, match="give one of them"):
        parse_suite(suite(rows=[{"method": "rag", "policy": "a", "settings": {"policy": "b"}}]))
    with pytest.raises(ConfigError, match="policies is"):
        parse_suite(suite(policies=["base"]))


def test_deltas_and_averages_in_the_tables() -> None:
    found = [
        complete_sums(made(row, [{"em": float(n < right)} for n in range(20)], dataset=dataset))
        for dataset, better in (("one", 0), ("two", 4))
        for row, right in (("ours", 10 + better), ("other", 6))
    ]
    results = make_results(group(found), reference="ours") | {"deltas": True}
    text = markdown_tables(results)
    assert re.search(r"\| other \| 30\.0 \[[^|]*, \(-20\.0\) \| 30\.0 \[[^|]*, \(-40\.0\) \| 30\.0 \[", text)
    assert re.search(r"\| ours \| [^|]* \| [^|]* \| 60\.0 \[", text)
