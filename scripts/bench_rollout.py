"""What the prompt layout and free-running episodes save on a real vLLM server.

    python scripts/bench_rollout.py [--model DIR]

SmolLM2-135M in float32 on CPU, through the one episode loop, 16 episodes of one task at the same time.

1. Layout. With the chunk first (`prefix`) the 16 episodes share almost the whole prompt; with the memory first
   (`paper`) they share only what comes before it. Prompt tokens that the server computed are its own count: prompt
   tokens minus those that its prefix cache served. Completions have 48 tokens each. A model of this size writes no
   memory actions, so what it sampled is put into them here: it becomes scratchpad and entry, and every episode has
   a memory of its own. On the first chunk all memories are still empty and the layouts cost the same, so the first
   notes are random words and it is not sampled: the figures are those of the chunks after it. With chunks of 3,600
   tokens only tokens are counted, on a one-layer model of the same shape: how many tokens are computed does not
   depend on weights.
2. Free-running against a barrier. Both have the same number of episodes in flight. Free, each goes on by itself, and
   the next one begins where one ends; with a barrier, as in a loop over batches, all of a batch wait after every
   step for the slowest. Completions have the lengths of a real run (`LENGTHS`; ``--record`` makes such a list).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from vllm_process import VllmServer

from atommem.config import MemoryConfig
from atommem.embedding.hashing import HashingEmbedder
from atommem.environment import environment_config, make_environments
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Document, Task
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner, Limits
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.policy.server import ServerPolicy
from atommem.session import Agent

PARTS = ("layout", "barrier", "long")
GROUP = 16
COMPLETION_TOKENS = 48
CHUNKS = 3
MOST_COMPUTED = {900: 1 / 3, 3600: 1 / 4}
WORDS = ("river", "house", "music", "winter", "train", "garden", "letter", "stone", "market", "light")
LEAST_LAYOUT_SPEED = 2.5
LEAST_FREE_SPEED = 1.4
ONE_LAYER = ("--load-format", "dummy", "--hf-overrides", '{"num_hidden_layers": 1}')
# fmt: off
LENGTHS = (
    218, 9, 22, 512, 512, 151, 194, 512, 200, 19, 53, 227,
    20, 505, 219, 512, 512, 191, 146, 86, 512, 512, 94, 512, 512, 31, 512, 6, 168, 512, 40, 33,
)
# fmt: on
"""Tokens of the completions of SmolLM2-135M-Instruct at temperature 1 in 32 steps on the synthetic world, at most 512
each: what ``--record`` printed."""
EPISODES, IN_FLIGHT, STEPS = 24, 4, 2
"""Of the second part. Where arithmetic bounds a step, as on two processors, a batch that a barrier empties has cheaper
steps, and a barrier costs less than on a GPU; few rows are nearer to one."""


class FixedLength(httpx.AsyncBaseTransport):
    """Makes the server sample exactly ``max_tokens`` tokens, whatever they are."""

    def __init__(self) -> None:
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request with vLLM's own two fields for that."""
        if request.url.path == "/v1/completions":
            body = json.loads(request.content)
            body |= {"min_tokens": body["max_tokens"], "ignore_eos": True}
            headers = {key: value for key, value in request.headers.items() if key != "content-length"}
            request = httpx.Request(
                request.method, request.url, headers=headers, json=body, extensions=request.extensions
            )
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class NoteTaker:
    """Puts what the policy sampled into memory actions, so that every episode has a memory of its own.

    The first request of each episode is not sampled: random words are its completion.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._begun = 0

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """The policy's tokens; their text as scratchpad, entry and query."""
        if self._begun < GROUP:
            self._begun += 1
            words = random.Random(sampling.seed).choices(WORDS, k=COMPLETION_TOKENS)
            completion = Completion([0], [0.0], " ".join(words), "stop")
        else:
            completion = await self.policy.complete(prompt_ids, sampling)
        note = completion.text.replace("<", " ")
        text = (
            f"<update_scratchpad>{note}</update_scratchpad><create_memory>{note}</create_memory>"
            f"<read_memory>{note[:20]}</read_memory>"
        )
        return replace(completion, text=text)

    async def close(self) -> None:
        """The policy's."""
        await self.policy.close()


class Drawn:
    """Gives every request a length from `LENGTHS`, drawn by its seed: the same in whichever order they come."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample as many tokens as the request's seed draws."""
        length = random.Random(sampling.seed).choice(LENGTHS)
        return await self.policy.complete(prompt_ids, replace(sampling, max_tokens=length, seed=None))

    async def close(self) -> None:
        """The policy's."""
        await self.policy.close()


