"""One of two vLLM servers is killed in the middle of a run, and is started again later.

    python scripts/bench_server_loss.py [--out DIR] [--cold_start DIR]

Episodes run greedily, `IN_FLIGHT` at a time; after a while one server gets a ``kill -9``, later it is started again.
The run must go on with the server that is left; no episode may fail, or score less than it does undisturbed; and once
the server is back, completions must come as fast as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents import make_agent
from quick import add_quick, command_line, last_line
from tiny_policy import RECIPE, cold_start
from transformers import AutoTokenizer
from vllm_process import VllmServer

from atommem.config import load_config
from atommem.demo.recipe import quick
from atommem.envs.synthetic.world import generate
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.policy.contract import Completion, Sampling
from atommem.policy.server_pool import ServerPool

LEAST_RECOVERY = 0.8
"""Throughput once both servers work again, as a part of that before the loss."""
IN_FLIGHT = 64
PHASE_SECONDS, WARM_UP_SECONDS = 12.0, 8.0
"""How long throughput is measured; a server compiles at its first requests."""
TASKS = 4
"""The stream of tasks of this bench: none that the policy was trained on."""


@dataclass
class Clock:
    """A policy that notes when each completion came, around the pool."""

    pool: ServerPool
    times: list[float] = field(default_factory=list)

    async def complete(self, prompt_ids: list[int], sampling: Sampling) -> Completion:
        """The pool's."""
        completion = await self.pool.complete(prompt_ids, sampling)
        self.times.append(time.perf_counter())
        return completion

    async def close(self) -> None:
        """The pool's."""
        await self.pool.close()

    def rate(self, start: float, end: float) -> float:
        """Completions per second between two moments."""
        return sum(start <= moment < end for moment in self.times) / (end - start)


class Run:
    """Episodes on both servers.

    Args:
        servers: Running.
        model: The policy's folder.
    """

    def __init__(self, servers: Sequence[VllmServer], model: Path) -> None:
        self.servers = servers
        tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.clock = Clock(
            ServerPool(
                [server.url for server in servers],
                "policy",
                tokenizer=tokenizer,
                max_in_flight=1024,
            )
        )
        settings = {**load_config(model), "temperature": 0.0, "max_tokens": 48}
        agent = make_agent(self.clock, None, tokenizer, stored=settings)
        self.runner = EpisodeRunner(agent, max_in_flight=IN_FLIGHT)

    async def episodes(
        self, tasks: Iterable[Any], enough: asyncio.Event | None = None
    ) -> list[Episode]:
        """One episode of each task, `IN_FLIGHT` at a time, in the order of `tasks`; none begins after `enough`."""
        waiting = iter(tasks)
        done: dict[str, Episode] = {}

        async def one_after_the_other() -> None:
            for task in waiting:
                if enough is not None and enough.is_set():
                    return
                done[task.id] = await self.runner.run(task)

        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(one_after_the_other())
        return list(done.values())


async def disturbed(
    run: Run, tasks: Sequence[Any], phase: float
) -> tuple[list[Episode], dict[str, float]]:
    """The run with the loss. Returns its episodes, and the completions per second of its phases."""
    enough = asyncio.Event()
    began = time.perf_counter()
    work = asyncio.create_task(run.episodes(tasks, enough))
    await asyncio.sleep(phase)
    killed = time.perf_counter()
    run.servers[0].kill()
    print(f"killed {run.servers[0].url} after {killed - began:.0f} s", flush=True)
    # What one server does alone, before the start of the other one takes its part of the processors.
    await asyncio.sleep(phase)
    restarted = time.perf_counter()
    await asyncio.to_thread(run.servers[0].start)
    run.servers[0].give_way()
    while len(run.clock.pool.serving) < 2:
        await asyncio.sleep(0.1)
    back = time.perf_counter()
    print(f"it serves again after {back - killed:.0f} s", flush=True)
    await asyncio.sleep(WARM_UP_SECONDS)
    warm = time.perf_counter()
    await asyncio.sleep(phase)
    end = time.perf_counter()
    enough.set()
    rate = run.clock.rate
    return await work, {
        "before": rate(began, killed),
        "lost": rate(killed, restarted),
        "restarting": rate(restarted, back),
        "after": rate(warm, end),
    }


def main() -> int:
    """Run both, print the table and the JSON line."""
    parser = command_line(__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench_server_loss"))
    parser.add_argument(
        "--cold_start", type=Path, help="A policy of scripts/tiny_policy.py (unset: made in OUT)."
    )
    parser.add_argument(
        "--compared", type=int, default=400, help="Episodes that are run undisturbed as well."
    )
    parser.add_argument(
        "--phase", type=float, default=PHASE_SECONDS, help="seconds that throughput is measured"
    )
    add_quick(parser, compared=20, phase=2.0, out=Path("runs/bench_server_loss_quick"))
    options = parser.parse_args()
    began = time.perf_counter()
    recipe = quick(RECIPE) if options.quick else RECIPE
    model = options.cold_start or cold_start(options.out / "policy", 0, recipe)
    tasks = list(generate(RECIPE.world, 20_000, TASKS))
    flags = [
        "--max-model-len",
        "256",
        "--max-num-seqs",
        "128",
        "--block-size",
        "32",
        "--disable-uvicorn-access-log",
    ]
    # Left to itself, vLLM would pin the workers of both servers to the same processor.
    env = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    servers = [VllmServer(model, options.out / f"server{i}.log", *flags, env=env) for i in range(2)]

    async def both() -> tuple[list[Episode], list[Episode], dict[str, float], int]:
        run = Run(servers, model)
        calm = await run.episodes(tasks[: options.compared])
        run.clock.times.clear()
        episodes, rates = await disturbed(run, tasks, options.phase)
        await run.clock.close()
        return calm, episodes, rates, run.clock.pool.drops

    try:
        for server in servers:
            server.start(wait=False)
        for server in servers:
            server.wait()
            server.give_way()  # to the one that is started again: on two processors it would take minutes
        calm, episodes, rates, lost = asyncio.run(both())
    finally:
        for server in servers:
            server.kill()
    for phase, rate in rates.items():
        print(f"completions per second, {phase:<12}{rate:>8.1f}")
    undisturbed = {episode.task_id: episode.reward or 0.0 for episode in calm}
    compared = [episode for episode in episodes if episode.task_id in undisturbed]
    result: dict[str, Any] = {
        "episodes": len(episodes),
        "servers_lost": lost,
        "failed": sum(episode.failed for episode in episodes),
        "compared": len(compared),
        "em_undisturbed": sum(undisturbed.values()) / len(undisturbed),
        "em": sum(episode.reward or 0.0 for episode in compared) / len(compared),
        "scored_less": sum(
            (episode.reward or 0.0) < undisturbed[episode.task_id] for episode in compared
        ),
        "completions_per_second": {name: round(value, 1) for name, value in rates.items()},
        "recovery": rates["after"] / rates["before"],
        "seconds": round(time.perf_counter() - began, 1),
    }
    result["holds"] = (
        lost >= 1
        and result["failed"] == 0
        and len(compared) == options.compared
        and result["scored_less"] == 0
        and result["recovery"] >= LEAST_RECOVERY
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
