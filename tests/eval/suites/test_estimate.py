"""The estimate of what a suite costs, against Table 6's calls and sums by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.eval.reproduce.published import table_of
from atommem.eval.suites.cells import make_cells
from atommem.eval.suites.estimate import estimate
from atommem.eval.suites.suite_file import parse_suite
from tests.eval.suites.test_config import suite

DATA = [{"benchmark": "hotpotqa", "documents": 200, "questions": 5, "n": 10}]


def cells(*rows: dict[str, Any], **fields: Any) -> Any:
    return make_cells(parse_suite(suite(rows=list(rows), data=DATA, **fields)), ["--policy", "x"], Path("."))


def test_sums_by_hand() -> None:
    # 28,000 tokens in chunks of 4,000 are 7 calls, and 5 answers; ten episodes; 1,500 tokens around every prompt.
    cost = estimate(cells({"method": "atommem"}, settings={"chunk_tokens": 4000}))
    assert cost.calls == 120
    assert cost.prompt_tokens == 10 * (12 * 1500 + 28_000)
    assert cost.completion_tokens == 120 * 500
    assert "120 calls, 0.5 million prompt and 0.1 million completion tokens; 0.1 hours at 1,000 tokens" in cost.text(
        1000
    )
    found = cells({"method": "rag"}, settings={"max_tokens": 100})
    found[0].done = 4
    assert (estimate(found).calls, estimate(found).completion_tokens) == (6, 600)
    assert estimate(make_cells(parse_suite(suite()), ["--policy", "x"], Path("."))).unknown == 2


@pytest.mark.parametrize("method", ["memagent", "a_mem", "generative_agents", "mem0"])
def test_calls_are_about_those_of_table_6(method: str) -> None:
    (row,) = (row for row in table_of("table6")["rows"] if row["row"] == method)
    calls = estimate(cells({"method": method}, settings={"chunk_tokens": 4000})).calls / 10
    assert calls == pytest.approx(row["values"][2], rel=0.15)


def test_the_list_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--suite", "table1", "--list", "--throughput", "20000"]) == 0
    shown = capsys.readouterr()
    assert "hours at 20,000 tokens a second" in shown.out + shown.err
    assert "not as published: table1: no column gaia" in shown.out
