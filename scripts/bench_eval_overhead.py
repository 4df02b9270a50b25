"""Bar: an evaluation takes at most 1.10 times the least time that a server of 1,000 calls a second allows it.

    python scripts/bench_eval_overhead.py [--rate 1000] [--clients N] [--embedder minilm|hashing] [--tokenizer DIR]

2,000 episodes of 12 steps against a simulated server (scripts/simulated_server.py, another process on this machine,
over HTTP), which takes `LATENCY` seconds for a completion and works on as many at a time as make its rate: 1,000
completions of some 1,200 + 130 tokens a second are the work of dozens of large GPUs with a model of 8B parameters. It
does not read its prompts, which would take more of this machine than the evaluation does. Measured is
`atommem.eval.runner.evaluate` as a whole, with everything that a real run does: chunks, prompts and their tokens,
actions, all-MiniLM-L6-v2 for every entry and query, store, retrieval, scores, fact recall, a trace and a line on disk
for every episode, the summary. `--clients` processes have each their part of the tasks, a policy and an embedder of
their own; the clock runs from the moment at which all of them are ready until the last one ends.

The last line also has the processor's milliseconds a call, of the clients and of the embedder alone, and
``possible_rate``: what this machine's cores could reach at these, if nothing else ran. Where it is below the rate, the
bar cannot be held here, however little time the program loses.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import models
from agents import make_agent
from peak_memory import peak_megabytes
from quick import add_quick, command_line, last_line
from simulated_server import SimulatedServer, Simulation
from transformers import AutoTokenizer

from atommem.config import EmbedderConfig
from atommem.embedding import make_embedder
from atommem.envs.chunking import document_text
from atommem.envs.synthetic.world import WorldConfig, make_task
from atommem.envs.task import Task
from atommem.episode_runner import EpisodeRunner
from atommem.eval.runner import evaluate
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server import ServerPolicy
from atommem.session import ENCODE_THREADS

EPISODES, CHUNKS, QUESTIONS = 2000, 10, 2
STEPS = CHUNKS + QUESTIONS
CHUNK_TOKENS = 700
RATE, LATENCY = 1000.0, 0.5
MOST_RATIO, MOST_MEMORY = 1.10, 2e9
WORLD = WorldConfig(
    questions=(QUESTIONS, QUESTIONS), distractors=38, facts_per_document=1, filler=10
)
"""Documents of some 100 tokens, as long as HotpotQA's paragraphs."""
CHARACTERS_PER_TOKEN = 3.9
"""Of this world's text, roughly."""
_GATE: Any = None
"""In a client's process: where the clients wait until all are ready."""


def make_tasks(count: int) -> Iterator[Task]:
    """Tasks whose text has some `CHUNKS` - 0.5 chunks."""
    for index in range(count):
        task = make_task(WORLD, 0, index)
        lengths = accumulate(len(document_text(document, 10)) for document in task.documents)
        room = (CHUNKS - 0.5) * CHUNK_TOKENS * CHARACTERS_PER_TOKEN
        kept = sum(length <= room for length in lengths)
        assert kept < len(task.documents), "the world's text is too short"
        yield replace(task, documents=task.documents[:kept])


class InLoop:
    """The simulated server without HTTP."""

    def __init__(self, simulation: Simulation, tokenizer: Any) -> None:
        self._simulation = simulation
        self._tokenizer = tokenizer

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """What the server answers."""
        token_ids = await self._simulation.complete(prompt_ids)
        return Completion(
            token_ids, [-0.25] * len(token_ids), self._tokenizer.decode(token_ids), "stop"
        )

    async def close(self) -> None:
        """Nothing to free."""


def timed(embedder: Any) -> list[float]:
    """Have the embedder's own thread note the processor seconds of its calls in the list that is returned."""
    inner, seconds = getattr(embedder, "embedder", embedder), [0.0]
    call = getattr(inner, "_encode", None)
    if call is None:  # hashing works in the event loop
        return seconds

    def noted(*arguments: Any) -> Any:
        began = time.thread_time()
        try:
            return call(*arguments)
        finally:
            seconds[0] += time.thread_time() - began

    inner._encode = noted
    return seconds


