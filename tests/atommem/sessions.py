"""Helpers of the tests of sessions: a policy and an embedder that record requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from atommem.config import MemoryConfig
from atommem.embedding.embedder import HashingEmbedder, TextKind, Vectors
from atommem.envs.task import Document, Question, Task
from atommem.episode import Episode, Step
from atommem.policy.contract import Completion, Sampling
from atommem.rollout import Agent, EpisodeRunner, Limits, Session
from tests.fakes import ListPolicy, WordTokenizer, longdoc, reading

TASK = Task(
    "t1",
    (Question("Where does Ann live?", ("Rome",)), Question("Who sings?", ("Bob",))),
    tuple(Document("", f"Person {number} lives in place {number}.") for number in range(6)),
)
WORDS = ["ann", "bob", "eve", "rome", "oslo", "sings", "lives"]
WRITES = {
    "<create_memory>{words}</create_memory>": 4,
    "<update_memory>Memory {handle}: {words}</update_memory>": 2,
    "<delete_memory>Memory {handle}</delete_memory>": 1,
    "<read_memory>{words}</read_memory>": 3,
    "<update_scratchpad>{words}</update_scratchpad>": 1,
    "<final_answer>\\boxed{{{words}}}</final_answer>": 1,
    "<create_memory>never closed": 1,
}
"""What a policy writes, and how often."""


class Embeds(HashingEmbedder):
    """Keeps what it was asked. `fail` makes every call raise it."""

    def __init__(self) -> None:
        super().__init__(32)
        self.calls: list[tuple[str, ...]] = []
        self.fail: Exception | None = None

    async def embed(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        self.calls.append((kind, *texts))
        if self.fail is not None:
            raise self.fail
        return await super().embed(texts, kind)


class Muse:
    """A policy whose completion depends on prompt and seed only."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        self.tokenizer = tokenizer
        self.asked: list[tuple[str, Sampling]] = []

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        prompt = self.tokenizer.decode(prompt_ids, skip_special_tokens=False)
        self.asked.append((prompt, sampling))
        rng = random.Random(f"{prompt}/{sampling.seed}")
        text = " ".join(
            template.format(words=" ".join(rng.choices(WORDS, k=3)), handle=rng.randrange(1, 4))
            for template in rng.choices([*WRITES], [*WRITES.values()], k=4)
        )
        ids = [*self.tokenizer.encode(text), 0]
        return Completion(ids, [-0.5] * len(ids), text, "stop")

    async def close(self) -> None:
        return None


def agent(policy: Any = None, **settings: Any) -> Agent:
    """Make an agent that shares nothing with another agent."""
    tokenizer = WordTokenizer()
    made = policy(tokenizer) if callable(policy) else Muse(tokenizer)
    memory = MemoryConfig(
        **{"capacity": 5, "retention": "lru", "retrieve_k": 3, **settings.pop("memory", {})}
    )
    return Agent(
        policy=made,
        embedder=settings.pop("embedder", None) or Embeds(),
        tokenizer=tokenizer,
        environments=longdoc(tokenizer, max_reads=settings.pop("max_reads", 2)),
        memory=memory,
        **{"sampling": Sampling(seed=3, max_tokens=100), **settings},
    )


class Waits(ListPolicy):
    """Waits for ever after its last text; records waiting and cancellation."""

    waits = cancelled = False

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        if self.texts:
            return await super().complete(prompt_ids, sampling)
        self.waits = True
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        raise AssertionError


def saying(*texts: str | Exception) -> Callable[[WordTokenizer], ListPolicy]:
    return lambda tokenizer: ListPolicy(tokenizer, texts)


def step_fields(step: Step) -> dict[str, Any]:
    """The fields of a step without its time; token ids are replaced by their counts."""
    return {
        **asdict(step),
        "seconds": 0.0,
        "prompt_ids": len(step.prompt_ids),
        "token_ids": len(step.token_ids),
    }


async def turns(session: Session, count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        step_fields(
            await session.turn(reading("q?", chunk=f"part {number}", index=number, count=9))
        )
        for number in range(first, first + count)
    ]


def runner(
    policy: Any = None, limits: Limits | None = None, max_in_flight: Any = None, **settings: Any
) -> EpisodeRunner:
    return EpisodeRunner(agent(policy, **settings), limits=limits, max_in_flight=max_in_flight)


def outcome(episode: Episode) -> tuple[Any, ...]:
    steps = [step_fields(step) for step in episode.steps]
    return steps, episode.answers, episode.reward, episode.metrics, episode.stop_reason
