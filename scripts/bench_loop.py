"""Bar: with 256 episodes in flight on an engine in this process, the event loop never stands still for over 50 ms.

    python scripts/bench_loop.py [--tokenizer DIR] [--episodes N] [--runs N] [--quick]

The policy is `VllmEnginePolicy`, tokens are SmolLM2's, episodes are of `longdoc` with prompts of some 1,200 tokens. The
engine is a double: a step of `BASE` seconds and `PER_PROMPT_TOKEN` for each prompt token that it reads (at most 8,192;
an 8B model on an H100), of which `IN_PYTHON` seconds hold the interpreter's lock, as vLLM's scheduler does; its real
kernels, which may hold other locks, are not there. A heartbeat asks the loop for its attention every millisecond; how
much longer one takes is a stall, whatever the cause: callbacks, the lock, the collector of garbage, or other programs
on this machine. A process that does nothing else beats beside it (`control_stall_ms`): what the machine alone does; and
`largest_work_ms` is what the loop's own thread computed at most between two beats.

Prompts are encoded in the loop (as training did), in threads (as it does) and in processes of their own: the choice
between the two is by these figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import models
from agents import make_agent
from quick import add_quick, command_line, last_line
from stalls import heartbeat
from transformers import AutoTokenizer

from atommem.embedding.hashing import HashingEmbedder
from atommem.envs.synthetic.world import WorldConfig, make_task
from atommem.episode_runner import EpisodeRunner
from atommem.garbage import no_full_collection
from atommem.policy.vllm_engine import VllmEnginePolicy
from atommem.session import ENCODE_THREADS, Agent

EPISODES, GROUP, MOST_STALL = 256, 16, 0.050
BASE, PER_PROMPT_TOKEN, IN_PYTHON, BATCHED_TOKENS = 0.015, 1e-5, 0.003, 8192
CHUNK_TOKENS = 900
WORLD = WorldConfig(questions=(2, 2), distractors=14, facts_per_document=1, filler=10)
SMALL_WORLD = WorldConfig(questions=(1, 1), distractors=2, facts_per_document=1, filler=10)
ENCODINGS = ("loop", "threads", "processes")


CONTROL = """
import signal, time
largest, stopped = 0.0, []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
while not stopped:
    before = time.perf_counter()
    time.sleep(0.001)
    largest = max(largest, time.perf_counter() - before - 0.001)
print(largest)
"""


class EngineDouble:
    """Answers with the given token ids, one token a step of each request, after its prompt has been read."""

    def __init__(self, answers: list[list[int]]) -> None:
        self.model_config = SimpleNamespace(max_model_len=32_768)
        self._answers = answers
        self._requests: dict[str, SimpleNamespace] = {}

    def add_request(self, name: str, prompt: Any, params: Any, lora_request: Any = None) -> None:
        """Queue a request."""
        ids = prompt["prompt_token_ids"]
        answer = self._answers[int(name) % len(self._answers)]
        self._requests[name] = SimpleNamespace(ids=ids, unread=len(ids), answer=answer, sampled=0)

    def step(self) -> list[Any]:
        """One step; those that have ended."""
        room, read = BATCHED_TOKENS, 0
        ended: list[Any] = []
        busy = time.perf_counter() + IN_PYTHON
        while time.perf_counter() < busy:
            pass
        for name, request in list(self._requests.items()):
            if request.unread:
                part = min(room, request.unread)
                request.unread, room, read = request.unread - part, room - part, read + part
                continue
            request.sampled += 1
            if request.sampled == len(request.answer):
                del self._requests[name]
                ended.append(self._output(name, request))
        time.sleep(BASE + PER_PROMPT_TOKEN * read)
        return ended

    def _output(self, name: str, request: Any) -> Any:
        sampled = SimpleNamespace(
            token_ids=request.answer,
            logprobs=[{token: SimpleNamespace(logprob=-0.25)} for token in request.answer],
            finish_reason="stop",
        )
        return SimpleNamespace(
            request_id=name,
            finished=True,
            prompt_token_ids=request.ids,
            num_cached_tokens=0,
            outputs=[sampled],
        )


def pretend_vllm() -> None:
    """A module of this name, with what `VllmEnginePolicy` takes from it."""
    vllm: Any = ModuleType("vllm")
    vllm.SamplingParams = lambda **fields: SimpleNamespace(**fields)
    sys.modules["vllm"] = vllm


def answering(draw: random.Random, index: int) -> str:
    """An answer, which counts once there is a question."""
    return "<final_answer>\\boxed{Rome}</final_answer>"


def answers_of(
    tokenizer: Any, count: int, ending: Callable[[random.Random, int], str]
) -> list[list[int]]:
    """What the engine answers: notes, and what `ending` makes of a draw and the answer's number."""
    draw = random.Random(0)
    texts = []
    for index in range(count):
        last = ending(draw, index)
        notes = " ".join(f"note {draw.randrange(10_000)}" for _ in range(draw.randrange(1, 5)))
        texts.append(
            f"<create_memory>{notes}</create_memory><update_scratchpad>{notes} {index}</update_scratchpad>"
            f"<read_memory>{notes[:20]}</read_memory>{last}"
        )
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


