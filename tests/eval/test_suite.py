"""Suites: their file, their settings, their tasks, and running them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.envs.benchmarks.build import BuildConfig
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, DataError, PolicyError
from atommem.eval import eval_cli
from atommem.eval.suite import (
    Column,
    expand,
    load_suite,
    parse_suite,
)
from atommem.eval.suite_cli import column_file, load_columns
from tests.envs.benchmark_rows import hotpot_row, twowiki_row, write_json, write_lines
from tests.eval.toys import GONE, ToyPolicy, make_task
from tests.pages import blocks

DATA = [{"name": "world", "synthetic": {"prose": "compact"}, "n": 3}]
ROWS = [{"method": "atommem"}, {"method": "rag"}]


def suite(**fields: Any) -> dict[str, Any]:
    return {"title": "A suite", "data": DATA, "rows": ROWS, **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colums": []}, "colums"),
        ({"data": []}, "no columns"),
        ({"data": [{"benchmark": "squad", "documents": 2, "n": 1}]}, "squad"),
        ({"data": [{"benchmark": "hotpotqa", "n": 1}]}, "data, hotpotqa: .*'documents'"),
        ({"rows": [{"method": "rag"}] * 2}, "two rows are called 'rag'. Give one another label"),
        ({"rows": [{"method": "magic"}]}, "magic"),
        ({"rows": [{"method": "rag", "settings": {"retrieve": 3}}]}, "row rag: .*retrieve"),
        ({"grid": [{"method": "rag", "axes": {"k": [3]}}]}, r"`\$\[0\]\.axes"),
        ({"reference": "mem0"}, "reference"),
    ],
)
def test_load_suite_names_the_mistake(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite(**fields)))
    with pytest.raises(ConfigError, match=message) as error:
        load_suite(path)
    assert str(path) in str(error.value)


def test_parse_suite_reads_the_example_in_the_docs() -> None:
    example = next(text for _, text in blocks("docs/evaluate.md", "yaml"))
    found = parse_suite(yaml.safe_load(example))
    assert (len(found.rows), len(found.columns), found.seeds) == (7, 5, (0, 1, 2))


def test_select_finds_rows_and_columns_by_any_name() -> None:
    rows = [*ROWS, {"method": "atommem", "label": "k 3", "settings": {"retrieve_k": 3}}]
    data = [{"benchmark": "hotpotqa", "documents": [20, 40], "n": 1}, *DATA]
    whole = parse_suite(suite(rows=rows, data=data, reference="rag"))
    assert [row.name for row in whole.select(rows=["atommem"]).rows] == ["atommem", "atommem, k 3"]
    assert [whole.select(rows=[name]).reference for name in ("k 3", "rag")] == [None, "rag"]
    chosen = whole.select(columns=["hotpotqa-40", "world"])
    assert [column.key for column in chosen.columns] == ["hotpotqa-40", "world"]
    with pytest.raises(ConfigError, match="no row 'mem0'; it has 'atommem', 'rag', 'atommem, k 3'"):
        whole.select(rows=["mem0"])


def save_checkpoint(path: Path, *configs: Any) -> str:
    path.mkdir()
    save_config(path, *configs)
    return str(path)


def test_expand_ranks_row_column_flag_suite_checkpoint(tmp_path: Path) -> None:
    memory = MemoryConfig(retrieve_k=2, scratchpad_tokens=7, layout="paper")
    policy = save_checkpoint(tmp_path / "trained", memory, EmbedderConfig(embedder="random"))
    own = {"retrieve_k": 5, "top_k": 9, "capacity": None}
    values = suite(
        settings={"retrieve_k": 3, "temperature": 0.25, "scratchpad_tokens": 8},
        data=[{**DATA[0], "name": f"world {n}", "settings": {"capacity": n}} for n in (2, 3)],
        rows=[{"method": "atommem"}, {"method": "atommem", "label": "x", "settings": own}],
        seeds=[0, 4],
    )
    flags = ["--policy", policy, "--retrieve_k", "4", "--capacity", "9"]
    runs = expand(parse_suite(values), flags, tmp_path / "out")
    found = [(r.column.key, r.row.name, r.seed, r.evaluation.run.memory.capacity) for r in runs]
    assert found == [
        (f"world_{n}", name, seed, capacity)
        for n in (2, 3)
        for name, capacity in (("atommem", n), ("atommem, x", None))
        for seed in (0, 4)
    ]
    first, last = runs[0].evaluation.run, runs[3].evaluation.run
    assert (first.memory.layout, first.embedder.embedder) == ("paper", "random")
    assert (first.sampling.temperature, first.memory.scratchpad_tokens) == (0.25, 8)
    assert (first.memory.retrieve_k, last.memory.retrieve_k) == (4, 5)
    assert (last.sampling.top_k, last.sampling.seed) == (9, 4)
    assert runs[3].folder == tmp_path / "out" / "runs" / "atommem_x" / "world_2" / "seed_4"


def test_expand_gives_rows_their_policy_and_one_embedder(tmp_path: Path) -> None:
    random, hashing = EmbedderConfig(embedder="random"), EmbedderConfig(embedder="hashing")
    trained = save_checkpoint(tmp_path / "trained", MemoryConfig(retrieve_k=2), random)
    base = save_checkpoint(tmp_path / "base", MemoryConfig(retrieve_k=5), hashing)
    rows = [
        {"method": "rag", "policy": "base"},
        {"method": "atommem"},
        {"method": "atommem", "label": "own", "settings": {"embedder": "hashing"}},
    ]
    unnamed = parse_suite(suite(rows=rows))
    with pytest.raises(ConfigError, match=r"policy 'base' is unknown\. Give --policies base="):
        unnamed.with_policies({})
    found = {
        run.row.name: (
            run.evaluation.policy.policy,
            run.evaluation.run.memory.retrieve_k,
            run.evaluation.run.embedder.embedder,
        )
        for run in expand(unnamed.with_policies({"base": base}), ["--policy", trained], tmp_path)
    }
    assert found == {
        "rag": ([base], 5, "random"),
        "atommem": ([trained], 2, "random"),
        "atommem, own": ([trained], 2, "hashing"),
    }


def test_expand_gives_server_settings_to_rows_on_servers_only() -> None:
    rows = [{"method": "atommem"}, {"method": "rag", "policy": "base"}]
    rows.append({"method": "full_context", "policy": "yarn"})
    ours = parse_suite(suite(rows=rows))
    ours = ours.with_policies({"base": "Qwen/Qwen3-8B", "yarn": "http://a:1"})
    runs = expand(ours, ["--policy", "runs/trained", "--tokenizer", "T"], Path())
    tokenizers = {run.row.method: run.evaluation.policy.tokenizer for run in runs}
    assert tokenizers == {"atommem": None, "rag": None, "full_context": "T"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tasks([make_task(name) for name in ("a", "b", "c", "d")], tmp_path / "one.jsonl")
    save_tasks([make_task(name, questions=2) for name in ("e", "f")], tmp_path / "two.jsonl")
    return tmp_path


def run(folder: Path, *flags: str, **fields: Any) -> int:
    settings = {"policy": "toy", "embedder": "hashing", "chunking": "documents"}
    values = {
        "title": "Toys",
        "reference": "no_memory",
        "settings": {**settings, "max_in_flight": 3},
        "data": [{"name": name, "file": str(folder / f"{name}.jsonl")} for name in ("one", "two")],
        "rows": [{"method": "atommem"}, {"method": "no_memory"}],
        **fields,
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(values))
    return eval_cli.main(
        ["--suite", str(folder / "suite.yaml"), "--out", str(folder / "out"), *flags]
    )


def results(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "out" / "report" / "results.json").read_text())
    return loaded


def em(folder: Path) -> dict[tuple[str, str], float]:
    lines = [line for line in results(folder)["scores"] if line["metric"] == "em"]
    return {(line["row"], line["column"]): line["mean"] for line in lines}


@pytest.mark.usefixtures("undrawn")
def test_suite_runs_everything_once_and_reports(
    folder: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.wrong = {"a"}
    assert run(folder) == 0
    rows = ("atommem", "no_memory")
    expected = {(row, data): mean for row in rows for data, mean in (("one", 0.75), ("two", 1.0))}
    assert em(folder) == expected
    assert "75.0 [" in capsys.readouterr().out
    for name in ("report.html", "tables.md", "tables.tex", "scores.csv"):
        assert (folder / "out" / "report" / name).is_file()
    asked = len(policy.asked)
    assert run(folder) == 0
    assert len(policy.asked) == asked


@pytest.mark.usefixtures("undrawn")
def test_suite_runs_side_by_side_under_one_bound(folder: Path, policy: ToyPolicy) -> None:
    policy.until["a"] = lambda: len({*policy.asked}) >= 3
    policy.until["d"] = lambda: not {"e", "f"}.isdisjoint(policy.asked)
    assert run(folder, "--rows", "atommem") == 0
    assert policy.most == 3


@pytest.mark.usefixtures("undrawn")
def test_suite_exit_status_and_continuing(
    folder: Path, policy: ToyPolicy, capsys: pytest.CaptureFixture[str]
) -> None:
    def stderr(status: int, *flags: str) -> str:
        assert run(folder, "--max_in_flight", "1", *flags) == status
        return capsys.readouterr().err

    assert "the budget is spent" in stderr(4, "--budget_tokens", "400")
    assert "incomplete" in results(folder)["title"]
    policy.until["e"] = lambda: os.kill(os.getpid(), signal.SIGINT) is not None
    assert "the same command continues" in stderr(130)
    policy.until.clear()
    policy.errors = {"e": PolicyError("refused")}  # the other runs go on
    assert "atommem on two, seed 0 was refused: refused" in stderr(2)
    assert em(folder)["no_memory", "one"] == 1.0
    policy.errors = {"f": GONE}
    assert "atommem on two, seed 0: 1 of 2 episodes failed" in stderr(3)
    asked, policy.errors, policy.asked = policy.asked, {}, []
    stderr(0)
    assert set(policy.asked) == {"f"}
    finished = sorted(name for name in asked if name in "abcd")
    assert finished == sorted([*"aaabbbcccddd", *"abcd"]), "nothing ran twice"


@pytest.mark.usefixtures("undrawn")
def test_suite_refuses_other_settings_before_anything_runs(folder: Path, policy: ToyPolicy) -> None:
    assert run(folder, "--columns", "two") == 0
    policy.asked.clear()
    with pytest.raises(ConfigError, match=r"two.*environment\.max_reads is 3 there and 2 now"):
        run(folder, "--max_reads", "2")
    assert policy.asked == []


def test_suite_list_names_runs_without_a_policy(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = {"benchmark": "musique", "documents": 5, "n": 3}
    assert run(folder, "--list", data=[*DATA, benchmark], settings={}) == 0
    captured = capsys.readouterr()
    assert "no_memory on world, seed 0" in captured.out
    assert "left out without --benchmarks: musique-5" in captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--data x", "--data is for a single evaluation. Give --columns"),
        ("--rows magic", "no row 'magic'"),
        ("--policies bas=x", "the suite's rows name base"),
    ],
)
def test_suite_rejects_wrong_flags(
    flags: str, message: str, folder: Path, policy: ToyPolicy
) -> None:
    rows = [{"method": "atommem", "policy": "base"}, {"method": "no_memory"}]
    with pytest.raises(ConfigError, match=message):
        run(folder, *flags.split(), rows=rows, policies={"base": "toy"}, settings={})


def write_benchmarks(folder: Path, **changes: Any) -> Path:
    for name, file, row in (
        ("hotpotqa", "hotpot_dev_distractor_v1.json", hotpot_row),
        ("2wikimultihopqa", "dev.json", twowiki_row),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_json(folder / name / file, [row(number, **changes) for number in range(8)])
    return folder


def column(name: str = "hotpotqa", documents: int = 4, seed: int = 42) -> Column:
    build = BuildConfig(documents, 2, seed=seed)
    return Column(name=name, benchmark=name, build=build, documents=documents)


def test_column_file_is_built_once_per_content_and_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmarks, cache = write_benchmarks(tmp_path / "benchmarks"), tmp_path / "cache"
    tasks = load_columns([column()], "longdoc", cache, benchmarks)["hotpotqa-4"]
    assert [(len(task.documents), task.source) for task in tasks] == [(4, "hotpotqa")] * 2
    first = column_file(column(), cache, benchmarks)
    assert capsys.readouterr().err.count("building the tasks") == 1
    provenance = json.loads(first.with_name(f"{first.name}.json").read_text())
    assert provenance["inputs"][0]["name"] == "hotpot_dev_distractor_v1.json"
    variants = [column(seed=43), column(documents=5)]
    others = [column_file(variant, cache, benchmarks) for variant in variants]
    write_benchmarks(benchmarks, answer="B")
    others.append(column_file(column(), cache, benchmarks))
    assert len({first, *others}) == 4
    # The content counts, not the place; 2Wiki's aliases count too.
    write_benchmarks(benchmarks)
    moved = benchmarks.rename(tmp_path / "moved")
    assert column_file(column(), cache, moved) == first
    before = column_file(wiki := column("2wikimultihopqa"), cache, moved)
    aliases = [{"Q_id": f"Q{number}", "aliases": ["Alias"], "demonyms": []} for number in range(8)]
    write_lines(moved / "2wikimultihopqa" / "id_aliases.json", aliases)
    assert column_file(wiki, cache, moved) != before


def test_load_columns_names_missing_files(tmp_path: Path) -> None:
    benchmarks = write_benchmarks(tmp_path / "benchmarks")
    with pytest.raises(ConfigError, match=r"column hotpotqa-4: .*--benchmarks"):
        load_columns([column()], "longdoc", tmp_path)
    with pytest.raises(DataError, match="no dev file of musique"):
        column_file(column("musique"), tmp_path, benchmarks)
    with pytest.raises(ConfigError, match=r"none\.jsonl is not in .*benchmarks"):
        column_file(Column(name="own", file="none.jsonl"), tmp_path, benchmarks)
    save_tasks([make_task("a")], benchmarks / "own.jsonl")
    own = Column(name="own", file="own.jsonl")
    loaded = load_columns([own], "longdoc", tmp_path, benchmarks)
    assert [task.id for task in loaded["own"]] == ["a"]
