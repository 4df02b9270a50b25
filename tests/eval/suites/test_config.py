"""A suite's file: what it may hold, what is said of one that is wrong; and the estimate of what it costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.cli import main
from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.envs.task import Document, Question, Task
from atommem.errors import ConfigError
from atommem.eval.reporting.published import table_of
from atommem.eval.suites.cells import Cell, make_cells
from atommem.eval.suites.estimate import estimate
from atommem.eval.suites.suite import Suite
from atommem.eval.suites.suite_file import load_suite, parse_suite
from tests.pages import blocks

DATA = [{"name": "world", "synthetic": {"prose": "compact"}, "n": 3}]
ROWS = [{"method": "atommem"}, {"method": "rag"}]


def suite(**fields: Any) -> dict[str, Any]:
    return {"title": "A suite", "data": DATA, "rows": ROWS, **fields}


def folder(path: Path, *configs: Any) -> str:
    """A policy's folder with these settings, as its checkpoint has them."""
    path.mkdir()
    save_config(path, *configs)
    return str(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colums": []}, "unknown field colums; known are title"),
        ({"data": []}, "data is empty"),
        ({"data": [{"name": "x"}]}, "one of benchmark, synthetic and file"),
        ({"data": [{"benchmark": "hotpotqa", "n": 1}]}, "data, hotpotqa: documents is missing"),
        ({"data": [{**DATA[0], "settings": {"seed": 3}}]}, "data, world: seed cannot be set here"),
        ({"data": DATA * 2}, "two columns are called 'world'"),
        ({"rows": [{"method": "magic"}]}, r"method=magic: unknown\. Give one of atommem"),
        ({"rows": [{"method": "rag", "settings": {"retrieve": 3}}]}, "did you mean retrieve_k"),
        (
            {"rows": [{"method": "rag", "settings": {"retrieve_k": "three"}}]},
            "rows, rag: retrieve_k=three: give a whole number",
        ),
        ({"rows": [{"method": "rag", "settings": {"limit": 3}}]}, "limit cannot be set here"),
        ({"grid": [{"method": "rag", "axes": {"k": [3]}}]}, r"axis k is \[3\]"),
        ({"seeds": [1, 1]}, "seeds is"),
        ({"reference": "mem0"}, r"reference=mem0: unknown\. Give one of atommem, rag"),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite(**fields)))
    with pytest.raises(ConfigError, match=message) as error:
        load_suite(path)
    assert str(path) in str(error.value)
    for text in ("- a\n- b\n", "title: [\n"):
        path.write_text(text)
        with pytest.raises(ConfigError, match="suite"):
            load_suite(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_suite(tmp_path / "none.yaml")


def test_rows_and_columns_are_chosen_by_any_of_their_names() -> None:
    rows = [*ROWS, {"method": "atommem", "label": "k 3", "settings": {"retrieve_k": 3}}]
    data = [{"benchmark": "hotpotqa", "documents": [20, 40], "n": 1}, *DATA]
    whole = parse_suite(suite(rows=rows, data=data, reference="rag"))
    assert [row.name for row in whole.select(rows=["atommem"]).rows] == ["atommem", "atommem, k 3"]
    assert [row.name for row in whole.select(rows=["rag", "k 3"]).rows] == ["rag", "atommem, k 3"]
    assert [whole.select(rows=[name]).reference for name in ("k 3", "rag")] == [None, "rag"]
    assert [column.key for column in whole.select(columns=["hotpotqa"]).columns] == [
        "hotpotqa-20",
        "hotpotqa-40",
    ]
    assert [column.key for column in whole.select(columns=["hotpotqa-40", "world"]).columns] == [
        "hotpotqa-40",
        "world",
    ]
    with pytest.raises(ConfigError, match="no row 'mem0'; it has 'atommem', 'rag', 'atommem, k 3'"):
        whole.select(rows=["mem0"])


def test_a_row_wins_over_a_column_over_flags_over_the_suite_over_the_checkpoint(
    tmp_path: Path,
) -> None:
    memory = MemoryConfig(retrieve_k=2, scratchpad_tokens=7, layout="paper")
    policy = folder(tmp_path / "trained", memory, EmbedderConfig(embedder="random"))
    own = {"retrieve_k": 5, "top_k": 9, "capacity": None}
    values = suite(
        settings={"retrieve_k": 3, "temperature": 0.25, "scratchpad_tokens": 8},
        data=[
            {**DATA[0], "name": f"world {size}", "settings": {"capacity": size}} for size in (2, 3)
        ],
        rows=[{"method": "atommem"}, {"method": "atommem", "label": "x", "settings": own}],
        seeds=[0, 4],
    )
    flags = ["--policy", policy, "--retrieve_k", "4", "--capacity", "9"]
    cells = make_cells(parse_suite(values), flags, tmp_path / "out")
    assert [
        (cell.column.key, cell.row.name, cell.seed, cell.evaluation.run.memory.capacity)
        for cell in cells
    ] == [
        (f"world_{size}", name, seed, capacity)
        for size in (2, 3)
        for name, capacity in (("atommem", size), ("atommem, x", None))
        for seed in (0, 4)
    ]
    first, last = cells[0].evaluation.run, cells[3].evaluation.run
    assert (first.memory.layout, first.embedder.embedder) == ("paper", "random")
    assert first.sampling.temperature == 0.25
    assert (first.memory.scratchpad_tokens, first.memory.retrieve_k) == (8, 4)
    assert (last.memory.retrieve_k, last.sampling.top_k, last.sampling.seed) == (5, 9, 4)
    assert cells[3].evaluation.config.method == "atommem"
    assert cells[3].folder == tmp_path / "out" / "cells" / "atommem_x" / "world_2" / "seed_4"


def test_a_row_may_bring_its_own_policy_with_its_settings_and_shares_the_embedder(
    tmp_path: Path,
) -> None:
    trained = folder(
        tmp_path / "trained", MemoryConfig(retrieve_k=2), EmbedderConfig(embedder="random")
    )
    base = folder(tmp_path / "base", MemoryConfig(retrieve_k=5), EmbedderConfig(embedder="hashing"))
    rows = [
        {"method": "rag", "policy": "base"},
        {"method": "atommem"},
        {"method": "atommem", "label": "own", "settings": {"embedder": "hashing"}},
        {"method": "atommem", "label": "set", "settings": {"policy": base}},
    ]
    ours = parse_suite(suite(rows=rows)).with_policies({"base": base})
    in_the_file = parse_suite(suite(rows=rows, settings={"policy": trained})).with_policies(
        {"base": base}
    )
    for of, flags in ((ours, ("--policy", trained)), (in_the_file, ())):
        cells = {cell.row.name: cell.evaluation for cell in make_cells(of, flags, tmp_path)}
        assert {
            name: (config.policy.policy, config.run.memory.retrieve_k, config.run.embedder.name)
            for name, config in cells.items()
        } == {
            "rag": ([base], 5, "random"),
            "atommem": ([trained], 2, "random"),
            "atommem, own": ([trained], 2, "hashing"),
            "atommem, set": ([base], 5, "random"),
        }
    other = ("--policy", trained, "--embedder_model", "m", "--embedder", "sentence_transformer")
    assert make_cells(ours, other, tmp_path)[0].evaluation.run.embedder.name == "m"
    assert (
        make_cells(ours.select(rows=["rag"]), (), tmp_path)[0].evaluation.run.embedder.name
        == "hashing"
    )


def test_servers_and_folders_stand_in_one_suite() -> None:
    """As the header of table1.yaml has it: what is said of servers must not refuse the folders, nor the other way."""
    rows = [
        {"method": "atommem"},
        {"method": "rag", "policy": "base"},
        {"method": "full_context", "policy": "yarn"},
        {"method": "memagent", "policy": "other", "settings": {"tokenizer": "other/tokenizer"}},
    ]
    where = {"base": "Qwen/Qwen3-8B", "yarn": "http://a:1", "other": "http://b:1"}
    unnamed = parse_suite(suite(rows=rows))
    with pytest.raises(
        ConfigError, match=r"row 'rag' is answered by the policy 'base': .*--policies base="
    ):
        unnamed.with_policies({})
    ours = unnamed.with_policies(where)

    def policies(*flags: str, of: Suite = ours) -> dict[str, tuple[list[str], str | None]]:
        cells = {
            cell.row.method: cell.evaluation.policy for cell in make_cells(of, flags, Path("."))
        }
        return {name: (config.policy, config.tokenizer) for name, config in cells.items()}

    wanted = {
        "atommem": (["runs/trained"], None),
        "rag": (["Qwen/Qwen3-8B"], None),
        "full_context": (["http://a:1"], "T"),
        "memagent": (["http://b:1"], "other/tokenizer"),
    }
    assert policies("--tokenizer", "T", "--policy", "runs/trained") == wanted
    assert policies("--policy=runs/trained", "--tokenizer=T") == wanted
    servers = ["http://c:1", "http://d:1"]
    assert policies("--policy", *servers, "--tokenizer", "T") == wanted | {
        "atommem": (servers, "T")
    }
    with pytest.raises(ConfigError, match="policy=http://a:1: a server needs the tokenizer"):
        policies("--policy", "runs/trained")
    with pytest.raises(ConfigError, match="model, tokenizer and api are for servers"):
        policies(
            "--policy", "runs/trained", "--tokenizer", "T", of=ours.select(rows=["atommem", "rag"])
        )


def test_the_example_in_the_docs() -> None:
    found = parse_suite(
        yaml.safe_load(next(text for _, text in blocks("docs/evaluation.md", "yaml")))
    )
    assert (len(found.rows), len(found.columns), found.seeds) == (7, 5, (0, 1, 2))


HOTPOT = [{"benchmark": "hotpotqa", "documents": 200, "questions": 5, "n": 10}]


def cells(method: str, **fields: Any) -> list[Cell]:
    values = suite(**{"rows": [{"method": method}], "data": HOTPOT, **fields})
    return make_cells(parse_suite(values), ["--policy", "x"], Path("."))


def test_sums_by_hand() -> None:
    # 28,000 tokens in chunks of 4,000 are 7 calls, and 5 answers; ten episodes; 1,500 tokens around every prompt.
    cost = estimate(cells("atommem", settings={"chunk_tokens": 4000}))
    assert cost.calls == 120
    assert cost.prompt_tokens == 10 * (12 * 1500 + 28_000)
    assert cost.completion_tokens == 120 * 500
    said = (
        "120 calls, 0.5 million prompt and 0.1 million completion tokens; 1.4 hours at 100 tokens"
    )
    assert said in cost.text(100)
    found = cells("rag", settings={"max_tokens": 100})
    found[0].done = 4
    assert (estimate(found).calls, estimate(found).completion_tokens) == (6, 600)
    by_document = cells("atommem", settings={"chunking": "documents"})
    assert estimate(by_document).calls == 10 * (200 + 5)


def test_tasks_that_a_column_does_not_describe_are_counted_when_they_are_read() -> None:
    settings = {"chunk_tokens": 100, "limit": 2, "samples_per_task": 3}
    found = cells("atommem", settings=settings, data=suite()["data"])
    assert estimate(found).text(1000) == "estimate: none, as the tasks of 1 cells are not known yet"
    # 1,600 characters are 400 tokens: 4 chunks, and 3 answers. Tasks beyond the limit do not count.
    documents = tuple(Document("", "abcdefgh" * size) for size in (100, 50, 50))
    task = Task("t", (Question("?", ("a",)),) * 3, documents)
    cost = estimate(
        found, {found[0].column.key: [task, task, replace(task, documents=documents * 9)]}
    )
    assert (cost.unknown, cost.calls) == (0, 2 * 3 * 7)
    assert cost.prompt_tokens == 2 * 3 * (7 * 1500 + 400)
    web = replace(task, documents=())
    assert estimate(found, {found[0].column.key: [web]}).unknown == 1, (
        "what the tools will find is not known"
    )


@pytest.mark.parametrize("method", ["memagent", "a_mem", "generative_agents", "mem0"])
def test_calls_are_about_those_of_table_6(method: str) -> None:
    (row,) = (row for row in table_of("table6")["rows"] if row["row"] == method)
    calls = estimate(cells(method, settings={"chunk_tokens": 4000})).calls / 10
    assert calls == pytest.approx(row["values"][2], rel=0.15)


def test_the_list_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--suite", "table1", "--list", "--throughput", "20000"]) == 0
    shown = capsys.readouterr()
    assert "hours at 20,000 tokens a second" in shown.out + shown.err
    assert "not as published: table1: no column gaia" in shown.out
