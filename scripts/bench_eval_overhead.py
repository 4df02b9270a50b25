"""Bar: 2,000 episodes of 12 steps against a simulated server take at most 1.10 times the least time that it allows.

    python scripts/bench_eval_overhead.py [--tokenizer DIR] [--in_loop]

The server (scripts/simulated_server.py) works on `CONCURRENCY` completions at a time and takes `LATENCY` seconds for
each: 128 completions of some 1,200 + 100 tokens a second, 40 ms a token. That is the work of several large GPUs with a
model of 8B parameters; with fewer or slower servers the bound is longer and the orchestration's share smaller.
Measured is `atommem.eval.runner.evaluate` as a whole, with everything that a real run does: chunks, prompts and their
tokens,
actions, store, retrieval, scores, fact recall, a trace and a line on disk for every episode, the summary.

The server is another process on the same machine, asked over HTTP with `ServerPolicy`. It takes a tenth of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import models
from quick import add_quick
from simulated_server import SimulatedServer, Simulation
from transformers import AutoTokenizer

from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.environment import environment_config, make_environments
from atommem.envs.chunking import document_text
from atommem.envs.scoring.records import EvalResult
from atommem.envs.synthetic.world import WorldConfig, make_task
from atommem.envs.task import Task
from atommem.episode_runner import EpisodeRunner
from atommem.eval.runner import evaluate
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.policy.server import ServerPolicy
from atommem.session import ENCODE_THREADS, Agent

EPISODES, CHUNKS, QUESTIONS = 2000, 10, 2
STEPS = CHUNKS + QUESTIONS
CHUNK_TOKENS = 700
LATENCY, CONCURRENCY, IN_FLIGHT = 4.0, 512, 1024
MOST_RATIO, MOST_MEMORY = 1.10, 2e9
WORLD = WorldConfig(questions=(QUESTIONS, QUESTIONS), distractors=38, facts_per_document=1, filler=10)
"""Documents of some 100 tokens, as long as HotpotQA's paragraphs."""
CHARACTERS_PER_TOKEN = 3.9
"""Of this world's text, roughly."""


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
        return Completion(token_ids, [-0.25] * len(token_ids), self._tokenizer.decode(token_ids), "stop")

    async def close(self) -> None:
        """Nothing to free."""


async def measure(policy: Policy, tokenizer: Any, tasks: Sequence[Task], out: Path) -> tuple[float, float, EvalResult]:
    """Wall-clock and CPU seconds of the evaluation of `tasks`, and its result."""
    environments = make_environments(environment_config("longdoc", chunk_tokens=CHUNK_TOKENS, max_reads=0), tokenizer)
    runner = EpisodeRunner(
        Agent(
            policy=policy,
            embedder=HashingEmbedder(256),
            tokenizer=tokenizer,
            environments=environments,
            encode_threads=ENCODE_THREADS,
            memory=MemoryConfig(),
            sampling=Sampling(temperature=0.0, seed=0),
        ),
        max_in_flight=IN_FLIGHT,
    )
    if isinstance(policy, ServerPolicy):
        await policy.model_name()  # as the command does
    began, cpu = time.perf_counter(), time.process_time()
    result = await evaluate(tasks, runner, out, progress=False)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    await environments.close()
    await policy.close()
    return seconds, cpu, result


def figures(seconds: float, cpu: float, result: EvalResult, bound: float) -> dict[str, float]:
    """What is reported of one measurement; all episodes must have run as they were meant to."""
    assert result.failed == 0, next(record.error for record in result.records if record.failed)
    assert all(record.sums["steps"] == STEPS for record in result.records)
    calls = len(result.records) * STEPS
    return {
        "seconds": round(seconds, 2),
        "ratio": round(seconds / bound, 4),
        "cpu_ms_per_call": round(1000 * cpu / calls, 3),
        "prompt_tokens_per_call": round(sum(record.prompt_tokens for record in result.records) / calls),
        "completion_tokens_per_call": round(sum(record.completion_tokens for record in result.records) / calls),
    }


def main() -> int:
    """Measure, print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, help="a model folder (unset: SmolLM2, of scripts/models.py)")
    parser.add_argument("--in_loop", action="store_true", help="the server as coroutines of this process, without HTTP")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--latency", type=float, default=LATENCY, help="seconds of a completion")
    add_quick(parser, episodes=4, latency=0.1)
    options = parser.parse_args()
    folder, latency = options.tokenizer or models.smollm2(), options.latency
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tasks = list(make_tasks(options.episodes))
    bound = max(options.episodes * STEPS * latency / CONCURRENCY, STEPS * latency)
    print(f"{options.episodes} episodes of {STEPS} steps: at least {bound:.1f} s", flush=True)
    with tempfile.TemporaryDirectory() as out:
        if options.in_loop:
            policy: Policy = InLoop(Simulation(tokenizer.backend_tokenizer, latency, CONCURRENCY), tokenizer)
            measured = asyncio.run(measure(policy, tokenizer, tasks, Path(out, "out")))
        else:
            with SimulatedServer(folder, latency, CONCURRENCY) as server:
                policy = ServerPolicy(server.url, tokenizer=tokenizer, max_in_flight=IN_FLIGHT)
                measured = asyncio.run(measure(policy, tokenizer, tasks, Path(out, "out")))
    result: dict[str, Any] = {
        "episodes": options.episodes,
        "steps": STEPS,
        "server": "in the loop" if options.in_loop else "http",
        "latency": latency,
        "concurrency": CONCURRENCY,
        "bound_seconds": bound,
        **figures(*measured, bound),
        "peak_memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3),
        "load_average": round(os.getloadavg()[0], 1),
    }
    for name, value in result.items():
        print(f"{name:<28}{value}")
    result["holds"] = (
        (options.episodes, latency) == (EPISODES, LATENCY)
        and result["ratio"] <= MOST_RATIO
        and result["peak_memory_gb"] * 1e9 < MOST_MEMORY
    )
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
