"""``atommem data from-conversations``: answers with consent become tasks and demonstrations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atommem.config import MemoryConfig
from atommem.environment import environment_config
from atommem.envs.task_files import load_tasks
from atommem.serve.conversations import Conversations
from atommem.serve.events import Event
from atommem.serve.wire import Message, item_body
from atommem.trace import read_trace
from atommem.train.loops.sft import trace_demonstrations
from tests.fakes import command

TEXTS = ("Ann lives in Rome.", "Bob lives in Oslo.")
RIGHT: dict[str, Any] = {"reward": 1.0, "answer": "", "consent": True}


async def serve(conversations: Conversations, *ratings: dict[str, Any]) -> str:
    """A conversation that reads two texts and answers a question for each rating."""
    name = conversations.log.create("ann", {}).id
    async with conversations.use(name, "ann") as memory:
        await memory.add([item_body(Message(content=text, name=text[:3])) for text in TEXTS])
        await memory.read()
        for text, rating in zip(TEXTS, ratings, strict=False):
            response = f"resp_{name}_{text[:3]}"
            await memory.ask(f"Where does {text[:3]} live?", response)
            await memory.note(Event("feedback", {"response": response, **rating}))
    return name


def run(tmp_path: Path) -> int:
    db, out = f"sqlite:///{tmp_path / 'log.db'}", str(tmp_path / "out")
    return command("data")(["from-conversations", "--db", db, "--out", out])


async def test_rated_answers_become_a_task_and_a_demonstration(
    tmp_path: Path, conversations: Conversations
) -> None:
    corrected = {"reward": 0.0, "answer": "Oslo", "consent": True}
    name = await serve(conversations, RIGHT, corrected)
    await serve(conversations, {**RIGHT, "consent": False})
    assert run(tmp_path) == 0
    (task,) = load_tasks(tmp_path / "out" / "tasks.jsonl")
    found = [(question.text, question.answers) for question in task.questions]
    assert found == [("Where does Ann live?", (TEXTS[0],)), ("Where does Bob live?", ("Oslo",))]
    assert [item.text for item in task.documents] == [*TEXTS]
    traces = tmp_path / "out" / "traces"
    episode = read_trace(traces / f"{name}.jsonl").episode
    assert (episode.reward, episode.answers) == (0.5, TEXTS)
    steps = [event.body for event in conversations.log.events(name, ("step",))]
    tokenizer = conversations.model.agent.tokenizer
    settings = environment_config("longdoc")
    rows = trace_demonstrations(traces, tokenizer, MemoryConfig(), settings, 0.5)
    assert rows == [(step["prompt_ids"], step["token_ids"]) for step in steps]
    await conversations.close()


async def test_withdrawn_consent_and_deletion_exclude_a_conversation(
    tmp_path: Path, conversations: Conversations, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = [await serve(conversations, RIGHT) for _ in range(2)]
    assert run(tmp_path) == 0
    async with conversations.use(first, "ann", full=True) as memory:
        await memory.note(
            Event("feedback", {"response": f"resp_{first}_Ann", **RIGHT, "consent": False})
        )
    async with conversations.use(second, "ann", full=True) as memory:
        await memory.edit(1, None)
    await conversations.close()
    assert run(tmp_path) == 2
    assert "none of 2 conversations" in capsys.readouterr().err
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []
