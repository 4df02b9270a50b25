"""Does a rule keep what every rule promises? For ours in the tests, and for anybody's: ``atommem retention check``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.memory.contents import replay
from atommem.memory.operations import Operation, Outcome
from atommem.memory.working import WorkingMemory
from atommem.tokens import ApproximateTokenizer

CAPACITY = 5
_WORDS = (
    *("ann", "bob", "carol", "likes", "moved", "to", "brent", "lorne", "is", "a"),
    *("baker", "today", "will", "sing", "bells", "ring", "in", "may", "2023", "?"),
)


def problems(
    retention: str = "reject", admission: str = "accept", streams: int = 4, steps: int = 60
) -> list[str]:
    """What a rule, or a pair of them, does that no rule may; empty where it keeps its promises.

    Each of a few random streams of creates, reads, updates, deletes and outcomes is played several times:

    - there are never more entries than the capacity, after no operation;
    - the same stream under the same seed gives the same log, also if the memory is restored in the middle of it;
    - two streams that differ only in what comes later give the same log until then: no rule knows the future;
    - what the rules did has their names in the log, and the log replays.

    Args:
        retention, admission: As in the settings, with options.
        streams: How many.
        steps: Of each.
    """
    return asyncio.run(
        _problems(
            MemoryConfig(capacity=CAPACITY, retention=retention, admission=admission),
            streams,
            steps,
        )
    )


async def _problems(config: MemoryConfig, streams: int, steps: int) -> list[str]:
    found: dict[str, None] = {}
    for seed in range(streams):
        stream, half = _stream(seed, steps), steps // 2
        log = await play(config, stream, seed)
        if await play(config, stream, seed) != log:
            found[
                "the same stream and seed gave another log: draw from store.rng, and keep nothing from before"
            ] = None
        if any(
            [await play(config, stream, seed, pause=pause) != log for pause in (steps // 3, half)]
        ):
            found[
                "a memory that was restored went on otherwise: keep nothing that does not follow from the log"
            ] = None
        other = await play(config, [*stream[:half], *_stream(seed + 1000, steps)[half:]], seed)
        if _until(other, half) != _until(log, half):
            found["what came later changed what it did before: a rule may not know the future"] = (
                None
            )
        size = 0
        for operation in log:
            if operation.outcome is Outcome.APPLIED:
                size += {"create": 1, "delete": -1}.get(operation.kind, 0)
            if size > CAPACITY:
                found[f"there were {size} entries in a store of {CAPACITY}"] = None
            rules = (f"retention:{config.retention}", f"admission:{config.admission}")
            if operation.outcome is Outcome.REJECTED and not operation.reason.startswith(rules):
                found[f"a refusal does not say by whom: {operation.reason!r}"] = None
        replay(log)
    return list(found)


async def play(
    config: MemoryConfig, stream: Sequence[Sequence[Action]], seed: int, pause: int | None = None
) -> list[Operation]:
    """The log of a stream; `pause` is a step before which the memory is put down and taken up."""
    embedder, tokenizer = HashingEmbedder(32), ApproximateTokenizer()
    memory = WorkingMemory(embedder, tokenizer, config, seed=seed)
    for step, actions in enumerate(stream):
        if step == pause:
            memory = await WorkingMemory(embedder, tokenizer, config).restore(
                memory.start, memory.log
            )
        await memory.apply(actions, step)
        if step % 3 == 2:
            memory.observe(float(len(memory.entries()) % 2), step)
    return [_rounded(operation) for operation in memory.log]


def _rounded(operation: Operation) -> Operation:
    """The last digits of a cosine depend on the batch that its text was embedded in."""
    scores = tuple((entry_id, round(score, 4)) for entry_id, score in operation.scores)
    return replace(
        operation,
        score=None if operation.score is None else round(operation.score, 4),
        scores=scores,
    )


def _stream(seed: int, steps: int) -> list[list[Action]]:
    random = Random(seed)

    def text() -> str:
        return " ".join(random.choices(_WORDS, k=random.randint(2, 9)))

    def action() -> Action:
        kind = random.choices(("create", "read", "update", "delete"), (6, 2, 1, 1))[0]
        handle = random.randint(1, 4) if kind in ("update", "delete") else None
        return Action(kind, "" if kind == "delete" else text(), handle)

    return [[action() for _ in range(random.randint(1, 3))] for _ in range(steps)]


def _until(log: Sequence[Operation], step: int) -> list[Operation]:
    return [operation for operation in log if operation.step < step]
