"""Told facts: the splits, the answers, and a faultless reader in the real loop."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from atommem.config import MemoryConfig
from atommem.dialects import get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.data_cli import main
from atommem.envs.synthetic.expert import ExpertPolicy, NotesExpert
from atommem.envs.synthetic.told import RELATIONS, ToldConfig, generate
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.episode import Episode
from atommem.errors import ConfigError
from atommem.policy.contract import Sampling
from tests.fakes import WordTokenizer, longdoc, make_episode_runner


def tasks_of(split: str, count: int, **settings: object) -> list[Task]:
    config = ToldConfig(**{"levels": (1, 4), **settings})  # type: ignore[arg-type]
    return list(generate(config, count, 5, split))


def read(tasks: list[Task]) -> list[Episode]:
    tokenizer = WordTokenizer()
    expert = NotesExpert(get_dialect("paper"))
    runner = make_episode_runner(
        policy=ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id),
        tokenizer=tokenizer,
        embedder=HashingEmbedder(256),
        factory=longdoc(tokenizer, chunking="documents", max_reads=0),
        memory=MemoryConfig(templates="compact"),
        sampling=Sampling(seed=0, max_tokens=400),
    )
    episodes = []
    for task in tasks:
        expert.start(task)
        episodes.append(asyncio.run(runner.run(task)))
    return episodes


@pytest.mark.parametrize("split", ["train", "test"])
def test_reader_without_faults_answers_every_told_question(split: str) -> None:
    tasks = tasks_of(split, 25)
    episodes = read(tasks)
    assert {episode.reward for episode in episodes} == {1.0}
    used = {note["kind"] for task in tasks for note in task.metadata["notes"]}
    assert used == {"create", "update", "delete"}
    for task, episode in zip(tasks, episodes, strict=True):
        assert not any(step.problems for step in episode.steps)
        # At most one note of a paragraph, beside the first step's search.
        for step in episode.steps:
            assert sum(action.kind != "read" for action in step.actions) <= 1
        gold = " ".join(document.text for document in task.documents if document.gold)
        assert task.questions[0].answers[0] in gold


def test_told_splits_share_no_name_and_test_has_wordings_of_its_own() -> None:
    train, test = tasks_of("train", 300), tasks_of("test", 300)
    people = re.compile(r"[A-Z][a-z]+")
    parts = [
        {part for task in tasks for part in people.findall(task.metadata["query"])}
        for tasks in (train, test)
    ]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert not any(task.questions[0].metadata["unseen"] for task in train)
    unseen = sum(task.questions[0].metadata["unseen"] for task in test) / len(test)
    assert 0.3 < unseen < 0.9
    last = RELATIONS["opening"]["say"].split("|")[-1].split("<")[0].format(s="").strip()
    assert not any(last in document.text for task in train for document in task.documents)


def test_told_levels_set_paragraphs_hops_and_corrections() -> None:
    for level, most in ((1, 2), (2, 4), (3, 6), (4, 12)):
        tasks = tasks_of("train", 60, levels=(level, level))
        assert max(len(task.documents) for task in tasks) == most
        details = [task.questions[0].metadata for task in tasks]
        assert (max(detail["hops"] for detail in details) == 2) == (level > 2)
        assert any(detail["corrected"] for detail in details) == (level > 1)
    assert tasks_of("train", 3) == tasks_of("train", 9)[:3]
    with pytest.raises(ConfigError, match="levels"):
        ToldConfig(levels=(1, 5))


def test_data_build_writes_told_tasks_and_their_origin(tmp_path: Path) -> None:
    out = tmp_path / "told.parquet"
    words = ["--split", "test", "--n", "3", "--seed", "5", "--levels", "1-4", "--out", str(out)]
    assert main(["build", "--benchmark", "told", *words]) == 0
    assert load_tasks(out) == tasks_of("test", 3)
    origin = json.loads((tmp_path / "told.parquet.json").read_text())
    assert (origin["source"], origin["split"], origin["texts"]["levels"]) == (
        "told",
        "test",
        [1, 4],
    )
