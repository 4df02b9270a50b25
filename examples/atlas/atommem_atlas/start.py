"""Make a tiny policy with random weights, and demonstrations for its cold start.

python -m atommem_atlas.start TASKS OUT

An instruct model needs none of this.
"""

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from atommem.config import EmbedderConfig, MemoryConfig, save_config
from atommem.demo.recipe import PolicySize
from atommem.demo.tiny_policy import make_model, prompt_words, word_tokenizer
from atommem.environment import environment_config
from atommem.episode import Observation
from atommem.eval.runner import evaluate
from atommem.memory.log import MemoryView
from atommem.policy.contract import Completion, Sampling
from atommem.rollout import EpisodeRunner
from atommem.run import RunConfig, build_agent
from atommem.train.checkpoints import GenerationSettings
from atommem_atlas.tasks import Task, read_tasks

MEMORY = MemoryConfig(templates="compact", retrieve_k=2, scratchpad_tokens=16)
EMBEDDER = EmbedderConfig(embedder="hashing", embedder_dim=64)
LONGEST = 48


def call(tool: str, **arguments: str) -> str:
    """A call of a tool as a policy writes it."""
    return f"<tool_call> {json.dumps({'name': tool, 'arguments': arguments})} </tool_call>"


class Guide:
    """Look the person up, store the home, ask for its neighbours; name one on every other task."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(0)

    async def complete_observation(
        self, observation: Observation, view: MemoryView, sampling: Sampling
    ) -> Completion:
        """What to write, by what the environment shows."""
        (person,) = observation.values("person")
        calls, texts = observation.values("call"), observation.values("text")
        if not calls:
            text = call("lookup", name=person)
        elif calls[0].startswith("lookup"):
            text = f"<create_memory> {person} : {texts[0]} </create_memory> "
            text += f"<read_memory> {person} </read_memory> "
            text += call("neighbours", place=texts[0])
        else:
            places = texts[0].split()[: self._random.choice((1, 2))]
            text = f"<final_answer> \\boxed{{ {' '.join(places)} }} </final_answer>"
        token_ids = [
            *self._tokenizer.encode(text, add_special_tokens=False),
            self._tokenizer.eos_token_id,
        ]
        return Completion(token_ids, [0.0] * len(token_ids), text, "stop")

    async def close(self) -> None:
        """Nothing is held."""


def make_policy(tasks: Sequence[Task], folder: Path) -> Any:
    """Write a random model and a tokenizer of the words in `tasks`; return the tokenizer."""
    config = environment_config("atlas")
    known = [word.strip('",:{}') for task in tasks for word in json.dumps(task.facts).split()]
    called = [
        call(tool, **{name: word})
        for word in known
        for tool, name in {"lookup": "name", "neighbours": "place"}.items()
    ]
    tokenizer = word_tokenizer(
        [*prompt_words(config, MEMORY), *known, *called, "\\boxed{ }", ": 0 1 2 3 4"]
    )
    torch.manual_seed(0)
    make_model(PolicySize(), tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_config(folder, MEMORY, EMBEDDER, config, GenerationSettings(LONGEST))
    return tokenizer


def main(data: str, out: str) -> None:
    """The policy in OUT/start, and the guide's episodes on the tasks in OUT/guide."""
    tasks = read_tasks(data)
    tokenizer = make_policy(tasks, Path(out, "start"))
    run = RunConfig(memory=MEMORY, embedder=EMBEDDER, environment=environment_config("atlas"))
    agent = build_agent(run, Guide(tokenizer), tokenizer=tokenizer)
    shown = asyncio.run(evaluate(tasks, EpisodeRunner(agent), Path(out, "guide"), progress=False))
    print(
        f"a policy in {out}/start; the guide's overlap on {len(tasks)} tasks: "
        f"{shown.mean('overlap'):.2f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
