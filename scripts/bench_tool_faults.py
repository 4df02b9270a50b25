"""Bar: of 10,000 calls of tools 5% go wrong in every way, and no episode is lost or scored for what is not its fault.

    python scripts/bench_tool_faults.py [--quick]

Episodes of `CALLS` calls ask an engine on loopback (`/retrieve`, `/access`). One call in twenty goes wrong, in one of
`CLASSES`, drawn evenly; the policy is a script that answers right after its last call, whatever it was shown.

- `missing` is the page's fault, and `unknown tool`, `bad arguments`, `no JSON` are the policy's: the episode goes on.
- `once ...`: the provider fails once. A retry mends it, and nothing shows.
- `always ...`: the provider fails for good. The episode must be failed, without a reward; the engine is then repaired,
  and the same evaluation, run again, must bring every episode to its end.

An episode is lost if it has no record in the end, and wrongly scored if it has a reward where a provider had failed,
or none or another than 1 where none had. No request may be sent more often than `tool_retries` allow (twice that where
a connection breaks: a broken one is made anew at once).

Then an evaluation that records on a cassette is killed (SIGKILL) at `KILLS` moments and started again each time. The
cassette must stay whole (`PRAGMA integrity_check`), every episode must come to its end, and nothing that is recorded
may be asked again: at most what was in flight when it was killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import tempfile
import time
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from quick import add_quick, command_line, last_line
from web_engine import Engine, asking, make_tasks

from atommem.episode_runner import EpisodeRunner
from atommem.eval.output import EPISODES
from atommem.eval.runner import evaluate
from atommem.session import Agent

COUNT, CALLS, FAULTY, RETRIES, IN_FLIGHT = 1000, 10, 0.05, 2, 64
KILLS, KILLED_EPISODES, KILLED_IN_FLIGHT = 20, 200, 4
ALWAYS = ("always 500", "always 401", "always break", "always nonsense", "always silent")
ONCE = ("once 429", "once 500", "once 503", "once break")
POLICYS = {
    "unknown tool": '<tool_call>{"name": "look", "arguments": {"page": "x"}}</tool_call>',
    "bad arguments": '<tool_call>{"name": "visit", "arguments": {"number": 3}}</tool_call>',
    "no JSON": "<tool_call>visit page 3</tool_call>",
}
CLASSES = ("missing", *POLICYS, *ONCE, *ALWAYS)


def fault_of(episode: int, step: int) -> str:
    """The class of what goes wrong with this call, or nothing."""
    draw = random.Random(f"fault {episode} {step}")
    return draw.choice(CLASSES) if draw.random() < FAULTY else ""


def call(episode: int, step: int) -> tuple[str, str] | str:
    """Every call asks for something of its own, whose name says what goes wrong."""
    fault = fault_of(episode, step)
    if fault in POLICYS:
        return POLICYS[fault]
    tool = "visit" if fault == "missing" or (episode + step) % 2 else "search"
    return tool, f"{'page' if tool == 'visit' else 'query'} {episode}-{step} {fault}".strip()


def happens(what: str, before: int) -> str:
    """At the engine, to a request for `what` that was sent so often before."""
    _, lasting, fault = what.partition("always ")
    if not lasting and before == 0:
        fault = what.partition("once ")[2]
    return fault


def agent_of(url: str, **settings: Any) -> Agent:
    """Asks the engine."""
    return asking(url, call, max_calls=CALLS, tool_retries=RETRIES, tool_seconds=3.0, **settings)


async def faults(folder: Path, count: int) -> dict[str, Any]:
    """With all faults, and again once the engine is repaired."""
    tasks = make_tasks(count, CALLS)
    broken = [True]
    engine = Engine(lambda what, before: happens(what, before) if broken[0] else "")
    agent = agent_of(engine.url, tool_requests=IN_FLIGHT)
    runner = EpisodeRunner(agent, max_in_flight=IN_FLIGHT)
    began = time.perf_counter()
    first = await evaluate(tasks, runner, folder / "faults", progress=False)
    seconds = time.perf_counter() - began
    asked, broken[0] = dict(engine.asked), False
    second = await evaluate(tasks, runner, folder / "faults", progress=False)
    await agent.environments.close()
    engine.close()
    drawn = Counter(fault_of(episode, step) for episode in range(count) for step in range(CALLS))
    theirs = {
        f"task-{episode}"
        for episode in range(count)
        if any(fault_of(episode, step) in ALWAYS for step in range(CALLS))
    }
    wrong = [
        record.task_id
        for record in first.records
        if (record.reward is not None or not record.failed) != (record.task_id not in theirs)
        or record.reward not in (None, 1.0)
    ]
    most = {what: (1 + RETRIES) * (1 + ("break" in what)) for what in asked}
    return {
        "calls": count * CALLS,
        "faults": sum(number for fault, number in drawn.items() if fault),
        "failed": first.failed,
        "lost": count - len(second.records) + second.failed,
        "wrongly_scored": len(wrong),
        "not_1_in_the_end": sum(record.reward != 1.0 for record in second.records),
        "requests_beyond_their_retries": sum(number > most[what] for what, number in asked.items()),
        "repeated_without_need": sum(
            number > 1
            for what, number in asked.items()
            if "once" not in what and "always" not in what
        ),
        "seconds": round(seconds, 1),
        "by_class": dict(sorted((fault, number) for fault, number in drawn.items() if fault)),
    }


def recorded(url: str, folder: Path, episodes: int, begun: Any) -> None:
    """The evaluation that is killed, in a process of its own."""

    async def run() -> None:
        agent = agent_of(url, cassette=str(folder / "cassette.db"))
        begun.set()
        runner = EpisodeRunner(agent, max_in_flight=KILLED_IN_FLIGHT)
        await evaluate(make_tasks(episodes, CALLS), runner, folder / "killed", progress=False)
        await agent.environments.close()

    asyncio.run(run())


def killed(folder: Path, kills: int, episodes: int) -> dict[str, Any]:
    """Kill it, look at the cassette, start it again."""
    engine, context = Engine(seconds=0.03), get_context("spawn")
    done, damaged, draw = 0, 0, random.Random(0)
    while True:
        begun = context.Event()
        process = context.Process(target=recorded, args=(engine.url, folder, episodes, begun))
        process.start()
        begun.wait()
        ended = done >= kills
        if not ended:
            time.sleep(draw.uniform(0.05, 0.8))
            ended = not process.is_alive()
            process.kill()
            done += not ended
        process.join()
        file = sqlite3.connect(folder / "cassette.db")
        damaged += file.execute("PRAGMA integrity_check").fetchone() != ("ok",)
        file.close()
        if ended:
            break
    records = [json.loads(line) for line in (folder / "killed" / EPISODES).read_text().splitlines()]
    asked = dict(engine.asked)
    engine.close()
    wanted = {
        made[1]
        for episode in range(episodes)
        for step in range(CALLS)
        if not isinstance(made := call(episode, step), str)
    }
    right = {record["task_id"] for record in records if record["reward"] == 1.0}
    return {
        "kills": done,
        "damaged": damaged,
        "episodes_lost": episodes - len(right),
        "requests": sum(asked.values()),
        "distinct": len(wanted),
        "asked_again": sum(asked.values()) - len(asked),
        "never_asked": len(wanted - set(asked)),
    }


def main() -> int:
    """Run both, print a line for each and the JSON line."""
    parser = command_line(__doc__)
    add_quick(parser)
    count, kills, killed_episodes = (
        (20, 2, 30) if parser.parse_args().quick else (COUNT, KILLS, KILLED_EPISODES)
    )
    with tempfile.TemporaryDirectory() as name:
        first = asyncio.run(faults(Path(name), count))
        print("faults", first, flush=True)
        second = killed(Path(name), kills, killed_episodes)
        print("killed", second, flush=True)
    none = (
        "lost",
        "wrongly_scored",
        "not_1_in_the_end",
        "requests_beyond_their_retries",
        "repeated_without_need",
    )
    holds = (
        count >= COUNT
        and not any(first[name] for name in none)
        and second["kills"] >= KILLS
        and not (second["damaged"] or second["episodes_lost"] or second["never_asked"])
        and second["asked_again"] <= KILLS * KILLED_IN_FLIGHT
    )
    return last_line({"faults": first, "killed": second, "holds": holds})


if __name__ == "__main__":
    raise SystemExit(main())
