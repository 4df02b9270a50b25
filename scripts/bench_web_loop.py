"""Bar: with 256 web episodes in flight, under 1.5 GB and no stall of the event loop over 50 ms.

    python scripts/bench_web_loop.py [--tokenizer DIR] [--episodes N] [--runs N] [--quick]

As `bench_loop.py`, whose engine double, heartbeat and control these are, but the episodes search and read: `retrieve`
and `direct` (the guard, the fetch, HTML in processes of its own) on a cassette, against an engine on loopback in
another process, whose pages have some 900 tokens and arrive after `SECONDS`. Half of the calls are for what another
episode has asked for as well. Prompts are encoded in threads. Memory is the peak of this process's resident set (torch
and trl are in it, as they are in training: `megabytes_before`) and of the reading processes'; `control_stall_ms` is
what the machine alone does to a process that does nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import models
from agents import make_agent
from bench_loop import EngineDouble, answers_of, pretend_vllm, watched
from peak_memory import peak_megabytes
from quick import add_quick, command_line, last_line
from transformers import AutoTokenizer
from web_engine import engine_elsewhere, make_tasks

from atommem.embedding.hashing import HashingEmbedder
from atommem.episode_runner import EpisodeRunner
from atommem.policy.vllm_engine import VllmEnginePolicy
from atommem.session import ENCODE_THREADS

EPISODES, CALLS, SECONDS, PAGE_WORDS = 256, 6, 0.2, 400
MOST_STALL_MS, MOST_MEGABYTES = 50.0, 1500


def calling(url: str, draw: random.Random, index: int) -> str:
    """A call, half of them for pages that others read too."""
    name = f"page{index if index % 2 else draw.randrange(20)}"
    call = {"name": "visit", "arguments": {"page": f"{url}/{name}"}}
    if draw.random() < 0.3:
        call = {"name": "search", "arguments": {"query": name}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


async def measure(tokenizer: Any, url: str, folder: Path, episodes: int) -> dict[str, float]:
    """Run the episodes; the stalls in ms, and what was done."""
    policy = VllmEnginePolicy(
        EngineDouble(answers_of(tokenizer, episodes * CALLS, partial(calling, url))), tokenizer
    )
    agent = make_agent(
        policy,
        HashingEmbedder(64),
        tokenizer,
        encode_threads=ENCODE_THREADS,
        environment="web",
        max_tokens=2048,
        tools=["retrieve", "direct"],
        search_url=url,
        private_hosts=[url.removeprefix("http://")],
        obey_robots=False,
        cassette=str(folder / "cassette.db"),
        max_calls=CALLS,
        tool_requests=64,
        page_seconds=120.0,
        parse_seconds=60.0,
    )
    jobs = [(task, 0) for task in make_tasks(episodes, CALLS)]
    done, beats = await watched(EpisodeRunner(agent, max_in_flight=episodes).run_all(jobs))
    children = [
        child
        for file in Path("/proc/self/task").glob("*/children")
        for child in file.read_text().split()
    ]
    readers = [
        child
        for child in children
        if b"extract_worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    megabytes = sum(map(peak_megabytes, readers))
    await policy.close()
    await agent.environments.close()
    steps = [step for episode in done for step in episode.steps]
    pages = [piece for step in steps for piece in step.observation.stream if piece.name == "page"]
    return {
        **beats,
        "readers_megabytes": megabytes,
        "failed": sum(episode.failed for episode in done),
        "steps": len(steps),
        "pages_shown": len(pages),
        "prompt_tokens_per_step": round(sum(step.prompt_tokens for step in steps) / len(steps)),
    }


def main() -> int:
    """Measure, print a line for each run and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="a model folder (unset: SmolLM2, of scripts/models.py)"
    )
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument("--runs", type=int, default=3, help="the worst one counts")
    add_quick(parser, episodes=16, runs=1)
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer or models.smollm2())
    pretend_vllm()
    found = []
    with engine_elsewhere(PAGE_WORDS, SECONDS) as url:
        before = peak_megabytes()
        for _ in range(options.runs):
            with tempfile.TemporaryDirectory() as folder:
                found.append(asyncio.run(measure(tokenizer, url, Path(folder), options.episodes)))
            print(found[-1], flush=True)
    megabytes = peak_megabytes() + max(one["readers_megabytes"] for one in found)
    largest = max(one["largest_stall_ms"] for one in found)
    holds = (
        options.episodes >= EPISODES
        and largest <= MOST_STALL_MS
        and megabytes < MOST_MEGABYTES
        and not any(one["failed"] for one in found)
    )
    result: dict[str, Any] = {
        "episodes": options.episodes,
        "load_average": round(os.getloadavg()[0], 1),
    }
    result |= {name: [one[name] for one in found] for name in found[0]}
    result |= {
        "largest_stall_ms": largest,
        "megabytes_before": round(before),
        "megabytes": round(megabytes),
        "holds": holds,
    }
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
