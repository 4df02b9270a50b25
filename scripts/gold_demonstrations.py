"""Write demonstrations on benchmark tasks from their gold documents: a cold start.

    python scripts/gold_demonstrations.py TASKS OUT_DIR --tokenizer MODEL [--chunk_tokens N]

A scripted reader that knows the gold documents runs in the one loop: from a part of the text it
stores the gold sentences that stand there whole and searches for the question; asked, it answers.
Every episode becomes a trace in OUT_DIR, for `atommem train sft --data OUT_DIR --templates
compact`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import command_line, make_agent

from atommem.config import MemoryConfig
from atommem.dialects import Dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.policy.contract import ScriptedPolicy
from atommem.rollout import EpisodeRunner
from atommem.trace import write_trace

_SENTENCE = re.compile(r"[^.!?]*[.!?]+[\"”)]*")
MEMORY = MemoryConfig(templates="compact")


def gold_sentence(text: str, answer: str) -> str:
    """The first sentence of a document that holds the answer; without one, its first sentence."""
    sentences = [sentence.strip() for sentence in _SENTENCE.findall(text)] or [text]
    return next(
        (sentence for sentence in sentences if answer.lower() in sentence.lower()), sentences[0]
    )


def reader(task: Task, dialect: Dialect, answering: str) -> Callable[[str], str]:
    """What the demonstrator writes when it is shown a prompt of `task`; good for one episode."""
    question = task.questions[0]
    answer = question.answers[0]
    wanted = [gold_sentence(document.text, answer) for document in task.documents if document.gold]

    def element(kind: str, text: str) -> str:
        return f"<{dialect.tags[kind]}>{text}</{dialect.tags[kind]}>"

    # Searched for once: the query stays until another one takes its place.
    unasked = [element("read", question.text)]

    def write(prompt: str) -> str:
        if prompt.endswith(answering):
            return element("answer", f"\\boxed{{{answer}}}")
        found = [sentence for sentence in wanted if sentence in prompt]
        # Once stored, a sentence is shown again as an entry.
        wanted[:] = [sentence for sentence in wanted if sentence not in found]
        stored = [element("create", sentence) for sentence in found]
        return "\n".join([*stored, *(unasked.pop() for _ in list(unasked))])

    return write


async def demonstrate(tasks: list[Task], tokenizer: Any, out: Path, chunk_tokens: int) -> None:
    """Run the reader on every task and write the traces."""
    # Two entries at most, so every embedder retrieves both.
    embedder = HashingEmbedder(256)
    policy = ScriptedPolicy(tokenizer, lambda prompt: script(prompt), tokenizer.eos_token_id)
    settings = {**asdict(MEMORY), "chunk_tokens": chunk_tokens, "max_reads": 0}
    agent = make_agent(policy, embedder, tokenizer, stored=settings)
    answering = agent.factory.section(MEMORY.templates).pieces["answering"]
    for number, task in enumerate(tasks):
        script = reader(task, agent.dialect, answering)
        header = agent.factory.describe(task).to_json()
        episode = await EpisodeRunner(agent).run(task)
        write_trace(out / f"{number}.jsonl", episode, header, {"memory": asdict(MEMORY)})


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = command_line(__doc__)
    parser.add_argument(
        "tasks", metavar="TASKS", help="a file of `atommem data build` with one question a task"
    )
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument(
        "--tokenizer", required=True, help="of the model that is to learn from them"
    )
    parser.add_argument("--chunk_tokens", type=int, default=200)
    arguments = parser.parse_args(argv)
    from transformers import AutoTokenizer

    tasks = load_tasks(arguments.tasks)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    asyncio.run(demonstrate(tasks, tokenizer, arguments.out, arguments.chunk_tokens))
    print(f"{arguments.out}: {len(tasks)} demonstrations")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