_BUILD: Callable[..., list[int]]


def _in_a_process(folder: str, make: Callable[[Any, Any, int], Agent]) -> None:
    global _BUILD
    _BUILD = make(AutoTokenizer.from_pretrained(folder), None, 0).prompts.build


def _build(observation: Any, view: Any) -> list[int]:
    return _BUILD(observation, view)


def agent_of(tokenizer: Any, policy: Any, threads: int) -> Agent:
    """As training makes it."""
    longdoc = {"chunking": "tokens", "chunk_tokens": CHUNK_TOKENS, "max_reads": 0}
    more: dict[str, Any] = {
        "encode_threads": threads,
        "keep_prompts": True,
        "temperature": 1.0,
        "seed": 0,
    }
    return make_agent(policy, HashingEmbedder(256), tokenizer, stored=longdoc, **more)


async def measure(
    folder: Path, encoding: str, episodes: int, world: WorldConfig
) -> dict[str, float]:
    """Run the episodes; returns the stalls in ms, and what the rollout took."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    policy = VllmEnginePolicy(EngineDouble(answers_of(tokenizer, 64, answering)), tokenizer)
    agent = agent_of(tokenizer, policy, ENCODE_THREADS if encoding == "threads" else 0)
    if encoding == "processes":
        pool = ProcessPoolExecutor(
            ENCODE_THREADS, initializer=_in_a_process, initargs=(str(folder), agent_of)
        )
        loop = asyncio.get_running_loop()
        empty = agent.new_memory().view()
        task = make_task(world, 0, 0)
        await agent.environments.prepare(task)
        await loop.run_in_executor(pool, _build, await agent.environments().reset(task), empty)
        agent._encoded = lambda *step: loop.run_in_executor(pool, _build, *step)  # type: ignore[method-assign,assignment]
    tasks = [make_task(world, 0, index) for index in range(episodes // GROUP)]
    done, beats = await watched(
        EpisodeRunner(agent).run_all([(task, n) for task in tasks for n in range(GROUP)])
    )
    await policy.close()
    if encoding == "processes":
        pool.shutdown()
    assert not any(episode.failed for episode in done)
    steps = sum(len(episode.steps) for episode in done)
    prompts = sum(step.prompt_tokens for episode in done for step in episode.steps)
    return {**beats, "steps": steps, "prompt_tokens_per_step": round(prompts / steps)}


async def watched(work: Coroutine[Any, Any, Any]) -> tuple[Any, dict[str, float]]:
    """The result of `work`, and the stalls of the loop while it ran."""
    async with heartbeat() as beats:
        await asyncio.sleep(0.05)
        control = subprocess.Popen(
            [sys.executable, "-c", CONTROL], stdout=subprocess.PIPE, text=True
        )
        await asyncio.sleep(0.2)  # until it has begun
        beats.clear()
        began = time.perf_counter()
        with no_full_collection():
            done = await work
        seconds = time.perf_counter() - began
        control.terminate()
    stalls = sorted(beats.stalls)
    return done, {
        "largest_stall_ms": round(1000 * stalls[-1], 1),
        "largest_work_ms": round(1000 * max(beats.computing), 1),
        "p99_stall_ms": round(1000 * stalls[int(0.99 * len(stalls))], 1),
        "control_stall_ms": round(1000 * float(control.communicate()[0]), 1),
        "seconds": round(seconds, 1),
    }


def main() -> int:
    """Measure, print a line for each run and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--tokenizer", type=Path, help="a model folder (unset: SmolLM2, of scripts/models.py)"
    )
    parser.add_argument("--episodes", type=int, default=EPISODES)
    parser.add_argument(
        "--runs", type=int, default=3, help="of each way to encode; the worst one counts"
    )
    add_quick(parser, episodes=32, runs=1)
    options = parser.parse_args()
    options.tokenizer = options.tokenizer or models.smollm2()
    pretend_vllm()
    world, encodings = (SMALL_WORLD, ["threads"]) if options.quick else (WORLD, list(ENCODINGS))
    result: dict[str, Any] = {
        "episodes": options.episodes,
        "load_average": round(os.getloadavg()[0], 1),
    }
    for encoding in encodings:
        found = []
        for _ in range(options.runs):
            found.append(asyncio.run(measure(options.tokenizer, encoding, options.episodes, world)))
            print(f"{encoding:<10}{found[-1]}", flush=True)
        result[encoding] = {name: [one[name] for one in found] for name in found[0]}
    result["largest_stall_ms"] = max(result["threads"]["largest_stall_ms"])
    result["holds"] = (
        options.episodes >= EPISODES and result["largest_stall_ms"] <= 1000 * MOST_STALL
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
