"""Bar: a request is made once, whoever asks; an evaluation is replayed byte for byte; a frozen web can be trained on.

    python scripts/bench_cassette.py [--quick]

1. `EPISODES` episodes in `PROCESSES` processes ask an engine on loopback (`/retrieve`, `/access`) for searches and
   pages that overlap, through one cassette. The engine counts: `distinct` requests must have reached it, each once.
2. An evaluation runs live and records, the engine is gone, and it runs again with `cassette_mode: replay` into another
   folder. Records and traces must be equal byte for byte, in whatever order, without the times that they hold.
3. The cassette is frozen, and two updates of GRPO run on `tools: [corpus]` over it. The policy is a random tiny one
   that hardly ever writes a call, so every episode begins on a frozen page (`metadata.start`); that training learns
   anything is not shown here, but by `bench_web.py`.
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from quick import add_quick, command_line, last_line
from toy_training import WORLD, toy_trainer
from web_engine import Engine, asking, make_tasks

from atommem.envs.synthetic.world import make_task
from atommem.envs.web.net.cassette import Cassette
from atommem.envs.web.net.freeze import freeze
from atommem.episode import Episode
from atommem.episode_runner import EpisodeRunner
from atommem.eval.runner import evaluate
from atommem.session import Agent

EPISODES, PROCESSES, CALLS, KINDS = 16, 4, 12, 30
_TIMES = re.compile(r'"[a-z_]*(?:seconds|started|time)":\s*[-0-9.e]+')


def call(episode: int, step: int) -> tuple[str, str]:
    """Searches and pages that other episodes want too."""
    draw = random.Random(f"{episode} {step}")
    number = draw.randrange(KINDS)
    return ("search", f"query {number}") if draw.random() < 0.5 else ("visit", f"page {number}")


def agent_of(url: str, cassette: str, **settings: Any) -> Agent:
    """Asks the engine through the cassette."""
    return asking(url, call, max_calls=CALLS, tool_retries=1, cassette=cassette, **settings)


def run_some(url: str, cassette: str, numbers: Sequence[int]) -> bool:
    """These episodes, together, in a process of their own; whether all were right."""

    async def run() -> list[Episode]:
        agent, tasks = agent_of(url, cassette), make_tasks(EPISODES, CALLS)
        done = await EpisodeRunner(agent).run_all([(tasks[number], 0) for number in numbers])
        await agent.environments.close()
        return done

    return all(episode.reward == 1.0 for episode in asyncio.run(run()))


def once(folder: Path, episodes: int) -> dict[str, Any]:
    """All processes at the same time."""
    engine = Engine(seconds=0.02)
    cassette = str(folder / "shared.db")
    began = time.perf_counter()
    shares = [range(first, episodes, PROCESSES) for first in range(PROCESSES)]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        right = list(pool.map(run_some, [engine.url] * PROCESSES, [cassette] * PROCESSES, shares))
    seconds = time.perf_counter() - began
    made = dict(engine.asked)
    engine.close()
    wanted = {call(episode, step) for episode in range(episodes) for step in range(CALLS)}
    return {
        "calls": episodes * CALLS,
        "distinct": len(wanted),
        "requests": sum(made.values()),
        "seconds": round(seconds, 1),
        "holds": all(right) and len(made) == len(wanted) and set(made.values()) == {1},
    }


def said(folder: Path) -> dict[str, str]:
    """What an evaluation's records and traces say, without times."""
    files = [file for file in sorted(folder.rglob("*.jsonl")) if file.is_file()]
    return {
        str(file.relative_to(folder)): "\n".join(
            sorted(_TIMES.sub("", line) for line in file.read_text().splitlines())
        )
        for file in files
    }


async def replayed(folder: Path, episodes: int) -> dict[str, Any]:
    """Live, and again without the engine."""
    engine, cassette = Engine(), str(folder / "evaluation.db")
    tasks = make_tasks(episodes, CALLS)
    for mode in ("live", "replay"):
        agent = agent_of(engine.url, cassette, cassette_mode=mode)
        result = await evaluate(tasks, EpisodeRunner(agent), folder / mode, progress=False)
        await agent.environments.close()
        if mode == "live":
            engine.close()
    live, again = said(folder / "live"), said(folder / "replay")
    return {
        "files": len(live),
        "bytes": sum(map(len, live.values())),
        "failed": result.failed,
        "equal": live == again,
        "holds": bool(live) and live == again and not result.failed,
    }


def trained(folder: Path) -> dict[str, Any]:
    """Freeze what the evaluation recorded, and train there."""
    cassette = Cassette(folder / "evaluation.db", read_only=True)
    done = freeze(cassette, folder / "web")
    pages = [result.origin for _, result in cassette.results() if result.title]
    cassette.close()
    tasks = [
        replace(
            make_task(WORLD, 0, number),
            documents=(),
            metadata={"start": pages[number % len(pages)]},
        )
        for number in range(4)
    ]
    shown: list[bool] = []

    def look(step: int, finished: Sequence[Episode]) -> None:
        for episode in finished:
            (text,) = episode.steps[0].observation.values("text")
            shown.append(text.startswith("Here is page") and not episode.failed)

    trainer = toy_trainer(
        {
            "output_dir": str(folder / "trained"),
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "num_generations": 4,
            "learning_rate": 1e-3,
            "logging_steps": 1,
        },
        tasks,
        {
            "environment": "web",
            "tools": ["corpus"],
            "corpus": str(folder / "web"),
            "calls": "compact",
        }
        | {"max_calls": 2, "chunk_tokens": 64, "max_tokens": 16},
        on_episodes=look,
    )
    trainer.train()
    steps = trainer.state.global_step
    return {
        **done,
        "updates": steps,
        "episodes_on_frozen_pages": sum(shown),
        "holds": steps == 2 and bool(shown) and all(shown),
    }


def main() -> int:
    """Run all three, print a line for each and the JSON line."""
    parser = command_line(__doc__)
    add_quick(parser)
    episodes = 4 if parser.parse_args().quick else EPISODES
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result: dict[str, Any] = {"episodes": episodes, "processes": PROCESSES}
        for part, values in (
            ("once", once(folder, episodes)),
            ("replay", asyncio.run(replayed(folder, episodes))),
            ("frozen", trained(folder)),
        ):
            print(part, values, flush=True)
            result[part] = values
    result["holds"] = episodes == EPISODES and all(
        result[part]["holds"] for part in ("once", "replay", "frozen")
    )
    return last_line(result)


if __name__ == "__main__":
    raise SystemExit(main())
