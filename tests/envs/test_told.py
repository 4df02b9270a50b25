"""Told facts and ledgers: splits, answers by other rules, a faultless reader in the real loop."""

import json
import re
from pathlib import Path

import pytest

from atommem.dialects import get_dialect
from atommem.envs.data_cli import main
from atommem.envs.synthetic import ledger
from atommem.envs.synthetic.ledger import LedgerConfig
from atommem.envs.synthetic.told import RELATIONS, ToldConfig, generate
from atommem.envs.synthetic.writing import SPLITS
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.episode import Episode
from atommem.errors import ConfigError
from tests.envs.test_synthetic import run_expert
from tests.fakes import WordTokenizer, load_script, longdoc


def tasks_of(split: str, count: int, **settings: object) -> list[Task]:
    config = ToldConfig(**{"levels": (1, 4), **settings})  # type: ignore[arg-type]
    return list(generate(config, count, 5, split))


def read(tasks: list[Task]) -> list[Episode]:
    expert = load_script("gold_demonstrations").NotesExpert(get_dialect("paper"))
    factory = longdoc(WordTokenizer(), chunking="documents", max_reads=0)
    episodes = []
    for task in tasks:
        expert.start(task)
        episodes += run_expert(expert, factory, [task], templates="compact")
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
    assert (origin["source"], origin["split"]) == ("told", "test")
    assert origin["texts"]["levels"] == [1, 4]


def ledgers(split: str, count: int, **settings: object) -> list[Task]:
    config = LedgerConfig(**{"questions": (1, 2), **settings})  # type: ignore[arg-type]
    return list(ledger.generate(config, count, 5, split))


def booked(text: str, name: str, verb: str, unit: str) -> list[int]:
    """Read an account from its text, by rules of this test."""
    entries: list[int] = []
    for sentence in re.split(r"(?<=[.!?:]) ", text):
        amounts = [int(found) for found in re.findall(rf"(\d+) {unit}", sentence)]
        if not amounts or not re.search(rf"\b{name}\b.* {verb} |that {name} {verb}", sentence):
            continue
        changes = len(amounts) == 2 or re.search(rf"the last {amounts[0]} ", sentence, re.I)
        if changes:
            assert entries.pop() == amounts[0]
        if len(amounts) == 2 or not changes:
            entries.append(amounts[-1])
    return entries


def account(note: str) -> tuple[str, ...]:
    pattern = r"(.+) has (?:most recently )?(\w+) (?:\d+ )?(\w+)(?: \d+ times| in all)?\."
    found = re.fullmatch(pattern, note)
    assert found
    return found.groups()


@pytest.mark.parametrize(
    ("split", "count"),
    [("train", 8), *(pytest.param(split, 200, marks=pytest.mark.slow) for split in SPLITS)],
)
def test_ledger_answers_follow_from_the_text_and_a_reader_gives_them(
    split: str, count: int
) -> None:
    tasks = ledgers(split, count, corrections=0.5)
    asked = set()
    for task in tasks:
        text = " ".join(document.text for document in task.documents)
        for question in task.questions:
            what = question.metadata["type"]
            asked.add(what)
            found = {account(note["text"]) for note in task.metadata["notes"]}
            which = next(a for a in found if a[0] in question.text and a[1] in question.text)
            entries = booked(text, *which)
            value = {"count": len(entries), "sum": sum(entries), "latest": entries[-1]}[what]
            assert question.answers == (str(value),)
    assert asked == {"count", "sum", "latest"}
    episodes = read(tasks)
    assert {episode.reward for episode in episodes} == {1.0}
    assert not any(step.problems for episode in episodes for step in episode.steps)
    used = {note["kind"] for task in tasks for note in task.metadata["notes"]}
    assert used == {"create", "update"}
