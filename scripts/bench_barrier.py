"""What free-running episodes save against the strongest barrier that a trainer has.

    python scripts/bench_barrier.py [--model DIR] [--parts simulated real]

Free, every episode goes on as soon as its own completion is there. The barrier is that of a loop which queues its whole
batch, step by step: the engine works on as many requests as it holds, takes the next one where one ends, and only the
step as a whole waits for its slowest completion. Both have the same requests, and the same limit on those in flight.

simulated   64 and 256 episodes of 8 steps; the engine works on 4, 16 or 64 at once and takes as long for a token
            whatever their number, as a GPU does that reads its weights for every token. An engine whose rows share its
            speed, as on a CPU, has less to lose: that is the real part. Completions are as long as those of a policy
            that has been trained (`TRAINED`: the demo's), and of one that has not (`UNTRAINED`: SmolLM2's).
real        24 episodes of 2 steps with SmolLM2's lengths on vLLM on this machine's CPU, at most 4 and 16 at once.

The last line is one JSON object; its "holds" is true if free-running is nowhere slower (3% for the clock). How much
faster it is stands there and is no bar: it depends on how many requests the engine holds.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_rollout import Wrapped, long_task, rollout, serve
from quick import add_quick, command_line, last_line

from atommem.policy.contract import Completion, Policy, Sampling

# fmt: off
UNTRAINED = (
    218, 9, 22, 512, 512, 151, 194, 512, 200, 19, 53, 227,
    20, 505, 219, 512, 512, 191, 146, 86, 512, 512, 94, 512, 512, 31, 512, 6, 168, 512, 40, 33,
)
# fmt: on
"""Tokens of the completions of SmolLM2-135M-Instruct at temperature 1 in 32 steps on the synthetic world, at most 512
each: what ``bench_rollout.py --record`` printed."""
TRAINED = (1,) * 37 + (6,) * 29 + (8,) * 14 + (9,) * 54 + (11,) * 9 + (14,) * 6
"""Those of the demo's trained policy: how often each length came in its 300 held-out episodes, in tens."""
LIMITS = (4, 16, 64)
BATCHES = (64, 256)
STEPS = 8
REPEATS = 20
NO_SLOWER = 0.97


class Drawn(Wrapped):
    """Gives every request a length from `UNTRAINED`, drawn by its seed: the same in whichever order they come."""

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample as many tokens as the request's seed draws."""
        length = random.Random(sampling.seed).choice(UNTRAINED)
        return await self.policy.complete(prompt_ids, Sampling(1.0, max_tokens=length))


class Barrier(Wrapped):
    """Holds every request until all episodes have made theirs: step by step, as a loop over batches does."""

    def __init__(self, policy: Policy, episodes: int) -> None:
        super().__init__(policy)
        self._barrier = asyncio.Barrier(episodes)

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """Sample when everybody is here. All episodes must have the same number of steps."""
        await self._barrier.wait()
        return await self.policy.complete(prompt_ids, sampling)


def makespan(lengths: Sequence[Sequence[int]], limit: int) -> int:
    """Ticks until all episodes have ended: `lengths` has a row an episode, with the ticks of its steps.

    At most `limit` steps are worked on at a time; what is ready first is taken first.
    """
    ready = [(0, episode, 0) for episode in range(len(lengths))]
    free = [0] * limit
    end = 0
    while ready:
        at, episode, step = heapq.heappop(ready)
        end_of_step = max(at, heapq.heappop(free)) + lengths[episode][step]
        heapq.heappush(free, end_of_step)
        end = max(end, end_of_step)
        if step + 1 < len(lengths[episode]):
            heapq.heappush(ready, (end_of_step, episode, step + 1))
    return end


def simulate(lengths: Sequence[int], limit: int, episodes: int) -> float:
    """How many times as fast free-running is, in the mean over `REPEATS` draws."""
    rng = random.Random(limit)
    speeds: list[float] = []
    for _ in range(REPEATS):
        drawn = [rng.choices(lengths, k=STEPS) for _ in range(episodes)]
        barrier = sum(makespan([[row[step]] for row in drawn], limit) for step in range(STEPS))
        speeds.append(barrier / makespan(drawn, limit))
    return sum(speeds) / len(speeds)


def measure(server: Any, tokenizer: Any, episodes: int, steps: int, limit: int) -> dict[str, float]:
    """The same completions free-running and step by step; short chunks, so that sampling is what takes time."""
    task = long_task(tokenizer, 60 * steps)
    jobs = [(task, sample) for sample in range(episodes)]
    seconds: dict[str, float] = {}
    for name in ("free", "barrier"):
        measured = asyncio.run(
            rollout(
                server,
                tokenizer,
                jobs,
                chunk_tokens=60,
                steps=steps,
                max_tokens=max(UNTRAINED),
                around=Drawn if name == "free" else lambda policy: Barrier(Drawn(policy), episodes),
                requests_in_flight=limit,
            )
        )
        seconds[name] = measured.seconds
        print(
            f"real       {name:<8}{measured.completion_tokens:>7} tokens in {episodes} episodes of {steps} steps, "
            f"at most {limit} at once{measured.seconds:>8.1f} s",
            flush=True,
        )
    return {
        "speed": seconds["barrier"] / seconds["free"],
        **{f"seconds_{k}": round(v, 1) for k, v in seconds.items()},
    }


def main() -> int:
    """Run both parts, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument(
        "--model", type=Path, help="folder of SmolLM2 (unset: of scripts/models.py)"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench_barrier"))
    parser.add_argument(
        "--parts", nargs="+", choices=("simulated", "real"), default=("simulated", "real")
    )
    parser.add_argument("--episodes", type=int, default=24, help="of the real part")
    parser.add_argument("--steps", type=int, default=2, help="of the real part")
    parser.add_argument("--limits", nargs="+", type=int, default=[4, 16], help="of the real part")
    add_quick(parser, parts=["simulated"])
    options = parser.parse_args()
    began = time.perf_counter()
    result: dict[str, Any] = {"bench": "barrier"}
    speeds: list[float] = []
    if "simulated" in options.parts:
        for name, lengths in (("trained", TRAINED), ("untrained", UNTRAINED)):
            for batch in BATCHES:
                found = {str(limit): round(simulate(lengths, limit, batch), 3) for limit in LIMITS}
                shown = "".join(
                    f"  {limit} at once: {speed:.3f}x" for limit, speed in found.items()
                )
                print(f"simulated  {name:<10}{batch:>4} episodes{shown}")
                result[f"{name}_{batch}"] = found
                speeds += found.values()
    if "real" in options.parts:
        import models
        from transformers import AutoTokenizer

        model = options.model or models.smollm2()
        tokenizer = AutoTokenizer.from_pretrained(model)
        with serve(model, options.out / "server.log", 2048) as server:
            for limit in options.limits:
                found = measure(server, tokenizer, options.episodes, options.steps, limit)
                result[f"real_{limit}"] = found
                speeds.append(found["speed"])
    result["seconds"] = round(time.perf_counter() - began, 1)
    result["holds"] = min(speeds) >= NO_SLOWER
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
