"""Does the prompt layout let vLLM's prefix cache serve a group?

    python scripts/bench_rollout.py [--model DIR]

SmolLM2-135M in float32 behind vLLM on CPU, through the one episode loop: 16 episodes of one task at
the same time. In the layout `prefix` (chunk first) they share almost the whole prompt, in `paper`
(memory first) only what precedes the memory. Computed prompt tokens are the server's own count:
prompt tokens minus prefix cache hits. Completions have 48 tokens; a model of this size writes no
actions, so what it samples becomes scratchpad, entry and query, and every episode has a memory of
its own. The first chunk, where all memories are empty, is not sampled. With chunks of 3,600 tokens
only tokens are counted, on one random layer of the same shape.

The bar: at most a third of the prompt tokens and 2.5 times the speed with chunks of 900, a fourth
of the tokens with 3,600.
"""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import models
from common import last_line, make_agent, read_options, vllm_server
from transformers import AutoTokenizer

from atommem.embedding.embedder import HashingEmbedder
from atommem.envs.synthetic.world import WorldConfig, generate
from atommem.envs.task import Document, Task
from atommem.episode import Episode
from atommem.policy import server as policy_server
from atommem.policy.contract import Completion, Policy, Sampling
from atommem.policy.server import completion_request
from atommem.rollout import EpisodeRunner, Limits

COMPLETION_TOKENS = 48
MOST_COMPUTED = {900: 1 / 3, 3600: 1 / 4}
LEAST_SPEED = 2.5
WORDS = ["river", "house", "music", "winter", "train"]
WORDS += ["garden", "letter", "stone", "market", "light"]
ONE_LAYER = ("--load-format", "dummy", "--hf-overrides", '{"num_hidden_layers": 1}')


class Wrapped:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    async def close(self) -> None:
        await self.policy.close()


class NoteTaker(Wrapped):
    """Writes what the policy samples into scratchpad, entry and query.

    The first request of each episode is not sampled: random words are its completion.
    """

    def __init__(self, policy: Policy, episodes: int) -> None:
        super().__init__(policy)
        self._unsampled = episodes

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        if self._unsampled:
            self._unsampled -= 1
            words = random.Random(sampling.seed).choices(WORDS, k=COMPLETION_TOKENS)
            completion = Completion([0], [0.0], " ".join(words), "stop")
        else:
            completion = await self.policy.complete(prompt_ids, sampling)
        note = completion.text.replace("<", " ")
        text = f"<update_scratchpad>{note}</update_scratchpad><create_memory>{note}</create_memory>"
        return replace(completion, text=f"{text}<read_memory>{note[:20]}</read_memory>")


@dataclass(frozen=True)
class Rollout:
    seconds: float
    prompt_tokens: int
    computed_tokens: int
    completion_tokens: int
    episodes: list[Episode]


def fixed_length_request(model: str, prompt_ids: list[int], sampling: Sampling) -> dict[str, Any]:
    body = completion_request(model, prompt_ids, sampling)
    return body | {"min_tokens": sampling.max_completion_length, "ignore_eos": True}


def long_task(tokenizer: Any, tokens: int) -> Task:
    """A task of the synthetic world with a document of at least `tokens` tokens."""
    tasks = list(generate(WorldConfig(prose="plain", filler=6), 400, 7))
    documents: list[Document] = []
    while sum(len(tokenizer.encode(document.text)) for document in documents) < tokens:
        documents += tasks[len(documents) % len(tasks)].documents
    return replace(tasks[0], documents=tuple(documents))


