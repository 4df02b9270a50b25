"""Ledgers: answers that follow from the text alone, and a faultless reader in the real loop."""

import re

import pytest

from atommem.envs.synthetic.ledger import LedgerConfig, generate
from atommem.envs.synthetic.writing import SPLITS
from atommem.envs.task import Task
from atommem.errors import ConfigError
from tests.envs.test_told import read


def tasks_of(split: str, count: int, **settings: object) -> list[Task]:
    config = LedgerConfig(**{"questions": (1, 2), **settings})  # type: ignore[arg-type]
    return list(generate(config, count, 5, split))


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
    tasks = tasks_of(split, count, corrections=0.5)
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


def test_ledger_settings_bound_questions_and_updates() -> None:
    tasks = tasks_of("train", 30, questions=(2, 2), updates=(3, 3), corrections=0.0)
    assert {len(task.questions) for task in tasks} == {2}
    assert {sum(document.gold for document in task.documents) for task in tasks} == {6}
    assert tasks_of("train", 3) == tasks_of("train", 9)[:3]
    with pytest.raises(ConfigError, match="updates"):
        LedgerConfig(updates=(3, 2))
