"""What the prompt layout saves on a real vLLM server.

    python scripts/bench_rollout.py [--model DIR]

SmolLM2-135M in float32 on CPU, through the one episode loop, 16 episodes of one task at the same time. With the chunk
first (`prefix`) they share almost the whole prompt; with the memory first (`paper`) only what comes before it. Prompt
tokens that the server computed are its own count: prompt tokens minus those that its prefix cache served. Completions
have 48 tokens each: with longer ones both layouts spend more on sampling, which is the same for both. A model of this
size writes no memory actions, so what it sampled is put into them here: it becomes scratchpad and entry, and every
episode has a memory of its own. On the first chunk all memories are still empty and the layouts cost the same, so the
first notes are random words and it is not sampled: the figures are those of the chunks after it. With chunks of 3,600
tokens only tokens are counted, on a one-layer model of the same shape: how many tokens are computed does not depend on
weights.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import models
from agents import make_agent
from quick import add_quick, command_line, last_line
from transformers import AutoTokenizer
from vllm_process import VllmServer

from atommem.embedding.embedder import Embedder
from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Document, Task
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner, Limits
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.policy.server import ServerPolicy

PARTS = ("layout", "long")
GROUP = 16
COMPLETION_TOKENS = 48
CHUNKS = 3
MOST_COMPUTED = {900: 1 / 3, 3600: 1 / 4}
WORDS = (
    "river",
    "house",
    "music",
    "winter",
    "train",
    "garden",
    "letter",
    "stone",
    "market",
    "light",
)
LEAST_LAYOUT_SPEED = 2.5
ONE_LAYER = ("--load-format", "dummy", "--hf-overrides", '{"num_hidden_layers": 1}')


class FixedLength(httpx.AsyncHTTPTransport):
    """Makes the server sample exactly ``max_tokens`` tokens, whatever they are."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request with vLLM's own two fields for that."""
        if request.url.path == "/v1/completions":
            body = json.loads(request.content)
            body |= {"min_tokens": body["max_tokens"], "ignore_eos": True}
            headers = {
                key: value for key, value in request.headers.items() if key != "content-length"
            }
            request = httpx.Request(
                request.method,
                request.url,
                headers=headers,
                json=body,
                extensions=request.extensions,
            )
        return await super().handle_async_request(request)


class Wrapped:
    """A policy around another one."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def close(self) -> None:
        """The policy's."""
        await self.policy.close()


class NoteTaker(Wrapped):
    """Puts what the policy sampled into memory actions, so that every episode has a memory of its own.

    The first request of each episode is not sampled: random words are its completion.
    """

    def __init__(self, policy: Policy, episodes: int) -> None:
        super().__init__(policy)
        self._left = episodes

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """The policy's tokens; their text as scratchpad, entry and query."""
        if self._left:
            self._left -= 1
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
    jobs: Sequence[tuple[Task, int]],
    *,
    layout: str = "prefix",
    chunk_tokens: int,
    steps: int,
    max_tokens: int,
    around: Callable[[Policy], Policy],
    fixed: bool = True,
    requests_in_flight: int = 256,
    embedder: Embedder | None = None,
    retrieve_k: int = 1,
) -> Measured:
    """Episodes of `steps` steps each, beginning with an empty prefix cache."""
    httpx.post(f"{server.url}/reset_prefix_cache", timeout=60).raise_for_status()
    policy = around(
        ServerPolicy(
            server.url,
            "policy",
            tokenizer=tokenizer,
            max_in_flight=requests_in_flight,
            transport=FixedLength() if fixed else None,
            timeout=1800,
        )
    )
    settings = {
        "layout": layout,
        "chunk_tokens": chunk_tokens,
        "retrieve_k": retrieve_k,
        "max_tokens": max_tokens,
    }
    sampled_with = {**settings, "temperature": 1.0, "seed": 1}
    agent = make_agent(
        policy, embedder or HashingEmbedder(256), tokenizer, stored=sampled_with, keep_prompts=True
    )
    runner = EpisodeRunner(agent, limits=Limits(max_steps=steps))
    before, started = server.metrics(), time.perf_counter()
    episodes = await runner.run_all(jobs)
    seconds, after = time.perf_counter() - started, server.metrics()
    await policy.close()
    assert all(len(episode.steps) == steps for episode in episodes), [
        episode.error for episode in episodes
    ]
    sampled = [step for episode in episodes for step in episode.steps if len(step.token_ids) > 1]
    last = [episode.steps[-1].prompt_ids for episode in episodes]
    computed = {
        name: int(after[name] - before[name])
        for name in after
        if name.endswith("_total") and name in before
    }
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
    tokens = [
        "--max-model-len",
        str(longest),
        "--max-num-batched-tokens",
        str(longest),
        "--block-size",
        "32",
    ]
    # vLLM would pin its worker to one core, where its other threads wait for the same one.
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    env = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "4", **threads}
    return VllmServer(model, log, *tokens, *flags, env=env)


def compare_layouts(
    server: VllmServer, tokenizer: Any, chunk_tokens: int, chunks: int, size: int
) -> dict[str, float]:
    """Both layouts on the same document; prints a line each."""
    group = [(long_task(tokenizer, chunk_tokens * chunks), sample) for sample in range(size)]
    found: dict[str, Measured] = {}
    for layout in ("paper", "prefix"):
        found[layout] = measured = asyncio.run(
            rollout(
                server,
                tokenizer,
                group,
                layout=layout,
                chunk_tokens=chunk_tokens,
                steps=chunks,
                max_tokens=COMPLETION_TOKENS,
                around=lambda policy: NoteTaker(policy, size),
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


def record(server: VllmServer, tokenizer: Any) -> None:
    """Print the lengths of completions as the model samples them."""
    group = [(long_task(tokenizer, 2 * 200), sample) for sample in range(GROUP)]
    measured = asyncio.run(
        rollout(
            server,
            tokenizer,
            group,
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
    return all(kept)


def main() -> int:
    """Run both parts, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder of SmolLM2 (unset: of scripts/models.py)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench_rollout"))
    parser.add_argument("--chunks", type=int, default=CHUNKS)
    parser.add_argument("--group", type=int, default=GROUP)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=PARTS, help="What to measure (all)."
    )
    parser.add_argument(
        "--record", action="store_true", help="Only print lengths of completions of a real run."
    )
    add_quick(parser, parts=["layout"], chunks=2, group=2)
    options = parser.parse_args()
    model = options.model or models.smollm2()
    began = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(model)
    result: dict[str, Any] = {"bench": "rollout"}
    if options.record or "layout" in options.parts:
        with serve(model, options.out / "server.log", 2048) as server:
            if options.record:
                record(server, tokenizer)
                return 0
            result["chunk_900"] = compare_layouts(
                server, tokenizer, 900, options.chunks, options.group
            )
    if "long" in options.parts:
        with serve(model, options.out / "server_3600.log", 5120, *ONE_LAYER) as server:
            result["chunk_3600"] = compare_layouts(
                server, tokenizer, 3600, options.chunks, options.group
            )
    result["seconds"] = round(time.perf_counter() - began, 1)
    result["holds"] = options.group == GROUP and holds(result)
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
