"""``atommem data from-conversations``: what was served and rated becomes tasks to train on, and traces to begin with.

An answer takes part if its owner says so: ``consent`` in the last feedback on it (``POST
/v1/conversations/{id}/feedback``), whose ``reward`` counts. Two things come of a conversation with such answers:

- a trace, with the token ids that were sampled and what the policy was shown, for ``atommem train sft``: the steps that
  read, and those of these answers; the mean of their ratings is the episode's reward;
- a task, for ``atommem train grpo``: its texts as documents, and the questions whose answer is known, because the
  feedback says it or the answer was rated 1.

What an owner deleted is in neither, and no step from before: it may have been shown there. No step or rating is taken
from before an import: anybody could have written them.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from atommem.command_line import CommandParser, check_writable
from atommem.config import load_config
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.envs.task_files import save_tasks
from atommem.episode import Episode
from atommem.errors import DataError
from atommem.memory.log import Operation
from atommem.observation import StopReason
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.log_rows import Event, is_called
from atommem.serve.schema import open_database
from atommem.trace import step_of, write_trace

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
    parser = CommandParser(
        prog="atommem data from-conversations", description=__doc__.partition("\n")[0]
    )
    default = os.environ.get("ATOMMEM_DATABASE")
    parser.add_argument(
        "--db",
        default=default,
        required=default is None,
        help="the server's (`atommem serve --db`)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--owner", help="those of one owner")
    parser.add_argument(
        "--policy",
        help="the checkpoint's folder: traces then say which settings they were made with",
    )
    given = parser.parse_args(sys.argv[1:] if argv is None else argv)
    check_writable("out", given.out, folder=True)
    log = ConversationLog(open_database(given.db, make=False))
    config = {} if given.policy is None else {"memory": load_config(given.policy)}
    # What was taken before may have been deleted since, or its consent taken back.
    for old in (given.out / "tasks.jsonl", *(given.out / "traces").glob("conv_*.jsonl")):
        old.unlink(missing_ok=True)
    tasks, steps, traces = [], 0, 0
    held = log.all(given.owner)
    for conversation in (about.id for about in reversed(held)):
        task, episode = taken_from(log, conversation)
        if episode is None:
            continue
        described = describe_task(task).to_json()
        write_trace(
            given.out / "traces" / f"{conversation}.jsonl", episode, described, config, tokens=True
        )
        steps, traces = steps + len(episode.steps), traces + 1
        tasks += [task] if task.questions else []
    if not traces:
        raise DataError(
            f"none of {len(held)} conversations has an answer that may be trained on: its owner says so with consent "
            "in the feedback on it (POST /v1/conversations/ID/feedback)."
        )
    if tasks:
        save_tasks(tasks, given.out / "tasks.jsonl")
    print(
        f"{traces} of {len(held)} conversations may be used: traces with {steps} steps, {len(tasks)} tasks"
    )
    traces_folder = shlex.quote(str(given.out / "traces"))
    print(
        f"train on them: atommem train sft --data {traces_folder} --min_reward 1 --model_name_or_path MODEL"
    )
    return 0


def taken_from(log: ConversationLog, conversation: str) -> tuple[Task, Episode | None]:
    """A conversation as a task, and as an episode; None where no answer may be used."""
    events, written = log.events(conversation), _operations(log, conversation)
    gone = {event.of for event in events if event.kind == "deleted"}
    for event in events:
        if (
            name := event.body.get("forget")
        ) and event.kind == "edit":  # by source: then the texts of this name
            gone |= {
                item.version
                for item in events[: event.version]
                if item.kind == "item" and is_called(item, name)
            }
    brought = max(
        (event.version for event in events if event.kind == "fork" and not event.body), default=0
    )
    rated = _rated([event for event in events if event.version > brought])
    begins = max((event.version for event in events if _takes_out(event, written)), default=brought)
    items = {
        event.version: event.body
        for event in events
        if event.kind == "item" and event.version not in gone
    }
    questions = [
        Question(item.question, (item.gold,), id=f"{conversation}-{number}")
        for number, item in enumerate(rated.values())
        if item.gold is not None
    ]
    documents = tuple(Document(item["name"], "\n\n".join(item["parts"])) for item in items.values())
    task = Task(conversation, tuple(questions), documents, source=SOURCE)
    if not rated:
        return task, None
    steps = [
        step_of({**event.body, "operations": written.get(event.version, [])})
        for event in events
        if event.kind == "step" and event.version > begins and event.of in {*items, *rated}
    ]
    reward = fmean(item.reward for item in rated.values())
    answers = tuple(item.answer for item in rated.values())
    episode = Episode(
        conversation,
        0,
        steps,
        answers,
        reward,
        {"feedback": reward},
        stop_reason=StopReason.ANSWERED,
    )
    return task, episode


def _takes_out(event: Event, written: Mapping[int, Sequence[Mapping[str, Any]]]) -> bool:
    """Whether its owner wanted something gone."""
    return event.kind == "deleted" or (
        event.kind == "edit"
        and (
            "forget" in event.body
            or any(operation["kind"] != "update" for operation in written.get(event.version, ()))
        )
    )


def _rated(events: Sequence[Event]) -> dict[int, Rated]:
    """The answers that may be used, by the version of their question; the last word on each counts."""
    answers = {event.of: event.body["text"] for event in events if event.kind == "answer"}
    said = {event.body["response"]: event.body for event in events if event.kind == "feedback"}
    rated = {}
    for event in events:
        feedback = said.get(event.response) if event.kind == "ask" else None
        if feedback is not None and feedback["consent"]:
            right = feedback.get("answer") or None
            answer = answers.get(event.version)
            rated[event.version] = Rated(
                event.body["question"], answer, float(feedback["reward"]), right
            )
    return rated


def _operations(log: ConversationLog, conversation: str) -> dict[int, list[dict[str, Any]]]:
    """The operations of each event, by its version."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in log.operations(conversation, 0):
        values = {name: row[name] for name in _OPERATION if name in row} | row.get("rest", {})
        found.setdefault(row["version"], []).append(values)
    return found