class Barrier:
    """Holds every request until all episodes have made theirs: step by step, as a loop over batches does."""

    def __init__(self, policy: Policy, episodes: int) -> None:
        self.policy = policy
        self._barrier = asyncio.Barrier(episodes)

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample when everybody is here. All episodes must have the same number of steps."""
        await self._barrier.wait()
        return await self.policy.complete(prompt_ids, sampling)

    async def close(self) -> None:
        """The policy's."""
        await self.policy.close()


@dataclass(frozen=True)
class Measured:
    """One rollout on a server."""

    seconds: float
    prompt_tokens: int
    computed_tokens: int
    completion_tokens: int
    own_tokens: float
    episodes: list[Episode]


def long_task(tokenizer: Any, tokens: int) -> Task:
    """A task of the synthetic world whose document goes on for at least `tokens` tokens."""
    world = WorldConfig(prose="plain", filler=6)
    tasks = list(generate(world, 400, 7))
    documents: list[Document] = []
    while sum(len(tokenizer.encode(document.text)) for document in documents) < tokens:
        documents += tasks[len(documents) % len(tasks)].documents
    return replace(tasks[0], documents=tuple(documents))


async def rollout(
    server: VllmServer,
    tokenizer: Any,
    batches: Sequence[Sequence[tuple[Task, int]]],
    *,
    layout: str = "prefix",
    chunk_tokens: int,
    steps: int,
    max_tokens: int,
    around: Callable[[Policy], Policy],
    fixed: bool = True,
    in_flight: int | None = None,
) -> Measured:
    """Episodes of `steps` steps each, one batch after the other, beginning with an empty prefix cache."""
    httpx.post(f"{server.url}/reset_prefix_cache", timeout=60).raise_for_status()
    policy = around(
        ServerPolicy(
            server.url, "policy", tokenizer=tokenizer, transport=FixedLength() if fixed else None, timeout=1800
        )
    )
    runner = EpisodeRunner(
        Agent(
            policy=policy,
            embedder=HashingEmbedder(256),
            tokenizer=tokenizer,
            environments=make_environments(environment_config("longdoc", chunk_tokens=chunk_tokens), tokenizer),
            memory=MemoryConfig(layout=layout, retrieve_k=1),
            sampling=Sampling(1.0, max_tokens=max_tokens, seed=1),
        ),
        limits=Limits(max_steps=steps),
        max_in_flight=in_flight,
    )
    before, started = server.metrics(), time.perf_counter()
    episodes = [episode for batch in batches for episode in await runner.run_all(batch)]
    seconds, after = time.perf_counter() - started, server.metrics()
    await policy.close()
    assert all(len(episode.steps) == steps for episode in episodes), [episode.error for episode in episodes]
    sampled = [step for episode in episodes for step in episode.steps if len(step.token_ids) > 1]
    last = [episode.steps[-1].prompt_ids for episode in episodes]
    computed = {name: int(after[name] - before[name]) for name in after if name.endswith("_total") and name in before}
    return Measured(
        seconds,
        sum(step.prompt_tokens for step in sampled),
        computed["vllm:prompt_tokens_total"] - computed["vllm:prefix_cache_hits_total"],
        sum(len(step.token_ids) for step in sampled),
        own_tokens(last),
        episodes,
    )


def own_tokens(prompts: list[list[int]]) -> float:
    """Tokens of a prompt that it does not share with the others: mean length minus the common beginning and end."""
    shared = common(prompts) + common([prompt[::-1] for prompt in prompts])
    return sum(map(len, prompts)) / len(prompts) - shared


def common(sequences: list[list[int]]) -> int:
    """Length of the longest common beginning."""
    count = 0
    for column in zip(*sequences, strict=False):
        if len(set(column)) > 1:
            break
        count += 1
    return count


def serve(model: Path, log: Path, longest: int, *flags: str) -> VllmServer:
    """A server in float32 whose prefix cache can be emptied."""
    tokens = ["--max-model-len", str(longest), "--max-num-batched-tokens", str(longest), "--block-size", "32"]
    # vLLM would pin its worker to one core, where its other threads wait for the same one.
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "4", **threads}
    return VllmServer(model, log, *tokens, *flags, env=env)


