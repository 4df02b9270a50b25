"""``atommem data from-conversations``: what was served and rated becomes tasks to train on, and traces to begin with.

A conversation takes part if its owner says so: ``training: yes`` in its metadata, looked up when this runs. Its rated
answers (``POST /v1/conversations/{id}/feedback``) are the reward. Two things come of it:

- a trace, with the token ids that were sampled and what the policy was shown, for ``atommem train sft``: all of its
  steps, with the mean of its ratings as the episode's reward;
- a task, for ``atommem train grpo``: its texts as documents, and the questions whose answer is known, because the
  feedback says it or the answer was rated 1.

What an owner deleted is in neither, and no step from before: it may have been shown there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import sqlalchemy as sa

from atommem.config import load_config
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.envs.task_files import save_tasks
from atommem.episode import Episode
from atommem.errors import DataError
from atommem.memory.operations import Operation
from atommem.observation import StopReason
from atommem.serve.conversation_log import About, ConversationLog, Event
from atommem.serve.schema import conversations, open_database
from atommem.trace import step_of, write_trace

CONSENT = "training"
"""The key of a conversation's metadata that is ``yes`` where its owner lets it be trained on."""
SOURCE = "conversation"
_OPERATION = tuple(Operation.__dataclass_fields__)


@dataclass(frozen=True)
class Rated:
    """A question with its answer and what its owner said of it; a right answer where the owner gave one."""

    question: str
    answer: str | None
    reward: float
    right: str | None

    @property
    def gold(self) -> str | None:
        """The right answer, as far as it is known."""
        return self.right or (self.answer if self.reward >= 1 else None)


def main(argv: list[str] | None = None) -> int:
    """Write ``tasks.jsonl`` and ``traces/`` of a database's conversations.

    Raises:
        DataError: Nothing in it may be used, or nothing has been rated.
        ConfigError: The database cannot be opened.
    """
    parser = argparse.ArgumentParser(prog="atommem data from-conversations", description=__doc__.partition("\n")[0])
    default = os.environ.get("ATOMMEM_DATABASE")
    parser.add_argument("--db", default=default, required=default is None, help="the server's (`atommem serve --db`)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--owner", help="those of one owner")
    parser.add_argument("--policy", help="the checkpoint's folder: traces then say which settings they were made with")
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    log = ConversationLog(open_database(given.db))
    agreed = list(with_consent(log, given.owner))
    config = {} if given.policy is None else {"memory": load_config(given.policy)}
    tasks, steps, traces = [], 0, 0
    for about in agreed:
        task, episode = taken_from(log, about)
        if episode is None:
            continue
        described = describe_task(task).to_json()
        write_trace(given.out / "traces" / f"{about.id}.jsonl", episode, described, config, tokens=True)
        steps, traces = steps + len(episode.steps), traces + 1
        tasks += [task] if task.questions else []
    if not traces:
        raise DataError(
            f"{len(agreed)} conversations may be trained on ({CONSENT}: yes in their metadata), and none of them has "
            "feedback: POST /v1/conversations/ID/feedback."
        )
    if tasks:
        save_tasks(tasks, given.out / "tasks.jsonl")
    print(f"{len(agreed)} conversations may be used; {traces} are rated: traces with {steps} steps, {len(tasks)} tasks")
    print(f"atommem train sft --data {given.out / 'traces'} --min_reward 1 ...")
    return 0


def with_consent(log: ConversationLog, owner: str | None = None) -> Iterator[About]:
    """The conversations whose owners let them be used, oldest first."""
    query = sa.select(conversations).order_by(conversations.c.created_at, conversations.c.id)
    if owner is not None:
        query = query.where(conversations.c.owner == owner)
    with log.engine.begin() as connection:
        rows = connection.execute(query).mappings().all()
    return (About(**row) for row in rows if row["metadata"].get(CONSENT) == "yes")


def taken_from(log: ConversationLog, about: About) -> tuple[Task, Episode | None]:
    """A conversation as a task, and as an episode; None where nothing has been rated."""
    events = log.events(about.id)
    gone = {event.of for event in events if event.kind == "deleted"}
    begins = max((event.version for event in events if _takes_out(event)), default=0)
    rated = _rated(events)
    items = [event.body for event in events if event.kind == "item" and event.version not in gone]
    questions = [
        Question(item.question, (item.gold,), id=f"{about.id}-{number}")
        for number, item in enumerate(rated)
        if item.gold is not None
    ]
    documents = tuple(Document(item.get("name", ""), "\n\n".join(item["parts"])) for item in items)
    task = Task(about.id, tuple(questions), documents, source=SOURCE)
    if not rated:
        return task, None
    written = _operations(log, about.id)
    steps = [
        step_of({**event.body, "operations": written.get(event.version, [])})
        for event in events
        if event.kind == "step" and event.version > begins and event.of not in gone
    ]
    reward = fmean(item.reward for item in rated)
    episode = Episode(about.id, 0, steps, tuple(item.answer for item in rated), reward, {"feedback": reward})
    episode.stop_reason = StopReason.ANSWERED
    return task, episode


def _takes_out(event: Event) -> bool:
    """Whether its owner wanted something gone."""
    return event.kind == "deleted" or (event.kind == "edit" and event.body.get("text") is None)


def _rated(events: Sequence[Event]) -> list[Rated]:
    """The questions that have feedback; the last word on each counts."""
    asked = {event.version: event for event in events if event.kind == "ask"}
    answers = {event.of: event.body["text"] for event in events if event.kind == "answer"}
    said: Mapping[int | None, Event] = {event.of: event for event in events if event.kind == "feedback"}
    return [
        Rated(
            ask.body["question"],
            answers.get(version),
            float(said[version].body["reward"]),
            said[version].body.get("answer"),
        )
        for version, ask in asked.items()
        if version in said
    ]


def _operations(log: ConversationLog, conversation: str) -> dict[int, list[dict[str, Any]]]:
    """The operations of each event, by its version."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in log.operations(conversation, 0):
        values = {name: row[name] for name in _OPERATION if name in row} | row.get("rest", {})
        found.setdefault(row["version"], []).append(values)
    return found
