"""The estimate of what a suite costs, against Table 6's calls and sums by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.cli import main
from atommem.envs.task import Document, Question, Task
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


def test_tasks_that_a_column_does_not_describe_are_counted_when_they_are_read() -> None:
    settings = {"chunk_tokens": 100, "limit": 2, "samples_per_task": 3}
    found = make_cells(
        parse_suite(suite(rows=[{"method": "atommem"}], settings=settings)), ["--policy", "x"], Path(".")
    )
    assert estimate(found).text(1000) == "estimate: none, as the tasks of 1 cells are not known yet"
    # 1,600 characters are 400 tokens: 4 chunks, and 3 answers. Tasks beyond the limit do not count.
    documents = tuple(Document("", "abcdefgh" * size) for size in (100, 50, 50))
    task = Task("t", (Question("?", ("a",)),) * 3, documents)
    cost = estimate(found, {found[0].column.key: [task, task, replace(task, documents=documents * 9)]})
    assert (cost.unknown, cost.calls) == (0, 2 * 3 * 7)
    assert cost.prompt_tokens == 2 * 3 * (7 * 1500 + 400)
    web = replace(task, documents=())
    assert estimate(found, {found[0].column.key: [web]}).unknown == 1, "what the tools will find is not known"


def test_a_document_a_step_is_a_call_a_document() -> None:
    found = cells({"method": "atommem"}, settings={"chunking": "documents"})
    assert estimate(found).calls == 10 * (200 + 5)


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
