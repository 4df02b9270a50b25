"""A suite's file: what it may hold, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.config import save_config
from atommem.errors import ConfigError
from atommem.eval.suites.cells import make_cells
from atommem.eval.suites.suite import Suite
from atommem.eval.suites.suite_file import load_suite, parse_suite

DATA = [{"name": "world", "synthetic": {"prose": "compact"}, "n": 3}]
ROWS = [{"method": "atommem"}, {"method": "rag"}]


def suite(**fields: Any) -> dict[str, Any]:
    return {"title": "A suite", "data": DATA, "rows": ROWS, **fields}


def test_a_column_may_have_settings_of_its_own_and_a_row_s_win(tmp_path: Path) -> None:
    data = [{**DATA[0], "name": f"world {size}", "settings": {"capacity": size}} for size in (2, 3)]
    rows = [{"method": "atommem"}, {"method": "atommem", "label": "all", "settings": {"capacity": None}}]
    found = parse_suite(suite(data=data, rows=rows, settings={"policy": ["http://host"], "tokenizer": "t"}))
    cells = make_cells(found, ["--capacity", "9"], tmp_path)
    assert [(cell.column.key, cell.configs[1].capacity) for cell in cells] == [
        ("world_2", 2),
        ("world_2", None),
        ("world_3", 3),
        ("world_3", None),
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colums": []}, "unknown field colums; known are title"),
        ({"title": None}, "title must be text"),
        ({"data": []}, "data is empty"),
        ({"rows": []}, "rows and grid are empty"),
        ({"data": [{"name": "x"}]}, "one of benchmark, synthetic and file"),
        ({"data": [{"benchmark": "squad", "documents": 2, "n": 1}]}, "benchmark is 'squad': give one of hotpotqa"),
        ({"data": [{"benchmark": "hotpotqa", "n": 1}]}, "data, hotpotqa: documents is missing"),
        ({"data": [{"benchmark": "hotpotqa", "documents": "many", "n": 1}]}, "documents is 'many'"),
        ({"data": [{"benchmark": "hotpotqa", "documents": 2, "n": 1, "questions": "some"}]}, "questions is 'some'"),
        ({"data": [{"synthetic": {"hop": 2}, "n": 1}]}, "unknown field hop; known are prose, hops"),
        ({"data": [{"synthetic": {"early": "often"}, "n": 1}]}, "early is 'often'; the default is 0.5"),
        ({"data": [{**DATA[0], "settings": {"seed": 3}}]}, "data, world: unknown field seed"),
        ({"data": DATA * 2}, "two columns are called 'world': give one of them another name"),
        ({"rows": [{"method": "atommem"}] * 2}, "two rows are called 'atommem': give one of them another label"),
        ({"rows": [{"method": "magic"}]}, "method is 'magic': give one of atommem"),
        ({"rows": [{"method": "rag", "settings": {"retrieve": 3}}]}, "unknown field retrieve; known are policy"),
        (
            {"rows": [{"method": "rag", "settings": {"retrieve_k": "three"}}]},
            "rows, rag: retrieve_k is 'three', expected int",
        ),
        ({"rows": [{"method": "rag", "settings": {"limit": 3}}]}, "unknown field limit"),
        ({"settings": {"seed": 3}}, "settings: unknown field seed"),
        ({"settings": {"disabled_actions": "read"}}, r"disabled_actions is 'read', expected list\[str\]"),
        ({"grid": [{"method": "rag", "axes": {"k": [3]}}]}, r"axis k is \[3\]"),
        ({"grid": [{"method": "rag", "axes": {"k": {"retrieve_k": [True]}}}]}, "has the point True"),
        ({"seeds": [1, 1]}, "seeds is"),
        ({"reference": "mem0"}, "reference is 'mem0': give one of atommem, rag"),
    ],
)
def test_mistakes_are_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite(**fields)))
    with pytest.raises(ConfigError, match=message) as error:
        load_suite(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("text", ["- a\n- b\n", "title: [\n"])
def test_files_that_hold_no_suite(text: str, tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(text)
    with pytest.raises(ConfigError, match="suite"):
        load_suite(tmp_path / "suite.yaml")
    with pytest.raises(ConfigError, match="there is no such file"):
        load_suite(tmp_path / "none.yaml")


def test_rows_and_columns_are_chosen_by_any_of_their_names() -> None:
    rows = [
        {"method": "atommem"},
        {"method": "atommem", "label": "k 3", "settings": {"retrieve_k": 3}},
        {"method": "rag"},
    ]
    data = [{"benchmark": "hotpotqa", "documents": [20, 40], "n": 1}, *DATA]
    all_of_it = parse_suite(suite(rows=rows, data=data, reference="rag"))
    assert [row.name for row in all_of_it.select(rows=["atommem"]).rows] == ["atommem", "atommem, k 3"]
    assert [row.name for row in all_of_it.select(rows=["rag", "k 3"]).rows] == ["atommem, k 3", "rag"]
    assert all_of_it.select(rows=["k 3"]).reference is None
    assert all_of_it.select(rows=["rag"]).reference == "rag"
    assert [column.key for column in all_of_it.select(columns=["hotpotqa"]).columns] == ["hotpotqa-20", "hotpotqa-40"]
    assert [column.key for column in all_of_it.select(columns=["hotpotqa-40", "world"]).columns] == [
        "hotpotqa-40",
        "world",
    ]
    with pytest.raises(ConfigError, match="no row 'mem0'; it has 'atommem', 'atommem, k 3', 'rag'"):
        all_of_it.select(rows=["mem0"])


def test_a_row_wins_over_flags_over_the_suite_over_the_checkpoint(tmp_path: Path) -> None:
    from atommem.config import EmbedderConfig, MemoryConfig

    save_config(
        tmp_path, MemoryConfig(retrieve_k=2, scratchpad_tokens=7, layout="paper"), EmbedderConfig(embedder="random")
    )
    values = suite(
        settings={"retrieve_k": 3, "temperature": 0.25, "scratchpad_tokens": 8},
        rows=[{"method": "atommem"}, {"method": "atommem", "label": "x", "settings": {"retrieve_k": 5, "top_k": 9}}],
        seeds=[0, 4],
    )
    flags = ["--policy", str(tmp_path), "--retrieve_k", "4"]
    cells = make_cells(parse_suite(values), flags, tmp_path / "out")
    assert [(cell.row.name, cell.seed) for cell in cells] == [
        *(("atommem", 0), ("atommem", 4)),
        *(("atommem, x", 0), ("atommem, x", 4)),
    ]
    first, last = cells[0].configs, cells[3].configs
    assert (first[1].layout, first[2].embedder) == ("paper", "random")
    assert (first[0].temperature, first[1].scratchpad_tokens, first[1].retrieve_k) == (0.25, 8, 4)
    assert (last[1].retrieve_k, last[0].top_k, last[0].seed, last[0].method) == (5, 9, 4, "atommem")
    assert cells[3].folder == tmp_path / "out" / "cells" / "atommem_x" / "world" / "seed_4"


def test_a_row_may_bring_its_own_policy_and_what_it_was_trained_with(tmp_path: Path) -> None:
    from atommem.config import MemoryConfig

    for name, k in (("trained", 2), ("base", 5)):
        (tmp_path / name).mkdir()
        save_config(tmp_path / name, MemoryConfig(retrieve_k=k))
    rows = [
        {"method": "atommem"},
        {"method": "atommem", "label": "base", "settings": {"policy": str(tmp_path / "base")}},
    ]
    for settings, flags in (({"policy": str(tmp_path / "trained")}, []), ({}, ["--policy", str(tmp_path / "trained")])):
        cells = make_cells(parse_suite(suite(rows=rows, settings=settings)), flags, tmp_path)
        assert [(cell.configs[0].policy, cell.configs[1].retrieve_k) for cell in cells] == [
            ([str(tmp_path / "trained")], 2),
            ([str(tmp_path / "base")], 5),
        ]


def test_all_rows_have_one_embedder_but_those_that_name_their_own(tmp_path: Path) -> None:
    from atommem.config import EmbedderConfig

    for name, embedder in (("trained", "random"), ("base", "hashing")):
        (tmp_path / name).mkdir()
        save_config(tmp_path / name, EmbedderConfig(embedder=embedder))
    rows = [
        {"method": "rag", "policy": "base"},
        {"method": "atommem"},
        {"method": "atommem", "label": "own", "settings": {"embedder": "hashing"}},
    ]
    ours = parse_suite(suite(rows=rows)).with_policies({"base": str(tmp_path / "base")})

    def embedders(*flags: str, of: Suite = ours) -> dict[str, str]:
        return {cell.row.name: cell.configs[2].name for cell in make_cells(of, flags, tmp_path)}

    trained = ("--policy", str(tmp_path / "trained"))
    assert embedders(*trained) == {"rag": "random", "atommem": "random", "atommem, own": "hashing"}
    assert embedders(*trained, "--embedder_model", "m", "--embedder", "sentence_transformer")["rag"] == "m"
    assert embedders(of=ours.select(rows=["rag"])) == {"rag": "hashing"}


def test_servers_and_folders_stand_in_one_suite() -> None:
    """As the header of table1.yaml has it: what is said of servers must not refuse the folders, nor the other way."""
    rows = [
        {"method": "atommem"},
        {"method": "rag", "policy": "base"},
        {"method": "full_context", "policy": "yarn"},
        {"method": "memagent", "policy": "other", "settings": {"tokenizer": "other/tokenizer"}},
    ]
    ours = parse_suite(suite(rows=rows)).with_policies(
        {"base": "Qwen/Qwen3-8B", "yarn": "http://a:1", "other": "http://b:1"}
    )
    for flags in (["--tokenizer", "T", "--policy", "runs/trained"], ["--policy=runs/trained", "--tokenizer=T"]):
        cells = {cell.row.method: cell.configs[0] for cell in make_cells(ours, flags, Path("."))}
        assert {name: (config.policy, config.tokenizer) for name, config in cells.items()} == {
            "atommem": (["runs/trained"], None),
            "rag": (["Qwen/Qwen3-8B"], None),
            "full_context": (["http://a:1"], "T"),
            "memagent": (["http://b:1"], "other/tokenizer"),
        }
    cells = {
        cell.row.method: cell.configs[0]
        for cell in make_cells(ours, ["--policy", "http://c:1", "http://d:1", "--tokenizer", "T"], Path("."))
    }
    assert (cells["atommem"].policy, cells["atommem"].tokenizer) == (["http://c:1", "http://d:1"], "T")
    assert (cells["rag"].policy, cells["rag"].tokenizer) == (["Qwen/Qwen3-8B"], None)
    with pytest.raises(ConfigError, match="policy is the server http://a:1: give the tokenizer"):
        make_cells(ours, ["--policy", "runs/trained"], Path("."))
    only = ours.select(rows=["atommem", "rag"])
    with pytest.raises(ConfigError, match="model, tokenizer and api are for servers only"):
        make_cells(only, ["--policy", "runs/trained", "--tokenizer", "T"], Path("."))


def test_the_example_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
    example = text.split("```yaml\n")[1].split("```")[0]
    found = parse_suite(yaml.safe_load(example))
    assert (len(found.rows), len(found.columns), found.seeds) == (7, 5, (0, 1, 2))
