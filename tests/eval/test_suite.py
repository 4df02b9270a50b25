"""Suites: their file, their settings, their tasks, and running them."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.envs.task_files import save_tasks
from atommem.errors import BudgetSpentError, ConfigError, PolicyError
from atommem.eval import eval_cli
from atommem.eval import suite as suites
from atommem.eval.eval_cli import column_file, load_columns
from atommem.eval.reporting.report_cli import paper_tables
from tests.envs.benchmark_rows import sample, write_json
from tests.eval.toys import GONE, make_task
from tests.pages import blocks

ROOT = Path(__file__).resolve().parents[2]
DATA = [{"name": "world", "synthetic": {"prose": "compact"}, "n": 3}]
ROWS = [{"method": "atommem"}, {"method": "rag"}]


def suite(**fields: Any) -> dict[str, Any]:
    return {"title": "A suite", "data": DATA, "rows": ROWS, **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colums": []}, "colums"),
        ({"rows": [{"method": "rag"}] * 2}, "two rows are called 'rag'. Give one another label"),
        ({"seeds": [1, 1]}, r"seeds=\[1, 1\]: give different"),
        ({"rows": [{"method": "rag", "settings": {"limit": 3}}]}, "limit cannot be set here"),
    ],
)
def test_load_suite_names_the_mistake(fields, message, tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite(**fields)))
    with pytest.raises(ConfigError, match=message):
        suites.load_suite(path)


def test_parse_suite_reads_the_example_in_the_docs():
    example = next(text for _, text in blocks("docs/evaluate.md", "yaml"))
    found = suites.parse_suite(yaml.safe_load(example))
    assert (len(found.rows), len(found.columns), found.seeds) == (7, 5, (0, 1, 2))


def save_checkpoint(path: Path, *configs: Any) -> str:
    path.mkdir()
    save_config(path, *configs)
    return str(path)


def test_expand_ranks_row_column_flag_suite_checkpoint(tmp_path):
    memory = MemoryConfig(retrieve_k=2, scratchpad_tokens=7, layout="paper")
    policy = save_checkpoint(tmp_path / "trained", memory)
    own = {"retrieve_k": 5, "capacity": None}
    values = suite(
        settings={"retrieve_k": 3, "temperature": 0.25, "scratchpad_tokens": 8},
        data=[{**DATA[0], "settings": {"capacity": 2}}],
        rows=[{"method": "atommem"}, {"method": "atommem", "label": "x", "settings": own}],
        seeds=[0, 4],
    )
    flags = ["--policy", policy, "--retrieve_k", "4", "--capacity", "9"]
    runs, _ = suites.expand(suites.parse_suite(values), flags, tmp_path / "out")
    memories = [run.evaluation.run.memory for run in runs]
    found = [(memory.capacity, memory.retrieve_k) for memory in memories]
    assert found == [(2, 4), (2, 4), (None, 5), (None, 5)]
    assert (memories[0].layout, memories[0].scratchpad_tokens) == ("paper", 8)
    assert [run.evaluation.run.sampling.seed for run in runs] == [0, 4, 0, 4]
    assert runs[0].evaluation.run.sampling.temperature == 0.25
    assert runs[3].folder == tmp_path / "out" / "runs" / "atommem_x" / "world" / "seed_4"


def test_expand_gives_rows_their_policy_and_one_embedder(tmp_path):
    random, hashing = EmbedderConfig(embedder="random"), EmbedderConfig(embedder="hashing")
    trained = save_checkpoint(tmp_path / "trained", MemoryConfig(retrieve_k=2), random)
    base = save_checkpoint(tmp_path / "base", MemoryConfig(retrieve_k=5), hashing)
    rows = [{"method": "rag", "policy": "base"}, {"method": "atommem"}]
    unnamed = suites.parse_suite(suite(rows=rows))
    with pytest.raises(ConfigError, match=r"policy 'base' is unknown\. Give --policies base="):
        unnamed.with_policies({})
    runs, _ = suites.expand(unnamed.with_policies({"base": base}), ["--policy", trained], tmp_path)
    assert [run.evaluation.policy.policy for run in runs] == [[base], [trained]]
    found = [run.evaluation.run for run in runs]
    assert [one.memory.retrieve_k for one in found] == [5, 2]
    assert {one.embedder.embedder for one in found} == {"random"}


def test_row_without_rl_differs_from_the_trained_one_in_its_policy_alone(tmp_path):
    memory, embedder = MemoryConfig(scratchpad_tokens=2048, layout="paper"), EmbedderConfig()
    trained = save_checkpoint(tmp_path / "trained", memory, embedder)
    ours = suites.load_suite("table1").with_policies({"memagent": "m", "base_yarn": "b"})
    ours = ours.select(rows=["atommem, without RL", "atommem"], columns=["hotpotqa-200"])
    (base, own), _ = suites.expand(ours, ["--policy", trained], tmp_path)
    changes = {"policy": own.evaluation.policy.policy, "output_dir": str(own.folder)}
    assert base.evaluation.replace(changes) == own.evaluation
    shipped = suites.parse_suite(suite(rows=[{"method": "atommem", "policy": "base"}]))
    shipped = shipped.with_policies({"base": "smollm2"})
    (run,), _ = suites.expand(shipped, ["--policy", trained], tmp_path)
    assert run.evaluation.run.memory.templates == "plain", "it has settings of its own"


def differences(table: Mapping[str, Any], suite: suites.Suite, runs: Any) -> Iterator[str]:
    paper, name = paper_tables(), table["suite"]
    rows = {row["row"]: row for row in table["rows"]}
    columns, keys = table.get("columns", []), [column.key for column in suite.columns]
    yield from (f"{name}: no row {row}" for row in rows if row not in {r.name for r in suite.rows})
    yield from (f"{name}: row {row.name} is ours" for row in suite.rows if row.name not in rows)
    yield from (f"{name}: no column {column}" for column in columns if column not in keys)
    yield from (f"{name}: column {key} is ours" for key in keys if key not in columns)
    for row in suite.rows:
        if row.name in rows and (row.policy or suites.TRAINED) != rows[row.name]["policy"]:
            yield f"{name}: policy of {row.name} is {row.policy or suites.TRAINED}"
    found = set()
    for column in suite.columns:
        if column.benchmark:
            given = {"distractors": "pool", **column.build, "split": column.split}
            expected = {"n": paper["code"]["n"], "questions": paper["questions"], "split": "dev"}
            expected["distractors"] = paper["distractors"]
            found |= {f"{key} is {value}" for key, value in given.items() if value != expected[key]}
    first = {run.column.key: run for run in runs if run.row.name == suite.reference}
    for run in runs:
        if run.row.name in rows:
            own = rows[run.row.name].get("settings", {})
            values = run.evaluation.to_flat()
            if run.row.method == "atommem":
                reference = first[run.column.key].evaluation.to_flat()
                named = {"policy", "output_dir", *own, *rows[suite.reference].get("settings", {})}
                changed = {key for key in values if values[key] != reference[key]} - named
                found |= {f"{key} is of {run.row.name} alone" for key in changed}
            longest = "max_completion_length"
            wanted = {**paper["settings"], longest: paper["code"][longest], **own}
            for key, value in wanted.items():
                if key in values and values[key] != value:
                    of = f" of {run.row.name}" if key in own else ""
                    found.add(f"{key}{of} is {values[key]}")
    yield from (f"{name}: {difference}" for difference in sorted(found))


@pytest.mark.slow
def test_suites_equal_their_tables_but_for_named_divergences():
    named, found = paper_tables()["divergences"].keys(), set[str]()
    for table in paper_tables()["tables"].values():
        ours = suites.load_suite(table["suite"])
        ours = ours.with_policies({row.policy: row.policy for row in ours.rows})
        runs, _ = suites.expand(ours, ["--policy", "trained"], Path())
        found |= set(differences(table, ours, runs))
    assert found == named


def test_divergences_are_explained_in_the_docs():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    for key, why in {**paper_tables()["divergences"], **paper_tables()["stated"]}.items():
        assert f"| {key} | {' '.join(why.split())} |" in text


def test_docs_have_a_row_for_every_part_of_the_paper():
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (Equation|Table|Figure)s? ([\d, ]+): ", text, re.MULTILINE)
    found = sorted((kind, int(number)) for kind, some in rows for number in some.split(","))
    last = {"Equation": 9, "Figure": 8, "Table": 7}
    assert found == [(kind, number) for kind in last for number in range(1, last[kind] + 1)]
    settings = "top-p 1, chunks of 4k tokens, six entries, exact match as reward, on-policy"
    for words in (settings, "1 to 10 questions a task", "ASearcher, at most 40 calls, judged"):
        assert words in text.split("## Ablations")[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tasks([make_task(name) for name in ("a", "b", "c", "d")], tmp_path / "one.jsonl")
    save_tasks([make_task(name, questions=2) for name in ("e", "f")], tmp_path / "two.jsonl")
    return tmp_path


def run(folder: Path, *flags: str, **fields: Any) -> int:
    settings = {"policy": "owner/toy", "embedder": "hashing", "chunking": "documents"}
    values = {
        "title": "Toys",
        "reference": "no_memory",
        "settings": {**settings, "max_inflight_tasks": 3},
        "data": [{"name": name, "file": str(folder / f"{name}.jsonl")} for name in ("one", "two")],
        "rows": [{"method": "atommem"}, {"method": "no_memory"}],
        **fields,
    }
    (folder / "suite.yaml").write_text(yaml.safe_dump(values))
    words = ["--suite", str(folder / "suite.yaml"), "--output_dir", str(folder / "out")]
    return eval_cli.main([*words, *flags])


def em(folder: Path) -> dict[tuple[str, str], float]:
    results = json.loads((folder / "out" / "report" / "results.json").read_text())
    lines = [line for line in results["scores"] if line["metric"] == "em"]
    return {(line["row"], line["column"]): line["mean"] for line in lines}


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_suite_exit_status_and_continuing(folder, policy, capsys):
    def stderr(status: int, *flags: str) -> str:
        assert run(folder, "--max_inflight_tasks", "1", *flags) == status
        return capsys.readouterr().err

    policy.wrong = {"a"}
    policy.errors = {"e": PolicyError("refused")}  # the other runs go on
    assert "atommem on two, seed 0 was refused: refused" in stderr(2)
    assert em(folder)["no_memory", "one"] == 0.75
    policy.errors = {"e": BudgetSpentError("spent"), "f": GONE}
    assert "atommem on two, seed 0 was refused: spent" in stderr(4)
    policy.errors = {"f": GONE}
    assert "atommem on two, seed 0: 1 of 2 episodes failed" in stderr(3)
    asked, policy.errors, policy.asked = policy.asked, {}, []
    stderr(0)
    assert set(policy.asked) == {"f"}
    finished = sorted(name for name in asked if name in "abcd")
    assert finished == sorted([*"aaabbbcccddd", *"abcd"]), "nothing ran twice"
    expected = {(row, "one"): 0.75 for row in ("atommem", "no_memory")}
    assert em(folder) == expected | {(row, "two"): 1.0 for row, _ in expected}
    assert (folder / "out" / "report" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn", "policy")
def test_rows_that_cannot_run_leave_the_others(folder, capsys):
    unknown = {"method": "atommem", "settings": {"dialect": "x"}}
    rows = [{"method": "no_memory"}, {"method": "react"}, unknown]
    assert run(folder, rows=rows) == 2
    errors = capsys.readouterr().err
    assert "atommem on one, seed 0 is left out: dialect" in errors
    assert "react on one, seed 0 is left out" in errors
    assert em(folder) == {("no_memory", "one"): 1.0, ("no_memory", "two"): 1.0}


def test_policy_without_a_place_is_refused(folder):
    with pytest.raises(ConfigError, match="policies=base: give NAME=WHERE"):
        run(folder, "--policies", "base")


def write_benchmarks(folder: Path, **changes: Any) -> Path:
    (folder / "hotpotqa").mkdir(parents=True, exist_ok=True)
    rows = [sample("hotpot", number, **changes) for number in range(8)]
    write_json(folder / "hotpotqa" / "hotpot_dev_distractor_v1.json", rows)
    return folder


def column(seed: int = 42) -> suites.Column:
    build = {"n": 2, "seed": seed}
    return suites.Column(name="hotpotqa", benchmark="hotpotqa", build=build, documents=4)


def test_column_file_is_built_once_per_content_and_setting(tmp_path, capsys):
    benchmarks, cache = write_benchmarks(tmp_path / "benchmarks"), tmp_path / "cache"
    tasks = load_columns([column()], "longdoc", cache, benchmarks)["hotpotqa-4"]
    assert [(len(task.documents), task.source) for task in tasks] == [(4, "hotpotqa")] * 2
    first = column_file(column(), cache, benchmarks)
    assert capsys.readouterr().out.count("2 tasks") == 1
    found = {first, column_file(column(seed=43), cache, benchmarks)}
    write_benchmarks(benchmarks, answer="B")
    found.add(column_file(column(), cache, benchmarks))
    assert len(found) == 3
    moved = write_benchmarks(tmp_path / "moved")
    assert column_file(column(), cache, moved) == first, "the content counts, not the place"
