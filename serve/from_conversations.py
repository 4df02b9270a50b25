"""``atommem data from-conversations``: make training data of served conversations with feedback.

A conversation counts if the feedback on one of its answers gives ``consent`` and nothing was deleted from it. It
becomes a trace for ``atommem train sft``, with the sampled token ids and the mean rating as reward; and a task for
``atommem train grpo``, with the questions whose right answer is known from the feedback or a rating of 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import fmean

from atommem.command_line import CommandParser, check_writable
from atommem.config import load_config
from atommem.envs.task import Document, Question, Task, describe_task
from atommem.envs.task_files import save_tasks
from atommem.episode import Episode
from atommem.errors import DataError
from atommem.memory.log import Operation
from atommem.observation import StopReason
from atommem.serve.conversation_log import ConversationLog
from atommem.serve.schema import open_database
from atommem.trace import step_from_record, write_trace


def main(argv: list[str] | None = None) -> int:
    """Write ``tasks.jsonl`` and ``traces/``.

    Raises:
        DataError: No answer has feedback with consent.
        ConfigError: The database cannot be opened.
    """
    parser = CommandParser(
        prog="atommem data from-conversations", description=__doc__.partition("\n")[0]
    )
    default = os.environ.get("ATOMMEM_DATABASE")
    parser.add_argument(
        "--db", default=default, required=default is None, help="database of the server"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--owner", help="only conversations of this owner")
    parser.add_argument("--policy", help="folder of the checkpoint, whose settings the traces get")
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    check_writable("out", args.out, folder=True)
    log = ConversationLog(open_database(args.db, create=False))
    config = {} if args.policy is None else {"memory": load_config(args.policy)}
    # Consent may have been withdrawn since the last run.
    for old in (args.out / "tasks.jsonl", *(args.out / "traces").glob("conv_*.jsonl")):
        old.unlink(missing_ok=True)
    tasks, traces = [], 0
    found = log.conversations(args.owner)
    for info in reversed(found):
        task, episode = training_data(log, info.id)
        if episode is not None:
            path = args.out / "traces" / f"{info.id}.jsonl"
            write_trace(path, episode, describe_task(task).to_json(), config, tokens=True)
            traces += 1
            tasks += [task] if task.questions else []
    if not traces:
        raise DataError(
            f"db={args.db}: none of {len(found)} conversations has an answer to train on. Give consent in the feedback "
            "on an answer (POST /v1/conversations/ID/feedback)."
        )
    if tasks:
        save_tasks(tasks, args.out / "tasks.jsonl")
    print(f"{traces} of {len(found)} conversations: {traces} traces, {len(tasks)} tasks")
    return 0


def training_data(log: ConversationLog, conversation: str) -> tuple[Task, Episode | None]:
    """Return a conversation as a task and as an episode (None: it must not be used)."""
    events = log.events(conversation)
    operations: dict[int, list[dict[str, object]]] = {}
    removed = any(event.kind == "deleted" or "forget" in event.body for event in events)
    for row in log.operations(conversation, 0):
        version = int(row["version"])
        operation = {name: row[name] for name in Operation.__dataclass_fields__ if name in row}
        operations.setdefault(version, []).append(operation)
        removed |= operation["kind"] == "delete" and operation.get("actor") == "user"
    items = {event.version: event.body for event in events if event.kind == "item"}
    answers = {event.parent: event.body["text"] for event in events if event.kind == "answer"}
    feedback = {event.body["response"]: event.body for event in events if event.kind == "feedback"}
    rated = {
        event.version: (event.body["question"], answers.get(event.version), body)
        for event in events
        if event.kind == "ask" and (body := feedback.get(event.response)) and body["consent"]
    }
    golds = {
        question: body["answer"] or (answer if body["reward"] >= 1 else None)
        for question, answer, body in rated.values()
    }
    questions = tuple(
        Question(question, (gold,), id=f"{conversation}-{number}")
        for number, (question, gold) in enumerate(golds.items())
        if gold
    )
    documents = tuple(Document(item["name"], "\n\n".join(item["parts"])) for item in items.values())
    task = Task(conversation, questions, documents, source="conversation")
    if not rated or removed:
        return task, None
    steps = [
        step_from_record({**event.body, "operations": operations.get(event.version, [])})
        for event in events
        if event.kind == "step" and event.parent in {*items, *rated}
    ]
    reward = fmean(body["reward"] for _, _, body in rated.values())
    given = tuple(answer for _, answer, _ in rated.values())
    return task, Episode(
        conversation, 0, steps, given, reward, {"feedback": reward}, stop_reason=StopReason.ANSWERED
    )
