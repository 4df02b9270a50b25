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

_WORDS = [
    "ann",
    "bob",
    "likes",
    "moved",
    "to",
    "brent",
    "is",
    "a",
    "baker",
    "today",
    "will",
    "sing",
    "bells",
    "ring",
    "in",
    "may",
    "2023",
    "?",
]
_KINDS, _WEIGHTS = ("create", "read", "update", "delete"), (6, 2, 1, 1)


def problems(
    retention: str = "reject", admission: str = "accept", streams: int = 4, steps: int = 60
) -> list[str]:
    """Return the promises that a pair of rules breaks on random streams of actions.

    One stream and seed must give one log, also if the memory is restored in the middle of it.
    """
    config = MemoryConfig(capacity=5, retention=retention, admission=admission)
    found: list[str] = []
    for seed in range(streams):
        stream = _stream(seed, steps)
        log = asyncio.run(_play(config, stream, seed))
        if asyncio.run(_play(config, stream, seed)) != log:
            found.append("the log differs between two runs: use store.rng, and keep no other state")
        if asyncio.run(_play(config, stream, seed, pause=steps // 2)) != log:
            found.append("the log differs after a restore: keep only state that follows from it")
    return list(dict.fromkeys(found))


async def _play(
    config: MemoryConfig, stream: Sequence[Sequence[Action]], seed: int, pause: int | None = None
) -> list[Operation]:
    embedder, tokenizer = HashingEmbedder(32), ApproximateTokenizer()
    memory = WorkingMemory(embedder, tokenizer, config, seed=seed)
    for step, actions in enumerate(stream):
        if step == pause:
            restored = WorkingMemory(embedder, tokenizer, config)
            memory = await restored.restore(memory.start, memory.log)
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


def _stream(seed: int, steps: int) -> list[list[Action]]:
    random = Random(seed)

    def action() -> Action:
        kind = random.choices(_KINDS, _WEIGHTS)[0]
        text = " ".join(random.choices(_WORDS, k=random.randint(2, 9)))
        handle = random.randint(1, 4) if kind in ("update", "delete") else None
        return Action(kind, "" if kind == "delete" else text, handle)

    return [[action() for _ in range(random.randint(1, 3))] for _ in range(steps)]