async def measure(
    url: str, options: argparse.Namespace, tasks: Sequence[Task], in_flight: int
) -> dict[str, float]:
    """The figures of one client, which begins when all are ready."""
    tokenizer: Any = AutoTokenizer.from_pretrained(options.tokenizer)
    config = EmbedderConfig(embedder="hashing", embedder_dim=384)
    if options.embedder == "minilm":
        config = EmbedderConfig(
            embedder="sentence_transformer", embedder_model=str(models.minilm())
        )
    embedder = make_embedder(config)
    await embedder.embed(["the first call takes longer"], "entry")
    embedding = timed(embedder)
    policy = ServerPolicy(url, tokenizer=tokenizer, max_in_flight=in_flight)
    settings = {"chunk_tokens": CHUNK_TOKENS, "max_reads": 0, "temperature": 0.0, "seed": 0}
    agent = make_agent(policy, embedder, tokenizer, stored=settings, encode_threads=ENCODE_THREADS)
    runner = EpisodeRunner(agent, max_in_flight=in_flight)
    await policy.model_name()  # as the command does
    _GATE.wait()
    cpu = time.process_time()
    with tempfile.TemporaryDirectory() as out:
        result = await evaluate(tasks, runner, Path(out, "out"), progress=False)
    cpu = time.process_time() - cpu
    for item in (agent.environments, policy, embedder):
        await item.close()
    assert result.failed == 0, next(record.error for record in result.records if record.failed)
    assert all(record.sums["steps"] == STEPS for record in result.records)
    return {
        "cpu": cpu,
        "embedding": embedding[0],
        "memory": peak_megabytes() * 2**20,
        "prompt_tokens": sum(record.prompt_tokens for record in result.records),
        "completion_tokens": sum(record.completion_tokens for record in result.records),
    }


def client(url: str, options: argparse.Namespace, part: int, in_flight: int) -> dict[str, float]:
    """One of them, in a process of its own."""
    tasks = list(make_tasks(options.episodes))[part :: options.clients]
    return asyncio.run(measure(url, options, tasks, in_flight))


def share_gate(gate: Any) -> None:
    """Let this process know where the clients wait for each other."""
    global _GATE
    _GATE = gate


def run_clients(
    url: str, options: argparse.Namespace, in_flight: int
) -> tuple[float, list[dict[str, float]]]:
    """Seconds until the last of the clients has ended, and the figures of each."""
    context = get_context("spawn")
    gate, count = context.Barrier(options.clients + 1, timeout=600), options.clients
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=share_gate, initargs=(gate,)
    ) as pool:
        running = [
            pool.submit(client, url, options, part, -(-in_flight // count)) for part in range(count)
        ]
        gate.wait()
        began = time.perf_counter()
        figures = [one.result() for one in running]
        return time.perf_counter() - began, figures


def main() -> int:
    """Measure, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="a model folder (unset: SmolLM2, of scripts/models.py)"
    )
    parser.add_argument("--embedder", default="minilm", choices=("minilm", "hashing"))
    parser.add_argument(
        "--rate", type=float, default=RATE, help="completions a second that the server allows"
    )
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument(
        "--clients", type=int, default=os.cpu_count() or 1, help="processes that evaluate"
    )
    add_quick(parser, episodes=4, rate=20.0, clients=1, embedder="hashing")
    options = parser.parse_args()
    options.tokenizer = options.tokenizer or models.smollm2()
    # Processes side by side, each with one thread: more would take the cores from each other.
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.embedder == "minilm":
        models.minilm()
    concurrency = max(1, round(options.rate * LATENCY))
    bound = max(options.episodes * STEPS / options.rate, STEPS * LATENCY)
    print(f"{options.episodes} episodes of {STEPS} steps: at least {bound:.1f} s", flush=True)
    with SimulatedServer(options.tokenizer, LATENCY, concurrency, prepared=True) as server:
        seconds, clients = run_clients(server.url, options, 2 * concurrency)
    calls = options.episodes * STEPS
    total = {name: sum(client[name] for client in clients) for name in clients[0]}
    result: dict[str, Any] = {
        "episodes": options.episodes,
        "steps": STEPS,
        "rate": options.rate,
        "clients": options.clients,
        "embedder": options.embedder,
        "bound_seconds": bound,
        "seconds": round(seconds, 2),
        "ratio": round(seconds / bound, 4),
        "calls_per_second": round(calls / seconds, 1),
        "cpu_ms_per_call": round(1000 * total["cpu"] / calls, 3),
        "of_these_embedding": round(1000 * total["embedding"] / calls, 3),
        "possible_rate": round((os.cpu_count() or 1) * calls / total["cpu"], 1),
        "prompt_tokens_per_call": round(total["prompt_tokens"] / calls),
        "completion_tokens_per_call": round(total["completion_tokens"] / calls),
        "peak_memory_gb": round(max(client["memory"] for client in clients) / 1e9, 3),
        "load_average": round(os.getloadavg()[0], 1),
    }
    for name, value in result.items():
        print(f"{name:<28}{value}")
    result["holds"] = (
        (options.episodes, options.rate, options.embedder) == (EPISODES, RATE, "minilm")
        and result["ratio"] <= MOST_RATIO
        and result["peak_memory_gb"] * 1e9 < MOST_MEMORY
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
