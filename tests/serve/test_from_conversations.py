"""Served conversations become tasks and demonstrations: those whose owners agree, and what was rated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.environment import environment_config
from atommem.envs.task_files import load_tasks
from atommem.episode import Episode
from atommem.serve.conversations import Conversations
from atommem.serve.log_rows import Event
from atommem.serve.transfer import exported, imported
from atommem.serve.wire import Message, new_item
from atommem.trace import read_trace
from atommem.train.loops.sft import trace_demonstrations
from tests.fakes import command

TEXTS = ("Ann lives in Rome.", "Bob lives in Oslo.")
RIGHT: dict[str, Any] = {"reward": 1.0, "consent": True}


async def served(
    conversations: Conversations, *ratings: dict[str, Any] | None, deleted: bool = False
) -> str:
    """A conversation that reads two texts, and answers a question for each rating."""
    about = conversations.log.create("ann", {})
    async with conversations.use(about.id, "ann") as memory:
        items = await memory.add(
            [new_item(Message(content=text, name=text.split()[0])) for text in TEXTS]
        )
        await memory.read()
        if deleted:
            await memory.note(Event("deleted", of=items[0].version))
        for number, rating in enumerate(ratings):
            response = f"resp_{about.id}_{number}"
            await memory.ask(f"Where does {TEXTS[number].split()[0]} live?", response)
            if rating is not None:
                await memory.note(Event("feedback", {"response": response, **rating}))
    return about.id


def run(tmp_path: Path, *more: str) -> int:
    given = [
        "from-conversations",
        "--db",
        f"sqlite:///{tmp_path / 'log.db'}",
        "--out",
        str(tmp_path / "out"),
    ]
    return command("data")([*given, *more])


def traced(tmp_path: Path) -> tuple[str, Episode]:
    """The one conversation that was written, and its trace."""
    (file,) = (tmp_path / "out" / "traces").iterdir()
    return file.stem, read_trace(file).episode


async def test_tasks_and_demonstrations_of_rated_conversations(
    tmp_path: Path, conversations: Conversations
) -> None:
    rated = await served(conversations, RIGHT, {"reward": 0.0, "answer": "Oslo", "consent": True})
    await served(conversations, None)
    await conversations.close()
    assert run(tmp_path) == 0
    (task,) = load_tasks(tmp_path / "out" / "tasks.jsonl")
    assert [(question.text, question.answers) for question in task.questions] == [
        ("Where does Ann live?", ("Ann lives in Rome.",)),  # rated right
        ("Where does Bob live?", ("Oslo",)),  # set right
    ]
    assert [(document.title, document.text) for document in task.documents] == [
        ("Ann", TEXTS[0]),
        ("Bob", TEXTS[1]),
    ]
    stem, episode = traced(tmp_path)
    assert (stem, episode.reward, episode.answers) == (
        rated,
        0.5,
        ("Ann lives in Rome.", "Bob lives in Oslo."),
    )
    steps = [event.body for event in conversations.log.events(rated, ("step",))]
    assert [step.token_ids for step in episode.steps] == [step["token_ids"] for step in steps]
    assert all(step.token_ids and step.prompt_ids for step in episode.steps)
    assert [operation.after for operation in episode.steps[0].operations] == [TEXTS[0]]
    tokenizer = conversations.policy.agent.tokenizer
    traces, settings = tmp_path / "out" / "traces", environment_config("longdoc")
    rows = trace_demonstrations(traces, tokenizer, MemoryConfig(), settings, 0.5)
    # What is learned from is what was served: prompts too, token by token.
    assert rows == [(step["prompt_ids"], step["token_ids"]) for step in steps]


async def test_without_consent_nothing_is_taken_and_what_was_written_is_taken_back(
    tmp_path: Path, conversations: Conversations, capsys: pytest.CaptureFixture[str]
) -> None:
    no = {"reward": 1.0, "consent": False}
    await served(conversations, no, None)
    half = await served(conversations, no, RIGHT)
    assert run(tmp_path) == 0
    stem, episode = traced(tmp_path)
    assert (stem, episode.answers) == (half, ("Bob lives in Oslo.",))
    asked = [
        step.observation.values("questions")
        for step in episode.steps
        if step.observation.question is not None
    ]
    assert asked == [["Where does Bob live?"]] * 2
    assert [
        question.text for question in load_tasks(tmp_path / "out" / "tasks.jsonl")[0].questions
    ] == asked[0]
    async with conversations.use(half, "ann") as memory:
        await memory.note(Event("feedback", {"response": f"resp_{half}_1", **no}))
    assert run(tmp_path, "--owner", "ann") == 2
    assert "none of 2 conversations" in capsys.readouterr().err
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
    conversations.log.erase(await served(conversations, RIGHT), "ann")
    assert run(tmp_path) == 2
    await conversations.close()


async def test_an_import_or_a_fork_of_it_brings_nothing_to_train_on(
    tmp_path: Path, conversations: Conversations
) -> None:
    log = conversations.log
    first = await served(conversations, RIGHT)
    lines = "".join(json.dumps(line) + "\n" for line in exported(log, first, "ann"))
    brought = imported(log, "eve", lines).id
    assert run(tmp_path, "--owner", "eve") == 2
    assert run(tmp_path, "--owner", "ann") == 0
    about = log.fork(brought, "eve", log.length(brought) - 1)
    async with conversations.use(about.id, "eve") as memory:
        await memory.ask("Where does Bob live?", "resp_eve")
        await memory.note(Event("feedback", {"response": "resp_eve", **RIGHT}))
    assert run(tmp_path, "--owner", "eve") == 0
    assert {step.observation.phase for step in traced(tmp_path)[1].steps} == {"answering"}, (
        "nobody read here"
    )
    await conversations.close()


@pytest.mark.parametrize("by", ["its item", "its source"])
async def test_what_was_deleted_and_what_came_before_is_left_out(
    by: str, tmp_path: Path, conversations: Conversations
) -> None:
    about = await served(conversations, RIGHT, RIGHT, deleted=by == "its item")
    if by == "its source":
        async with conversations.use(about, "ann", whole=True) as memory:
            await memory.forget("Ann")
            await memory.ask("Where does Bob live?", "resp_later")
            await memory.note(Event("feedback", {"response": "resp_later", **RIGHT}))
    await conversations.close()
    assert run(tmp_path) == 0
    (task,) = load_tasks(tmp_path / "out" / "tasks.jsonl")
    assert [document.text for document in task.documents] == [TEXTS[1]]
    assert {step.observation.phase for step in traced(tmp_path)[1].steps} == {"answering"}
