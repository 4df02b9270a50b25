"""Check that a rule keeps the promises of all rules: ``atommem retention check``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.embedder import HashingEmbedder
from atommem.memory.log import Operation
from atommem.memory.memory import WorkingMemory
from atommem.tokens import ApproximateTokenizer

_WORDS = ("ann", "bob likes", "moved to brent", "is a baker today", "will sing", "2023?")
_KINDS, _WEIGHTS = ("create", "read", "update", "delete"), (6, 2, 1, 1)


def problems(retention: str, admission: str, streams: int = 4, steps: int = 60) -> list[str]:
    """Return the promises that a pair of rules breaks on random streams of actions."""
    config = MemoryConfig(capacity=5, retention=retention, admission=admission)
    found: dict[str, None] = {}
    for seed in range(streams):
        stream = _random_stream(Random(seed), steps)
        log = asyncio.run(_play(config, stream, seed))
        if asyncio.run(_play(config, stream, seed)) != log:
            found["the log differs between two runs: use store.rng, and keep no other state"] = None
        if asyncio.run(_play(config, stream, seed, pause=steps // 2)) != log:
            found["the log differs after a restore: keep only state that follows from it"] = None
    return list(found)


async def _play(
    config: MemoryConfig, stream: Sequence[Sequence[Action]], seed: int, pause: int | None = None
) -> list[Operation]:
    embedder, tokenizer = HashingEmbedder(32), ApproximateTokenizer()
    memory = WorkingMemory(embedder, tokenizer, config, seed=seed)
    for step, actions in enumerate(stream):
        if step == pause:
            restored = WorkingMemory(embedder, tokenizer, config, seed=seed)
            memory = await restored.restore(memory.log)
        await memory.apply(actions, step)
        if step % 3 == 2:
            outcome = float(len(memory.entries()) % 2)
            scores = tuple((entry_id, outcome) for entry_id, _ in memory.contents.shown)
            memory.append(Operation(step, "observe", scores=scores))
    return [_rounded(operation) for operation in memory.log]


def _rounded(operation: Operation) -> Operation:
    """Round what depends on the batch in which a text was embedded."""
    scores = tuple((entry_id, round(score, 4)) for entry_id, score in operation.scores)
    score = None if operation.score is None else round(operation.score, 4)
    return replace(operation, score=score, scores=scores)


def _random_stream(random: Random, steps: int) -> list[list[Action]]:
    stream: list[list[Action]] = [[] for _ in range(steps)]
    for actions in stream:
        for _ in range(random.randint(1, 3)):
            (kind,) = random.choices(_KINDS, _WEIGHTS)
            text = " ".join(random.choices(_WORDS, k=random.randint(2, 9)))
            actions.append(Action(kind, text, handle=random.randint(1, 4)))
    return stream