def metrics(url: str) -> dict[str, float]:
    text = httpx.get(f"{url}/metrics", timeout=60).raise_for_status().text
    lines = re.findall(r"^([\w:]+)(?:\{.*\})? (\S+)", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


async def rollout(
    server: Any,
    tokenizer: Any,
    jobs: Sequence[tuple[Task, int]],
    *,
    wrap: Callable[[Policy], Policy],
    steps: int,
    embedder: Any = None,
    **settings: Any,
) -> Rollout:
    httpx.post(f"{server.url}/reset_prefix_cache", timeout=60).raise_for_status()
    policy_server.completion_request = fixed_length_request
    settings_of: Any = {"tokenizer": tokenizer, "max_in_flight": 256, "timeout": 1800}
    policy = wrap(policy_server.ServerPolicy(server.url, "policy", **settings_of))
    stored = {**settings, "temperature": 1.0, "seed": 1}
    embedder = embedder or HashingEmbedder(256)
    agent = make_agent(policy, embedder, tokenizer, stored=stored, keep_prompts=True)
    before, started = metrics(server.url), time.perf_counter()
    episodes = await EpisodeRunner(agent, limits=Limits(max_steps=steps)).run_all(jobs)
    seconds, after = time.perf_counter() - started, metrics(server.url)
    await policy.close()
    assert all(len(episode.steps) == steps for episode in episodes), [e.error for e in episodes]
    sampled = [step for episode in episodes for step in episode.steps if len(step.token_ids) > 1]

    names = ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total")
    prompts, hits = (int(after[name] - before[name]) for name in names)
    shown = sum(step.prompt_tokens for step in sampled)
    written = sum(len(step.token_ids) for step in sampled)
    return Rollout(seconds, shown, prompts - hits, written, episodes)


def serve(model: Path, log: Path, longest: int, *options: str) -> Any:
    """A float32 server whose prefix cache can be emptied."""
    sizes = ["--max-model-len", str(longest), "--max-num-batched-tokens", str(longest)]
    fixed = ["--block-size", "32"]
    # vLLM would pin its worker to one core, where its other threads wait for the same one.
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    env |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "4"}
    return vllm_server(model, log, *sizes, *fixed, *options, env=env)


def compare_layouts(
    server: Any, tokenizer: Any, chunk: int, chunks: int, group: int
) -> dict[str, Any]:
    jobs = [(long_task(tokenizer, chunk * chunks), sample) for sample in range(group)]
    found: dict[str, Rollout] = {}
    for layout in ("paper", "prefix"):
        settings: dict[str, Any] = {"layout": layout, "chunk_tokens": chunk, "retrieve_k": 1}
        settings |= {"steps": chunks, "max_completion_length": COMPLETION_TOKENS}
        wrap = partial(NoteTaker, episodes=group)
        work = rollout(server, tokenizer, jobs, wrap=wrap, **settings)
        found[layout] = one = asyncio.run(work)
        numbers = one.prompt_tokens, one.computed_tokens, round(one.seconds, 1)
        print(f"chunk {chunk}, {layout}: prompt tokens, computed, seconds {numbers}", flush=True)
    paper, prefix = found["paper"], found["prefix"]
    ratio = prefix.computed_tokens / paper.computed_tokens
    return {"computed_ratio": ratio, "speed": paper.seconds / prefix.seconds}


def main() -> int:
    sizes = {"chunks": (3, 2), "group": (16, 2), "no_long": (False, True)}
    options = read_options(__doc__, **sizes, model=Path, output_dir=Path("runs/bench_rollout"))
    model = options.model or models.fetch("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(model)
    found: dict[int, dict[str, Any]] = {}
    with serve(model, options.output_dir / "server.log", 2048) as server:
        found[900] = compare_layouts(server, tokenizer, 900, options.chunks, options.group)
    if not options.no_long:
        with serve(model, options.output_dir / "server_3600.log", 5120, *ONE_LAYER) as server:
            found[3600] = compare_layouts(server, tokenizer, 3600, options.chunks, options.group)
    holds = all(one["computed_ratio"] <= MOST_COMPUTED[chunk] for chunk, one in found.items())
    holds = options.quick or (holds and found[900]["speed"] >= LEAST_SPEED)
    return last_line({"bench": "rollout", "chunks": found, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