def compare_layouts(server: VllmServer, tokenizer: Any, chunk_tokens: int, chunks: int) -> dict[str, float]:
    """Both layouts on the same document; prints a line each."""
    group = [(long_task(tokenizer, chunk_tokens * chunks), sample) for sample in range(GROUP)]
    found: dict[str, Measured] = {}
    for layout in ("paper", "prefix"):
        found[layout] = measured = asyncio.run(
            rollout(
                server,
                tokenizer,
                [group],
                layout=layout,
                chunk_tokens=chunk_tokens,
                steps=chunks,
                max_tokens=COMPLETION_TOKENS,
                around=NoteTaker,
            )
        )
        print(
            f"chunk {chunk_tokens:>5}  {layout:<7}{measured.prompt_tokens:>9} prompt tokens, "
            f"{measured.computed_tokens:>7} computed{measured.seconds:>8.1f} s  "
            f"({measured.own_tokens:.0f} tokens of a prompt are its own)",
            flush=True,
        )
    paper, prefix = found["paper"], found["prefix"]
    return {
        "computed_ratio": prefix.computed_tokens / paper.computed_tokens,
        "speed": paper.seconds / prefix.seconds,
        "computed_paper": paper.computed_tokens,
        "computed_prefix": prefix.computed_tokens,
        "seconds_paper": round(paper.seconds, 1),
        "seconds_prefix": round(prefix.seconds, 1),
    }


def compare_barrier(server: VllmServer, tokenizer: Any, steps: int) -> dict[str, float]:
    """The same completions free-running and step by step; short chunks, so that sampling is what takes time."""
    task = long_task(tokenizer, 60 * steps)
    jobs = [(task, sample) for sample in range(EPISODES)]
    ways: dict[str, tuple[Callable[[Policy], Policy], int]] = {
        "free": (Drawn, EPISODES),
        "barrier": (lambda policy: Barrier(Drawn(policy), IN_FLIGHT), IN_FLIGHT),
    }
    seconds: dict[str, float] = {}
    for name, (around, batch) in ways.items():
        batches = [jobs[start : start + batch] for start in range(0, EPISODES, batch)]
        measured = asyncio.run(
            rollout(
                server,
                tokenizer,
                batches,
                chunk_tokens=60,
                steps=steps,
                max_tokens=max(LENGTHS),
                around=around,
                in_flight=IN_FLIGHT,
            )
        )
        seconds[name] = measured.seconds
        print(
            f"{name:<8}{measured.completion_tokens:>7} tokens in {EPISODES} episodes of {steps} steps, "
            f"{IN_FLIGHT} at a time{measured.seconds:>8.1f} s",
            flush=True,
        )
    return {"speed": seconds["barrier"] / seconds["free"], **{f"seconds_{k}": round(v, 1) for k, v in seconds.items()}}


def record(server: VllmServer, tokenizer: Any) -> None:
    """Print the lengths of completions as the model samples them."""
    group = [(long_task(tokenizer, 2 * 200), sample) for sample in range(GROUP)]
    measured = asyncio.run(
        rollout(
            server,
            tokenizer,
            [group],
            chunk_tokens=200,
            steps=2,
            max_tokens=512,
            around=lambda policy: policy,
            fixed=False,
        )
    )
    print([len(step.token_ids) for episode in measured.episodes for step in episode.steps])


def holds(result: dict[str, Any]) -> bool:
    """Whether every part that was run keeps its bar."""
    kept = [
        result[f"chunk_{chunk}"]["computed_ratio"] <= most
        for chunk, most in MOST_COMPUTED.items()
        if f"chunk_{chunk}" in result
    ]
    if "chunk_900" in result:
        kept.append(result["chunk_900"]["speed"] >= LEAST_LAYOUT_SPEED)
    if "free_running" in result:
        kept.append(result["free_running"]["speed"] >= LEAST_FREE_SPEED)
    return all(kept)


def main() -> int:
    """Run both parts, print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("runs/smollm2"), help="Folder of scripts/smollm2.py.")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_rollout"))
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="What to measure (all).")
    parser.add_argument("--steps", type=int, default=STEPS, help="Steps of an episode in the second part.")
    parser.add_argument("--record", action="store_true", help="Only print lengths of completions of a real run.")
    options = parser.parse_args()
    from smollm2 import main as make_model
    from transformers import AutoTokenizer

    make_model([str(options.model)])
    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    result: dict[str, Any] = {}
    if options.record or {"layout", "barrier"} & set(options.parts):
        with serve(options.model, options.out / "server.log", 2048) as server:
            if options.record:
                record(server, tokenizer)
                return 0
            if "layout" in options.parts:
                result["chunk_900"] = compare_layouts(server, tokenizer, 900, options.chunks)
            if "barrier" in options.parts:
                result["free_running"] = compare_barrier(server, tokenizer, options.steps)
    if "long" in options.parts:
        with serve(options.model, options.out / "server_3600.log", 5120, *ONE_LAYER) as server:
            result["chunk_3600"] = compare_layouts(server, tokenizer, 3600, options.chunks)
    result["seconds"] = round(time.perf_counter() - began, 1)
    result["holds"] = holds(result)
    print(json.dumps(result))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
