"""Write demonstrations of a faultless reader: a cold start for small models.

    python scripts/gold_demonstrations.py TASKS OUT_DIR --tokenizer MODEL

A scripted reader that knows what matters runs in the one loop, a document at a step: it searches
for the question, takes the notes that the tasks bring (told facts, ledgers, `short_rows.py`), and
answers. Every episode becomes a trace in OUT_DIR, for `atommem train sft --data OUT_DIR --templates
compact`. The last line is JSON: exact match of the reader, and mean tokens of a prompt and of a
completion.
"""

import asyncio
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from common import command_line, last_line, make_agent

from atommem.config import MemoryConfig
from atommem.dialects import Dialect, get_dialect
from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.synthetic.expert import ExpertPolicy, Note, ScriptedExpert
from atommem.envs.task import Task
from atommem.envs.task_files import load_tasks
from atommem.episode import Observation
from atommem.memory.log import MemoryView
from atommem.rollout import EpisodeRunner
from atommem.trace import write_trace

MEMORY = MemoryConfig(templates="compact")


class NotesExpert(ScriptedExpert):
    """Read a task with its notes: write them where they belong, then answer.

    It looks for the task's ``query`` at the first step, so that its notes are shown from then on,
    and answers "unknown" unless all of them are shown when it is asked.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._tags = {**dialect.tags}

    def start(self, task: Task) -> None:
        """Start on a task, one at a time."""
        self._notes = [Note(**note) for note in task.metadata["notes"]]
        self._taken: list[str] = []
        self._query = task.metadata["query"]
        self._answers = [question.answers[0] for question in task.questions]

    def act(self, observation: Observation, view: MemoryView, draw: int | None = None) -> str:
        if observation.question is not None:
            shown = {item.text for item in view.retrieved}
            known = shown.issuperset(self._taken) and not self._notes
            answer = self._answers[observation.question] if known else "unknown"
            return self.element("answer", f"\\boxed{{{answer}}}")
        chunk = "".join(observation.values("chunk"))
        now = [note for note in self._notes if note.sentence in chunk]
        self._notes = [note for note in self._notes if note not in now]
        written = [self._action(note, view) for note in now]
        if view.query is None:
            written.insert(0, self.element("read", self._query))
        return " ".join(written)

    def _action(self, note: Note, view: MemoryView) -> str:
        if note.replaces:
            self._taken.remove(note.replaces)
        if note.text:
            self._taken.append(note.text)
        if note.kind == "create":
            return self.element("create", note.text)
        handle = next(item.handle for item in view.retrieved if item.text == note.replaces)
        return self.element(note.kind, f"{handle} : {note.text}" if note.text else f"{handle}")


async def demonstrate(tasks: list[Task], tokenizer: Any, out: Path) -> dict[str, Any]:
    """Run the reader on every task, write the traces, and return what they amount to."""
    expert = NotesExpert(get_dialect(MEMORY.dialect))
    policy = ExpertPolicy(expert, tokenizer, tokenizer.eos_token_id)
    stored = {**asdict(MEMORY), "max_reads": 0, "chunking": "documents"}
    agent = make_agent(policy, HashingEmbedder(256), tokenizer, stored=stored)
    rewards, steps = [], []
    for number, task in enumerate(tasks):
        expert.start(task)
        episode = await EpisodeRunner(agent).run(task)
        rewards.append(episode.metrics["em"])
        steps += episode.steps
        header = asdict(agent.factory.describe(task))
        write_trace(out / f"{number}.jsonl", episode, header, {"memory": asdict(MEMORY)})
    return {
        **{"tasks": len(tasks), "em": fmean(rewards)},
        "steps_per_task": round(len(steps) / len(tasks), 2),
        "prompt_tokens": round(fmean(step.prompt_tokens for step in steps), 1),
        "completion_tokens": round(fmean(step.completion_tokens for step in steps), 1),
        "malformed": sum(bool(step.problems) for step in steps),
    }


def main() -> int:
    parser = command_line(__doc__)
    tasks_help = "a file of `atommem data build` with one question a task"
    parser.add_argument("tasks", metavar="TASKS", help=tasks_help)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--tokenizer", required=True, help="of the model that learns from them")
    arguments = parser.parse_args()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    result = asyncio.run(demonstrate(load_tasks(arguments.tasks), tokenizer, arguments.out))
    return last_line({**result, "holds": True})


if __name__ == "__main__":
    raise SystemExit(main())
