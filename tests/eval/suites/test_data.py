"""Tasks of a suite: built once, and never taken for those of another seed, setting or input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atommem.envs.benchmarks.build import BuildConfig
from atommem.envs.synthetic.world import WorldConfig
from atommem.envs.task import Task
from atommem.envs.task_files import save_tasks
from atommem.errors import ConfigError, DataError
from atommem.eval.suites.suite import BenchmarkData, Column, FileData, SyntheticData
from atommem.eval.suites.task_cache import TaskCache
from tests.envs.benchmark_rows import hotpot_row, twowiki_row, write_json, write_lines
from tests.eval.toys import make_task


def write_benchmarks(folder: Path, **changes: Any) -> Path:
    """Files of two benchmarks, of eight questions each."""
    for name, file, row in (
        ("hotpotqa", "hotpot_dev_distractor_v1.json", hotpot_row),
        ("2wikimultihopqa", "dev.json", twowiki_row),
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_json(folder / name / file, [row(number, **changes) for number in range(8)])
    return folder


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    return write_benchmarks(tmp_path / "benchmarks")


def column(name: str = "hotpotqa", documents: int = 4, seed: int = 42) -> Column:
    return Column(name, BenchmarkData(name, "dev", BuildConfig(documents, 2, seed=seed)), documents)


def load(cache: TaskCache, which: Column) -> list[Task]:
    return cache.load([which])[which.key]


def test_a_file_is_built_once_and_whatever_differs_has_one_of_its_own(
    tmp_path: Path, benchmarks: Path
) -> None:
    said: list[str] = []
    cache = TaskCache(tmp_path / "cache", benchmarks, said.append)
    tasks = load(cache, column())
    assert [(len(task.documents), task.source) for task in tasks] == [(4, "hotpotqa")] * 2
    first = cache.path(column())
    stamp = first.stat().st_mtime_ns
    assert load(TaskCache(tmp_path / "cache", benchmarks, said.append), column()) == tasks
    assert (first.stat().st_mtime_ns, len(said)) == (stamp, 1)
    provenance = json.loads(first.with_name(f"{first.name}.json").read_text())
    assert provenance["inputs"][0]["name"] == "hotpot_dev_distractor_v1.json"
    assert (provenance["seed"], provenance["documents"]) == (42, 4)
    others = [cache.path(column(seed=43)), cache.path(column(documents=5))]
    write_benchmarks(benchmarks, answer="B")
    others.append(cache.path(column()))
    assert len({first, *others}) == 4
    assert load(cache, column())[0].questions[0].answers == ("B",)
    # The content counts, not the name or the place; aliases beside the questions count too.
    write_benchmarks(benchmarks)
    moved = TaskCache(tmp_path / "cache", benchmarks.rename(tmp_path / "moved"))
    assert moved.path(column()) == first
    before = moved.path(wiki := column("2wikimultihopqa"))
    aliases = [{"Q_id": f"Q{number}", "aliases": ["Alias"], "demonyms": []} for number in range(8)]
    write_lines(tmp_path / "moved" / "2wikimultihopqa" / "id_aliases.json", aliases)
    assert moved.path(wiki) != before
    assert load(moved, wiki)[0].questions[0].answers[1:] == ("Alias",)


def test_plain_files_are_found_beside_the_benchmarks(tmp_path: Path, benchmarks: Path) -> None:
    save_tasks([make_task("a")], benchmarks / "own" / "tasks.jsonl")
    cache = TaskCache(tmp_path / "cache", benchmarks)
    assert [task.id for task in load(cache, Column("own", FileData("own/tasks.jsonl")))] == ["a"]
    assert load(cache, Column("own", FileData(str(benchmarks / "own" / "tasks.jsonl"))))
    with pytest.raises(
        ConfigError, match=r"no file none\.jsonl, nor in the folder .*benchmarks: give --benchmarks"
    ):
        cache.path(Column("own", FileData("none.jsonl")))


def test_what_is_missing_is_named(tmp_path: Path, benchmarks: Path) -> None:
    where = r"column hotpotqa-4: .*--benchmarks.* hotpotqa/hotpot_dev_distractor_v1\.json"
    with pytest.raises(ConfigError, match=where):
        load(TaskCache(tmp_path, None), column())
    with pytest.raises(
        DataError, match=r"no dev file of musique .* looked for musique_ans_v1\.0_dev\.jsonl"
    ):
        TaskCache(tmp_path, benchmarks).path(column("musique"))
    with pytest.raises(
        DataError, match="the pool has 32 different documents, too few for tasks of 33"
    ):
        TaskCache(tmp_path, benchmarks).path(column(documents=33))
    assert not list(tmp_path.glob("*.parquet"))


def test_synthetic_worlds_differ_by_seed_and_knob(tmp_path: Path) -> None:
    cache = TaskCache(tmp_path, None)
    data = SyntheticData(WorldConfig(), 2, 1)
    paths = {
        cache.path(Column("world", item))
        for item in (
            data,
            replace(data, seed=2),
            replace(data, n=3),
            replace(data, world=WorldConfig(early=0.1)),
        )
    }
    assert len(paths) == 4
    assert [task.id for task in load(cache, Column("world", data))] == [
        "synthetic-1-0",
        "synthetic-1-1",
    ]
