"""Is one micro-batcher for all episodes worth it?

    python scripts/bench_embedding.py [--model DIR] [--episodes 256] [--rounds 5]

256 episodes create one entry and read one query at the same step, through `atommem.memory.memory.WorkingMemory`, on
all-MiniLM-L6-v2. Counted: calls of the embedder (at most 4). Timed, side by side, on the same texts, new ones in every
round:

    micro-batched        the embedder in this process, behind the micro-batcher
    micro-batched, HTTP  a server in a process of its own, behind the micro-batcher
    all at once          the same server, a request for every operation, all of them in flight: the strongest
                         comparison, for the server batches what is waiting, as vLLM does
    one after another    the same server, a request for every operation, each after the last one: what the authors'
                         code does, whose loop over the episodes waits for every vector

The last line is one JSON object; the exit code is 0 if and only if its "holds" is true: at most 4 calls, at least 5
times as fast (medians) as one after another, and no slower than all at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import time
from collections.abc import Iterator
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import models
import numpy as np
from quick import add_quick, command_line, last_line
from simulated_server import embeddings, serve

from atommem.actions import Action
from atommem.config import MemoryConfig
from atommem.embedding.batched import MicroBatcher
from atommem.embedding.embedder import Embedder
from atommem.embedding.http import HttpEmbedder
from atommem.embedding.sentence_transformer import SentenceTransformerEmbedder
from atommem.memory.memory import WorkingMemory

MAX_CALLS = 4
MIN_RATIO, MIN_AT_ONCE = 5.0, 1.0
FIRST = ["Anna", "Peter", "Maria", "Paul", "Clara", "Simon", "Laura", "Martin", "Ruth", "Frank"]
LAST = ["Stone", "Hill", "Brook", "Wood", "Field", "Marsh", "Rivers", "Lake", "Forest", "Banks"]
PLACES = [
    "Oslo",
    "Lisbon",
    "Vienna",
    "Dublin",
    "Prague",
    "Athens",
    "Geneva",
    "Naples",
    "Bergen",
    "Lyon",
]
THINGS = [
    "bridge",
    "harbour",
    "opera",
    "mill",
    "school",
    "chapel",
    "railway",
    "library",
    "tower",
    "museum",
]
VERBS = ["built", "designed", "restored", "sold", "inherited", "described", "founded", "bought"]


async def answer(model: Path, urls: Any) -> None:
    """Answer ``/v1/embeddings`` on a free port, whose URL it tells, until killed."""
    embedder = MicroBatcher(SentenceTransformerEmbedder(model), cache_size=0)

    async def handle(path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        return 200, embeddings(await embedder.embed(json.loads(body)["input"], "entry"))

    server = await serve(handle, 0)
    urls.put(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


@contextlib.contextmanager
def embedding_server(model: Path) -> Iterator[str]:
    """A server of its own process that batches what is waiting; gives its URL."""
    context = get_context("spawn")
    urls = context.Queue()
    server = context.Process(target=be_server, args=(model, urls), daemon=True)
    server.start()
    try:
        yield urls.get(timeout=600)
    finally:
        server.kill()
        server.join()


def be_server(model: Path, urls: Any) -> None:
    """What its process does."""
    asyncio.run(answer(model, urls))


def steps(episodes: int, round_: int) -> list[list[Action]]:
    """What every episode writes at this step: texts that no other episode or round has."""
    facts = list(product(FIRST, LAST, VERBS, THINGS, PLACES))
    random.Random(0).shuffle(facts)
    mine = facts[2 * episodes * round_ : 2 * episodes * (round_ + 1)]
    return [
        [
            Action(
                "create",
                f"The {thing} of {place} was {verb} by {first} {last} in 18{index % 100:02}.",
            ),
            Action(
                "read", f"Which {asked[3]} was {asked[2]} by {asked[0]} {asked[1]} in {asked[4]}?"
            ),
        ]
        for index, ((first, last, verb, thing, place), asked) in enumerate(
            zip(mine[::2], mine[1::2], strict=True)
        )
    ]


async def run_step(embedder: Embedder, actions: list[list[Action]]) -> tuple[float, list[float]]:
    """Apply every episode's actions to its own memory at once; seconds, and the scores retrieved."""
    tokenizer: Any = None  # measures scratchpads; there are none here
    memories = [WorkingMemory(embedder, tokenizer, MemoryConfig()) for _ in actions]
    started = time.perf_counter()
    await asyncio.gather(
        *(memory.apply(each, 0) for memory, each in zip(memories, actions, strict=True))
    )
    seconds = time.perf_counter() - started
    return seconds, [memory.view().retrieved[0].score for memory in memories]


async def measure(model: Path, url: str, episodes: int, rounds: int) -> dict[str, Any]:
    """The figures, with one unmeasured round first."""
    local = MicroBatcher(SentenceTransformerEmbedder(model))
    arms: dict[str, Embedder] = {
        "micro-batched": local,
        "micro-batched, HTTP": MicroBatcher(HttpEmbedder(url, "minilm")),
        "all at once": HttpEmbedder(url, "minilm", max_in_flight=2 * episodes),
        "one after another": HttpEmbedder(url, "minilm", max_in_flight=1),
    }
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    calls = []
    for round_ in range(rounds + 1):
        actions = steps(episodes, round_)
        scores = {}
        for name, embedder in arms.items():
            before = local.calls
            taken, scores[name] = await run_step(embedder, actions)
            if embedder is local:
                calls.append(local.calls - before)
            if round_:
                seconds[name].append(taken)
        for name in arms:
            np.testing.assert_allclose(scores[name], scores["micro-batched"], atol=1e-4)
    for embedder in arms.values():
        await embedder.close()
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"{episodes} episodes, {2 * episodes} operations in one step, {rounds} rounds")
    for name, times in seconds.items():
        print(
            f"{name:<20} median {medians[name]:7.3f} s   all {' '.join(f'{value:.3f}' for value in times)}"
        )
    return {
        "episodes": episodes,
        "calls_per_step": max(calls),
        "max_calls": MAX_CALLS,
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "ratio": round(medians["one after another"] / medians["micro-batched"], 2),
        "ratio_all_at_once": round(medians["all at once"] / medians["micro-batched"], 2),
        "ratio_all_at_once_http": round(medians["all at once"] / medians["micro-batched, HTTP"], 2),
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table and the JSON line; 0 when the bar holds."""
    parser = command_line(__doc__)
    parser.add_argument("--model", type=Path, help="folder of MiniLM (unset: of scripts/models.py)")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    add_quick(parser, episodes=8, rounds=1)
    arguments = parser.parse_args(argv)
    model = arguments.model or models.minilm()
    with embedding_server(model) as url:
        figures = asyncio.run(measure(model, url, arguments.episodes, arguments.rounds))
    figures["holds"] = (
        figures["calls_per_step"] <= MAX_CALLS
        and figures["ratio"] >= MIN_RATIO
        and figures["ratio_all_at_once"] >= MIN_AT_ONCE
    )
    return last_line(figures)


if __name__ == "__main__":
    raise SystemExit(main())
